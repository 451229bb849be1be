"""Request bodies with placeholders, which are filled after the JSON was read: a query is data, and
can't become syntax. `{{query}}` inside of any string becomes the query's text. A string that is
`{{keywords}}` becomes the list of keywords, one that is `{{clause}}` the OpenSearch query that
matches them with their weights, and `{{clause FIELD}}` the same over another field. An object
`{"{{blend}}": TEXT}` (or `{{blend FIELD}}`) becomes that clause, the text query TEXT, or both, as
the expander's `mode` says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cogr.datasets.reading import Place, json_object, lines
from cogr.errors import DataError
from indexers.backends.opensearch.search import KEYWORDS as FIELD
from indexers.backends.opensearch.search import query_body

QUERY = "{{query}}"
KEYWORDS = "{{keywords}}"
_CLAUSE = re.compile(r"\{\{clause(?: ([^\s{}]+))?\}\}")
_BLEND = re.compile(r"\{\{blend(?: ([^\s{}]+))?\}\}")


@dataclass(frozen=True)
class Expansion:
    """What the expander says of a query: keywords with their weights, and what to search by. One of
    a former version says nothing but the keywords.
    """

    keywords: Mapping[str, float] = field(default_factory=dict)
    mode: str = "keywords"
    text_boost: float = 1.0

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> Expansion:
        words = answer["keywords"]
        weighted = dict(zip(words, answer.get("weights") or [1.0] * len(words), strict=True))
        return cls(weighted, answer.get("mode", "keywords"), answer.get("text_boost", 1.0))

    def clause(self, field: str | None) -> dict[str, Any]:
        """The OpenSearch query of the keywords over a field."""
        return query_body(self.keywords, field or FIELD)

    def blend(self, field: str | None, text: Any) -> Any:
        """That, a text query, or both in one."""
        if self.mode == "text":
            return text
        if self.mode == "keywords":
            return self.clause(field)
        beside = {"bool": {"must": [text], "boost": self.text_boost}}
        return {"bool": {"should": [self.clause(field), beside], "minimum_should_match": 1}}


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
        placeholders = (_CLAUSE, _BLEND, re.compile(re.escape(KEYWORDS)))
        if keywords and not any(one.fullmatch(text) for text in found for one in placeholders):
            raise DataError(
                f'{self.source} has no "{{{{clause}}}}"; put it where the clause of the keywords '
                "belongs."
            )
        if not keywords and not any(QUERY in text for text in found):
            raise DataError(f"{self.source} has no {QUERY}; put it where the query's text belongs.")

    def fill(self, query: str, expansion: Expansion | None = None) -> dict[str, Any]:
        """The body for one query."""
        filled: dict[str, Any] = _fill(self.template, query, expansion or Expansion())
        return filled


CLAUSE_ALONE = Body({"query": "{{clause}}"}, "the clause alone")
"""Keywords alone, ranked by BM25: what CoGR is without anything else."""


def _fill(value: Any, query: str, expansion: Expansion) -> Any:
    if isinstance(value, Mapping):
        filled = {key: _fill(inner, query, expansion) for key, inner in value.items()}
        blend = _BLEND.fullmatch(next(iter(filled))) if len(filled) == 1 else None
        return expansion.blend(blend[1], filled[blend[0]]) if blend else filled
    if isinstance(value, list):
        return [_fill(inner, query, expansion) for inner in value]
    if not isinstance(value, str):
        return value
    if value == KEYWORDS:
        return list(expansion.keywords)
    if clause := _CLAUSE.fullmatch(value):
        return expansion.clause(clause[1])
    return value.replace(QUERY, query)


def _strings(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [*value, *(text for inner in value.values() for text in _strings(inner))]
    if isinstance(value, list):
        return [text for inner in value for text in _strings(inner)]
    return [value] if isinstance(value, str) else []
