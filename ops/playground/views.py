"""The contents of the page as plain data: a search, the baseline, an item, and all labelled
queries.

Nothing here uses HTTP or a model. The list of labelled queries measures each pair by the keywords
of its query snapshot, or by the query alone where the snapshot has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from statistics import fmean
from typing import Any, Literal

import numpy as np
from pyroaring import BitMap

from cogr.errors import DataError
from cogr.keywords import normalise, query_keywords
from cogr.matching.postings import to_bitmap
from cogr.metrics import SetLike, full_set, ranked
from indexers.backends import Words as QueryText
from indexers.backends.memory import Ranked, rank
from indexers.backends.opensearch.search import MAX_CLAUSES
from indexers.release.rules import rules_of
from ops.playground.page_data import Catalogue, Opened, PageData

_REACHING = 25
_MISSED = 25
DEPTH = 1000
"""Depth of the rankings that are measured."""


@dataclass(frozen=True)
class Words:
    """Keywords to search for, each with its weight, the weight of the text beside them, and where
    they come from: a source and a reason of the expander, or the source `given`. The confidence in
    them is as the expander says.
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
        mirror, text = self.items.mirror, QueryText(self.query, self.words.boost)
        return rank(mirror, self.words.keywords, lambda: self.items.searched, text, len(mirror))

    @cached_property
    def retrieved(self) -> BitMap:
        """The whole set, dense ids."""
        return to_bitmap(self.ranking.dense[: self.ranking.total].astype(np.uint32))

    def finds(self, id_: str) -> bool:
        """Whether an item is in the set."""
        dense = self.items.find(id_)
        return dense is not None and dense in self.retrieved

    def as_dict(self, size: int, beside: Search | None) -> dict[str, Any]:
        """The answer: the best `size` hits, and figures where labels are known."""
        mirror, ranking = self.items.mirror, self.ranking
        relevant = self.catalogue.relevant(self.query) if self.catalogue else None
        hits = [self._hit(at, relevant, beside) for at in range(min(size, len(ranking.dense)))]
        return {
            "keywords": [
                {"text": word, "df": mirror.df(word), "weight": weight}
                for word, weight in self.words.keywords.items()
            ],
            "source": self.words.source,
            "reason": self.words.reason,
            "confidence": self.words.confidence,
            "rules": [str(rule) for rule in rules_of(self.items.manifest, self.query)],
            "entities": len(mirror),
            "total": ranking.total,
            "more": ranking.more,
            "hits": hits,
            **({} if relevant is None else self._judged(relevant)),
        }

    def _hit(
        self, at: int, relevant: frozenset[str] | None, beside: Search | None
    ) -> dict[str, Any]:
        ranking, dense = self.ranking, int(self.ranking.dense[at])
        id_ = self.items.mirror.id_of(dense)
        return {
            "id": id_,
            "title": self.items.text(dense),
            "fields": self.items.fields(dense),
            "tier": "set" if at < ranking.total else "more",
            "score": float(ranking.scores[at]),
            "matched": self.items.mirror.explain(self.words.keywords, id_),
            "words": 0.0 if ranking.by_text is None else float(ranking.by_text[dense]),
            "relevant": relevant and id_ in relevant,
            "elsewhere": beside and beside.finds(id_),
        }

    def _judged(self, relevant: frozenset[str]) -> dict[str, Any]:
        missed = [id_ for id_ in sorted(relevant) if not self.finds(id_)]
        ids = [self.items.mirror.id_of(dense) for dense in self.ranking.dense[:DEPTH].tolist()]
        grades = self.catalogue.grades(self.query) if self.catalogue else {}
        return {
            "figures": _figures(self.retrieved, self.items.numbers_of(relevant)),
            "ranks": ranks(ids, relevant, grades),
            "missed": [{"id": id_, "title": self._title(id_)} for id_ in missed[:_MISSED]],
            "missed_total": len(missed),
        }

    def _title(self, id_: str) -> str:
        dense = self.items.find(id_)
        if dense is not None:
            return self.items.text(dense)
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
    dense = items.find(id_)
    record = catalogue.item(id_) if catalogue else None
    if dense is None and record is None:
        raise DataError(f"There is no item {id_!r} in {items.manifest.id}; reload the page.")
    words = () if dense is None else items.mirror.keywords_of(dense)
    own = "" if dense is None else items.mirror.own_keyword(dense)
    return {
        "id": id_,
        "title": record.title if record else items.text(dense or 0),
        "text": record.text if record else "",
        "fields": {} if dense is None else items.fields(dense),
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
        text = queries.text(dense)
        relevant = catalogue.relevant(text) if catalogue else None
        via = list(queries.mirror.explain(words, query_id))
        found.append({"text": text, "via": via, "relevant": relevant and id_ in relevant})
    return {"total": ranking.total, "queries": found}


F1 = tuple[float, ...]
Order = Literal["worst", "best", "change", "text"]


class Listing:
    """Figures of every labelled query, computed once for a pair. Threads may share it."""

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
        queries = catalogue.all_labelled()
        # For each query, its F1 by each pair.
        figures = list(zip(*(self._figures(*pair) for pair in pairs), strict=True))
        texts = [normalise(query.text) for query in queries]
        wanted, of = normalise(match), min(shown, len(pairs) - 1)
        ways: dict[Order, Callable[[int], float]] = {
            "worst": lambda at: figures[at][of],
            "best": lambda at: -figures[at][of],
            "change": lambda at: -abs(figures[at][0] - figures[at][-1]),
            "text": lambda _: 0.0,
        }
        places = [at for at, text in enumerate(texts) if wanted in text]
        places.sort(key=lambda at: (ways[sort](at), texts[at], at))
        # Means are of queries that nothing was learned from, where there are any.
        test = [at for at, query in enumerate(queries) if catalogue.splits[query.id] == "test"]
        over = [figures[at] for at in test] or figures
        return {
            "queries": [
                {
                    "text": queries[at].text,
                    "split": catalogue.splits[queries[at].id],
                    "relevant": len(catalogue.dataset.relevant[queries[at].id]),
                    "f1": figures[at],
                }
                for at in places[:size]
            ],
            "total": len(places),
            "mean": [fmean(one) for one in zip(*over, strict=True)] or [None] * len(pairs),
            "split": "test" if test else None,
        }

    def _compute(self, item: str, query: str | None) -> F1:
        catalogue, items = self._data.catalogue, self._data.opened(item)
        stored = self._data.opened(query) if query else None
        queries = catalogue.all_labelled()
        found = {one.id: _found(one.text, items, stored) for one in queries}
        relevant = {one.id: items.numbers_of(catalogue.dataset.relevant[one.id]) for one in queries}
        return tuple(full_set(found, relevant).values["f1"].tolist())


def _found(text: str, items: Opened, stored: Opened | None) -> BitMap:
    own = stored.keywords_of(text) if stored else None
    keywords = query_keywords(text, own or ())[:MAX_CLAUSES]
    return items.mirror.retrieved(keywords) | items.literal(text)
