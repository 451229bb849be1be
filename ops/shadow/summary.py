"""The figures of a replay, and the queries whose answers differ most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from cogr.metrics import Figures
from ops.shadow import Compared, Replayed, SearchAnswer


def strangers(done: Replayed, known: Callable[[str], bool] | None) -> list[str]:
    """The sides, "today" and "with keywords", that have hits but none with a known id: of an item,
    or without knowledge of the items one that the other side finds, or that was clicked.
    """
    old = {id_ for one in done.compared for id_ in one.present.ids}
    new = {id_ for one in done.compared for id_ in one.candidate.ids}
    clicked = {id_ for one in done.compared for id_ in one.searched.clicked}
    sides = {"today": (old, new), "with keywords": (new, old)}
    return [
        name
        for name, (ids, other) in sides.items()
        if ids and not (any(map(known, ids)) if known else ids & (other | clicked))
    ]


_SHOWN = 20
Share = Callable[[SearchAnswer, Compared], float]


def summary(done: Replayed) -> dict[str, Any]:
    """The report of a replay that has an answer."""
    compared = done.compared
    sources = Counter[str]()
    for one in compared:
        sources[one.candidate.source] += one.searched.count
    return {
        "searches": sum(one.searched.count for one in compared),
        "queries": len(compared),
        "failed": dict(done.failed),
        "overlap": _mean(compared, lambda one: one.overlap),
        "clicked": _shares([one for one in compared if one.searched.clicked], _recall),
        "literal": _shares([one for one in compared if one.literal], lambda one, _: one.kept),
        "zero_results": _zero_results(compared),
        "sources": dict(sources.most_common()),
        "milliseconds": {
            "present": _milliseconds([one.present.seconds for one in compared]),
            "candidate": _milliseconds([one.candidate.seconds for one in compared]),
            "expanding": _milliseconds([one.candidate.expanding for one in compared]),
        },
    }


def rows(done: Replayed) -> list[dict[str, Any]]:
    """Every query with both answers, those that differ most first."""
    lines = [
        {
            "query": one.searched.text,
            "searches": one.searched.count,
            "overlap": round(one.overlap, 6),
            "source": one.candidate.source,
            "present": list(one.present.ids),
            "candidate": list(one.candidate.ids),
            "clicked": sorted(one.searched.clicked),
        }
        for one in done.compared
    ]
    return sorted(lines, key=lambda row: (row["overlap"], -row["searches"], row["query"]))


def _mean(compared: Sequence[Compared], value: Callable[[Compared], float]) -> dict[str, float]:
    values = np.array([value(one) for one in compared], np.float64)
    weights = np.array([one.searched.count for one in compared], np.float64)
    figures = Figures(tuple(one.searched.text for one in compared), {"mean": values}, weights)
    return {
        "mean": round(figures.means["mean"], 6),
        "error": round(figures.standard_errors["mean"], 6),
    }


def _recall(answer: SearchAnswer, one: Compared) -> float:
    return len(one.searched.clicked.intersection(answer.ids)) / len(one.searched.clicked)


def _shares(compared: Sequence[Compared], share: Share) -> dict[str, Any] | None:
    if not compared:
        return None

    def gain(one: Compared) -> float:
        return share(one.candidate, one) - share(one.present, one)

    return {
        "queries": len(compared),
        "present": _mean(compared, lambda one: share(one.present, one)),
        "candidate": _mean(compared, lambda one: share(one.candidate, one)),
        "difference": _mean(compared, gain),
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


def _milliseconds(seconds: Sequence[float]) -> dict[str, float]:
    p50, p95 = np.percentile(np.array(seconds) * 1000, [50, 95])
    return {"p50": round(float(p50), 3), "p95": round(float(p95), 3)}
