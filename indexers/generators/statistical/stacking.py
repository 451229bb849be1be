"""Stacking: the retrieved sets of earlier snapshot pairs, as evidence beside the ranker's
probability.

A pair from another generator, such as a trained language model, either retrieves an item for a
query or does not. A logistic regression adds this 0/1 value to the ranker's logit, with one
coefficient for each pair (stacked generalisation, Wolpert 1992). It is fitted on queries that
neither the ranker nor the pairs have learned from, and used only where it gains F1 on such queries
out of fold. So a bad pair does no harm.

A query for which no pair retrieves anything is answered by the ranker alone. New queries are such
queries: the pairs have no keywords for them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

import numpy as np
from scipy.special import expit

from cogr.errors import DataError
from cogr.keywords import self_keyword
from cogr.records import Query
from cogr.snapshots import check_side, open_snapshot
from cogr.store import Store
from indexers.backends.memory import mirror_of
from indexers.generators.statistical.artefact import Artefact, Calibration, calibrate, logit
from indexers.generators.statistical.keyword_selection import Floats64, Ints64, cut_f1
from indexers.generators.statistical.ranking.matrices import Floats as Floats32
from indexers.generators.statistical.ranking.ranker import MULTIPLIERS, likeliest_line

_PARTS = 10
"""Folds of the queries; each is answered by coefficients that were fitted on the others."""

MIN_FITTED = 10
"""Fewest queries with evidence that coefficients are fitted on."""

_MAX_FITTED = 1000
"""Most queries that coefficients are fitted on."""

_PENALTY = 1.0
"""L2 penalty against the summed loss of the items: it draws the coefficient of the ranker's logit
towards 1 and those of the pairs towards 0.
"""

_MIN_P = 1e-4
"""Probability of items that are not candidates of the ranker."""

_DIGITS = 4
"""Digits to which coefficients are rounded, so that every machine fits the same ones."""


class EarlierPair:
    """A snapshot pair whose retrieved sets are evidence.

    Args:
        numbers: item id -> the artefact's number.

    Raises:
        SnapshotError: one of them is gone or broken, or the two don't belong together.
    """

    def __init__(self, store: Store, items: str, queries: str, numbers: Mapping[str, int]) -> None:
        check_side(items, "item")
        check_side(queries, "query")
        snapshots = [open_snapshot(store, id_) for id_ in (items, queries)]
        self._items, self._queries = (mirror_of(snapshot) for snapshot in snapshots)
        self._numbers = np.array([numbers.get(id_, -1) for id_ in self._items.ids], np.int64)

    def retrieved(self, query: Query) -> Ints64:
        """Numbers of the items that the query's keywords in the pair retrieve, ascending. None for
        a query that the pair lacks, or has with another text.
        """
        try:
            own = self._queries.own_keyword(query.id)
        except DataError:
            own = None
        if own != self_keyword(query.text):
            return np.zeros(0, np.int64)
        dense = np.array(self._items.retrieved(self._queries.keywords_of(query.id)), np.int64)
        numbers = self._numbers[dense]
        items: Ints64 = np.sort(numbers[numbers >= 0])
        return items


@dataclass(frozen=True)
class Stack:
    """Earlier pairs, their coefficients, and what these were fitted on.

    Attributes:
        lines: intercept, coefficient of the ranker's logit, one for each pair; a row for each of
            the parts, and a last one for all other queries, (parts + 1, 2 + pairs).
        parts: query id -> its part, of the queries that they were fitted on.
        multiplier: the expected number of relevant items is this times the sum of p.
        f1: of the exact cut out of fold, of these queries.
        without: the same by the ranker alone.
    """

    pairs: Sequence[EarlierPair]
    lines: Floats64
    parts: Mapping[str, int]
    multiplier: float = 1.0
    calibration: Calibration = field(default_factory=Calibration)
    f1: float = 0.0
    without: float = 0.0

    def retrieved(self, query: Query) -> list[Ints64]:
        """What each pair retrieves for a query; empty where none retrieves anything, so that the
        ranker alone answers.
        """
        by_pair = [pair.retrieved(query) for pair in self.pairs]
        return by_pair if any(one.size for one in by_pair) else []

    def __call__(self, query: Query, items: Ints64, p: Floats32) -> tuple[Ints64, Floats32]:
        """Probabilities with the evidence, of the items that any pair retrieves too."""
        if not (by_pairs := self.retrieved(query)):
            return items, p
        items, x = _features(items, p, by_pairs)
        return items, self.of(query, x)

    def of(self, query: Query, x: Floats64) -> Floats32:
        """Probabilities by the features of `_features`."""
        line = self.lines[self.parts.get(query.id, -1)]
        p: Floats32 = expit(line[0] + x @ line[1:]).astype(np.float32)
        return p

    @property
    def lineage(self) -> dict[str, object]:
        """For manifests: the coefficients, and the data of that fit."""
        intercept, ranker, *pairs = self.lines[-1].tolist()
        asked = json.dumps(sorted(self.parts))
        return {
            "gains": True,
            "intercept": intercept,
            "ranker": ranker,
            "pairs": pairs,
            "multiplier": self.multiplier,
            "queries": len(self.parts),
            "queries_hash": sha256(asked.encode("utf-8", "surrogatepass")).hexdigest()[:16],
            "exact_cut_f1": round(self.f1, 4),
            "without": round(self.without, 4),
        }


def stacked(
    artefact: Artefact,
    pairs: Sequence[EarlierPair],
    asked: Sequence[tuple[Query, Sequence[str]]],
    seed: int,
) -> Artefact:
    """The artefact with these pairs as evidence; as it is where they gain no F1.

    Args:
        asked: queries that the pairs have not learned from, and the ids of their relevant items.
            The ranker answers them out of fold where it has.
    """
    order = np.random.default_rng(seed).permutation(len(asked))[:_MAX_FITTED]
    examples = list(_examples(artefact, pairs, [asked[number] for number in order]))
    if len(examples) < MIN_FITTED or (stack := _fitted(pairs, examples)).f1 <= stack.without:
        return artefact
    queries, relevant = zip(*((one.query, one.relevant) for one in examples), strict=True)
    with_it = artefact.with_evidence(stack=stack)
    scored, known = with_it.scored_queries(queries)
    selections = [with_it.selected(query, *one) for query, one in zip(queries, scored, strict=True)]
    calibration = calibrate(*with_it.f1_of(queries, selections, relevant), known)
    return artefact.with_evidence(stack=replace(stack, calibration=calibration))


@dataclass(frozen=True, slots=True)
class _TrainingExample:
    query: Query
    x: Floats64
    y: Floats64
    relevant: Ints64
    alone: float


def _features(items: Ints64, p: Floats32, by_pairs: Sequence[Ints64]) -> tuple[Ints64, Floats64]:
    union = np.unique(np.concatenate([items, *by_pairs]))
    x = np.zeros((union.size, 1 + len(by_pairs)))
    x[np.searchsorted(union, items), 0] = p
    x[:, 0] = logits_of(x[:, 0])
    for column, retrieved in enumerate(by_pairs, 1):
        x[np.searchsorted(union, retrieved), column] = 1
    return union, x


def logits_of(p: Floats64 | Floats32) -> Floats64:
    """Logits of probabilities, which are clipped to `_MIN_P` and 1 - `_MIN_P`."""
    return logit(p.astype(np.float64), _MIN_P)


def _examples(
    artefact: Artefact,
    pairs: Sequence[EarlierPair],
    asked: Sequence[tuple[Query, Sequence[str]]],
) -> Iterator[_TrainingExample]:
    numbers = artefact.numbers
    scored = artefact.probabilities([query for query, _ in asked])
    for (query, ids), (items, p) in zip(asked, scored, strict=True):
        by_pairs = [pair.retrieved(query) for pair in pairs]
        relevant = np.array(sorted(numbers[id_] for id_ in ids if id_ in numbers), np.int64)
        if not relevant.size or not any(one.size for one in by_pairs):
            continue
        alone = cut_f1(p, np.isin(items, relevant), relevant.size, artefact.multiplier)
        union, x = _features(items, p, by_pairs)
        y = np.isin(union, relevant).astype(np.float64)
        yield _TrainingExample(query, x, y, relevant, alone)


def _fitted(pairs: Sequence[EarlierPair], examples: Sequence[_TrainingExample]) -> Stack:
    part = np.arange(len(examples)) % min(_PARTS, len(examples))
    lines = [
        _line_of([example for example, of in zip(examples, part, strict=True) if of != one])
        for one in range(int(part.max()) + 1)
    ]
    parts = {example.query.id: int(of) for example, of in zip(examples, part, strict=True)}
    stack = Stack(pairs, np.stack([*lines, _line_of(examples)]), parts)
    p = [(stack.of(one.query, one.x), one.y, one.relevant.size) for one in examples]
    f1 = {of: np.mean([cut_f1(*one, of) for one in p]) for of in MULTIPLIERS}
    best = max(MULTIPLIERS, key=lambda multiplier: f1[multiplier])
    without = float(np.mean([example.alone for example in examples]))
    return replace(stack, multiplier=best, f1=float(f1[best]), without=without)


def _line_of(examples: Sequence[_TrainingExample]) -> Floats64:
    x = np.concatenate([example.x for example in examples])
    return fit_line(x, np.concatenate([example.y for example in examples]))


def fit_line(x: Floats64, y: Floats64) -> Floats64:
    """Intercept and coefficients of a logistic regression, (1 + features,), whose first feature is
    the ranker's logit.

    Args:
        x: (pairs, features).
        y: 0/1, (pairs,).
    """
    prior = np.zeros(x.shape[1])
    prior[0] = 1
    return np.round(likeliest_line(x, y, np.ones(y.size), _PENALTY, prior), _DIGITS)
