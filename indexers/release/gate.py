"""The gate before publishing: it compares the figures of a pair of snapshots with those of the pair
that serves.

It reads snapshots, mirrors and labels, and switches nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyroaring import BitMap

from cogr.errors import CheckFailedError, SnapshotError
from cogr.matching.mirror import Mirror
from cogr.metrics import figures_of_pair
from cogr.records import SIDES, Dataset, Side, Split
from cogr.settings.serving import PublishSettings
from cogr.snapshots import Snapshot, open_snapshot, read_manifest
from cogr.store import Store
from indexers.backends.memory import mirror_of
from indexers.generators import batched
from indexers.telemetry import prometheus
from indexers.telemetry.prometheus import stage
from indexers.workspace import Workspace

LEAST_VOCABULARY = 0.5
"""Distinct keywords that a side keeps at least, as a share of the serving snapshot's. Another model
or catalogue may move it a little; where it halves, something broke.
"""
MOST_GROWTH = 0.05
"""How much these shares may grow: items that no query reaches, and empty keyword sets of a side."""
_ROWS = 4096


@dataclass(frozen=True)
class PairFigures:
    """The gate's figures of a pair.

    Attributes:
        f1: macro F1 of whole retrieved sets (paper, eq. 1) on `split`, where there are labels.
        unreached: share of items that no keyword and no text of any query of the query snapshot
            reaches.
    """

    split: Split | None
    f1: float | None
    unreached: float


def measure(dataset: Dataset, split: Split | None, item: Snapshot, query: Snapshot) -> PairFigures:
    """The figures of a pair. Raises CheckFailedError when one is NaN, with which every comparison
    would pass.
    """
    mirror = mirror_of(item)
    f1 = figures_of_pair(mirror, dataset, split, query).means["f1"] if split else None
    unreached = _unreached(mirror, query)
    if math.isnan(unreached + (f1 or 0.0)):
        raise CheckFailedError(
            f"The figures of {item.id} with {query.id} are not numbers (F1 on {split}: {f1}, "
            f"items that no query reaches: {unreached}); check the queries' weights; what serves "
            "stays."
        )
    return PairFigures(split, f1, unreached)


def _unreached(mirror: Mirror, query: Snapshot) -> float:
    reached = BitMap()
    for rows in batched(query.rows(), _ROWS):
        reached |= mirror.retrieved(
            {word for row in rows for word in (row.self_keyword, *row.keywords) if word}
        )
    return 1 - len(reached) / max(1, len(mirror))


@dataclass(frozen=True)
class HeldOutF1:
    """`statistical`, refitted with the dev labels, can't be judged on them. This is its dev F1 from
    the fit without them, where known, for pairs (items, queries) that have `learned_dev`.
    """

    learned_dev: Callable[[Snapshot, Snapshot], bool]
    f1: float | None


@dataclass(frozen=True)
class Verdict:
    """The gate's reasons for a refusal, if any, and the figures behind them; None where a pair is
    not complete.
    """

    reasons: Sequence[str]
    now: PairFigures | None
    before: PairFigures | None

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return {
            "split": self.now.split if self.now else None,
            "f1": self.now.f1 if self.now else None,
            "f1_before": self.before.f1 if self.before else None,
            "unreached": self.now.unreached if self.now else None,
            "unreached_before": self.before.unreached if self.before else None,
        }


def check_gate(
    workspace: Workspace,
    ids: Sequence[str],
    serving_now: Mapping[Side, str | None],
    held_out: HeldOutF1 | None = None,
) -> Verdict:
    """Compare the snapshots that would serve with those that serve. A side on which nothing serves
    yet is not compared. Raises CheckFailedError with every reason when the gate says no.
    """
    with stage("gate", read_manifest(workspace.store, ids[0]).side if len(ids) == 1 else "pair"):
        verdict = _compare(workspace, ids, serving_now, held_out)
    _count(verdict)
    if verdict.reasons:
        raise CheckFailedError(
            f"The gate keeps {' and '.join(ids)} from serving: {'; '.join(verdict.reasons)}. What "
            "serves stays; publish an item and a query snapshot that belong together in one call, "
            "or overrule it by cogr-index publish --no-gate."
        )
    return verdict


def _compare(
    workspace: Workspace,
    ids: Sequence[str],
    serving_now: Mapping[Side, str | None],
    held_out: HeldOutF1 | None,
) -> Verdict:
    store, settings = workspace.store, workspace.settings.publish
    serving = {side: id_ for side, id_ in serving_now.items() if id_ in store.list("snapshots")}
    after: dict[Side, str] = {**serving, **{read_manifest(store, id_).side: id_ for id_ in ids}}
    if after == serving:
        return Verdict((), None, None)
    split = choose_split(workspace.dataset)
    now, before = (_pair(workspace, split, pair, held_out) for pair in (after, serving))
    reasons = [
        *_pair_reasons(settings, before, now),
        *(
            reason
            for side in SIDES
            if side in serving and after[side] != serving[side]
            for reason in _side_reasons(store, serving[side], after[side])
        ),
    ]
    return Verdict(reasons, now, before)


def _count(verdict: Verdict) -> None:
    prometheus.GATE.labels("refused" if verdict.reasons else "passed").inc()
    for pair, figures in (("candidate", verdict.now), ("serving", verdict.before)):
        if figures is not None:
            prometheus.GATE_UNREACHED.labels(pair).set(figures.unreached)
            if figures.f1 is not None:
                prometheus.GATE_F1.labels(pair).set(figures.f1)


def choose_split(dataset: Dataset) -> Split | None:
    """The split that F1 is measured on: dev, else test; None without labelled queries."""
    return next((split for split in ("dev", "test") if dataset.queries.get(split)), None)


def _pair(
    workspace: Workspace,
    split: Split | None,
    pair: Mapping[Side, str],
    held_out: HeldOutF1 | None,
) -> PairFigures | None:
    if len(pair) < len(SIDES):
        return None
    try:
        item, query = (open_snapshot(workspace.store, pair[side]) for side in ("item", "query"))
    except SnapshotError as error:
        raise SnapshotError(
            f"The gate can't compare: {str(error).rstrip('.')}, or overrule the gate by "
            "cogr-index publish --no-gate."
        ) from error
    found = measure(workspace.dataset, split, item, query)
    if held_out and held_out.learned_dev(item, query):
        return replace(found, f1=held_out.f1)
    return found


def _pair_reasons(
    settings: PublishSettings, before: PairFigures | None, now: PairFigures | None
) -> Iterator[str]:
    if before is None or now is None:
        return
    was, is_ = before.f1, now.f1
    if was is not None and is_ is not None and not is_ >= was - settings.tolerance:
        yield (
            f"F1 on {now.split} would go from {was:.4f} to {is_:.4f} (publish.tolerance is "
            f"{settings.tolerance:g})"
        )
    yield from _grown("items that no query reaches", before.unreached, now.unreached)


def _side_reasons(store: Store, before: str, now: str) -> Iterator[str]:
    old, new = read_manifest(store, before), read_manifest(store, now)
    if not old.entities:
        return  # the side had no keywords yet, such as the query side before the first log
    was, is_ = (one.empty / max(1, one.entities) for one in (old, new))
    yield from _grown(f"empty keyword sets ({new.side} side)", was, is_)
    if not new.vocabulary >= LEAST_VOCABULARY * old.vocabulary:
        yield (
            f"the vocabulary of the {new.side} side would go from {old.vocabulary:,} to "
            f"{new.vocabulary:,} keywords (the least is {LEAST_VOCABULARY:.0%})"
        )


def _grown(what: str, before: float, now: float) -> Iterator[str]:
    if not now <= before + MOST_GROWTH:
        yield (
            f"the share of {what} would go from {before:.1%} to {now:.1%} (the most is "
            f"{MOST_GROWTH:.0%} more)"
        )
