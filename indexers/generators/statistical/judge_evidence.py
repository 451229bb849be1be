"""What a language model as a judge says of pairs near the ranker's cut, as evidence beside the
ranker's probability.

The judge is asked whether an item answers a query. The log-odds of its yes is added to the ranker's
logit, times a coefficient for known items and one for new items; each query keeps the number of
relevant items that its ranker expects. Coefficients are fitted on training queries out of fold, for
new items with a third of the known items at a time masked as if they were new, and used only where
they gain F1 on queries that they were not fitted on.

Queries of the data set are judged alone: a query that comes later costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import expit

from cogr.keywords import folded, self_keyword
from cogr.records import Item, Query
from indexers.generators.judging import QueryItem, YesOrNo
from indexers.generators.statistical import FOLDS
from indexers.generators.statistical.artefact import Artefact
from indexers.generators.statistical.keyword_selection import Floats64, Ints64, cut_f1, exact_cut
from indexers.generators.statistical.ranking.features import CandidatePairs, candidates
from indexers.generators.statistical.ranking.matrices import Floats as Floats32
from indexers.generators.statistical.ranking.ranker import as_new
from indexers.generators.statistical.stacking import fit_line, logits_of

MAX_PAIRS = 10_000
"""Most pairs that a judge is asked about for one side: ten minutes on two cores with a model of 1.5
billion parameters.
"""

MAX_FITTED = 1000
"""Of these, most to fit a coefficient on, for known and for new items each."""

_MAX_QUERIES = 300
"""Most training queries to fit coefficients on."""

NEAR = 2.0
"""A pair is near the cut where the logit of its p is so close to that of the last item taken."""

_MAX_SHIFT = 50.0


@dataclass(frozen=True)
class JudgeEvidence:
    """Answers of a judge, and what they are worth.

    Attributes:
        weights: coefficients of the log-odds, for known and for new items; a row for each fold of
            the ranker's training queries and a last one for other queries, (folds + 1, 2).
        folds: id of a training query -> its fold.
        new: whether the labels cannot know an item, (items,).
        said: query id -> its text, its judged items (ascending) and their log-odds.
        worth: of known and of new items, F1 of the exact cut of training queries out of fold,
            without the evidence and with it.
        told: how many pairs were judged, for a person.
    """

    weights: Floats64
    folds: Mapping[str, int]
    new: NDArray[np.bool_]
    said: Mapping[str, tuple[str, Ints64, Floats64]] = field(default_factory=dict)
    worth: Sequence[tuple[float, float]] = ()
    told: str = ""

    def __call__(self, query: Query, items: Ints64, p: Floats32) -> tuple[Ints64, Floats32]:
        """Probabilities with the evidence, where there is any."""
        text, judged, odds = self.said.get(query.id, ("", items[:0], p[:0]))
        if text != self_keyword(query.text) or not judged.size:
            return items, p
        z = np.full(items.size, np.nan)
        there = np.isin(judged, items)
        z[np.searchsorted(items, judged[there])] = odds[there]
        return items, self.of(query, p, self.new[items], z)

    def of(self, query: Query, p: Floats32, new: NDArray[np.bool_], z: Floats64) -> Floats32:
        """Probabilities, given log-odds (nan where there are none); those of the judged items keep
        their sum.
        """
        weights = self.weights[self.folds.get(query.id, -1)][new.astype(np.int64)]
        used = ~np.isnan(z) & (weights > 0)
        if not used.any():
            return p
        logits, expected = logits_of(p[used]) + (weights * z)[used], float(p[used].sum())
        shift = brentq(lambda by: expit(logits + by).sum() - expected, -_MAX_SHIFT, _MAX_SHIFT)
        combined = p.copy()
        combined[used] = expit(logits + shift)
        return combined

    @property
    def uses(self) -> tuple[bool, bool]:
        """Whether known items and new items are judged."""
        known, new = (self.weights[-1] > 0).tolist()
        return known, new

    def __str__(self) -> str:
        named = zip(("known", "new"), self.worth, self.uses, strict=True)
        worth = ", ".join(
            f"{name} items {before:.3f} -> {after:.3f}{'' if used else ' (not used)'}"
            for name, (before, after), used in named
            if after
        )
        return f"judge: {self.told}; F1 of the exact cut out of fold: {worth}"


def judged(
    artefact: Artefact,
    judge: YesOrNo,
    items: Mapping[str, Item],
    queries: Sequence[Query],
    only: Ints64 | None = None,
) -> Artefact:
    """The artefact with what a judge says of pairs of these queries.

    Args:
        items: by id; those that it lacks are not judged.
        queries: which may be asked about.
        only: numbers of the new items that may be asked about; None for all items.
    """
    rows = zip(artefact.queries, artefact.ranker.folds.tolist(), strict=True)
    folds = {query.id: fold for query, fold in rows}
    evidence, pairs = JudgeEvidence(np.zeros((FOLDS + 1, 2)), folds, _new(artefact)), 0
    for kind in (False, True):
        wanted = artefact.ranker.cold is not None if kind else only is None
        examples = _examples(artefact, kind) if wanted else []
        z = _answers(examples, artefact, judge, items, new=kind)
        evidence = _fitted(artefact, evidence, kind, examples, z)
        pairs += sum(one.near.size for one in examples)
    asked = _chosen(artefact, queries, only, evidence.uses)
    said = {
        one.query.id: (self_keyword(one.query.text), one.items[one.near], z[one.near])
        for one, z in zip(asked, _answers(asked, artefact, judge, items), strict=True)
    }
    pairs += sum(one.near.size for one in asked)
    told = f"{pairs:,} pairs, {judge.asked:,} of them asked now in {judge.seconds:.0f} s"
    told += f", {judge.unanswered:,} without an answer" if judge.unanswered else ""
    return artefact.with_evidence(judged=replace(evidence, said=said, told=told))


def _new(artefact: Artefact) -> NDArray[np.bool_]:
    """The items that the cold ranker answers for, (items,)."""
    ranker = artefact.ranker
    return ranker.new if ranker.cold else np.zeros(len(artefact.item_ids), np.bool_)


@dataclass(frozen=True)
class _Candidates:
    """Candidates of a query, ascending, with p; `near` are the places of those to be judged."""

    query: Query
    items: Ints64
    p: Floats32
    new: NDArray[np.bool_]
    near: Ints64
    relevant: Ints64 = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def y(self) -> Floats64:
        return np.isin(self.items, self.relevant).astype(np.float64)


def _near(p: Floats32, multiplier: float) -> Ints64:
    cut, _ = exact_cut(p, multiplier * float(p.sum()))
    logits = logits_of(p)
    edge = logits[cut].min() if cut.size else logits.max(initial=0.0)
    near: Ints64 = np.flatnonzero(np.abs(logits - edge) < NEAR)
    return near


def _examples(artefact: Artefact, kind: bool) -> list[_Candidates]:
    """Training queries, drawn at random until there are enough pairs. To learn of new items, each
    has every third of the items masked, and masked items are judged.
    """
    ranker, rng = artefact.ranker, np.random.default_rng(artefact.facts["seed"])
    labelled = (np.diff(artefact.relevance.indptr) > 0) & (ranker.folds >= 0)
    rows = np.sort(rng.permutation(np.flatnonzero(labelled))[:_MAX_QUERIES])
    by_row: list[list[_Candidates]] = [[] for _ in rows]
    for pairs, p, masked in _scored(artefact, rows, rng, kind):
        for place, (row, span) in enumerate(zip(rows, pairs.spans(rows.size), strict=True)):
            near = _near(p[span], ranker.multiplier)
            near = near[masked[span][near] == kind]
            parts = (pairs.item[span], p[span], masked[span], near, artefact.relevance[row].indices)
            by_row[place].append(_Candidates(artefact.queries[row], *parts))
    drawn, left = list[_Candidates](), MAX_FITTED
    for place in rng.permutation(rows.size):
        left -= sum(one.near.size for one in by_row[place])
        drawn += by_row[place] if left >= 0 else ()
    return drawn


def _scored(
    artefact: Artefact, rows: Ints64, rng: np.random.Generator, kind: bool
) -> Iterator[tuple[CandidatePairs, Floats32, NDArray[np.bool_]]]:
    ranker = artefact.ranker
    if not kind or ranker.cold is None:
        pairs = candidates(artefact.sources, artefact.sources.queries.rows(rows))
        yield pairs, ranker.probabilities(pairs, rows), _new(artefact)[pairs.item]
        return
    texts = [query.text for query in artefact.queries]
    index, relevance, cold = artefact.index, artefact.relevance, ranker.cold
    for pairs, p, masked in as_new(ranker, index, texts, relevance, rows, rng):
        mixed = p.copy()
        mixed[masked] = cold.probabilities(pairs.where(masked), rows)
        yield pairs, mixed, masked


def _chosen(
    artefact: Artefact, queries: Sequence[Query], only: Ints64 | None, uses: tuple[bool, bool]
) -> list[_Candidates]:
    """Pairs near the cut: those of new items first, then those of queries without labels."""
    pooled, order = list[_Candidates](), list[tuple[bool, bool, int, int]]()
    is_new = _new(artefact)
    for number, (items, p) in enumerate(artefact.probabilities(queries)):
        near, query = _near(p, artefact.ranker.multiplier), queries[number]
        near = near[np.array(uses)[is_new[items[near]].astype(np.int64)]]
        near = near if only is None else near[np.isin(items[near], only)]
        pooled.append(_Candidates(query, items, p, is_new[items], near))
        labelled = artefact.row_of(query) >= 0
        order += [(not is_new[items[at]], labelled, number, at) for at in near.tolist()]
    kept: dict[int, list[int]] = {}
    for *_, number, at in sorted(order)[: MAX_PAIRS - 2 * MAX_FITTED]:
        kept.setdefault(number, []).append(at)
    return [replace(pooled[number], near=np.sort(at)) for number, at in kept.items()]


def _fitted(
    artefact: Artefact,
    evidence: JudgeEvidence,
    kind: bool,
    known: Sequence[_Candidates],
    z: Sequence[Floats64],
) -> JudgeEvidence:
    """The evidence with the coefficient of known or new items, where it raises the F1 of queries
    that it was not fitted on.
    """
    if not known:
        return replace(evidence, worth=[*evidence.worth, (0.0, 0.0)])
    p, odds, y = (
        np.concatenate(part) for part in ([one.p for one in known], z, [one.y for one in known])
    )
    folds = np.repeat(
        [evidence.folds[one.query.id] for one in known], [one.p.size for one in known]
    )
    weights = evidence.weights.copy()
    for fold in range(FOLDS + 1):
        rows = ~np.isnan(odds) & (folds != fold)
        line = fit_line(np.stack([logits_of(p[rows]), odds[rows]], axis=1), y[rows])
        weights[fold, int(kind)] = max(0.0, line[2])
    fitted = replace(evidence, weights=weights)
    before, after = (_f1(artefact, one, known, z) for one in (None, fitted))
    worth = [*evidence.worth, (before, after)]
    return replace(fitted if after > before else evidence, worth=worth)


def _f1(
    artefact: Artefact,
    evidence: JudgeEvidence | None,
    known: Sequence[_Candidates],
    z: Sequence[Floats64],
) -> float:
    values = []
    for one, odds in zip(known, z, strict=True):
        p = evidence.of(one.query, one.p, one.new, odds) if evidence else one.p
        values.append(cut_f1(p, one.y, one.relevant.size, artefact.ranker.multiplier))
    return float(np.mean(values))


def _answers(
    asked: Sequence[_Candidates],
    artefact: Artefact,
    judge: YesOrNo,
    items: Mapping[str, Item],
    *,
    new: bool = False,
) -> list[Floats64]:
    """Log-odds of each query's candidates; nan where none are known."""
    ids = artefact.item_ids
    pairs = {
        (one.query.id, item): QueryItem(Query(one.query.id, folded(one.query.text)), known)
        for one in asked
        for item in one.items[one.near].tolist()
        if (known := items.get(ids[item]))
    }
    logits = judge.logits([*pairs.values()], new=new)
    by_pair = dict(zip(pairs, logits.tolist(), strict=True))
    return [
        np.array([by_pair.get((one.query.id, item), np.nan) for item in one.items.tolist()])
        for one in asked
    ]
