"""Relevance from counts of impressions and clicks: the click model, smoothing, grades.

The position-based model (Richardson et al. 2007; Craswell et al. 2008) takes a click as the item's
attractiveness times the chance that its position is looked at, both by EM. So it estimates how
often a pair of query and item was examined (its exposure) and how often with success. Success
divided by exposure is the pair's rate; a Beta distribution around the rate of all pairs smooths it
where the exposure is small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cogr.errors import DataError, MissingExtraError
from trainers.labels import RELEVANT
from trainers.labels.events import ClickCounts, Shown

Floats = NDArray[np.float64]

SHARES = (0.2, 0.4, 0.6, 0.8)
"""Lowest rates of the grades 1 to 4, as shares of the best rate of the query."""

_ROUNDS = 100
_PULL = 5.0
"""Weight, in examinations, with which a pair's attractiveness is drawn to the mean of all pairs."""
_SETTLED = 1e-4
_STRENGTHS = (2.0, 50.0)
_LEAST_SHARE = 0.01


@dataclass(frozen=True)
class Pairs:
    """Evidence on pairs of query and item.

    Attributes:
        query, item: int32, numbers.
        raw: int64, visits that showed the item.
        exposure: float64, how often it was examined, by the model.
        success: float64, how often with success, 0 to `exposure`.
        bias: position -> chance that it is looked at, 1 for the best one.
    """

    query: NDArray[np.int32]
    item: NDArray[np.int32]
    raw: NDArray[np.int64]
    exposure: Floats
    success: Floats
    bias: Mapping[int, float]


@dataclass(frozen=True)
class Graded:
    """Pairs with grades.

    Attributes:
        rate: float64, smoothed.
        grade: int8, 0 to 4.
        confidence: float64, 0.5 to 1: probability that the pair is on the right side of the line
            between relevant and not.
        prior: (alpha, beta) of the Beta distribution of all pairs.
    """

    rate: Floats
    grade: NDArray[np.int8]
    confidence: Floats
    prior: tuple[float, float]


def weigh(click_counts: ClickCounts) -> Pairs:
    """Exposure and success of every pair.

    Raises DataError where the log has no positions, or no clicks on what was shown.
    """
    shown = _with_positions(click_counts.shown)
    first, of = _pairs(shown)
    clicked = _sums(of, shown.clicked)
    exposure, bias = _examined(shown, of, clicked)
    value = _sums(of, shown.value) / click_counts.best_value
    # Mean value of a click; 1 where only clicks count.
    worth = np.divide(value, clicked, out=np.zeros_like(value), where=clicked > 0)
    return Pairs(
        shown.query[first],
        shown.item[first],
        _sums(of, shown.raw).astype(np.int64),
        np.maximum(exposure, clicked),
        clicked * worth,
        bias,
    )


def without_busy_days(click_counts: ClickCounts) -> ClickCounts:
    """The counts of the other days; pairs keep their places."""
    shown = click_counts.shown
    rest = {
        name: column * ~shown.busy
        for name, column in vars(shown).items()
        if name in ("raw", "shown", "clicked", "value")
    }
    return replace(click_counts, shown=replace(shown, **rest))


def without_positions(click_counts: ClickCounts) -> ClickCounts:
    """The counts as if everything was shown at one position, for a log that names none: then the
    model is the click rate.
    """
    shown = click_counts.shown
    return replace(click_counts, shown=replace(shown, position=np.ones_like(shown.position)))


def _with_positions(shown: Shown) -> Shown:
    known = shown.position > 0
    if not known.any():
        raise DataError(
            "Labels need the positions of what was shown, and the log has none: log "
            "event_attributes.position.ordinal in events, or query_response_hit_ids in "
            "ubi_queries."
        )
    rows = {name: column[known] for name, column in vars(shown).items() if name != "items"}
    return replace(shown, **rows)


def _pairs(shown: Shown) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    new = np.ones(len(shown.query), bool)
    new[1:] = (shown.query[1:] != shown.query[:-1]) | (shown.item[1:] != shown.item[:-1])
    return np.flatnonzero(new), np.cumsum(new) - 1


def _sums(at: NDArray[Any], numbers: NDArray[Any]) -> Floats:
    return np.asarray(np.bincount(at, numbers), np.float64)


def _rate_by_position(shown: Shown) -> Floats:
    clicked = _sums(shown.position, shown.clicked)
    times = _sums(shown.position, shown.shown)
    rates = np.divide(clicked, times, out=np.zeros_like(clicked), where=times > 0)
    if not rates.any():
        raise DataError(
            "The log has no clicks on what was shown: name the actions that are clicks with "
            "--weight ACTION=1, and see that clicks and impressions share object ids and query ids."
        )
    # Positions with few visits are unreliable, so the next ones above them are used.
    return np.asarray(np.maximum(rates / rates.max(), _LEAST_SHARE), np.float64)


def _examined(
    shown: Shown, of: NDArray[np.int64], clicked: Floats
) -> tuple[Floats, dict[int, float]]:
    """EM for the probability that a position is examined, and for attractiveness.

    The expectation step estimates how probably an unclicked item was examined.
    """
    look = _rate_by_position(shown)
    missed = (shown.shown - shown.clicked).astype(np.float64)
    times = _sums(shown.position, shown.shown)
    hits = _sums(shown.position, shown.clicked)
    exposed = clicked + _sums(of, missed * look[shown.position])
    for _ in range(_ROUNDS):
        mean = clicked.sum() / exposed.sum()
        attractive = (clicked + mean * _PULL) / (exposed + _PULL)
        looked = missed * _looked(look[shown.position], attractive[of])
        exposed = clicked + _sums(of, looked)
        found = (hits + _sums(shown.position, looked)) / np.maximum(times, 1e-9)
        found = np.where(times > 0, np.clip(found, _LEAST_SHARE, 1.0), look)
        moved = float(np.abs(found - look).max())
        look = found
        if moved < _SETTLED:
            break
    seen = np.unique(shown.position)
    bias = {int(at): round(float(look[at] / look[seen].max()), 4) for at in seen}
    return exposed, bias


def _looked(look: Floats, attractive: Floats) -> Floats:
    """P(looked at | not clicked)."""
    missed = np.maximum(1 - look * attractive, 1e-12)  # 0 where everything shown was clicked.
    return np.asarray(look * (1 - attractive) / missed, np.float64)


def grade(pairs: Pairs) -> Graded:
    """Smoothed rates, grades by the share of the query's best rate, and confidences.

    The best rate of a query is taken to be at least the mean rate of all pairs, so that a query
    with only bad results has no relevant item.
    """
    try:
        from scipy.special import betainc
    except ImportError as error:
        raise MissingExtraError("Grading clicks", "data") from error
    alpha, beta = _prior(pairs)
    a = alpha + pairs.success
    b = beta + np.maximum(pairs.exposure - pairs.success, 0)
    rate = a / (a + b)
    best = np.full(int(pairs.query.max(initial=-1)) + 1, alpha / (alpha + beta))
    np.maximum.at(best, pairs.query, rate)
    share = rate / best[pairs.query]
    grades = np.searchsorted(SHARES, share, side="right").astype(np.int8)
    line = np.clip(SHARES[int(RELEVANT) - 1] * best[pairs.query], 1e-9, 1 - 1e-9)
    below = betainc(a, b, line)
    return Graded(rate, grades, np.where(grades >= RELEVANT, 1 - below, below), (alpha, beta))


def _prior(pairs: Pairs) -> tuple[float, float]:
    """The Beta distribution of all pairs' rates: their mean, and a strength by their spread beyond
    what chance explains (method of moments).
    """
    total, success = pairs.exposure.sum(), pairs.success.sum()
    mean = float(np.clip(success / max(total, 1e-9), 1e-6, 1 - 1e-6))
    enough = pairs.exposure >= 1
    n, rate = pairs.exposure[enough], pairs.success[enough] / pairs.exposure[enough]
    if len(n) < 2:
        strength = _STRENGTHS[1]
    else:
        spread = float(np.average((rate - mean) ** 2, weights=n))
        chance = mean * (1 - mean) * len(n) / float(n.sum())
        strength = mean * (1 - mean) / max(spread - chance, 1e-9) - 1
    strength = float(np.clip(strength, *_STRENGTHS))
    return mean * strength, (1 - mean) * strength
