"""The stored form of a query's keywords, weights and confidence (one row of a query snapshot) in
index and Redis. Stored rows are checked when they are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import to_json

from cogr.keywords import with_self
from cogr.snapshots import Row
from cogr.snapshots.writing import HEAVIEST
from indexers.backends.opensearch.search import MAX_CLAUSES

_Weight = Annotated[float, Field(ge=0, le=HEAVIEST, allow_inf_nan=False)]


class _Entry(BaseModel):
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


def to_bytes(row: Row) -> bytes:
    """A row as Redis stores it: a JSON object."""
    return to_json({"keywords": row.keywords, "weights": row.weights, "confidence": row.confidence})


def from_bytes(value: bytes) -> Row:
    """The row in a value of Redis. Raises ValueError for a value in another form."""
    return _Entry.model_validate_json(value).row()


def from_document(source: Any) -> Row:
    """The row in a document of the query index. Raises ValueError for a document in
    another form.
    """
    names = {"keywords": "generated", "weights": "weights", "confidence": "confidence"}
    return _Entry.model_validate({name: source.get(here) for name, here in names.items()}).row()


def weigh(text: str, row: Row) -> tuple[Sequence[str], Sequence[float]]:
    """A row's keywords, the text first, and their weights; () where all are 1."""
    if not row.weights:
        return with_self(text, row.keywords)[:MAX_CLAUSES], ()
    *weights, own = row.weights
    found = {text: own} if text else {}
    for word, weight in zip(row.keywords, weights, strict=True):
        found.setdefault(word, weight)
    return list(found)[:MAX_CLAUSES], list(found.values())[:MAX_CLAUSES]
