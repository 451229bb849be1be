"""Compares the answers of two searches to one log: overlap, rank-biased overlap, clicks, empty
answers, latency.

Means are over searches: a query that was asked ten times weighs ten times as much. Latencies are
over distinct queries, since each is sent once. Nothing here sends a request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from cogr.datasets.query_logs import Searched
from cogr.errors import ServiceError
from cogr.metrics import Figures
from ops.shadow.replay import Answer, Compared, Replayed

PERSISTENCE = 0.9
"""p of rank-biased overlap: the first ten ranks have 86 % of the weight."""
_SHOWN = 20


def rank_biased_overlap(one: Sequence[str], other: Sequence[str], p: float = PERSISTENCE) -> float:
    """Rank-biased overlap of two rankings without repeats, extrapolated to their unseen rest.

    RBO_EXT of Webber, Moffat and Zobel (A similarity measure for indefinite rankings, 2010),
    equation 32, which holds for rankings of different lengths. 1 for equal rankings, two empty ones
    included; 0 for rankings that share nothing.
    """
    short, long = sorted((one, other), key=len)
    s, length = len(short), len(long)
    if not s:
        return 0.0 if length else 1.0
    shared = [len(set(short[:depth]) & set(long[:depth])) for depth in range(length + 1)]
    seen = sum(shared[d] / d * p**d for d in range(1, length + 1))
    unseen_of_short = sum(shared[s] * (d - s) / (s * d) * p**d for d in range(s + 1, length + 1))
    rest = ((shared[length] - shared[s]) / length + shared[s] / s) * p**length
    return (1 - p) / p * (seen + unseen_of_short) + rest


def overlap(one: Collection[str], other: Collection[str]) -> float:
    """The share of the longer list that both have; 1 for two empty ones."""
    longest = max(len(one), len(other))
    return len(set(one) & set(other)) / longest if longest else 1.0


def summary(done: Replayed) -> dict[str, Any]:
    """The report of a replay. Raises ServiceError."""
    compared = done.compared
    if not compared:
        raise ServiceError(
            f"None of {done.failed.total()} queries was answered; see the services' logs."
        )
    return {
        "searches": sum(one.searched.count for one in compared),
        "queries": len(compared),
        "failed": dict(done.failed),
        "overlap": _mean(compared, lambda one: overlap(one.present.ids, one.candidate.ids)),
        "rbo": _mean(compared, lambda one: rank_biased_overlap(one.present.ids, one.candidate.ids)),
        "clicked": _shares(
            [one for one in compared if one.searched.clicked],
            lambda one: _recall(one.present, one.searched),
            lambda one: _recall(one.candidate, one.searched),
        ),
        "literal": _shares(
            [one for one in compared if one.literal],
            lambda one: one.literal[1] / one.literal[0] if one.literal else 0.0,
            lambda one: one.literal[2] / one.literal[0] if one.literal else 0.0,
        ),
        "zero_results": _zero_results(compared),
        "sources": _sources(compared),
        "milliseconds": {
            "present": _milliseconds([one.present.seconds for one in compared]),
            "candidate": _milliseconds([one.candidate.seconds for one in compared]),
            "expanding": _milliseconds([one.candidate.expanding for one in compared]),
        },
    }


def rows(done: Replayed) -> list[dict[str, Any]]:
    """Every query with both answers, those that differ most first."""
    found = [
        {
            "query": one.searched.text,
            "searches": one.searched.count,
            "rbo": round(rank_biased_overlap(one.present.ids, one.candidate.ids), 6),
            "source": one.candidate.source,
            "present": list(one.present.ids),
            "candidate": list(one.candidate.ids),
            "clicked": sorted(one.searched.clicked),
        }
        for one in done.compared
    ]
    return sorted(found, key=lambda row: (row["rbo"], -row["searches"], row["query"]))


def _mean(compared: Sequence[Compared], value: Callable[[Compared], float]) -> dict[str, float]:
    values = np.array([value(one) for one in compared], np.float64)
    weights = np.array([one.searched.count for one in compared], np.float64)
    figures = Figures(tuple(one.searched.text for one in compared), {"mean": values}, weights)
    return {
        "mean": round(figures.means["mean"], 6),
        "error": round(figures.standard_errors["mean"], 6),
    }


def _recall(answer: Answer, searched: Searched) -> float:
    return len(searched.clicked.intersection(answer.ids)) / len(searched.clicked)


Share = Callable[[Compared], float]


def _shares(
    compared: Sequence[Compared], present: Share, candidate: Share
) -> dict[str, Any] | None:
    if not compared:
        return None
    return {
        "queries": len(compared),
        "present": _mean(compared, present),
        "candidate": _mean(compared, candidate),
        "difference": _mean(compared, lambda one: candidate(one) - present(one)),
    }


def _zero_results(compared: Sequence[Compared]) -> dict[str, Any]:
    gained = [one for one in compared if one.candidate.ids and not one.present.ids]
    lost = [one for one in compared if one.present.ids and not one.candidate.ids]
    return {
        "present": _mean(compared, lambda one: float(not one.present.ids)),
        "candidate": _mean(compared, lambda one: float(not one.candidate.ids)),
        "gained_searches": sum(one.searched.count for one in gained),
        "lost_searches": sum(one.searched.count for one in lost),
        "gained": [one.searched.text for one in gained[:_SHOWN]],
        "lost": [one.searched.text for one in lost[:_SHOWN]],
    }


def _sources(compared: Sequence[Compared]) -> dict[str, int]:
    counts = Counter[str]()
    for one in compared:
        counts[one.candidate.source] += one.searched.count
    return dict(counts.most_common())


def _milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    p50, p95 = np.percentile(np.array(seconds) * 1000, [50, 95])
    return {"p50": round(float(p50), 3), "p95": round(float(p95), 3)}
