"""What the page asks. Anything else is refused."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from indexers.backends.opensearch.search import MAX_CLAUSES

Text = Annotated[str, StringConstraints(max_length=4096)]
ItemSnapshot = Annotated[str, StringConstraints(pattern=r"^item-r\d{3,}-[0-9a-f]{12}$")]
QuerySnapshot = Annotated[str, StringConstraints(pattern=r"^query-r\d{3,}-[0-9a-f]{12}$")]


class _Ask(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Asked(_Ask):
    """A pair of snapshots, and the keywords to search for instead of the query's own."""

    item: ItemSnapshot
    query: QuerySnapshot | None = None
    keywords: list[Text] | None = Field(None, max_length=MAX_CLAUSES)


class WorldAsk(_Ask):
    """What there is to look at."""


class SearchAsk(_Ask):
    """One query, searched with one pair or with two beside one another."""

    query: Text
    pairs: list[Asked] = Field(min_length=1, max_length=2)
    size: int = Field(20, ge=1, le=200)


class QueriesAsk(_Ask):
    """The labelled queries, with how each of one pair or two does."""

    pairs: list[Asked] = Field(min_length=1, max_length=2)
    shown: int = Field(0, ge=0, le=1, description="The pair whose figures sort")
    match: Text = ""
    sort: Literal["worst", "best", "change", "text"] = "worst"
    size: int = Field(50, ge=1, le=1000)


class BaselineAsk(_Ask):
    """The same query by the words of the items' text, cut at the number of items that the keywords
    find.
    """

    query: Text
    cut: int = Field(ge=0)
    size: int = Field(20, ge=1, le=200)


class ItemAsk(_Ask):
    """One item of a pair."""

    id: Text
    pair: Asked


class LiveAsk(_Ask):
    """A search at the cluster, compared with the mirror."""

    pair: Asked
    keywords: list[Text] = Field(max_length=MAX_CLAUSES)
    size: int = Field(20, ge=1, le=200)
