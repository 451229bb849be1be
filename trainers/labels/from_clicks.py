"""Makes labels from a log of clicks, and writes the files that every source of labels writes.

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
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cogr import __version__
from cogr.datasets import LINEAGE
from cogr.datasets.query_logs import AccessLog
from cogr.errors import DataError
from cogr.keywords import self_keyword
from cogr.privacy import QueryFilter
from cogr.store import Store
from trainers.labels import LEVELS, RELEVANT
from trainers.labels.clicks import Graded, Pairs, grade, weigh, without_busy_days, without_positions
from trainers.labels.events import ClickCounts, Rules, read_click_counts

FEW_CLIENTS = "queries asked by fewer than k clients"
FEW_IMPRESSIONS = "pairs shown too rarely"
UNSURE = "pairs on neither side of relevance for sure"
FEW_DAYS = "queries asked on too few days"
BUSY_DAYS = "pairs whose label would rest on the busiest days"

LOOKS_OF_SHOWN = 4
"""A pair must have been examined, by the model, at least `min_impressions` / this many times."""


@dataclass(frozen=True)
class Made:
    """The labels that were written.

    Attributes:
        relevant: labels of relevant pairs.
        grades: level -> labels.
        counts: records read and left out, by reason.
        bias: position -> chance that it is looked at.
    """

    folder: Path
    queries: int
    labels: int
    relevant: int
    grades: Mapping[str, int]
    counts: Mapping[str, int]
    bias: Mapping[int, float]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return {**asdict(self), "seconds": round(self.seconds, 2)}


def labels_from_clicks(
    paths: Sequence[Path],
    folder: Path,
    rules: Rules,
    access: AccessLog | None = None,
    *,
    replace: bool = False,
) -> Made:
    """Read logs of UBI records, or with `access` those of a web server; estimate relevance, write
    `queries.jsonl`, `labels.jsonl`, `lineage.json`.

    Raises:
        DataError: a log can't be read, lacks what the model needs, or gives no label; or the folder
            has labels already.
        SettingsError: `access` has no pattern of items.
        MissingExtraError: without the extra `data`.
    """
    check_free(folder, replace=replace)
    started = time.monotonic()
    kept_texts = QueryFilter()
    with access.as_ubi(paths) if access else nullcontext(paths) as logs:
        click_counts = read_click_counts(logs, rules, kept_texts.normalised)
    if access:
        click_counts = without_positions(click_counts)
    counts = {**click_counts.counts, **kept_texts.counts}
    pairs = weigh(click_counts)
    graded, asked = grade(pairs), click_counts.asked
    known = asked.clients >= max(rules.k, 1)
    counts[FEW_CLIENTS] = int(((asked.clients > 0) & ~known).sum())
    steady = known & (asked.days >= rules.min_days)
    counts[FEW_DAYS] = int((known & ~steady).sum())
    chosen = _chosen(pairs, graded, steady, rules, counts)
    holds = _without_busy_days(click_counts, graded, chosen)
    kept = chosen[holds]
    counts[BUSY_DAYS] = len(chosen) - len(kept)
    if not len(kept):
        reasons = ", ".join(f"{name}: {count:,}" for name, count in counts.items() if count)
        raise DataError(
            f"No pair of query and item has enough evidence for a label ({reasons}); bring a "
            "longer log, or lower --min-impressions, --min-confidence, --min-days or --k."
        )
    queries = _queries(click_counts, known)
    labels = list(_labels(click_counts, pairs, graded, kept, queries))
    lineage = _lineage(paths, rules, click_counts, counts)
    lineage |= {"access": asdict(access)} if access else {}
    write_folder(folder, queries.values(), labels, lineage)
    levels = np.bincount(graded.grade[kept], minlength=len(LEVELS))
    return Made(
        folder,
        len(queries),
        len(kept),
        int(levels[int(RELEVANT) :].sum()),
        dict(zip(LEVELS, levels.tolist(), strict=True)),
        counts,
        pairs.bias,
        time.monotonic() - started,
    )


def _chosen(
    pairs: Pairs,
    graded: Graded,
    known: NDArray[np.bool_],
    rules: Rules,
    counts: dict[str, int],
) -> NDArray[np.int64]:
    asked = known[pairs.query]
    enough = (pairs.raw >= rules.min_impressions) & (
        pairs.exposure >= rules.min_impressions / LOOKS_OF_SHOWN
    )
    sure = graded.confidence >= rules.min_confidence
    counts[FEW_IMPRESSIONS] = int((asked & ~enough).sum())
    counts[UNSURE] = int((asked & enough & ~sure).sum())
    return np.flatnonzero(asked & enough & sure)


def _without_busy_days(
    click_counts: ClickCounts, graded: Graded, chosen: NDArray[np.int64]
) -> NDArray[np.bool_]:
    if not len(chosen):
        return np.zeros(0, bool)
    rest = grade(weigh(without_busy_days(click_counts)))
    same = (rest.grade >= RELEVANT) == (graded.grade >= RELEVANT)
    return np.asarray(same[chosen], bool)


def query_id(text: str) -> str:
    """An id that does not depend on the log: a hash of the normalised text."""
    return f"q{hashlib.blake2b(self_keyword(text).encode(), digest_size=8).hexdigest()}"


def _queries(click_counts: ClickCounts, known: NDArray[np.bool_]) -> dict[int, dict[str, Any]]:
    asked = click_counts.asked
    order = np.argsort(-asked.visits, kind="stable")
    found = {}
    for number in order[known[order]].tolist():
        text = asked.texts[number]
        found[number] = {
            "id": query_id(text),
            "text": text,
            "weight": round(float(asked.visits[number]), 3),
            "updated": _iso(int(asked.first[number])),
        }
    return found


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
    paths: Sequence[Path], rules: Rules, click_counts: ClickCounts, counts: Mapping[str, int]
) -> dict[str, Any]:
    return {
        "source": "clicks",
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "files": [{"name": path.name, "bytes": path.stat().st_size} for path in paths],
        "from": _iso(click_counts.first),
        "to": _iso(click_counts.last),
        "rules": asdict(rules),
        "counts": dict(counts),
    }


def _iso(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


QUERIES, LABELS = "queries.jsonl", "labels.jsonl"


def check_free(folder: Path, *, replace: bool, queries: bool = True) -> None:
    """Raises DataError where the folder has labels or queries already, unless they are to be
    replaced.
    """
    names = [LABELS, *([QUERIES] if queries else [])]
    there = [name for name in names if (folder / name).exists()]
    if there and not replace:
        raise DataError(
            f"{folder} already has {' and '.join(there)}: name another folder with --out, or "
            "replace them with --replace."
        )


def write_folder(
    folder: Path,
    queries: Iterable[Mapping[str, Any]] | None,
    labels: Iterable[Mapping[str, Any]],
    lineage: Mapping[str, Any],
) -> None:
    """Write the files, each as a whole; the lineage last.

    Raises StorageError when the disk is full or read-only.
    """
    store = Store(folder.absolute())
    for name, rows in ((QUERIES, queries), (LABELS, labels)):
        if rows is not None:
            with store.replacing(name) as file:
                for row in rows:
                    file.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
    store.write_json(LINEAGE, {"cogr": __version__, "relevant_from": RELEVANT, **lineage})


def configuration(folder: Path) -> str:
    """The lines of cogr.toml that read such a folder."""
    return (
        f'[dataset]\nloader = "jsonl"\npath = {json.dumps(str(folder))}\n'
        f'threshold = {RELEVANT:g}  # acceptable or better\nsplit_by = "cluster"'
    )
