"""Labels from a log of clicks: the click model, smoothing, grades, and the files that every source
of labels writes.

The position-based model (Richardson et al. 2007; Craswell et al. 2008) takes a click as the item's
attractiveness times the chance that its position is looked at, both by EM. So it estimates how
often a pair of query and item was examined (its exposure) and how often with success. Success
divided by exposure is the pair's rate; a Beta distribution around the rate of all pairs smooths it
where the exposure is small.

A folder gets `queries.jsonl`, `labels.jsonl` and `lineage.json`; `items.jsonl` beside them makes it
a data set for the loader jsonl. The lineage (the origin of the labels) goes with the data set into
the manifest of every snapshot.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cogr import __version__
from cogr.datasets import LINEAGE
from cogr.datasets.access_logs import AccessLog
from cogr.errors import DataError
from cogr.keywords import query_key
from cogr.privacy import QueryFilter
from cogr.store import Store, as_line
from trainers.labels import LEVELS, RELEVANT
from trainers.labels.events import ClickCounts, ClickRules, Shown, read_click_counts

_Floats = NDArray[np.float64]

LOOKS_OF_SHOWN = 4
"""A pair must have been examined, by the model, at least `min_impressions` / this many times."""
_SHARES = (0.2, 0.4, 0.6, 0.8)
"""Lowest rates of the grades 1 to 4, as shares of the best rate of the query."""

_ROUNDS = 100
_PULL = 5.0
"""Weight, in examinations, with which a pair's attractiveness is drawn to the mean of all pairs."""
_SETTLED = 1e-4
_STRENGTHS = (2.0, 50.0)
_MIN_SHARE = 0.01


@dataclass(frozen=True)
class Made:
    """The labels that were written.

    Attributes:
        grades: level -> labels.
        counts: records read and left out, by reason.
        bias: position -> chance that it is looked at.
        labelled: queries that have a label.
    """

    folder: Path
    grades: Mapping[str, int]
    counts: Mapping[str, int]
    bias: Mapping[int, float]
    queries: int
    labelled: int
    labels: int


def labels_from_clicks(
    paths: Sequence[Path],
    folder: Path,
    rules: ClickRules,
    access: AccessLog | None = None,
    *,
    replace: bool = False,
) -> Made:
    """Read logs of UBI records, or with `access` those of a web server; estimate relevance, write
    `queries.jsonl`, `labels.jsonl`, `lineage.json`.

    Raises DataError where a log can't be read, lacks what the model needs, or gives no label, or
    the folder has labels already; SettingsError where `access` has no pattern of items;
    MissingExtraError without the extra `data`.
    """
    check_free(folder, replace=replace)
    kept_texts = QueryFilter()
    with access.as_ubi(paths) if access else nullcontext(paths) as logs:
        click_counts = read_click_counts(logs, rules, kept_texts)
    if access:
        click_counts = without_positions(click_counts)
    counts = {**click_counts.counts, **kept_texts.counts}
    pairs = weigh(click_counts)
    graded, asked = grade(pairs), click_counts.asked
    known = asked.clients >= max(rules.k, 1)
    counts["queries asked by fewer than k clients"] = int(((asked.clients > 0) & ~known).sum())
    steady = known & (asked.days >= rules.min_days)
    counts["queries asked on too few days"] = int((known & ~steady).sum())
    enough = _enough(pairs, graded, steady, rules, counts)
    chosen = _without_busy_days(click_counts, graded, enough, counts)
    queries = _queries(click_counts, known)
    labels = list(_labels(click_counts, pairs, graded, chosen, queries))
    lineage = _lineage(paths, rules, click_counts, counts)
    lineage |= {"access": asdict(access)} if access else {}
    write_folder(folder, queries.values(), labels, lineage)
    levels = np.bincount(graded.grade[chosen], minlength=len(LEVELS))
    return Made(
        folder,
        dict(zip(LEVELS, levels.tolist(), strict=True)),
        counts,
        pairs.bias,
        len(queries),
        len(np.unique(pairs.query[chosen])),
        len(chosen),
    )


def _enough(
    pairs: Pairs,
    graded: Graded,
    known: NDArray[np.bool_],
    rules: ClickRules,
    counts: dict[str, int],
) -> NDArray[np.int64]:
    asked = known[pairs.query]
    enough = (pairs.raw >= rules.min_impressions) & (
        pairs.exposure >= rules.min_impressions / LOOKS_OF_SHOWN
    )
    sure = graded.confidence >= rules.min_confidence
    counts["pairs shown too rarely"] = int((asked & ~enough).sum())
    counts["pairs on neither side of relevance for sure"] = int((asked & enough & ~sure).sum())
    return np.flatnonzero(asked & enough & sure)


def _without_busy_days(
    click_counts: ClickCounts, graded: Graded, rows: NDArray[np.int64], counts: dict[str, int]
) -> NDArray[np.int64]:
    """The rows whose label holds without the busiest days of its query. Raises DataError where none
    does.
    """
    kept = rows
    if len(rows):
        rest = grade(weigh(without_busy_days(click_counts)))
        kept = rows[((rest.grade >= RELEVANT) == (graded.grade >= RELEVANT))[rows]]
    counts["pairs whose label would rest on the busiest days"] = len(rows) - len(kept)
    if not len(kept):
        reasons = ", ".join(f"{name}: {count:,}" for name, count in counts.items() if count)
        raise DataError(
            f"No pair of query and item has enough evidence for a label ({reasons}); use a longer "
            "log, or lower --min-impressions, --min-confidence, --min-days or --k."
        )
    return kept


def _queries(click_counts: ClickCounts, known: NDArray[np.bool_]) -> dict[int, dict[str, Any]]:
    asked = click_counts.asked
    order = np.argsort(-asked.visits, kind="stable")
    queries = {}
    for number in order[known[order]].tolist():
        text = asked.texts[number]
        queries[number] = {
            # An id that does not depend on the log.
            "id": f"q{hashlib.blake2b(query_key(text).encode(), digest_size=8).hexdigest()}",
            "text": text,
            "weight": round(float(asked.visits[number]), 3),
            "updated": _iso(int(asked.first[number])),
        }
    return queries


def _labels(
    click_counts: ClickCounts,
    pairs: Pairs,
    graded: Graded,
    kept: NDArray[np.int64],
    queries: Mapping[int, Mapping[str, Any]],
) -> Iterator[dict[str, Any]]:
    order = kept[np.lexsort((-graded.rate[kept], pairs.query[kept]))]
    for row in order.tolist():
        yield {
            "query": queries[int(pairs.query[row])]["id"],
            "item": click_counts.shown.items[int(pairs.item[row])],
            "grade": int(graded.grade[row]),
            "confidence": round(float(graded.confidence[row]), 3),
            "rate": round(float(graded.rate[row]), 4),
            "impressions": int(pairs.raw[row]),
        }


def _lineage(
    paths: Sequence[Path], rules: ClickRules, click_counts: ClickCounts, counts: Mapping[str, int]
) -> dict[str, Any]:
    return {
        "source": "clicks",
        "files": [{"name": path.name, "bytes": path.stat().st_size} for path in paths],
        "from": _iso(click_counts.first),
        "to": _iso(click_counts.last),
        "rules": asdict(rules),
        "counts": dict(counts),
    }


def _iso(milliseconds: float) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


QUERIES, LABELS = "queries.jsonl", "labels.jsonl"


def check_free(folder: Path, *, replace: bool) -> None:
    """Raises DataError where the folder has labels or queries already, unless they are to be
    replaced.
    """
    there = [name for name in (LABELS, QUERIES) if (folder / name).exists()]
    if there and not replace:
        raise DataError(
            f"{folder} already has {' and '.join(there)}: name another folder with --out, or "
            "replace them with --replace."
        )


def write_folder(
    folder: Path,
    queries: Iterable[Mapping[str, Any]],
    labels: Iterable[Mapping[str, Any]],
    lineage: Mapping[str, Any],
) -> None:
    """Write the files, each as a whole; the lineage last.

    Raises StorageError when the disk is full or read-only.
    """
    store = Store(folder.absolute())
    for name, rows in ((QUERIES, queries), (LABELS, labels)):
        write_rows(store, name, rows)
    known = {"cogr": __version__, "relevant_from": RELEVANT, "date": _iso(time.time() * 1000)}
    store.write_json(LINEAGE, {**known, **lineage})


def write_rows(store: Store, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write records as a file of JSON lines. Raises StorageError."""
    with store.replacing(name) as file:
        for row in rows:
            file.write(as_line(row))


def configuration(folder: Path) -> str:
    """The lines of cogr.toml that read such a folder."""
    return (
        f'[dataset]\nloader = "jsonl"\npath = {json.dumps(str(folder))}\n'
        f'threshold = {RELEVANT:g}  # acceptable or better\nsplit_by = "cluster"'
    )


# The click model


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
    exposure: _Floats
    success: _Floats
    bias: Mapping[int, float]


@dataclass(frozen=True)
class Graded:
    """Pairs with grades.

    Attributes:
        rate: float64, smoothed.
        grade: int8, 0 to 4.
        confidence: float64, 0.5 to 1: probability that the pair is on the right side of the line
            between relevant and not.
    """

    rate: _Floats
    grade: NDArray[np.int8]
    confidence: _Floats


def weigh(click_counts: ClickCounts) -> Pairs:
    """Exposure and success of every pair.

    Raises DataError where the log has no positions, or no clicks on what was shown.
    """
    shown = _with_positions(click_counts.shown)
    first, of = _pairs(shown)
    clicked = _sums(of, shown.clicked)
    exposure, bias = _examined(shown, of, clicked)
    return Pairs(
        shown.query[first],
        shown.item[first],
        _sums(of, shown.raw).astype(np.int64),
        np.maximum(exposure, clicked),
        _sums(of, shown.value) / click_counts.best_value,
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


def _sums(at: NDArray[Any], numbers: NDArray[Any]) -> _Floats:
    return np.asarray(np.bincount(at, numbers), np.float64)


def _rate_by_position(shown: Shown) -> _Floats:
    clicked = _sums(shown.position, shown.clicked)
    times = _sums(shown.position, shown.shown)
    rates = np.divide(clicked, times, out=np.zeros_like(clicked), where=times > 0)
    if not rates.any():
        raise DataError(
            "The log has no clicks on what was shown: name the actions that are clicks with "
            "--weight ACTION=1, and check that clicks and impressions share object ids and query "
            "ids."
        )
    # Positions with few visits are unreliable, so the next ones above them are used.
    return np.asarray(np.maximum(rates / rates.max(), _MIN_SHARE), np.float64)


def _examined(
    shown: Shown, of: NDArray[np.int64], clicked: _Floats
) -> tuple[_Floats, dict[int, float]]:
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
        estimate = (hits + _sums(shown.position, looked)) / np.maximum(times, 1e-9)
        estimate = np.where(times > 0, np.clip(estimate, _MIN_SHARE, 1.0), look)
        moved = float(np.abs(estimate - look).max())
        look = estimate
        if moved < _SETTLED:
            break
    seen = np.unique(shown.position)
    bias = {int(at): round(float(look[at] / look[seen].max()), 4) for at in seen}
    return exposed, bias


def _looked(look: _Floats, attractive: _Floats) -> _Floats:
    missed = np.maximum(1 - look * attractive, 1e-12)  # 0 where everything shown was clicked.
    return np.asarray(look * (1 - attractive) / missed, np.float64)


def grade(pairs: Pairs) -> Graded:
    """Smoothed rates, grades by the share of the query's best rate, and confidences.

    The best rate of a query is taken to be at least the mean rate of all pairs, so that a query
    with only bad results has no relevant item.
    """
    from scipy.special import betainc

    alpha, beta = _prior(pairs)
    a = alpha + pairs.success
    b = beta + np.maximum(pairs.exposure - pairs.success, 0)
    rate = a / (a + b)
    best = np.full(int(pairs.query.max(initial=-1)) + 1, alpha / (alpha + beta))
    np.maximum.at(best, pairs.query, rate)
    share = rate / best[pairs.query]
    grades = np.searchsorted(_SHARES, share, side="right").astype(np.int8)
    line = np.clip(_SHARES[int(RELEVANT) - 1] * best[pairs.query], 1e-9, 1 - 1e-9)
    below = betainc(a, b, line)
    return Graded(rate, grades, np.where(grades >= RELEVANT, 1 - below, below))


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
