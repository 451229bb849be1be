"""Boosted edits: gradient-boosted trees predict how one edit of a query's keywords changes true F1.

`keyword_selection` maximises expected F1, as if items were relevant independently of one another.
They are not: relevant items come in groups, and similar training queries show which. The features
of an edit (drop a keyword, add one, swap two) are its change of expected F1 and its change of F1
for the labels of each similar query. The trees learn from training queries, with p that is out of
fold. Edits are made while the predicted gain exceeds a margin. Whether to edit at all is decided
out of fold.
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
from indexers.generators.statistical.keyword_selection import Ownership, slices
from indexers.generators.statistical.ranking.features import unit_terms
from indexers.generators.statistical.ranking.matrices import Csr, Floats, Ints, top_rows
from indexers.generators.statistical.ranking.text_index import QueryBatch
from indexers.generators.statistical.ranking.training_queries import TrainingQueries

MIN_EDIT_QUERIES = 300
"""Fewest training queries that edits are learned from."""

MAX_QUERIES = 6000
"""Most training queries that edits are learned from."""

MAX_KEYWORDS = 8_000
"""Most keywords of these queries in all: longer sets have more edits, and each changes less."""

STEPS = 2
"""Most edits of a query: the trees have learned from unedited sets only."""

ADDITIONS = 10
"""Keywords that are tried as additions, for each of `EXPECTATIONS`."""

_EXPECTATIONS = (1.0, 3.0, 1 / 3)
"""Factors on the expected number of relevant items for which additions are looked for."""

SWAPS = 8
"""Most promising drops and additions, which are combined into swaps."""

_MIN_P = 0.05
"""Keywords are taken from items with at least this p."""

NEIGHBOURS = 20
_SHRINKAGE = 0.5
"""Added to the sum of the neighbours' weights."""

MARGIN = 0.005
"""Gain in F1 above which an edit is made."""

MIN_ERRORS = 2.0
"""The out-of-fold gain must exceed 0 by so many standard errors."""

_MODEL = {
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
_ROUNDS = 150


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Training queries that are like one query.

    Attributes:
        weights: similarity, (n,).
        labels: 0/1 over the items of the state, (n, items).
        forced: relevant ones among the items that are retrieved anyway, (n,).
        sizes: relevant items, (n,).
    """

    weights: Floats
    labels: Floats
    forced: Floats
    sizes: Floats


@dataclass(frozen=True, slots=True)
class EditState:
    """What edits of a query start from: its chosen keywords, those that might be added, and the
    items that they find.

    Attributes:
        keywords: ids, (k,).
        chosen: whether it is in the set before any edit, (k,).
        owns: 0/1, without items that are retrieved anyway, (k, items).
        items: ids, (items,).
        p: probabilities, (items,).
        forced: items that are retrieved anyway, by the query's own text.
        owners: items that own each keyword, and their mean p, (2, k).
        costs: F1 that each keyword must bring, (k,).
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


@dataclass(frozen=True, slots=True)
class Edits:
    """All edits of one set.

    Attributes:
        x: features, the change of expected F1 first, (edits, features).
        out: row in the state of the keyword that is dropped, -1 for none, (edits,).
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
class QueryToEdit:
    """A query whose keywords may be edited.

    Attributes:
        items: candidates, (c,).
        p: their probabilities, (c,).
        banned: the keyword that may not be added, -1 for none.
    """

    items: Ints
    p: Floats
    expected: float
    chosen: Sequence[int]
    forced: Ints
    banned: int


def edit_states(
    sources: TrainingQueries,
    ownership: Ownership,
    batch: QueryBatch,
    asked: Sequence[QueryToEdit],
    costs: Any,
) -> Iterator[EditState]:
    """The state of each query of a batch."""
    for query, near in zip(asked, _near(sources, batch, asked), strict=True):
        yield _edit_state(sources.relevance, ownership, query, near, costs)


def _near(
    sources: TrainingQueries, batch: QueryBatch, asked: Sequence[QueryToEdit]
) -> Iterator[list[tuple[Ints, Floats]]]:
    starts = np.concatenate([[0], np.cumsum([query.items.size for query in asked])])
    p = sp.csr_matrix(
        (
            np.concatenate([query.p for query in asked]),
            np.concatenate([query.items for query in asked]),
            starts,
        ),
        shape=(len(asked), sources.index.n_items),
    )
    similar = sources.similar(unit_terms(sources.index, batch), batch.own)
    overlap = sources.overlap(top_rows(p, 30), batch.own)
    neighbours = [top_rows(matrix, NEIGHBOURS) for matrix in (similar, overlap)]
    for row in range(len(asked)):
        yield [(matrix[row].indices, matrix[row].data) for matrix in neighbours]


def _edit_state(
    relevance: Csr,
    ownership: Ownership,
    query: QueryToEdit,
    near: Sequence[tuple[Ints, Floats]],
    costs: Any,
) -> EditState:
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
    return EditState(
        keywords,
        np.arange(keywords.size) < len(query.chosen),
        owns,
        items,
        dense[items],
        query.forced,
        float(dense[query.forced].sum()),
        query.expected,
        np.stack([sizes, means]).astype(np.float32),
        costs[keywords],
        neighbours,
    )


def _at_hand(
    ownership: Ownership, query: QueryToEdit, dense: Floats, free: Any, costs: Any
) -> Ints:
    chosen = np.array(query.chosen, dtype=np.int64)
    likely = query.items[query.p > _MIN_P]
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
    picked: dict[int, None] = dict.fromkeys(query.chosen)
    for share in _EXPECTATIONS:
        f1 = f1_of(hits + new_hits, retrieved + new, share * query.expected)
        value = np.where(new > 0, f1 - costs[pool], -np.inf)
        best = np.argsort(-value, kind="stable")[:ADDITIONS]
        picked.update(dict.fromkeys(int(pool[row]) for row in best if value[row] > -np.inf))
    return np.array(list(picked), dtype=np.int64)


def _owners(ownership: Ownership, keywords: Ints) -> tuple[Ints, Ints]:
    sizes = ownership.keyword_starts[keywords + 1] - ownership.keyword_starts[keywords]
    owners = slices(ownership.by_keyword, ownership.keyword_starts, keywords)
    return owners, np.repeat(np.arange(keywords.size), sizes)


def _neighbours(
    relevance: Csr, ids: Ints, weights: Floats, items: Ints, forced: Ints
) -> Neighbours:
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


def edits(state: EditState, on: Any, limit: int) -> Edits:
    """All drops, additions and the most promising swaps of the set `on`, (k,), with features."""
    covered = on @ state.owns
    new, only = state.owns * (covered == 0), state.owns * (covered == 1)
    hit = (covered > 0).astype(np.float32)
    hits = state.forced_hits + float(hit @ state.p)
    retrieved = state.forced.size + float(hit.sum())
    out, into = _moves(state, on, limit, new, only, hits, retrieved)
    none = np.zeros((1, state.items.size), dtype=np.float32)
    owns, only, new = (np.concatenate([part, none]) for part in (state.owns, only, new))
    lost, gained = only[out] * (1 - owns[into]), new[into]
    hits_after = hits + gained @ state.p - lost @ state.p
    retrieved_after = retrieved + gained.sum(axis=1) - lost.sum(axis=1)
    before = f1_of(hits, int(retrieved), state.expected)
    columns = [f1_of(hits_after, retrieved_after, state.expected) - before]
    for moved in (lost, gained):
        columns += [moved.sum(axis=1), moved @ state.p]
    owners = np.concatenate([state.owners, [[-1], [-1]]], axis=1)
    columns += [*owners[:, out], *owners[:, into]]
    for neighbours in state.neighbours:
        columns += _for_neighbours(neighbours, hit, retrieved, lost, gained, retrieved_after)
    constant = np.tile([before, retrieved, state.expected, float(on.sum())], (out.size, 1))
    x = np.concatenate([np.stack(columns, axis=1), constant], axis=1).astype(np.float32)
    return Edits(x, out, into, lost, gained)


def _moves(
    state: EditState, on: Any, limit: int, new: Floats, only: Floats, hits: float, retrieved: float
) -> tuple[Ints, Ints]:
    drops, additions = np.flatnonzero(on), np.flatnonzero(~on & new.any(axis=1))
    after = f1_of(hits + new @ state.p, retrieved + new.sum(axis=1), state.expected)
    without = f1_of(hits - only @ state.p, retrieved - only.sum(axis=1), state.expected)
    best_in = additions[np.argsort(-(after - state.costs)[additions], kind="stable")[:SWAPS]]
    best_out = drops[np.argsort(-(without + state.costs)[drops], kind="stable")[:SWAPS]]
    if drops.size >= limit:
        additions = additions[:0]
    nothing = np.full(drops.size + additions.size, -1)
    out = np.concatenate([drops, nothing[: additions.size], np.repeat(best_out, best_in.size)])
    into = np.concatenate([nothing[: drops.size], additions, np.tile(best_in, best_out.size)])
    return out.astype(np.int64), into.astype(np.int64)


def _for_neighbours(
    near: Neighbours,
    neighbours: Floats,
    retrieved: float,
    lost: Floats,
    gained: Floats,
    retrieved_after: Floats,
) -> list[Floats]:
    hits = near.forced + near.labels @ neighbours
    before = f1_of(hits, retrieved, near.sizes)
    hits_after = hits + (gained - lost) @ near.labels.T
    change = f1_of(hits_after, retrieved_after[:, None], near.sizes) - before
    total = float(near.weights.sum()) + _SHRINKAGE
    return [change @ near.weights / total, np.full(lost.shape[0], near.weights.max(initial=0))]


@dataclass(frozen=True)
class Editor:
    """Fold models, and the fold of each training query.

    Attributes:
        models: one LightGBM booster a fold; each predicts the true change of F1 less the expected
            change.
        folds: fold of each training query, -1 for those that no model was trained on.
    """

    models: Sequence[Any]
    folds: Ints

    def edited(self, state: EditState, own: int, limit: int) -> tuple[int, ...]:
        """The keywords after all edits, at most `limit`; `own` is the query's row among the
        training queries, or -1.
        """
        fold = int(self.folds[own]) if own >= 0 else -1
        models = self.models if fold < 0 else [self.models[fold]]
        on = _improved(models, state, limit)
        return tuple(int(keyword) for keyword in state.keywords[on])


def _improved(
    models: Sequence[Any], state: EditState, limit: int, first: Edits | None = None
) -> Any:
    on = state.chosen
    for _ in range(STEPS):
        possible = first or edits(state, on, limit)
        step = _best(state, possible, _predicted(models, possible.x), on != state.chosen)
        if step is None:
            break
        on, first = _after(on, possible, step), None
    return on


def _predicted(models: Sequence[Any], x: Floats) -> Floats:
    if not x.size:
        return np.zeros(0, dtype=np.float32)
    learned = sum(model.predict(x, num_threads=1) for model in models) / len(models)
    return np.asarray(x[:, 0] + learned, dtype=np.float32)


def _best(state: EditState, possible: Edits, gains: Floats, edited: Any) -> int | None:
    if not gains.size:
        return None
    costs = np.append(state.costs, 0)
    kept = np.append(edited, False)
    net = gains + costs[possible.out] - costs[possible.into]
    net[kept[possible.out] | kept[possible.into]] = -np.inf
    best = int(net.argmax())
    return best if net[best] > MARGIN else None


def _after(on: Any, possible: Edits, step: int) -> Any:
    changed = np.append(on, False)  # The last place is that of -1, no keyword.
    changed[possible.out[step]] = False
    changed[possible.into[step]] = True
    return changed[:-1]


_NONE = np.zeros((0, 0), dtype=np.float32)


@dataclass(frozen=True, slots=True)
class _TrainingExample:
    state: EditState
    relevant: Ints
    edits: Edits
    gains: Floats


def fit_editor(
    states: Iterable[EditState], rows: Ints, relevance: Csr, limit: int, seed: int
) -> tuple[Editor | None, dict[str, float]]:
    """Cross-fit an editor. Returns it, or None where it gains nothing out of fold, and its figures.

    Args:
        states: of training queries, by p that has not seen their labels.
        rows: rows of `relevance` of these queries.
        relevance: 0/1, (all training queries, items).
    """
    examples = [
        _example(state, relevance[row].indices, limit)
        for state, row in zip(states, rows, strict=True)
    ]
    folds = np.random.default_rng(seed).permutation(rows.size) % FOLDS
    models = _train_folds(examples, folds, seed)
    gains = np.array(
        [_gain([models[f]], one, limit) for f, one in zip(folds, examples, strict=True)]
    )
    gain, error = float(gains.mean()), float(gains.std() / np.sqrt(rows.size))
    of_query = np.full(relevance.shape[0], -1, dtype=np.int64)
    of_query[rows] = folds
    figures = {
        "queries": rows.size,
        "gain": round(gain, 4),
        "standard_error": round(error, 4),
    }
    return (Editor(models, of_query) if gain > MIN_ERRORS * error else None), figures


def _train_folds(examples: Sequence[_TrainingExample], folds: Ints, seed: int) -> list[Any]:
    def train(fold: int) -> Any:
        others = [example for example, its in zip(examples, folds, strict=True) if its != fold]
        x = np.concatenate([example.edits.x for example in others])
        gains = np.concatenate([example.gains for example in others])
        data = lightgbm.Dataset(x, gains, init_score=x[:, 0].astype(np.float64))
        return lightgbm.train({**_MODEL, "seed": seed}, data, _ROUNDS)

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(train, range(FOLDS)))


def _f1(state: EditState, on: Any, relevant: Ints) -> float:
    retrieved = state.items[(on @ state.owns) > 0]
    hits = np.isin(retrieved, relevant).sum() + np.isin(state.forced, relevant).sum()
    return f1_of(float(hits), retrieved.size + state.forced.size, relevant.size)


def _example(state: EditState, relevant: Ints, limit: int) -> _TrainingExample:
    possible = edits(state, state.chosen, limit)
    hits = np.isin(state.items, relevant).astype(np.float32)
    in_set = (state.chosen @ state.owns) > 0
    retrieved = state.forced.size + float(in_set.sum())
    true = float(np.isin(state.forced, relevant).sum() + hits[in_set].sum())
    moved = possible.gained - possible.lost
    after = f1_of(true + moved @ hits, retrieved + moved.sum(axis=1), relevant.size)
    before = f1_of(true, retrieved, relevant.size)
    possible = replace(possible, lost=_NONE, gained=_NONE)
    return _TrainingExample(state, relevant, possible, (after - before).astype(np.float32))


def _gain(models: Sequence[Any], example: _TrainingExample, limit: int) -> float:
    state = example.state
    on = _improved(models, state, limit, example.edits)
    return _f1(state, on, example.relevant) - _f1(state, state.chosen, example.relevant)
