"""The agreement of a judge's grades with those of people, and the judge's bias.

Kappa and alpha are of the binary labels, relevant or not; the confusion matrix has every grade.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cogr.errors import MissingExtraError
from trainers.labels import LEVELS, RELEVANT

LEAST = 10
"""Fewest pairs for a measurement."""


@dataclass(frozen=True)
class Both:
    """One pair that people and the judge graded.

    Attributes:
        known: the grade that people gave.
        relevant: whether that grade is relevant.
        grade: the judge's, 0 to 4.
        characters: length of the item's title and text.
        rank: BM25's for the query, 0 for none.
    """

    known: float
    relevant: bool
    grade: int
    characters: int
    rank: int


@dataclass(frozen=True)
class Agreement:
    """Figures of some pairs.

    Attributes:
        pairs: how many.
        accuracy: share in which both say relevant, or both not.
        kappa: Cohen's; 0 is chance, 1 is full agreement.
        alpha: Krippendorff's, nominal.
        precision, recall: of the judge's relevant pairs, by people's.
        confusion: people's grade -> level -> pairs.
        lean: the share of pairs that the judge calls relevant minus the share that people do; above
            0 the judge is lenient.
        lean_by_length, lean_by_rank: the same for the shortest, the middle and the longest third of
            the items, and for BM25's first 10, its first 100, and others. None without pairs.
    """

    pairs: int
    accuracy: float
    kappa: float
    alpha: float
    precision: float | None
    recall: float | None
    confusion: dict[str, dict[str, int]]
    lean: float
    lean_by_length: dict[str, float | None]
    lean_by_rank: dict[str, float | None]

    def sentence(self) -> str:
        """The agreement in one sentence."""
        strength = next(word for least, word in _STRENGTHS if self.kappa >= least)
        leaning = (
            "as strict as people"
            if abs(self.lean) < 0.05
            else f"{'more lenient' if self.lean > 0 else 'stricter'} than people ({self.lean:+.0%})"
        )
        return (
            f"Agreement with people is {strength} (kappa {self.kappa:.2f}, alpha {self.alpha:.2f}, "
            f"{self.accuracy:.0%} of {self.pairs} pairs alike); the judge is {leaning}."
        )


_STRENGTHS = (
    (0.8, "almost perfect"),
    (0.6, "substantial"),
    (0.4, "moderate"),
    (0.2, "fair"),
    (-1.0, "poor: don't train on these labels"),
)
"""Landis and Koch 1977."""


def agreement(pairs: Sequence[Both]) -> Agreement | None:
    """None with fewer than `LEAST` pairs.

    Raises MissingExtraError without the extra `data`.
    """
    if len(pairs) < LEAST:
        return None
    people = np.array([pair.relevant for pair in pairs])
    judge = np.array([pair.grade >= RELEVANT for pair in pairs])
    both = int((people & judge).sum())
    confusion: dict[str, Counter[str]] = {}
    for pair in sorted(pairs, key=lambda pair: pair.known):
        row = confusion.setdefault(f"{pair.known:g}", Counter(dict.fromkeys(LEVELS, 0)))
        row[LEVELS[pair.grade]] += 1
    kappa, alpha = _chance_corrected(people, judge)
    return Agreement(
        len(pairs),
        round(float((people == judge).mean()), 4),
        round(kappa, 4),
        round(alpha, 4),
        round(both / int(judge.sum()), 4) if judge.any() else None,
        round(both / int(people.sum()), 4) if people.any() else None,
        {grade: dict(row) for grade, row in confusion.items()},
        round(float(judge.mean() - people.mean()), 4),
        _by_length(pairs),
        _by_rank(pairs),
    )


def _chance_corrected(people: Any, judge: Any) -> tuple[float, float]:
    """Kappa and alpha. Where all answers are equal, both are 1."""
    try:
        import krippendorff
        from sklearn.metrics import cohen_kappa_score
    except ImportError as error:
        raise MissingExtraError("Agreement of labels", "data") from error
    values = np.stack([people, judge]).astype(int)
    if len(np.unique(values)) == 1:
        return 1.0, 1.0
    kappa = float(cohen_kappa_score(people, judge))
    alpha = float(krippendorff.alpha(values, level_of_measurement="nominal"))
    return kappa, alpha


def _lean(pairs: Sequence[Both]) -> float | None:
    if not pairs:
        return None
    gaps = [(pair.grade >= RELEVANT) - pair.relevant for pair in pairs]
    return round(sum(gaps) / len(gaps), 4)


def _by_length(pairs: Sequence[Both]) -> dict[str, float | None]:
    ordered = sorted(pairs, key=lambda pair: pair.characters)
    third = len(ordered) // 3
    parts = (ordered[:third], ordered[third:-third], ordered[-third:])
    return {
        name: _lean(part) for name, part in zip(("short", "middle", "long"), parts, strict=True)
    }


def _by_rank(pairs: Sequence[Both]) -> dict[str, float | None]:
    return {
        "first 10": _lean([pair for pair in pairs if 0 < pair.rank <= 10]),
        "first 100": _lean([pair for pair in pairs if pair.rank > 10]),
        "others": _lean([pair for pair in pairs if pair.rank == 0]),
    }
