"""What a language model as a judge says of pairs near the ranker's cut, as evidence beside the
ranker's probability.

The judge is asked whether an item answers a query. The log-odds of its yes, less the means of item
and query, is one more feature in a logistic regression with the ranker's logit (`stacking`), with a
coefficient for new items and one for known items. Coefficients are fitted on training queries, of
which a third of the known items at a time is masked as if it were new, and used only where they
gain F1 on queries that they were not fitted on. Judges write poorly what they know of an item, and
small ones too tell well whether it answers a query.

Queries of the data set are judged alone: a query that comes later costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from cogr.keywords import self_keyword
from cogr.metrics import f1_of
from cogr.records import Item, Query
from indexers.generators.judging import Pair, YesOrNo
from indexers.generators.statistical.artefact import Artefact
from indexers.generators.statistical.keyword_selection import Floats, Ints, exact_cut
from indexers.generators.statistical.ranking.features import CandidatePairs, candidates
from indexers.generators.statistical.ranking.matrices import Floats as Floats32
from indexers.generators.statistical.ranking.ranker import MASKS, as_new
from indexers.generators.statistical.stacking import PARTS, fit_line, logits_of

MOST_PAIRS = 10_000
"""Most pairs that a judge is asked about for one side: ten minutes on two cores with a model of 1.5
billion parameters.
"""

MOST_FITTED = 1500
"""Of these, most to fit coefficients on."""

MOST_QUERIES = 300
"""Most training queries to fit coefficients on."""

NEAR = 2.5
"""A pair is near the cut where the logit of its p is so close to that of the last item taken."""

SHRINKAGE = 3.0
"""Pairs that pull the means of items and of queries towards 0."""

_SWEEPS = 5


@dataclass(frozen=True)
class JudgeEvidence:
    """Answers of a judge, and what they are worth.

    Attributes:
        lines: intercept, coefficients of the ranker's logit and of the log-odds; for known and for
            new items, a row for each of the parts and a last one for other queries, (2, parts + 1,
            3).
        parts: query id -> its part, of the queries that they were fitted on.
        uses: whether known items and new items are judged.
        said: query id -> its text, its judged items (ascending) and their centred log-odds.
        new: whether the labels cannot know an item, (items,).
        f1, without: of exact cuts of training queries out of fold, with the evidence and without.
        told: how many pairs were judged, for a person.
    """

    lines: Floats
    parts: Mapping[str, int]
    uses: tuple[bool, bool]
    new: NDArray[np.bool_]
    f1: float
    without: float
    said: Mapping[str, tuple[str, Ints, Floats]] = field(default_factory=dict)
    told: str = ""

    def __call__(self, query: Query, items: Ints, p: Floats32) -> tuple[Ints, Floats32]:
        """Probabilities with the evidence, where there is any."""
        text, judged, odds = self.said.get(query.id, ("", items[:0], p[:0]))
        if text != self_keyword(query.text) or not judged.size:
            return items, p
        z = np.full(items.size, np.nan)
        there = np.isin(judged, items)
        z[np.searchsorted(items, judged[there])] = odds[there]
        return items, self.of(query, p, self.new[items], z, self.uses)

    def of(
        self,
        query: Query,
        p: Floats32,
        new: NDArray[np.bool_],
        z: Floats,
        uses: tuple[bool, bool],
    ) -> Floats32:
        """Probabilities, given log-odds (nan where there are none)."""
        lines = self.lines[:, self.parts.get(query.id, -1)][new.astype(np.int64)]
        logits = lines[:, 0] + lines[:, 1] * logits_of(p) + lines[:, 2] * z
        used = ~np.isnan(z) & np.array(uses)[new.astype(np.int64)]
        found: Floats32 = np.where(used, expit(logits), p).astype(np.float32)
        return found

    def __str__(self) -> str:
        worth = f"F1 of the exact cut out of fold {self.without:.3f} -> {self.f1:.3f}"
        return f"judge: {self.told}; {worth}" + ("" if any(self.uses) else ", so it is not used")


def judged(
    artefact: Artefact,
    judge: YesOrNo,
    items: Mapping[str, Item],
    queries: Sequence[Query],
    only: Ints | None = None,
) -> Artefact:
    """The artefact with what a judge says of pairs of these queries.

    Args:
        items: by id; those that it lacks are not judged.
        queries: which may be asked about.
        only: numbers of the new items that may be asked about; None for all items.
    """
    known = _examples(artefact)
    evidence = _fitted(artefact, known, _centred(known, artefact, judge, items), only is None)
    asked = _chosen(artefact, queries, only, evidence.uses) if any(evidence.uses) else []
    said = {
        one.query.id: (self_keyword(one.query.text), one.items[one.near], z[one.near])
        for one, z in zip(asked, _centred(asked, artefact, judge, items), strict=True)
    }
    pairs = sum(one.near.size for one in (*known, *asked))
    told = f"{pairs:,} pairs, {judge.asked:,} of them asked now in {judge.seconds:.0f} s"
    found = replace(artefact, judged=replace(evidence, said=said, told=told))
    vars(found)["sources"] = artefact.sources
    return found


def _new(artefact: Artefact) -> NDArray[np.bool_]:
    """The items that the cold ranker answers for, (items,)."""
    ranker = artefact.ranker
    return ranker.new if ranker.cold else np.zeros(len(artefact.item_ids), np.bool_)


@dataclass(frozen=True)
class _Candidates:
    """Candidates of a query, ascending, with p; `near` are the places of those to be judged."""

    query: Query
    items: Ints
    p: Floats32
    new: NDArray[np.bool_]
    near: Ints


def _near(p: Floats32, multiplier: float) -> Ints:
    cut, _ = exact_cut(p, multiplier * float(p.sum()))
    logits = logits_of(p)
    edge = logits[cut].min() if cut.size else logits.max(initial=0.0)
    found: Ints = np.flatnonzero(np.abs(logits - edge) < NEAR)
    return found


def _examples(artefact: Artefact) -> list[_Candidates]:
    """Training queries, drawn at random until there are enough pairs. Where there is a cold ranker,
    each has every third of the items masked, and masked items are judged.
    """
    ranker, rng = artefact.ranker, np.random.default_rng(int(str(artefact.facts["seed"])))
    labelled = (np.diff(artefact.relevance.indptr) > 0) & (ranker.folds >= 0)
    rows = np.sort(rng.permutation(np.flatnonzero(labelled))[:MOST_QUERIES])
    found: list[list[_Candidates]] = [[] for _ in rows]
    for pairs, p, masked in _scored(artefact, rows, rng):
        bounds = np.searchsorted(pairs.query, np.arange(rows.size + 1))
        for place, row in enumerate(rows):
            span = slice(bounds[place], bounds[place + 1])
            near = _near(p[span], ranker.multiplier)
            near = near[masked[span][near]] if ranker.cold else near
            query = artefact.queries[row]
            found[place].append(_Candidates(query, pairs.item[span], p[span], masked[span], near))
    drawn, left = list[_Candidates](), MOST_FITTED
    for place in rng.permutation(rows.size):
        left -= sum(one.near.size for one in found[place])
        drawn += found[place] if left >= 0 else ()
    return drawn


def _scored(
    artefact: Artefact, rows: Ints, rng: np.random.Generator
) -> Iterator[tuple[CandidatePairs, Floats32, NDArray[np.bool_]]]:
    ranker = artefact.ranker
    if ranker.cold is None:
        pairs = candidates(artefact.sources, artefact.sources.nearest.queries.rows(rows))
        yield pairs, ranker.probabilities(pairs, rows), np.zeros(pairs.item.size, np.bool_)
        return
    part = rng.permutation(artefact.relevance.shape[1]) % MASKS
    part[ranker.new] = MASKS
    texts = [query.text for query in artefact.queries]
    index, relevance, cold = artefact.index, artefact.relevance, ranker.cold
    for pairs, p, masked in as_new(ranker, index, texts, relevance, rows, part):
        mixed = p.copy()
        mixed[masked] = cold.probabilities(pairs.where(masked), rows)
        yield pairs, mixed, masked


def _chosen(
    artefact: Artefact, queries: Sequence[Query], only: Ints | None, uses: tuple[bool, bool]
) -> list[_Candidates]:
    """Pairs near the cut: those of new items first, then those of queries without labels."""
    found, order = list[_Candidates](), list[tuple[bool, bool, int, int]]()
    is_new = _new(artefact)
    for number, (items, p) in enumerate(artefact.probabilities(queries)):
        near, query = _near(p, artefact.ranker.multiplier), queries[number]
        near = near[np.array(uses)[is_new[items[near]].astype(np.int64)]]
        near = near if only is None else near[np.isin(items[near], only)]
        found.append(_Candidates(query, items, p, is_new[items], near))
        labelled = artefact.row_of(query) >= 0
        order += [(not is_new[items[at]], labelled, number, at) for at in near.tolist()]
    kept: dict[int, list[int]] = {}
    for *_, number, at in sorted(order)[: MOST_PAIRS - MOST_FITTED]:
        kept.setdefault(number, []).append(at)
    return [replace(found[number], near=np.sort(at)) for number, at in kept.items()]


def _fitted(
    artefact: Artefact, known: Sequence[_Candidates], z: Sequence[Floats], of_known: bool
) -> JudgeEvidence:
    """Coefficients, and whether to use them, by the F1 of queries that they were not fitted on."""
    ids = dict.fromkeys(one.query.id for one in known)
    parts = {id_: place % PARTS for place, id_ in enumerate(ids)}
    y = [_labels(artefact, one) for one in known]
    lines = np.array([[[0.0, 1, 0]] * (PARTS + 1)] * 2)
    for part in range(PARTS + 1):
        some = [n for n, one in enumerate(known) if parts[one.query.id] != part]
        rows = [(known[n], z[n], y[n][0]) for n in some]
        for kind in (0, 1):
            x, wanted = _rows(rows, kind)
            if wanted.any():
                lines[kind, part] = fit_line(x, wanted)
    evidence = JudgeEvidence(lines, parts, (False, False), _new(artefact), 0.0, 0.0)
    ways = [(False, False), (False, True)] + [(True, False), (True, True)] * of_known
    f1 = {uses: _f1(artefact, evidence, known, z, y, uses) for uses in ways}
    best = max(ways, key=lambda uses: f1[uses])
    return replace(evidence, uses=best, f1=f1[best], without=f1[ways[0]])


def _labels(artefact: Artefact, one: _Candidates) -> tuple[Floats, int]:
    """0/1 of each candidate, and how many known items are relevant."""
    row = artefact.row_of(one.query)
    starts = artefact.relevance.indptr[row : row + 2]
    relevant = artefact.relevance.indices[starts[0] : starts[1]]
    y = np.isin(one.items, relevant).astype(np.float64)
    return y, int((~_new(artefact)[relevant]).sum())


def _rows(
    examples: Sequence[tuple[_Candidates, Floats, Floats]], kind: int
) -> tuple[Floats, Floats]:
    x, y = [np.zeros((0, 2))], [np.zeros(0)]
    for one, z, labels in examples:
        used = ~np.isnan(z) & (one.new == kind)
        x.append(np.stack([logits_of(one.p[used]), z[used]], axis=1))
        y.append(labels[used])
    return np.concatenate(x), np.concatenate(y)


def _f1(
    artefact: Artefact,
    evidence: JudgeEvidence,
    known: Sequence[_Candidates],
    z: Sequence[Floats],
    y: Sequence[tuple[Floats, int]],
    uses: tuple[bool, bool],
) -> float:
    found = []
    for one, odds, (labels, relevant) in zip(known, z, y, strict=True):
        p = evidence.of(one.query, one.p, one.new, odds, uses)
        cut, _ = exact_cut(p, artefact.ranker.multiplier * float(p.sum()))
        found.append(f1_of(float(labels[cut].sum()), cut.size, relevant))
    return float(np.mean(found)) if found else 0.0


def _centred(
    asked: Sequence[_Candidates], artefact: Artefact, judge: YesOrNo, items: Mapping[str, Item]
) -> list[Floats]:
    """Log-odds less the means of item and query, of each query's candidates; nan where none
    are known.
    """
    ids = artefact.item_ids
    pairs = {
        (one.query.id, item): Pair(Query(one.query.id, self_keyword(one.query.text)), known)
        for one in asked
        for item in one.items[one.near].tolist()
        if (known := items.get(ids[item]))
    }
    logits = judge.logits([*pairs.values()])
    there = ~np.isnan(logits)
    z = logits - logits[there].mean() if there.any() else logits
    columns = np.array([item for _, item in pairs], np.int64)
    _, rows = np.unique([query for query, _ in pairs], return_inverse=True)
    for _ in range(_SWEEPS):
        for of in (columns, rows):
            sums, counts = (np.bincount(of[there], w) for w in (z[there], there[there] * 1.0))
            z[there] -= (sums / (counts + SHRINKAGE))[of[there]]
    found = dict(zip(pairs, z.tolist(), strict=True))
    return [
        np.array([found.get((one.query.id, item), np.nan) for item in one.items.tolist()])
        for one in asked
    ]
