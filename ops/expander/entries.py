"""A query's keywords, their weights and the confidence in them, as they pass between index, model
and Redis: one row of a query snapshot. What was stored elsewhere is checked when it is read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from cogr.keywords import cut_to_budget, parse, with_self
from cogr.snapshots import Row, rounded
from cogr.snapshots.writing import HEAVIEST
from indexers.backends.opensearch.search import MAX_CLAUSES
from indexers.generators import Completion

_Weight = Annotated[float, Field(gt=0, le=HEAVIEST, allow_inf_nan=False)]


class _Entry(BaseModel):
    """What was stored. Former versions stored keywords alone."""

    model_config = ConfigDict(strict=True)

    keywords: list[str]
    weights: list[_Weight] | None = None
    confidence: Annotated[float, Field(ge=0, le=1)] | None = None

    @model_validator(mode="after")
    def _one_weight_each(self) -> _Entry:
        if self.weights and len(self.weights) != len(self.keywords) + 1:
            raise ValueError("there is a weight for each keyword and one for the query")
        return self

    def row(self) -> Row:
        # Lone surrogates can't be sent on: a UnicodeEncodeError is a ValueError.
        "".join(self.keywords).encode()
        return Row("", "", tuple(self.keywords), "", tuple(self.weights or ()), self.confidence)


_KEYWORDS = TypeAdapter(list[str])


def to_bytes(row: Row) -> bytes:
    """A row as Redis keeps it: an object, or the list of its keywords where they are all that is
    known, as former versions wrote and read.
    """
    words: Any = list(row.keywords)
    if row.weights or row.confidence is not None:
        words = {"keywords": words, "weights": list(row.weights), "confidence": row.confidence}
    return json.dumps(words, ensure_ascii=False).encode()


def from_bytes(value: bytes) -> Row:
    """The row in a value of Redis. Raises ValueError when somebody else wrote it."""
    if value[:1] == b"[":
        return _Entry(keywords=_KEYWORDS.validate_json(value, strict=True)).row()
    return _Entry.model_validate_json(value).row()


def from_document(source: Any) -> Row:
    """The row in a document of the query index. Raises ValueError when it is none of ours."""
    names = {"keywords": "generated", "weights": "weights", "confidence": "confidence"}
    return _Entry.model_validate({name: source.get(here) for name, here in names.items()}).row()


def from_completion(answer: Completion, text: str, k_max: int) -> Row:
    """The row that a generator wrote for a normalised text, at most `k_max` keywords."""
    words = cut_to_budget((word for word in parse(answer.text) if word != text), k_max)
    weights = tuple(rounded(answer.weights.get(word, 1.0)) for word in (*words, text))
    sure = None if answer.confidence is None else rounded(answer.confidence)
    return Row("", "", words, "", weights if any(one != 1 for one in weights) else (), sure)


def weigh(text: str, row: Row) -> tuple[Sequence[str], Sequence[float]]:
    """A row's keywords, the text first, and their weights; () where all are 1."""
    if not row.weights:
        return with_self(text, row.keywords)[:MAX_CLAUSES], ()
    *weights, own = row.weights
    found = {text: own} if text else {}
    for word, weight in zip(row.keywords, weights, strict=True):
        found.setdefault(word, weight)
    return list(found)[:MAX_CLAUSES], list(found.values())[:MAX_CLAUSES]
