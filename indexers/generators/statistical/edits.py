"""Boosted edits: gradient-boosted trees predict how one edit of a query's keywords changes true F1.

`distillation` maximises expected F1, as if items were relevant independently of one another. They
are not: relevant items come in groups, and similar training queries show which. The features of an
edit (drop a keyword, add one, swap two) are its change of expected F1 and its change of F1 for the
labels of each similar query. The trees learn from training queries, with p that is out of fold.
Edits are made while the predicted gain exceeds a margin. Both the margin and whether to edit at all
are decided out of fold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import lightgbm
import numpy as np
import scipy.sparse as sp

from cogr.metrics import f1_of
from indexers.generators.statistical import FOLDS
from indexers.generators.statistical.distillation import Ownership, exact_cut, slices
from indexers.generators.statistical.ranking.evidence import Evidence
from indexers.generators.statistical.ranking.matrices import (
    Csr,
    Floats,
    Ints,
    scale_columns,
    top_rows,
    unit_rows,
)
from indexers.generators.statistical.ranking.text_index import QueryBatch

LEAST_QUERIES = 300
"""Fewest training queries that edits are learned from."""

MOST_QUERIES = 6000
"""Most training queries that edits are learned from."""

MOST_KEYWORDS = 8_000
"""Most keywords of these queries in all: longer sets have more edits, and each changes less."""

STEPS = 2
"""Most edits of a query: the trees have learned from unedited sets only."""

ADDITIONS = 10
"""Keywords that are tried as additions, for each of `EXPECTATIONS`."""

EXPECTATIONS = (1.0, 3.0, 1 / 3)
"""Factors on the expected number of relevant items for which additions are looked for."""

SWAPS = 8
"""Most promising drops and additions, which are combined into swaps."""

LEAST_P = 0.05
"""Keywords are taken from items with at least this p."""

NEIGHBOURS = 20
SHRINKAGE = 0.5
"""Added to the sum of the neighbours' weights."""

MARGINS = (0.0, 0.005, 0.01, 0.02)
"""Margins (gain in F1) that are tried; the best out of fold is taken."""

LEAST_ERRORS = 2.0
"""The out-of-fold gain must exceed 0 by so many standard errors."""

FIRST_FOLDS = 2
"""Folds after which a fit gives up where there is no gain at all."""

MODEL = {
    "objective": "regression",
    "boost_from_average": False,
    "learning_rate": 0.05,
    "num_leaves": 31,
    "max_bin": 63,
    "min_data_in_leaf": 200,
    "feature_fraction": 0.5,
    "bagging_fraction": 0.7,
    "bagging_freq": 1,
    "lambda_l2": 20.0,
    "deterministic": True,
    "force_col_wise": True,
    "num_threads": 1,
    "verbose": -1,
}
ROUNDS = 150


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Training queries that are like one query.

    Attributes:
        weights: similarity, (n,).
        labels: 0/1 over the board's items, (n, items).
        forced: relevant ones among the items that are retrieved anyway, (n,).
        sizes: relevant items, (n,).
    """

    weights: Floats
    labels: Floats
    forced: Floats
    sizes: Floats


@dataclass(frozen=True, slots=True)
class Board:
    """One query's chosen keywords, those that might be added, and the items that they find.

    Attributes:
        keywords: ids, (k,).
        chosen: whether it is in the set before any edit, (k,).
        owns: 0/1, without items that are retrieved anyway, (k, items).
        items: ids, (items,).
        p: probabilities, (items,).
        forced: items that are retrieved anyway, by the query's own text.
        forced_hits: sum of their p.
        expected: expected number of relevant items.
        owners: items that own each keyword, and their mean p, (2, k).
        costs: F1 that each keyword must bring, (k,).
        neighbours: by words, and by what is relevant.
        query: features of the query itself, equal for all edits.
    """

    keywords: Ints
    chosen: Any
    owns: Floats
    items: Ints
    p: Floats
    forced: Ints
    forced_hits: float
    expected: float
    owners: Floats
    costs: Any
    neighbours: Sequence[Neighbours]
    query: Floats


@dataclass(frozen=True, slots=True)
class Edits:
    """All edits of one set.

    Attributes:
        x: features, the change of expected F1 first, (edits, features).
        out: row on the board of the keyword that is dropped, -1 for none, (edits,).
        into: row of the keyword that is added, -1 for none, (edits,).
        lost: 0/1 items that the edit loses, (edits, items).
        gained: 0/1 items that it finds besides, (edits, items).
    """

    x: Floats
    out: Ints
    into: Ints
    lost: Floats
    gained: Floats


@dataclass(frozen=True)
class Asked:
    """A query whose keywords may be edited.

    Attributes:
        items: candidates, (c,).
        p: their probabilities, (c,).
        expected: expected number of relevant items.
        chosen: keywords before any edit.
        forced: items that are retrieved anyway.
        banned: the keyword that may not be added, -1 for none.
    """

    items: Ints
    p: Floats
    expected: float
    chosen: Sequence[int]
    forced: Ints
    banned: int


def boards(
    evidence: Evidence,
    ownership: Ownership,
    batch: QueryBatch,
    asked: Sequence[Asked],
    costs: Any = None,
) -> Iterator[Board]:
    """A board for each query of a batch."""
    for row, (query, near) in enumerate(zip(asked, _near(evidence, batch, asked), strict=True)):
        terms = float(batch.terms.indptr[row + 1] - batch.terms.indptr[row])
        yield _board(evidence.voters.relevance, ownership, query, near, terms, costs)


def _near(
    evidence: Evidence, batch: QueryBatch, asked: Sequence[Asked]
) -> Iterator[list[tuple[Ints, Floats]]]:
    """Nearest training queries, by words and by p on what is relevant to them, without the query
    itself.
    """
    voters, idf = evidence.voters, evidence.index.idf
    starts = np.concatenate([[0], np.cumsum([query.items.size for query in asked])])
    p = sp.csr_matrix(
        (
            np.concatenate([query.p for query in asked]),
            np.concatenate([query.items for query in asked]),
            starts,
        ),
        shape=(len(asked), evidence.index.n_items),
    )
    found = [
        top_rows(voters.similar(unit_rows(scale_columns(batch.terms, idf)), batch.own), NEIGHBOURS),
        top_rows(voters.overlap(top_rows(p, 30), batch.own), NEIGHBOURS),
    ]
    for row in range(len(asked)):
        spans = [slice(matrix.indptr[row], matrix.indptr[row + 1]) for matrix in found]
        yield [
            (matrix.indices[span], matrix.data[span])
            for matrix, span in zip(found, spans, strict=True)
        ]


def _board(
    relevance: Csr,
    ownership: Ownership,
    query: Asked,
    near: Sequence[tuple[Ints, Floats]],
    terms: float,
    costs: Any,
) -> Board:
    dense = np.zeros(ownership.n_items, dtype=np.float32)
    dense[query.items] = query.p
    free = np.ones(ownership.n_items, dtype=bool)
    free[query.forced] = False
    keywords = _at_hand(ownership, query, dense, free, costs)
    owned, of = _owners(ownership, keywords)
    items = np.unique(owned[free[owned]])
    owns = np.zeros((keywords.size, items.size), dtype=np.float32)
    owns[of[free[owned]], np.searchsorted(items, owned[free[owned]])] = 1
    sizes = np.bincount(of, minlength=keywords.size)
    means = np.bincount(of, dense[owned], minlength=keywords.size) / np.maximum(sizes, 1)
    neighbours = [
        _neighbours(relevance, ids, weights, items, query.forced) for ids, weights in near
    ]
    hits = float(dense[query.forced].sum())
    return Board(
        keywords,
        np.arange(keywords.size) < len(query.chosen),
        owns,
        items,
        dense[items],
        query.forced,
        hits,
        query.expected,
        np.stack([sizes, means]).astype(np.float32),
        np.zeros(keywords.size) if costs is None else costs[keywords],
        neighbours,
        _of_query(query, hits, terms),
    )


def _at_hand(ownership: Ownership, query: Asked, dense: Floats, free: Any, costs: Any) -> Ints:
    """The chosen keywords, and the most promising additions for each factor of `EXPECTATIONS`."""
    chosen = np.array(query.chosen, dtype=np.int64)
    likely = query.items[query.p > LEAST_P]
    pool = np.unique(slices(ownership.by_item, ownership.item_starts, likely))
    pool = pool[pool != query.banned]
    owners, of = _owners(ownership, pool)
    open_ = free.copy()
    covered = ownership.covered(chosen)
    retrieved = query.forced.size + int(free[covered].sum())
    hits = float(dense[query.forced].sum() + dense[covered[free[covered]]].sum())
    open_[covered] = False
    new = np.bincount(of, open_[owners], minlength=pool.size)
    new_hits = np.bincount(of, open_[owners] * dense[owners], minlength=pool.size)
    price = 0 if costs is None else costs[pool]
    picked: dict[int, None] = dict.fromkeys(query.chosen)
    for share in EXPECTATIONS:
        f1 = f1_of(hits + new_hits, retrieved + new, share * query.expected)
        value = np.where(new > 0, f1 - price, -np.inf)
        best = np.argsort(-value, kind="stable")[:ADDITIONS]
        picked.update(dict.fromkeys(int(pool[row]) for row in best if value[row] > -np.inf))
    return np.array(list(picked), dtype=np.int64)


def _owners(ownership: Ownership, keywords: Ints) -> tuple[Ints, Ints]:
    """Owners of all keywords one after the other, and the row of the keyword that each is of."""
    sizes = ownership.keyword_starts[keywords + 1] - ownership.keyword_starts[keywords]
    owners = slices(ownership.by_keyword, ownership.keyword_starts, keywords)
    return owners, np.repeat(np.arange(keywords.size), sizes)


def _neighbours(
    relevance: Csr, ids: Ints, weights: Floats, items: Ints, forced: Ints
) -> Neighbours:
    """The labels of training queries over a board's items."""
    sizes = (relevance.indptr[ids + 1] - relevance.indptr[ids]).astype(np.float32)
    relevant = slices(relevance.indices, relevance.indptr, ids)
    of = np.repeat(np.arange(ids.size), sizes.astype(np.int64))
    place = np.full(relevance.shape[1], -1)
    place[items] = np.arange(items.size)
    place[forced] = items.size
    seen = place[relevant] >= 0
    labels = np.zeros((ids.size, items.size + 1), dtype=np.float32)
    np.add.at(labels, (of[seen], place[relevant[seen]]), 1)
    return Neighbours(weights.astype(np.float32), labels[:, :-1], labels[:, -1], sizes)


def _of_query(query: Asked, forced_hits: float, terms: float) -> Floats:
    ordered = np.concatenate([np.sort(query.p)[::-1], np.zeros(10, dtype=np.float32)])
    cut, bound = exact_cut(query.p, query.expected)
    return np.array(
        [
            query.expected,
            bound,
            cut.size,
            *ordered[[0, 4, 9]],
            (query.p * (1 - query.p)).sum(),
            query.forced.size,
            forced_hits,
            terms,
        ],
        dtype=np.float32,
    )


def edits(board: Board, on: Any, limit: int) -> Edits:
    """All drops, additions and the most promising swaps of the set `on`, (k,), with features."""
    covered = on @ board.owns
    new, only = board.owns * (covered == 0), board.owns * (covered == 1)
    found = (covered > 0).astype(np.float32)
    hits = board.forced_hits + float(found @ board.p)
    retrieved = board.forced.size + float(found.sum())
    out, into = _moves(board, on, limit, new, only, hits, retrieved)
    none = np.zeros((1, board.items.size), dtype=np.float32)
    owns, only, new = (np.concatenate([part, none]) for part in (board.owns, only, new))
    lost, gained = only[out] * (1 - owns[into]), new[into]
    hits_after = hits + gained @ board.p - lost @ board.p
    retrieved_after = retrieved + gained.sum(axis=1) - lost.sum(axis=1)
    before = f1_of(hits, int(retrieved), board.expected)
    state = [
        before, hits, retrieved, retrieved / max(board.expected, 0.1),
        float(found @ (board.p * (1 - board.p))), float(on.sum()),
    ]  # fmt: skip
    columns = [
        f1_of(hits_after, retrieved_after, board.expected) - before,
        *_items_moved(board, lost),
        *_items_moved(board, gained),
        retrieved_after / max(board.expected, 0.1),
        hits_after / np.maximum(retrieved_after, 1),
    ]
    owners = np.concatenate([board.owners, [[-1], [-1]]], axis=1)
    columns += [*owners[:, out], *owners[:, into]]
    for neighbours in board.neighbours:
        columns += _for_neighbours(neighbours, found, retrieved, lost, gained, retrieved_after)
    constant = np.tile(np.concatenate([state, board.query]), (out.size, 1))
    x = np.concatenate([np.stack(columns, axis=1), constant], axis=1).astype(np.float32)
    return Edits(x, out, into, lost, gained)


def _moves(
    board: Board, on: Any, limit: int, new: Floats, only: Floats, hits: float, retrieved: float
) -> tuple[Ints, Ints]:
    """The keywords dropped and added by each edit; -1 stands for none."""
    drops, additions = np.flatnonzero(on), np.flatnonzero(~on & new.any(axis=1))
    after = f1_of(hits + new @ board.p, retrieved + new.sum(axis=1), board.expected)
    without = f1_of(hits - only @ board.p, retrieved - only.sum(axis=1), board.expected)
    best_in = additions[np.argsort(-(after - board.costs)[additions], kind="stable")[:SWAPS]]
    best_out = drops[np.argsort(-(without + board.costs)[drops], kind="stable")[:SWAPS]]
    if drops.size >= limit:
        additions = additions[:0]
    nothing = np.full(drops.size + additions.size, -1)
    out = np.concatenate([drops, nothing[: additions.size], np.repeat(best_out, best_in.size)])
    into = np.concatenate([nothing[: drops.size], additions, np.tile(best_in, best_out.size)])
    return out.astype(np.int64), into.astype(np.int64)


def _items_moved(board: Board, moved: Floats) -> list[Floats]:
    """Number, sum, mean and maximum of p, and its variance, of the items that edits lose or
    gain.
    """
    count, hits = moved.sum(axis=1), moved @ board.p
    most = (moved * board.p).max(axis=1, initial=0)
    return [count, hits, hits / np.maximum(count, 1), most, moved @ (board.p * (1 - board.p))]


def _for_neighbours(
    near: Neighbours,
    found: Floats,
    retrieved: float,
    lost: Floats,
    gained: Floats,
    retrieved_after: Floats,
) -> list[Floats]:
    """Change of F1 for the labels of similar queries by each edit, F1 before, and the best
    similarity.
    """
    hits = near.forced + near.labels @ found
    before = f1_of(hits, retrieved, near.sizes)
    hits_after = hits + (gained - lost) @ near.labels.T
    change = f1_of(hits_after, retrieved_after[:, None], near.sizes) - before
    columns = []
    for weights in (near.weights, near.weights**3):
        total = float(weights.sum()) + SHRINKAGE
        columns += [change @ weights / total, np.full(lost.shape[0], before @ weights / total)]
    return [*columns, np.full(lost.shape[0], near.weights.max(initial=0))]


@dataclass(frozen=True)
class Editor:
    """Fold models, the fold of each training query, and the gain above which an edit is made.

    Attributes:
        models: one LightGBM booster a fold; each predicts the true change of F1 less the expected
            change.
        folds: fold of each training query, -1 for those that no model was trained on.
        margin: F1.
    """

    models: Sequence[Any]
    folds: Ints
    margin: float

    def edited(self, board: Board, own: int, limit: int) -> tuple[int, ...]:
        """The keywords after all edits, at most `limit`; `own` is the query's row among the
        training queries, or -1.
        """
        fold = int(self.folds[own]) if own >= 0 else -1
        models = self.models if fold < 0 else [self.models[fold]]
        on = _improved(models, self.margin, board, limit)
        return tuple(int(keyword) for keyword in board.keywords[on])


def _improved(
    models: Sequence[Any], margin: float, board: Board, limit: int, first: Edits | None = None
) -> Any:
    """The set after all edits, (k,) bool. No edit undoes an earlier one. `first`: the edits of the
    set as it is, where they are computed already.
    """
    on = board.chosen
    for _ in range(STEPS):
        possible = first or edits(board, on, limit)
        step = _best(board, possible, _predicted(models, possible.x), margin, on != board.chosen)
        if step is None:
            break
        on, first = _after(on, possible, step), None
    return on


def _predicted(models: Sequence[Any], x: Floats) -> Floats:
    """Change of F1 by each edit: the expected change plus the models' prediction."""
    if not x.size:
        return np.zeros(0, dtype=np.float32)
    learned = sum(model.predict(x, num_threads=1) for model in models) / len(models)
    return np.asarray(x[:, 0] + learned, dtype=np.float32)


def _best(board: Board, possible: Edits, gains: Floats, margin: float, edited: Any) -> int | None:
    """The edit with the highest predicted gain less costs, if that exceeds the margin. Keywords
    that are `edited` already, (k,) bool, are left alone.
    """
    if not gains.size:
        return None
    costs = np.append(board.costs, 0)
    kept = np.append(edited, False)
    net = gains + costs[possible.out] - costs[possible.into]
    net[kept[possible.out] | kept[possible.into]] = -np.inf
    best = int(net.argmax())
    return best if net[best] > margin else None


def _after(on: Any, possible: Edits, step: int) -> Any:
    changed = on.copy()
    if possible.out[step] >= 0:
        changed[possible.out[step]] = False
    if possible.into[step] >= 0:
        changed[possible.into[step]] = True
    return changed


_NONE = np.zeros((0, 0), dtype=np.float32)


@dataclass(frozen=True, slots=True)
class _Lesson:
    """A training query's board, its possible first edits (without their items) and the true change
    of F1 by each.
    """

    board: Board
    relevant: Ints
    edits: Edits
    gains: Floats


def fit_editor(
    laid: Iterable[Board], rows: Ints, relevance: Csr, limit: int, seed: int
) -> tuple[Editor | None, dict[str, float]]:
    """Cross-fit an editor. Returns it, or None where it gains nothing out of fold, and its figures.

    Args:
        laid: boards of training queries, by p that has not seen their labels.
        rows: rows of `relevance` of these queries.
        relevance: 0/1, (all training queries, items).
        limit: keywords of a query at most.
        seed: of folds and boosting.
    """
    lessons = [
        _lesson(board, relevance.indices[relevance.indptr[row] : relevance.indptr[row + 1]], limit)
        for board, row in zip(laid, rows, strict=True)
    ]
    folds = np.random.default_rng(seed).permutation(rows.size) % FOLDS
    models: list[Any] = []
    gains = np.zeros((len(MARGINS), rows.size))
    for some in (range(FIRST_FOLDS), range(FIRST_FOLDS, FOLDS)):
        models += _train_folds(lessons, folds, some, seed)
        for number in np.flatnonzero(np.isin(folds, some)):
            model = [models[folds[number]]]
            gains[:, number] = [_gain(model, lessons[number], m, limit) for m in MARGINS]
        seen = folds < len(models)
        best = int(gains[:, seen].mean(axis=1).argmax())
        gain, error = gains[best, seen].mean(), gains[best, seen].std() / np.sqrt(seen.sum())
        if gain <= 0:
            break
    of_query = np.full(relevance.shape[0], -1, dtype=np.int64)
    of_query[rows] = folds
    figures = {
        "queries": rows.size,
        "gain": round(float(gain), 4),
        "standard_error": round(float(error), 4),
    }
    pays = len(models) == FOLDS and gain > LEAST_ERRORS * error
    return (Editor(models, of_query, MARGINS[best]) if pays else None), figures


def _train_folds(
    lessons: Sequence[_Lesson], folds: Ints, which: Iterable[int], seed: int
) -> list[Any]:
    """A model for each fold, trained on the lessons of all others."""

    def train(fold: int) -> Any:
        others = [lesson for lesson, its in zip(lessons, folds, strict=True) if its != fold]
        x = np.concatenate([lesson.edits.x for lesson in others])
        gains = np.concatenate([lesson.gains for lesson in others])
        data = lightgbm.Dataset(x, gains, init_score=x[:, 0].astype(np.float64))
        return lightgbm.train({**MODEL, "seed": seed}, data, ROUNDS)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(train, which))


def _f1(board: Board, on: Any, relevant: Ints) -> float:
    found = board.items[(on @ board.owns) > 0]
    hits = np.isin(found, relevant).sum() + np.isin(board.forced, relevant).sum()
    return f1_of(float(hits), found.size + board.forced.size, relevant.size)


def _lesson(board: Board, relevant: Ints, limit: int) -> _Lesson:
    possible = edits(board, board.chosen, limit)
    hits = np.isin(board.items, relevant).astype(np.float32)
    found = (board.chosen @ board.owns) > 0
    retrieved = board.forced.size + float(found.sum())
    true = float(np.isin(board.forced, relevant).sum() + hits[found].sum())
    moved = possible.gained - possible.lost
    after = f1_of(true + moved @ hits, retrieved + moved.sum(axis=1), relevant.size)
    before = f1_of(true, retrieved, relevant.size)
    possible = replace(possible, lost=_NONE, gained=_NONE)
    return _Lesson(board, relevant, possible, (after - before).astype(np.float32))


def _gain(models: Sequence[Any], lesson: _Lesson, margin: float, limit: int) -> float:
    board = lesson.board
    on = _improved(models, margin, board, limit, lesson.edits)
    return _f1(board, on, lesson.relevant) - _f1(board, board.chosen, lesson.relevant)
