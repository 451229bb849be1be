"""Request bodies with placeholders. They are filled after the JSON was read: a query is data, and
can't become syntax.

`{{query}}` inside of any string becomes the query's text. A string that is `{{keywords}}` becomes
the list of keywords, one that is `{{clause}}` the OpenSearch query that matches them, and `{{clause
FIELD}}` the same over another field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cogr.datasets.reading import Place, json_object, lines
from cogr.errors import DataError
from indexers.backends.opensearch.search import KEYWORDS as FIELD
from indexers.backends.opensearch.search import query_body

QUERY = "{{query}}"
KEYWORDS = "{{keywords}}"
_CLAUSE = re.compile(r"\{\{clause(?: ([^\s{}]+))?\}\}")


@dataclass(frozen=True)
class Body:
    """A request body with placeholders, and where it comes from."""

    template: Mapping[str, Any]
    source: str

    @classmethod
    def read(cls, path: Path) -> Body:
        """From a JSON file. Raises DataError."""
        if not path.is_file():
            raise DataError(
                f"The request body {path} is not there; write the JSON of a search with {QUERY} "
                "in it."
            )
        text = "\n".join(line for _, line in lines(path))
        try:
            value = json.loads(text)
        except json.JSONDecodeError as error:
            place = Place(path, error.lineno)
            raise DataError(
                f"{place}: this is no JSON ({error.msg}); write the body of one search, "
                "placeholders in quotes."
            ) from error
        return cls(json_object(value, Place(path, 1)), str(path))

    def need(self, *, keywords: bool) -> None:
        """Raises DataError for a body that would ask the same whatever the query is."""
        found = list(_strings(self.template))
        if keywords and not any(text == KEYWORDS or _CLAUSE.fullmatch(text) for text in found):
            raise DataError(
                f'{self.source} has no "{{{{clause}}}}"; put it where the clause of the keywords '
                "belongs."
            )
        if not keywords and not any(QUERY in text for text in found):
            raise DataError(f"{self.source} has no {QUERY}; put it where the query's text belongs.")

    def fill(self, query: str, keywords: Sequence[str] = ()) -> dict[str, Any]:
        """The body for one query."""
        filled: dict[str, Any] = _fill(self.template, query, keywords)
        return filled


CLAUSE_ALONE = Body({"query": "{{clause}}"}, "the clause alone")
"""Keywords alone, ranked by BM25: what CoGR is without anything else."""


def _fill(value: Any, query: str, keywords: Sequence[str]) -> Any:
    if isinstance(value, Mapping):
        return {key: _fill(inner, query, keywords) for key, inner in value.items()}
    if isinstance(value, list):
        return [_fill(inner, query, keywords) for inner in value]
    if not isinstance(value, str):
        return value
    if value == KEYWORDS:
        return list(keywords)
    if clause := _CLAUSE.fullmatch(value):
        return query_body(keywords, clause[1] or FIELD)
    return value.replace(QUERY, query)


def _strings(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [text for inner in value.values() for text in _strings(inner)]
    if isinstance(value, list):
        return [text for inner in value for text in _strings(inner)]
    return [value] if isinstance(value, str) else []
