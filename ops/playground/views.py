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
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache, partial
from itertools import repeat
from statistics import fmean
from typing import Any, Literal

import numpy as np
from pyroaring import BitMap

from cogr.datasets.items import in_id_order
from cogr.errors import DataError, MissingExtraError
from cogr.keywords import NORMALISER, query_keywords, self_keyword
from cogr.matching.postings import to_bitmap
from cogr.metrics import SetLike, full_set
from cogr.records import Dataset, Item, Query
from cogr.snapshots import Manifest, list_snapshots, why_no_pair
from indexers.backends import MOST_TEXT, Words
from indexers.backends.memory import Opened, Ranked
from indexers.backends.opensearch.search import MAX_CLAUSES
from indexers.release.rules import rules_of
from indexers.text import Lexical
from indexers.workspace import Workspace
from ops.expander.expander import Expansion
from ops.expander.follower import Pair

_OPEN = 8
"""Most open snapshots: both sides of the pairs A and B, and of the two pairs before."""
_LISTED = 50
"""Most pairs to choose from, newest first."""
_QUERIES = 200
"""Most labelled queries that are listed."""


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
        """BM25 over titles and texts. Raises MissingExtraError without the extra `statistical`."""
        return Lexical(self.dataset.items)


_REACHING = 25
_MISSED = 25


@dataclass(frozen=True)
class Search:
    """One pair's search for one query: by its keywords, and by its text."""

    query: str
    words: Expansion
    boost: float
    items: Opened
    catalogue: Catalogue | None

    @cached_property
    def keywords(self) -> Mapping[str, float]:
        """Keyword -> its weight."""
        return dict(zip(self.words.keywords, self.words.weights or repeat(1.0), strict=False))

    @cached_property
    def ranking(self) -> Ranked:
        """The set, then what more the text finds."""
        text = Words(self.query, self.boost)
        return self.items.rank(self.keywords, text, len(self.items.mirror))

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
                **asdict(hit),
                "relevant": relevant and hit.id in relevant,
                "elsewhere": beside and beside.finds(hit.id),
            }
            for hit in self.items.hits(ranking, self.keywords, size, explain=True)
        ]
        return {
            "keywords": [
                {"text": word, "df": mirror.df(word), "weight": weight}
                for word, weight in self.keywords.items()
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
        return {
            "figures": _figures(self.retrieved, _numbers(self.items, relevant)),
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
    return full_set({"it": found}, {"it": relevant}).means


def baseline(catalogue: Catalogue, query: str, cut: int, size: int) -> dict[str, Any]:
    """BM25 over the words of the items' text: its best `size`, and figures of its best `cut`.

    Raises MissingExtraError without the extra `statistical`.
    """
    best = catalogue.lexical.rank(query, max(cut, size))
    relevant = catalogue.relevant(query)
    cut_off = frozenset(item.id for item, _ in best[:cut])
    hits = [
        {
            "id": item.id,
            "text": item.title,
            "score": score,
            "relevant": relevant and item.id in relevant,
        }
        for item, score in best[:size]
    ]
    figures = relevant and _figures(cut_off, relevant)
    return {"hits": hits, "cut": len(cut_off), "figures": figures}


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


Order = Literal["worst", "change"]


class Listing:
    """F1 of every measured query, computed once for a pair."""

    def __init__(self, data: PageData) -> None:
        self._data = data
        self._figures = lru_cache(8)(self._compute)

    def answer(
        self, pairs: Sequence[tuple[str, str | None]], shown: int, sort: Order
    ) -> dict[str, Any]:
        """The queries, those with the worst F1 of pair `shown` first, or where two pairs differ
        most. Raises DataError or SettingsError without a data set.
        """
        catalogue, of = self._data.catalogue, min(shown, len(pairs) - 1)
        figures = [self._figures(*pair) for pair in pairs]
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

    def _compute(self, item: str, query: str | None) -> Sequence[float]:
        catalogue, items = self._data.catalogue, self._data.opened(item)
        stored = self._data.opened(query) if query else None
        known, queries = catalogue.dataset.relevant, catalogue.measured
        found = {one.id: _found(one.text, items, stored) for one in queries}
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
