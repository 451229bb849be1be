"""The expander's requests and answers as OpenAPI shows them, and how they are read and written.

No decisions here.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from indexers.backends.opensearch.search import clause, query_body
from ops.expander.expander import Expanded, Expansion
from ops.expander.follower import Pair


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
    reason: Literal["", "unknown", "deadline", "overloaded", "away", "empty"] = Field(
        description="Why, for none"
    )
    clause: dict[str, Any] = Field(
        description="The OpenSearch query: put it where a query clause goes"
    )


class OneAnswer(ExpansionAnswer):
    """The answer to one query."""

    snapshots: Snapshots
    index: str | None = Field(
        description="The index to search, so that no rounds mix; null in the memory backend"
    )


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
    body = (
        b'"answers":[%b]' % b",".join(b"{%b}" % answer for answer in answers)
        if many
        else answers[0]
    )
    return b"{%b,%b}" % (body, _pair(expanded.pair))


# Made once from `query_body`, since serialising its many small objects takes longer than all else:
# what stands before the first clause and after the last one, and before and after each keyword.
_MARK = "?"
_FIRST, _LAST = to_json(query_body([_MARK])).split(to_json(clause(_MARK)))
_BEFORE, _AFTER = to_json(clause(_MARK)).split(to_json(_MARK))
_NOTHING = to_json(query_body([]))


def _answer(expansion: Expansion) -> bytes:
    keywords = [to_json(word) for word in expansion.keywords]
    clauses = b",".join(b"%b%b%b" % (_BEFORE, word, _AFTER) for word in keywords)
    fields = (
        b",".join(keywords),
        to_json(expansion.source),
        to_json(expansion.reason),
        b"%b%b%b" % (_FIRST, clauses, _LAST) if keywords else _NOTHING,
    )
    return b'"keywords":[%b],"source":%b,"reason":%b,"clause":%b' % fields


def _pair(pair: Pair) -> bytes:
    snapshots = {
        "item": pair.item and pair.item.snapshot,
        "query": pair.query and pair.query.snapshot,
    }
    return to_json({"snapshots": snapshots, "index": (pair.item and pair.item.index) or None})[1:-1]
