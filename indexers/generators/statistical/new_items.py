"""Items that came, or changed, after a fit. Nothing is fitted again.

`joined` adds them to what was fitted, so that a new query can find them. `chosen` gives them the
keywords by which known queries find them: greedily, by the expected gain in F1 over the queries of
a snapshot (the paper's reward in closed form). `gaining` says which of these queries better
keywords would serve then. All take p from the cold ranker. Only the queries that an item touches
are looked at, so the cost grows with the change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np
import scipy.sparse as sp

from cogr.keywords import self_keyword
from cogr.matching.mirror import Mirror
from cogr.metrics import f1_of
from cogr.records import Item, Query
from indexers.generators.statistical.artefact import K_MAX, Artefact, item_digest
from indexers.generators.statistical.item_keywords import (
    ANCHOR,
    PHRASE,
    TITLE,
    ItemKeywords,
    packed,
)
from indexers.generators.statistical.keyword_selection import Floats64, Ints64
from indexers.generators.statistical.ranking.features import unit_terms
from indexers.generators.statistical.ranking.matrices import (
    Csr,
    counts_of,
    top_dense,
    top_rows,
)
from indexers.generators.statistical.ranking.matrices import Floats as Floats32
from indexers.generators.statistical.ranking.ranker import Ranker, fit_cold

TOUCHED = 100
"""Queries that an item touches: so many by its words, by its latent point, and by the keywords of
the items that are like it.
"""

_NEAREST = 20
"""Items that are like an item, by their words."""

MIN_GAIN = 1e-9
"""A keyword must bring more expected F1 than this, summed over queries."""

WORTH_REWRITING = 0.02
"""Expected F1 that new keywords of a known query must bring: with less, chance decides as often.
"""

WithJudge = Callable[[Artefact, Sequence[Query], Ints64], Artefact]
"""Puts evidence on pairs of these queries and items into an artefact."""

_AT_ONCE = 256
"""Batch size: queries whose probabilities are computed at once, and items that are compared."""


def unseen(artefact: Artefact, items: Sequence[Item]) -> list[Item]:
    """The items that the fit has not seen, or not with this text."""
    numbers, digests = artefact.numbers, artefact.digests
    return [
        item
        for item in items
        if (number := numbers.get(item.id)) is None or digests[number] != item_digest(item)
    ]


def cold_of(fitted: Artefact) -> Ranker | None:
    """The ranker for items that come after a fit; trained here where the fit knew of none."""
    if fitted.ranker.new.any():
        return fitted.ranker.cold
    texts = [query.text for query in fitted.queries]
    return fit_cold(fitted.ranker, fitted.index, texts, fitted.relevance, fitted.facts["seed"])


def joined(artefact: Artefact, items: Sequence[Item], cold: Ranker | None) -> Artefact:
    """The fit with these items, which it has not seen or which have changed; they have no keywords
    yet. Changed items keep their labels.

    Args:
        cold: the ranker for new items; None where the ordinary one serves them as well.
    """
    n, numbers = artefact.index.n_items, dict(artefact.numbers)
    ids, digests = list(artefact.item_ids), list(artefact.digests)
    for item in items:
        if numbers.setdefault(item.id, len(ids)) == len(ids):
            ids.append(item.id)
            digests.append("")
        digests[numbers[item.id]] = item_digest(item)
    order = np.arange(len(ids))
    order[[numbers[item.id] for item in items]] = n + np.arange(len(items))
    old, owned = artefact.relevance, artefact.keywords
    new = np.ones(len(ids), np.bool_)
    new[:n] = artefact.ranker.new
    rows = order[owned.items] < n
    parts = (owned.items[rows], owned.owned[rows], owned.kinds[rows])
    return replace(
        artefact,
        index=artefact.index.joined(items, order),
        relevance=sp.csr_matrix(
            (old.data, old.indices, old.indptr), shape=(old.shape[0], len(ids))
        ),
        ranker=replace(artefact.ranker, cold=artefact.ranker.cold or cold, new=new),
        keywords=ItemKeywords(owned.keywords, *parts, len(ids)),
        item_ids=ids,
        digests=digests,
    )


def with_keywords(artefact: Artefact, items: Sequence[Item], snapshot: Mirror) -> Artefact:
    """The artefact with the keywords that a snapshot has for these items. Items that the snapshot
    lacks have none.
    """
    owned, more = artefact.keywords, dict[str, int]()
    phrases = np.unique(owned.owned[owned.kinds == PHRASE])
    dense_of = {id_: dense for dense, id_ in enumerate(snapshot.ids) if id_ in artefact.numbers}
    there = np.zeros(owned.n_items, np.bool_)
    there[[artefact.numbers[id_] for id_ in dense_of]] = True

    def number_of(word: str) -> int:
        known = owned.ids.find(word)
        return known if known >= 0 else more.setdefault(word, len(owned.keywords) + len(more))

    kept = there[owned.items]
    parts = [(owned.items[kept], owned.owned[kept], owned.kinds[kept])]
    for item in items:
        if item.id not in dense_of:
            continue
        title = snapshot.own_keyword(dense_of[item.id])
        words = [word for word in snapshot.keywords_of(dense_of[item.id]) if word != title]
        own = np.array([*map(number_of, words)], np.int64)
        kinds = np.where(np.isin(own, phrases), PHRASE, ANCHOR)
        if title:
            own, kinds = np.append(own, number_of(title)), np.append(kinds, TITLE)
        parts.append((np.full(own.size, artefact.numbers[item.id]), own, kinds))
    numbers, words_, kinds = (np.concatenate(some) for some in zip(*parts, strict=True))
    place = np.argsort(numbers, kind="stable")
    keywords = packed(chain(owned.keywords, more)) if more else owned.keywords
    written = ItemKeywords(keywords, numbers[place], words_[place], kinds[place], owned.n_items)
    return replace(artefact, keywords=written)


def chosen(
    fitted: Artefact,
    cold: Ranker | None,
    items: Sequence[Item],
    pair: tuple[Mirror, Mirror],
    judge: WithJudge | None = None,
) -> dict[str, list[str]]:
    """Keywords of items that came or changed, by id, in the order of choice. Those by which known
    queries find them are chosen; of their own, the ones that no known query uses stay.

    Args:
        cold: the ranker for new items, as of `joined`.
        pair: the item snapshot that they join, and the queries that are known.
        judge: gives evidence on the pairs of these items.
    """
    artefact = joined(fitted, items, cold)
    numbers = np.array([artefact.numbers[item.id] for item in items], np.int64)
    known = _KnownQueries(artefact, numbers, *pair)
    touched = known.touched()
    if judge is not None:
        known.artefact = judge(artefact, known.named(touched), numbers)
    known.ask(touched)
    words = [known.words_of(np.flatnonzero(known.gains(at) > 0)) for at in range(len(items))]
    known.ask(np.array(known.queries.retrieved({*chain.from_iterable(words)}), np.int64))
    result: dict[str, list[str]] = {}
    for at, item in enumerate(items):
        picked = known.greedy(at, words[at], self_keyword(item.title))
        own = [word for word in fitted.item_keywords(item) if not known.queries.df(word)]
        result[item.id] = [*picked, *own][:K_MAX]
    return result


def gaining(
    artefact: Artefact, items: Sequence[Item], pair: tuple[Mirror, Mirror]
) -> frozenset[str]:
    """Ids of the known queries that other keywords serve better, by `WORTH_REWRITING` or more, now
    that these items have theirs.

    Args:
        artefact: with the items and their keywords (`with_keywords`).
        pair: the item snapshot that has them, and the queries that are known.
    """
    numbers = np.array([artefact.numbers[item.id] for item in items], np.int64)
    known, ids = _KnownQueries(artefact, numbers, *pair), set[str]()
    touched = known.touched()
    queries = known.named(touched)
    scored = artefact.probabilities(queries)
    for one, query, (among, p) in zip(touched.tolist(), queries, scored, strict=True):
        _, its = known.found_by(query, one, among, p)
        if artefact.selected(query, among, p).net - f1_of(*its) > WORTH_REWRITING:
            ids.add(query.id)
    return frozenset(ids)


_Set = tuple[float, int, float]
"""Of a retrieved set: the sum of its p, how many items, and how many are expected to be relevant.
"""


class _KnownQueries:
    def __init__(self, artefact: Artefact, numbers: Ints64, items: Mirror, queries: Mirror) -> None:
        self.artefact, self.numbers, self.items, self.queries = artefact, numbers, items, queries
        known = artefact.numbers
        self._number_of = np.array([known.get(id_, -1) for id_ in items.ids], np.int64)
        self._dense_of = np.full(len(known), -1)
        self._dense_of[self._number_of[self._number_of >= 0]] = np.flatnonzero(self._number_of >= 0)
        self._place = np.full(len(known), -1)
        self._place[numbers] = np.arange(numbers.size)
        named = (Query(id_, queries.own_keyword(at)) for at, id_ in enumerate(queries.ids))
        self._texts = [*map(artefact.text_of, named)]
        self._row = np.full(len(queries), -1)
        self._asked: list[int] = []
        self._sets: list[_Set] = []
        self._joining: list[tuple[Ints64, Floats32, Floats32]] = []

    def touched(self) -> Ints64:
        index = self.artefact.index
        batch = index.batch(self._texts)
        terms, points = unit_terms(index, batch).T.tocsr(), index.points_of(batch)
        rows = [np.zeros(0, np.int64)]
        for at in range(0, self.numbers.size, _AT_ONCE):
            some = self.numbers[at : at + _AT_ONCE]
            rows += [
                top_rows((index.tfidf[some] @ terms).tocsr(), TOUCHED).indices,
                top_dense(index.points[some] @ points.T, TOUCHED).indices,
                top_rows(self._by_items(some), TOUCHED).indices,
            ]
        return np.unique(np.concatenate(rows))

    def _by_items(self, numbers: Ints64) -> Csr:
        index = self.artefact.index
        near = top_rows((index.tfidf[numbers] @ index.tfidf_by_term).tocsr(), _NEAREST)
        rows = []
        for row in range(numbers.size):
            others = self._dense_of[near.indices[near.indptr[row] : near.indptr[row + 1]]]
            words = chain(*map(self.items.keywords_of, others[others >= 0].tolist()))
            rows.append([*chain(*(self.queries.retrieved([word]) for word in words))])
        return counts_of(rows, len(self._texts))

    def named(self, queries: Ints64) -> list[Query]:
        return [Query(self.queries.ids[one], self._texts[one]) for one in queries.tolist()]

    def ask(self, queries: Ints64) -> None:
        queries = queries[self._row[queries] < 0]
        for first in range(0, queries.size, _AT_ONCE):
            some = queries[first : first + _AT_ONCE]
            asked = self.named(some)
            scored = self.artefact.probabilities(asked)
            for one, query, (items, p) in zip(some.tolist(), asked, scored, strict=True):
                self._row[one] = len(self._asked)
                self._asked.append(one)
                self._learn(query, one, items, p)
        shape = (len(self._asked), self.numbers.size)
        starts = np.cumsum([0, *(places.size for places, _, _ in self._joining)])
        nothing = np.zeros(0, np.float32)
        places, p, held = (
            np.concatenate(some)
            for some in zip((nothing, nothing, nothing), *self._joining, strict=True)
        )
        self._p, self._held = (
            sp.csr_matrix((values, places.astype(np.int64), starts), shape=shape).tocsc()
            for values in (p, held)
        )

    def found_by(self, query: Query, one: int, items: Ints64, p: Floats32) -> tuple[Ints64, _Set]:
        """What a query's keywords retrieve: numbers of the items, and what it is worth."""
        dense = np.array(self.items.retrieved(self.queries.keywords_of(one)), np.int64)
        retrieved = self._number_of[dense]
        hits = float(p[np.isin(items, retrieved)].sum())
        return retrieved, (hits, dense.size, self.artefact.expected_relevant(query, p))

    def _learn(self, query: Query, one: int, items: Ints64, p: Floats32) -> None:
        retrieved, its = self.found_by(query, one, items, p)
        self._sets.append(its)
        of = np.zeros(self._place.size, np.float32)
        of[items] = p
        joining = np.union1d(items, retrieved[retrieved >= 0])
        joining = joining[self._place[joining] >= 0]
        held = np.isin(joining, retrieved).astype(np.float32)
        self._joining.append((self._place[joining], of[joining], held))

    def gains(self, at: int) -> Floats64:
        hits, size, expected = np.array(self._sets).reshape(-1, 3).T
        p, held = (matrix[:, [at]].toarray().ravel() for matrix in (self._p, self._held))
        hits, size = hits - p * held, size - held
        gains: Floats64 = f1_of(hits + p, size + 1, expected) - f1_of(hits, size, expected)
        return gains

    def words_of(self, rows: Ints64) -> list[str]:
        words = (self.queries.keywords_of(self._asked[row]) for row in rows.tolist())
        return list(dict.fromkeys(chain.from_iterable(words)))

    def greedy(self, at: int, words: Sequence[str], title: str) -> list[str]:
        gains = self.gains(at)
        users = [self._users(word) for word in words]
        gains[self._users(title)] = 0
        owned = counts_of(users, max(gains.size, 1))
        chosen_words: list[str] = []
        while words and len(chosen_words) < K_MAX:
            totals = owned @ gains
            best = int(totals.argmax())
            if totals[best] <= MIN_GAIN:
                break
            chosen_words.append(words[best])
            gains[users[best]] = 0
        return chosen_words

    def _users(self, word: str) -> Ints64:
        rows = self._row[np.array(self.queries.retrieved([word]), np.int64)]
        return rows[rows >= 0]
