"""The contents of the page as plain data: a search, the baseline, an item, and all labelled
queries; and what they are made from: snapshots as mirrors with texts, and the data set. All are
opened when first asked for. Nothing here uses HTTP.

The list of labelled queries measures each pair by the keywords of its query snapshot, or by the
query alone where the snapshot has none.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from statistics import fmean
from typing import Any, Literal

import numpy as np
from pyroaring import BitMap

from cogr.datasets.items import in_id_order
from cogr.errors import DataError, MissingExtraError
from cogr.keywords import NORMALISER, normalise, query_keywords, self_keyword
from cogr.matching.postings import to_bitmap
from cogr.metrics import SetLike, full_set, ranked
from cogr.records import Dataset, Item, Query
from cogr.snapshots import Manifest, list_snapshots, why_no_pair
from indexers.backends import MOST_TEXT
from indexers.backends import Words as QueryText
from indexers.backends.memory import Opened, Ranked
from indexers.backends.opensearch.search import MAX_CLAUSES
from indexers.release.rules import rules_of
from indexers.text import Lexical
from indexers.workspace import Workspace
from ops.expander.follower import Pair

_OPEN = 8
"""Most open snapshots: both sides of the pairs A and B, and of the two pairs before."""
_LISTED = 50
"""Most pairs to choose from, newest first."""


def _find(items: Opened, id_: str) -> int | None:
    dense = items.mirror.ids.find(id_)
    return dense if dense >= 0 else None


def _numbers(items: Opened, ids: Collection[str]) -> BitMap:
    """Dense ids. An id that the snapshot lacks gets a number after all others, since it can't be
    retrieved.
    """
    known = [dense for id_ in ids if (dense := _find(items, id_)) is not None]
    count = len(items.mirror)
    return BitMap([*known, *range(count, count + len(ids) - len(known))])


class PageData:
    """The snapshots and the data set of a workspace. Threads may share it."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._opened = lru_cache(_OPEN)(partial(Opened.of, workspace.store))
        self._opening = threading.RLock()

    def opened(self, snapshot: str) -> Opened:
        """A snapshot of the store. Raises SnapshotError when it is unknown or broken."""
        with self._opening:
            return self._opened(snapshot)

    @cached_property
    def catalogue(self) -> Catalogue:
        """The data set. Raises DataError or SettingsError when it can't be loaded."""
        with self._opening:
            return Catalogue(self.workspace.dataset)

    def pairs(self, serving: Pair) -> list[tuple[Manifest, Manifest | None]]:
        """The pairs to choose from: the serving pair, then each item snapshot, the newest first,
        with the newest query snapshot that belongs to it.
        """
        known = [m for m in list_snapshots(self.workspace.store) if m.normaliser == NORMALISER]
        by_id = {one.id: one for one in known}
        item, query = (by_id.get(id_ or "") for id_ in snapshots_of(serving))
        queries = [one for one in known[::-1] if one.side == "query"]
        pairs = [(item, query)] if item else []
        pairs += [(one, _companion(one, queries)) for one in known[::-1] if one.side == "item"]
        distinct = {(one.id, of and of.id): (one, of) for one, of in pairs}
        return list(distinct.values())[:_LISTED]


def listed(pair: tuple[Manifest, Manifest | None], serving: Pair) -> dict[str, Any]:
    """A pair to choose, for the page."""
    item, query = pair
    ids = (item.id, query and query.id)
    return {
        "item": item.id,
        "query": ids[1],
        "round": item.round,
        "generator": str(item.generator.get("kind", "")),
        "model": str(item.generator.get("model") or "").rstrip("/").rpartition("/")[2],
        "created": item.created,
        "serving": ids == snapshots_of(serving),
    }


def snapshots_of(pair: Pair) -> tuple[str | None, str | None]:
    """The ids of an item and a query snapshot, as the page names a pair."""
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
        # The test queries first; of several that are normalised to one text, the first answers.
        self.labelled: dict[str, Query] = {}
        for query in (*dataset.queries.get("test", ()), *dataset.all_queries()):
            self.labelled.setdefault(self_keyword(query.text), query)

    @property
    def counts(self) -> dict[str, int]:
        """How many items and queries there are."""
        return {"items": len(self.dataset.items), "queries": len(self.dataset.all_queries())}

    def item(self, id_: str) -> Item | None:
        """The item of an id; None when there is none."""
        at = bisect_left(self._sorted, id_, key=lambda item: item.id)
        found = self._sorted[at] if at < len(self._sorted) else None
        return found if found is not None and found.id == id_ else None

    @cached_property
    def _sorted(self) -> Sequence[Item]:
        return in_id_order(self.dataset.items)

    def relevant(self, text: str) -> frozenset[str] | None:
        """Ids of the items that are relevant for a query text; None for an unlabelled query."""
        query = self.labelled.get(self_keyword(text))
        return self.dataset.relevant[query.id] if query else None

    def grades(self, text: str) -> Mapping[str, float]:
        """Item id -> grade of a labelled text's judgements."""
        query = self.labelled.get(self_keyword(text))
        return self.dataset.judged.get(query.id, {}) if query else {}

    @cached_property
    def splits(self) -> Mapping[str, str]:
        """Id of a labelled query -> its split."""
        return {
            query.id: split for split, queries in self.dataset.queries.items() for query in queries
        }

    def examples(self, count: int) -> list[str]:
        """Texts of labelled queries, spread evenly over the test queries where there are any."""
        queries = self.dataset.queries.get("test") or self.dataset.all_queries()
        step = max(1, len(queries) // count)
        return [query.text for query in queries[::step]][:count]

    @cached_property
    def lexical(self) -> Lexical:
        """BM25 over titles and texts. Raises MissingExtraError without the extra `statistical`."""
        return Lexical(self.dataset.items)


_REACHING = 25
_MISSED = 25
DEPTH = 1000
"""Depth of the rankings that are measured."""


@dataclass(frozen=True)
class Words:
    """Keywords to search for with their weights, the weight of the text beside them, and what the
    expander says of them; the source `given` is the page itself.
    """

    keywords: Mapping[str, float]
    boost: float
    source: str
    reason: str = ""
    confidence: float | None = None


@dataclass(frozen=True)
class Search:
    """One pair's search for one query: by its keywords, and by its text."""

    query: str
    words: Words
    items: Opened
    catalogue: Catalogue | None

    @cached_property
    def ranking(self) -> Ranked:
        """The set, then what more the text finds."""
        text = QueryText(self.query, self.words.boost)
        return self.items.rank(self.words.keywords, text, len(self.items.mirror))

    @cached_property
    def retrieved(self) -> BitMap:
        """The whole set, dense ids."""
        return to_bitmap(self.ranking.dense[: self.ranking.total].astype(np.uint32))

    def finds(self, id_: str) -> bool:
        """Whether an item is in the set."""
        dense = _find(self.items, id_)
        return dense is not None and dense in self.retrieved

    def as_dict(self, size: int, beside: Search | None) -> dict[str, Any]:
        """The answer: the best `size` hits, and figures where labels are known."""
        mirror, ranking = self.items.mirror, self.ranking
        relevant = self.catalogue.relevant(self.query) if self.catalogue else None
        hits = [
            {
                "id": hit.id,
                "title": hit.text,
                "fields": hit.fields,
                "tier": hit.tier,
                "score": hit.score,
                "matched": hit.matched,
                "words": hit.words,
                "relevant": relevant and hit.id in relevant,
                "elsewhere": beside and beside.finds(hit.id),
            }
            for hit in self.items.hits(ranking, self.words.keywords, size, explain=True)
        ]
        return {
            "keywords": [
                {"text": word, "df": mirror.df(word), "weight": weight}
                for word, weight in self.words.keywords.items()
            ],
            "source": self.words.source,
            "reason": self.words.reason,
            "confidence": self.words.confidence,
            "rules": [str(rule) for rule in rules_of(self.items.snapshot.manifest, self.query)],
            "entities": len(mirror),
            "total": ranking.total,
            "more": ranking.more,
            "hits": hits,
            **({} if relevant is None else self._judged(relevant)),
        }

    def _judged(self, relevant: frozenset[str]) -> dict[str, Any]:
        missed = [id_ for id_ in sorted(relevant) if not self.finds(id_)]
        ids = [self.items.mirror.id_of(dense) for dense in self.ranking.dense[:DEPTH].tolist()]
        grades = self.catalogue.grades(self.query) if self.catalogue else {}
        return {
            "figures": _figures(self.retrieved, _numbers(self.items, relevant)),
            "ranks": ranks(ids, relevant, grades),
            "missed": [{"id": id_, "title": self._title(id_)} for id_ in missed[:_MISSED]],
            "missed_total": len(missed),
        }

    def _title(self, id_: str) -> str:
        dense = _find(self.items, id_)
        if dense is not None:
            return self.items.texts[dense]
        record = self.catalogue.item(id_) if self.catalogue else None
        return record.title if record else id_


def _figures(found: SetLike, relevant: SetLike) -> dict[str, float]:
    return full_set({"it": found}, {"it": relevant}).of("it")


def ranks(
    ids: Sequence[str], relevant: frozenset[str], grades: Mapping[str, float]
) -> dict[str, float | int | None]:
    """Figures of a ranking of any length: nDCG@10 (by the labels' grades), MRR@10, and the rank of
    the first relevant item, counted from 1; None when it is not among the first `DEPTH`.
    """
    figures = ranked(
        {"it": ids}, {"it": relevant}, cutoffs=(10,), grades={"it": grades} if grades else None
    ).of("it")
    first = next((rank for rank, id_ in enumerate(ids, 1) if id_ in relevant), None)
    return {"ndcg": figures["nDCG@10"], "mrr": figures["MRR@10"], "first": first}


def baseline(catalogue: Catalogue, query: str, cut: int, size: int) -> dict[str, Any]:
    """BM25 over the words of the items' text: its best `size`, figures of its best `cut`, and ranks
    of its whole order.

    Raises MissingExtraError without the extra `statistical`.
    """
    best = catalogue.lexical.rank(query, max(cut, size, DEPTH))
    relevant = catalogue.relevant(query)
    cut_off = frozenset(item.id for item, _ in best[:cut])
    hits = [
        {
            "id": item.id,
            "title": item.title,
            "score": score,
            "relevant": relevant and item.id in relevant,
        }
        for item, score in best[:size]
    ]
    return {
        "hits": hits,
        "cut": len(cut_off),
        "figures": relevant and _figures(cut_off, relevant),
        "ranks": relevant
        and ranks([item.id for item, _ in best[:DEPTH]], relevant, catalogue.grades(query)),
    }


def item(
    items: Opened, queries: Opened | None, catalogue: Catalogue | None, id_: str
) -> dict[str, Any]:
    """An item's text and keywords, and which queries reach it.

    Raises DataError when neither the snapshot nor the data set holds it.
    """
    dense = _find(items, id_)
    record = catalogue.item(id_) if catalogue else None
    if dense is None and record is None:
        raise DataError(f"There is no item {id_!r} in {items.snapshot.id}; reload the page.")
    words = () if dense is None else items.mirror.keywords_of(dense)
    own = "" if dense is None else items.mirror.own_keyword(dense)
    return {
        "id": id_,
        "title": record.title if record else items.texts[dense or 0],
        "text": record.text if record else "",
        "fields": {} if dense is None else items.fields_of(dense),
        "held": dense is not None,
        "keywords": [
            {"text": word, "df": items.mirror.df(word), "own": word == own} for word in words
        ],
        "reached": None if queries is None else _reaching(queries, words, catalogue, id_),
    }


def _reaching(
    queries: Opened, words: Sequence[str], catalogue: Catalogue | None, id_: str
) -> dict[str, Any]:
    ranking = queries.mirror.search(words, _REACHING)
    found = []
    for query_id, dense in zip(ranking.ids, ranking.dense.tolist(), strict=True):
        text = queries.texts[dense]
        relevant = catalogue.relevant(text) if catalogue else None
        via = list(queries.mirror.explain(words, query_id))
        found.append({"text": text, "via": via, "relevant": relevant and id_ in relevant})
    return {"total": ranking.total, "queries": found}


F1 = tuple[float, ...]
Order = Literal["worst", "best", "change", "text"]


class Listing:
    """Figures of every labelled query, computed once for a pair."""

    def __init__(self, data: PageData) -> None:
        self._data = data
        self._figures = lru_cache(8)(self._compute)

    def answer(
        self,
        pairs: Sequence[tuple[str, str | None]],
        *,
        shown: int,
        match: str,
        sort: Order,
        size: int,
    ) -> dict[str, Any]:
        """The queries that match, sorted, and how many there are.

        Raises DataError or SettingsError without a data set.
        """
        catalogue = self._data.catalogue
        splits, relevant = catalogue.splits, catalogue.dataset.relevant
        figures = zip(*(self._figures(*pair) for pair in pairs), strict=True)
        rows: list[dict[str, Any]] = [
            {"text": one.text, "split": splits[one.id], "relevant": len(relevant[one.id]), "f1": f1}
            for one, f1 in zip(catalogue.labelled.values(), figures, strict=True)
        ]
        of, wanted = min(shown, len(pairs) - 1), normalise(match)
        ways: dict[Order, Callable[[F1], float]] = {
            "worst": lambda f1: f1[of],
            "best": lambda f1: -f1[of],
            "change": lambda f1: -abs(f1[0] - f1[-1]),
            "text": lambda _: 0.0,
        }
        found = [row for row in rows if wanted in normalise(row["text"])]
        found.sort(key=lambda row: (ways[sort](row["f1"]), normalise(row["text"])))
        # Means are of queries that nothing was learned from, where there are any.
        test = [row["f1"] for row in rows if row["split"] == "test"]
        over = test or [row["f1"] for row in rows]
        return {
            "queries": found[:size],
            "total": len(found),
            "mean": [fmean(one) for one in zip(*over, strict=True)] or [None] * len(pairs),
            "split": "test" if test else None,
        }

    def _compute(self, item: str, query: str | None) -> F1:
        catalogue, items = self._data.catalogue, self._data.opened(item)
        stored = self._data.opened(query) if query else None
        queries = catalogue.labelled.values()
        found = {one.id: _found(one.text, items, stored) for one in queries}
        known = catalogue.dataset.relevant
        relevant = {one.id: _numbers(items, known[one.id]) for one in queries}
        return tuple(full_set(found, relevant).values["f1"].tolist())


def _found(text: str, items: Opened, stored: Opened | None) -> BitMap:
    row = stored.row_of(text) if stored else None
    found = items.mirror.retrieved(query_keywords(text, row.keywords if row else ())[:MAX_CLAUSES])
    try:
        literal = items.searched.literal(text[:MOST_TEXT])
    except MissingExtraError:  # Without the extra `statistical`.
        return found
    return found | to_bitmap(literal.astype(np.uint32))
