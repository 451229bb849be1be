"""The expander's requests and answers as OpenAPI shows them, and how they are read and written. No decisions here."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from indexers.backends.opensearch.search import query_body
from ops.expander.expander import Expanded, Expansion
from ops.expander.pair import Pair


class Ask(BaseModel):
    """A query, or several."""

    model_config = ConfigDict(extra="forbid", strict=True)

    query: str | None = Field(None, description="What a shopper typed")
    queries: list[str] | None = Field(None, description="Several of them; instead of query")


class Snapshots(BaseModel):
    """The pair of snapshots that an answer belongs to."""

    item: str | None
    query: str | None


class ExpansionAnswer(BaseModel):
    """One query's keywords."""

    keywords: list[str] = Field(description="The normalised query first, then its keywords")
    source: Literal["cache", "index", "model", "none"]
    reason: Literal["", "unknown", "deadline", "overloaded", "away", "empty"] = Field(description="Why, for none")
    clause: dict[str, Any] = Field(description="The OpenSearch query: put it where a query clause goes")


class OneAnswer(ExpansionAnswer):
    """The answer to one query."""

    snapshots: Snapshots
    index: str | None = Field(description="The index to search, so that no rounds mix; null in the memory backend")


class ManyAnswers(BaseModel):
    """The answers to several queries, in their order."""

    answers: list[ExpansionAnswer]
    snapshots: Snapshots
    index: str | None


class Problem(BaseModel):
    """Why a request was refused. Never repeats the query."""

    detail: str


def write(expanded: Expanded, *, many: bool) -> bytes:
    """The JSON of an answer."""
    answers = [_answer(expansion) for expansion in expanded.expansions]
    body = {"answers": answers} if many else answers[0]
    return to_json({**body, **_pair(expanded.pair)})


def _answer(expansion: Expansion) -> dict[str, Any]:
    return {
        "keywords": expansion.keywords,
        "source": expansion.source,
        "reason": expansion.reason,
        "clause": query_body(expansion.keywords),
    }


def _pair(pair: Pair) -> dict[str, Any]:
    snapshots = {"item": pair.item and pair.item.snapshot, "query": pair.query and pair.query.snapshot}
    return {"snapshots": snapshots, "index": (pair.item and pair.item.index) or None}
