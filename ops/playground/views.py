"""What the page shows, as plain data: a search, the baseline, an item, and all labelled queries.
They are made from snapshots and the data set, which are opened when first asked for. Nothing here
uses HTTP.

The list of labelled queries measures the set that each pair answers with.
"""

from __future__ import annotations

import asyncio
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import cached_property, lru_cache
from statistics import fmean
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pyroaring import BitMap

from cogr.datasets.items import in_id_order
from cogr.errors import CogrError, DataError
from cogr.keywords import NORMALISER, query_key, self_keyword
from cogr.matching.postings import to_bitmap
from cogr.metrics import SetLike, full_set
from cogr.records import Dataset, Item, Query
from cogr.snapshots import Manifest, list_snapshots, open_snapshot, why_no_pair
from cogr.snapshots.writing import HEAVIEST
from indexers.backends import (
    MAX_CLAUSES,
    Backend,
    Pair,
    SearchResult,
    ServedSide,
    Words,
    text_boost,
)
from indexers.backends.memory import Opened, Ranked
from indexers.generators.statistical.generator import writer_of
from indexers.release.rules import Rule, rules_of
from indexers.search import Found, Searcher
from indexers.text import Lexical
from indexers.workspace import Workspace
from ops.expander.app import MAX_QUERY_CHARS
from ops.expander.expander import Parts

_PATIENCE: Mapping[str, float] = {"loading": 60.0, "deadline": 10.0}
"""Why there are no keywords yet -> seconds that a person waits for them, unlike a shopper."""
_AGAIN = 0.1
_OPEN = 8
"""Most open snapshots: both sides of the pairs A and B, and of the two pairs before."""
_LISTED = 50
"""Most pairs to choose from, newest first."""
_QUERIES = 200
"""Most labelled queries that are listed."""
_EXAMPLES = 6
_REACHING = 25
_MISSED = 25

Text = Annotated[str, StringConstraints(max_length=MAX_QUERY_CHARS)]
ItemSnapshot = Annotated[str, StringConstraints(pattern=r"^item-r\d{3,}-[0-9a-f]{12}$")]
QuerySnapshot = Annotated[str, StringConstraints(pattern=r"^query-r\d{3,}-[0-9a-f]{12}$")]
Size = Annotated[int, Field(ge=1, le=200)]


class WeightedText(BaseModel):
    """A keyword as typed, and its weight."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: Text
    weight: float = Field(1.0, ge=0, le=HEAVIEST, allow_inf_nan=False)


class RequestedPair(BaseModel):
    """A pair of snapshots, and the keywords to search for instead of the query's own."""

    model_config = ConfigDict(extra="forbid", strict=True)

    item: ItemSnapshot
    query: QuerySnapshot | None = None
    keywords: list[WeightedText] | None = Field(None, max_length=MAX_CLAUSES)


_Pairs = Annotated[list[RequestedPair], Field(min_length=1, max_length=2)]
Order = Literal["worst", "change"]


class PlaygroundAnswers:
    """Answers the page's requests, from the snapshots and the data set of a workspace. Threads may
    share it.
    """

    def __init__(self, workspace: Workspace, parts: Parts) -> None:
        self._workspace, self._parts = workspace, parts
        self._opened = lru_cache(_OPEN)(lambda id_: Opened(open_snapshot(workspace.store, id_)))
        self._f1 = lru_cache(8)(self._measured)
        self._searcher = lru_cache(4)(self._paired)
        self._opening = threading.RLock()

    def page(self) -> dict[str, Any]:
        """The pairs to choose from, and what the data set holds."""
        serving = self._parts.follower.pair
        pairs = self._pairs(serving)
        choices = [_listed(one, serving) for one in pairs]
        catalogue, problem = self._catalogue_or_why()
        counts = catalogue and {
            "items": len(catalogue.dataset.items),
            "queries": len(catalogue.dataset.all_queries()),
        }
        absent = serving.item is not None and not any(choice["serving"] for choice in choices)
        return {
            "pairs": choices,
            "absent": serving.item.snapshot if serving.item and absent else None,
            "data": counts,
            "rules": [astuple(rule) for rule in self._rules(pairs[0][0].id)] if pairs else [],
            "examples": catalogue.examples(_EXAMPLES) if catalogue else [],
            "problem": problem,
            "loading": self._loading,
        }

    async def search(self, query: Text, pairs: _Pairs, size: Size = 20) -> dict[str, Any]:
        """One query with one pair, or with two side by side. The first answers wait for a model
        that is being loaded; `waited` says so.
        """
        loading, started = self._loading, time.monotonic()
        words = [await self._words(query, asked) for asked in pairs]
        waited = time.monotonic() - started if loading else 0.0

        def searched() -> list[dict[str, Any]]:
            catalogue, _ = self._catalogue_or_why()
            searches = [
                PairSearch(query, one, self._open(asked.item), catalogue, self._cluster_of(asked))
                for asked, one in zip(pairs, words, strict=True)
            ]
            besides = searches[::-1] if len(searches) > 1 else [None]
            return [one.as_dict(size, of) for one, of in zip(searches, besides, strict=True)]

        return {"pairs": await asyncio.to_thread(searched), "waited": round(waited, 1)}

    @property
    def _loading(self) -> bool:
        return self._parts.models.state == "loading"

    def queries(
        self,
        pairs: _Pairs,
        shown: Annotated[int, Field(ge=0, le=1)] = 0,
        sort: Order = "worst",
    ) -> dict[str, Any]:
        """The labelled queries with F1 of one or two pairs: those with the worst of pair `shown`
        first, or those where two pairs differ most.
        """
        catalogue, of = self._catalogue, min(shown, len(pairs) - 1)
        figures = [self._f1(pair.item, pair.query) for pair in pairs]
        relevant = catalogue.dataset.relevant
        rows: list[dict[str, Any]] = [
            {"text": query.text, "relevant": len(relevant[query.id]), "f1": f1}
            for query, f1 in zip(catalogue.measured, zip(*figures, strict=True), strict=True)
        ]
        ways: dict[Order, Callable[[Sequence[float]], float]] = {
            "worst": lambda f1: f1[of],
            "change": lambda f1: -abs(f1[0] - f1[-1]),
        }
        rows.sort(key=lambda row: (ways[sort](row["f1"]), row["text"]))
        mean = [fmean(one) if one else None for one in figures]
        return {"queries": rows[:_QUERIES], "total": len(rows), "mean": mean}

    def baseline(
        self, query: Text, cut: Annotated[int, Field(ge=0)], size: Size = 20
    ) -> dict[str, Any]:
        """BM25 over the words of the items' text: its best `size`, and figures of its best `cut`,
        the size of the set.
        """
        best = self._catalogue.lexical.rank(query, max(cut, size))
        relevant = self._catalogue.relevant(query)
        cut_off = frozenset(id_ for id_, _ in best[:cut])
        hits = [
            {
                "id": item.id,
                "text": item.title,
                "score": score,
                "relevant": relevant and item.id in relevant,
            }
            for id_, score in best[:size]
            if (item := self._catalogue.item(id_))
        ]
        figures = relevant and _figures(cut_off, relevant)
        return {"hits": hits, "cut": len(cut_off), "figures": figures}

    def item(self, id: Text, pair: RequestedPair) -> dict[str, Any]:
        """An item's text and keywords, and which queries reach it."""
        items, (catalogue, _) = self._open(pair.item), self._catalogue_or_why()
        mirror, dense = items.mirror, items.mirror.ids.find(id)
        held, record = dense >= 0, catalogue.item(id) if catalogue else None
        if not held and record is None:
            raise DataError(f"There is no item {id!r} in {items.snapshot.id}; reload the page.")
        words = mirror.keywords_of(dense) if held else ()
        own = mirror.own_keyword(dense) if held else ""
        reached = _reaching(self._open(pair.query), words, catalogue, id) if pair.query else None
        return {
            "id": id,
            "title": record.title if record else items.texts[dense],
            "text": record.text if record else "",
            "fields": items.fields_of(dense) if held else {},
            "held": held,
            "keywords": [{"text": one, "df": mirror.df(one), "own": one == own} for one in words],
            "reached": reached,
        }

    async def _words(self, query: str, asked: RequestedPair) -> Found:
        """What to search by: keywords of the page, or what the expander serves, or the same rule
        for a pair that does not serve.
        """
        pair = self._parts.follower.pair
        if asked.keywords is not None or (asked.item, asked.query) != _snapshots_of(pair):
            return await asyncio.to_thread(self._unserved, query, asked)
        started = time.monotonic()
        expansion = await self._parts.expander.expand(query, pair)
        while time.monotonic() - started < _PATIENCE.get(expansion.reason, 0):
            await asyncio.sleep(_AGAIN)
            expansion = await self._parts.expander.expand(query, pair)
        return expansion

    def _cluster_of(self, asked: RequestedPair) -> Backend | None:
        item = self._parts.follower.pair.item
        serves = item is not None and item.index and item.snapshot == asked.item
        return self._workspace.backend if serves else None

    def _unserved(self, query: str, asked: RequestedPair) -> Found:
        if asked.keywords is None:
            with self._opening:
                return self._searcher(asked.item, asked.query).row_for(query)
        given: dict[str, float] = {}
        for one in asked.keywords:
            if word := self_keyword(one.text):
                given.setdefault(word, one.weight)
        weights = [one for one in given.values() if one != 1]
        words = Words(query, text_boost(weights, self._parts.settings.blend))
        return Found(given, "given", None, words)

    def _paired(self, item: str, query: str | None) -> Searcher:
        """A pair of the store, whether or not it was pushed."""
        items, stored = self._open(item).snapshot, self._open(query) if query else None
        asked = ServedSide.of(stored.snapshot.manifest) if stored else None
        pair = Pair(ServedSide.of(items.manifest), asked)
        return Searcher(self._workspace, pair, stored.row_of if stored else None)

    def _open(self, snapshot: str) -> Opened:
        with self._opening:
            return self._opened(snapshot)

    @cached_property
    def _catalogue(self) -> Catalogue:
        with self._opening:
            return Catalogue(self._workspace.dataset)

    def _catalogue_or_why(self) -> tuple[Catalogue | None, str]:
        try:
            return self._catalogue, ""
        except CogrError as error:
            return None, str(error)

    def _pairs(self, serving: Pair) -> list[tuple[Manifest, Manifest | None]]:
        """The pairs to choose from: the serving pair, then each item snapshot, the newest first,
        with the newest query snapshot that belongs to it.
        """
        known = [m for m in list_snapshots(self._workspace.store) if m.normaliser == NORMALISER]
        by_id = {one.id: one for one in known}
        item, query = (by_id.get(id_ or "") for id_ in _snapshots_of(serving))
        queries = [one for one in known[::-1] if one.side == "query"]
        pairs = [(item, query)] if item else []
        pairs += [(one, _companion(one, queries)) for one in known[::-1] if one.side == "item"]
        distinct = {(one.id, of and of.id): (one, of) for one, of in pairs}
        return list(distinct.values())[:_LISTED]

    def _rules(self, item: str) -> Sequence[Rule]:
        return rules_of(self._workspace.store, item).rules

    def _measured(self, item: str, query: str | None) -> Sequence[float]:
        catalogue, items = self._catalogue, self._open(item)
        known, queries = catalogue.dataset.relevant, catalogue.measured
        with self._opening:
            asked = {one.id: self._searcher(item, query).row_for(one.text) for one in queries}
        retrieved = {id_: items.set_of(one.keywords, one.words) for id_, one in asked.items()}
        relevant = {one.id: items.mirror.wanted(known[one.id]) for one in queries}
        return tuple(full_set(retrieved, relevant).values["f1"].tolist())


def _listed(pair: tuple[Manifest, Manifest | None], serving: Pair) -> dict[str, Any]:
    item, query = pair
    ids = (item.id, query and query.id)
    return {
        "item": item.id,
        "query": ids[1],
        "writer": writer_of(item, query),
        "created": item.created,
        "serving": ids == _snapshots_of(serving),
    }


def _snapshots_of(pair: Pair) -> tuple[str | None, str | None]:
    item, query = (side.snapshot if side else None for side in (pair.item, pair.query))
    return item, query


def _companion(item: Manifest, queries: Sequence[Manifest]) -> Manifest | None:
    kind = item.generator.get("kind")
    own = (one for one in queries if one.generator.get("kind") == kind)
    return next((one for one in own if not why_no_pair(item, one)), None)


class Catalogue:
    """One data set. Threads may share it."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        # The test queries first; of several with one text, the first answers.
        self.labelled: dict[str, Query] = {}
        for query in (*dataset.queries.get("test", ()), *dataset.all_queries()):
            self.labelled.setdefault(query_key(query.text), query)

    def item(self, id_: str) -> Item | None:
        """The item of an id; None when there is none."""
        at = bisect_left(self._sorted, id_, key=lambda item: item.id)
        candidate = self._sorted[at] if at < len(self._sorted) else None
        return candidate if candidate is not None and candidate.id == id_ else None

    @cached_property
    def _sorted(self) -> Sequence[Item]:
        return in_id_order(self.dataset.items)

    def relevant(self, text: str) -> frozenset[str] | None:
        """Ids of the items that are relevant for a query text; None for an unlabelled query."""
        query = self.labelled.get(query_key(text))
        return self.dataset.relevant[query.id] if query else None

    @property
    def measured(self) -> Sequence[Query]:
        """The test queries, from which nothing was learned; all labelled ones if there are none."""
        return self.dataset.queries.get("test") or self.dataset.all_queries()

    def examples(self, count: int) -> list[str]:
        """Texts of measured queries, spread evenly over them."""
        step = max(1, len(self.measured) // count)
        return [query.text for query in self.measured[::step]][:count]

    @cached_property
    def lexical(self) -> Lexical:
        """BM25 over titles and texts, for comparison with the set."""
        return Lexical(self.dataset.items)


@dataclass(frozen=True)
class PairSearch:
    """One pair's search for one query: by its keywords, and by its text."""

    query: str
    asked: Found
    items: Opened
    catalogue: Catalogue | None
    cluster: Backend | None
    """Where the items serve, unless in memory: it reads texts its own way."""

    @property
    def keywords(self) -> Mapping[str, float]:
        """The query's keywords with their weights."""
        return self.asked.keywords

    @cached_property
    def ranking(self) -> Ranked:
        """The set, then what more the text finds."""
        return self.items.rank(self.keywords, self.asked.words, len(self.items.mirror))

    @cached_property
    def retrieved(self) -> BitMap:
        """The whole retrieved set, as dense ids of items."""
        return to_bitmap(self.ranking.dense[: self.ranking.total].astype(np.uint32))

    def finds(self, id_: str) -> bool:
        """Whether an item is in the set."""
        dense = self.items.mirror.ids.find(id_)
        return dense >= 0 and dense in self.retrieved

    def as_dict(self, size: int, beside: PairSearch | None) -> dict[str, Any]:
        """The answer: the best `size` hits, and figures where labels are known. Raises ServiceError
        where the cluster is away.
        """
        mirror, ranked = self.items.mirror, self._best(size)
        relevant = self.catalogue.relevant(self.query) if self.catalogue else None
        hits = [
            {
                **asdict(hit),
                "relevant": relevant and hit.id in relevant,
                "elsewhere": beside and beside.finds(hit.id),
            }
            for hit in ranked.hits
        ]
        return {
            "keywords": [
                {"text": word, "df": mirror.df(word), "weight": weight}
                for word, weight in self.keywords.items()
            ],
            "source": self.asked.source,
            "reason": getattr(
                self.asked, "reason", "unknown" if self.asked.source == "none" else ""
            ),
            "confidence": self.asked.confidence,
            "rules": [str(rule) for rule in self._rules()],
            "entities": len(mirror),
            "total": ranked.total,
            "more": ranked.more,
            "hits": hits,
            **({} if relevant is None else self._judged(relevant)),
        }

    def _best(self, size: int) -> SearchResult:
        if self.cluster:
            id_, words = self.items.snapshot.id, self.asked.words
            return self.cluster.search(
                self.keywords, snapshot=id_, size=size, explain=True, words=words
            )
        hits = self.items.hits(self.ranking, self.keywords, size, explain=True)
        return SearchResult(self.ranking.total, hits, more=self.ranking.more)

    def _rules(self) -> Sequence[Rule]:
        snapshot = self.items.snapshot
        return rules_of(snapshot.store, snapshot.id).about(self.query)

    def _judged(self, relevant: frozenset[str]) -> dict[str, Any]:
        missed = [id_ for id_ in sorted(relevant) if not self.finds(id_)]
        return {
            "figures": _figures(self.retrieved, self.items.mirror.wanted(relevant)),
            "missed": [{"id": id_, "title": self._title(id_)} for id_ in missed[:_MISSED]],
            "missed_total": len(missed),
        }

    def _title(self, id_: str) -> str:
        dense = self.items.mirror.ids.find(id_)
        if dense >= 0:
            return self.items.texts[dense]
        record = self.catalogue.item(id_) if self.catalogue else None
        return record.title if record else id_


def _figures(retrieved: SetLike, relevant: SetLike) -> dict[str, float]:
    return full_set({"it": retrieved}, {"it": relevant}).means


def _reaching(
    queries: Opened, words: Sequence[str], catalogue: Catalogue | None, id_: str
) -> dict[str, Any]:
    ranking = queries.mirror.search(words, _REACHING)
    rows = []
    for query_id, dense in zip(ranking.ids, ranking.dense.tolist(), strict=True):
        text = queries.texts[dense]
        relevant = catalogue.relevant(text) if catalogue else None
        via = list(queries.mirror.explain(words, query_id))
        rows.append({"text": text, "via": via, "relevant": relevant and id_ in relevant})
    return {"total": ranking.total, "queries": rows}
