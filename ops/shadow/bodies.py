"""Request bodies of a replay.

Their placeholders are filled after the JSON is parsed, so that a query can't
become syntax. `{{query}}` inside of any string becomes the query's text. A string that is
`{{clause}}` becomes the OpenSearch query that matches the keywords with their weights, and
`{{clause FIELD}}` the same over another field. `{{blend}}` becomes the clause of the expander's
answer, which is what serves: keywords and literal matches first, then what more the text finds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cogr.datasets.reading import Place, json_object, lines
from cogr.errors import DataError
from indexers.backends.opensearch.search import KEYWORDS as FIELD
from indexers.backends.opensearch.search import query_body

QUERY = "{{query}}"
_CLAUSE = re.compile(r"\{\{clause(?: ([^\s{}]+))?\}\}")
_BLEND = "{{blend}}"
NOTHING: Mapping[str, Any] = {"keywords": (), "weights": (), "clause": {"match_none": {}}}
"""What an expander would answer to a query without keywords, as far as a body is filled with it."""


@dataclass(frozen=True)
class Body:
    """A request body with placeholders, and where it comes from."""

    template: Mapping[str, Any]
    source: str

    @classmethod
    def read(cls, path: Path, *, keywords: bool) -> Body:
        """From a JSON file; with `keywords` it must ask for them, else for the query. Raises
        DataError.
        """
        if not path.is_file():
            raise DataError(
                f"There is no request body {path}; write the JSON of a search with {QUERY} in it."
            )
        text = "\n".join(line for _, line in lines(path))
        try:
            body = cls(json_object(json.loads(text), Place(path, 1)), str(path))
        except json.JSONDecodeError as error:
            place = Place(path, error.lineno)
            raise DataError(
                f"{place}: this is not JSON ({error.msg}); write the body of one search, "
                "placeholders in quotes."
            ) from error
        strings = list(_strings(body.template))
        if keywords and not any(text == _BLEND or _CLAUSE.fullmatch(text) for text in strings):
            raise DataError(
                f'{path} has no "{{{{clause}}}}"; put it where the clause of the keywords belongs.'
            )
        if not keywords and not any(QUERY in text for text in strings):
            raise DataError(f"{path} has no {QUERY}; put it where the query's text belongs.")
        return body

    @property
    def fields(self) -> Sequence[str]:
        """The fields that its matches read."""
        return list(dict.fromkeys(_fields(self.template)))

    def fill(self, query: str, expansion: Mapping[str, Any]) -> dict[str, Any]:
        """The body for one query and the expander's answer to it."""
        filled: dict[str, Any] = _fill(self.template, query, expansion)
        return filled


SERVED = Body({"query": _BLEND}, "the expander's clause")
"""The default body: what serves."""


def _fill(value: Any, query: str, expansion: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _fill(inner, query, expansion) for key, inner in value.items()}
    if isinstance(value, list):
        return [_fill(inner, query, expansion) for inner in value]
    if not isinstance(value, str):
        return value
    if value == _BLEND:
        return expansion["clause"]
    if clause := _CLAUSE.fullmatch(value):
        keywords = dict(zip(expansion["keywords"], expansion["weights"], strict=True))
        return query_body(keywords, clause[1] or FIELD)
    return value.replace(QUERY, query)


def _fields(value: Any) -> Iterator[str]:
    """The fields that the matches of a body read."""
    for inner in value if isinstance(value, list) else ():
        yield from _fields(inner)
    for key, inner in value.items() if isinstance(value, Mapping) else ():
        if key in ("match", "match_phrase"):
            yield from inner
        elif key == "fields":
            yield from (str(name).partition("^")[0] for name in inner)
        else:
            yield from _fields(inner)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _strings(inner)
