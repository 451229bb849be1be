"""The gate before publishing: it compares the figures of a pair of snapshots with those of the pair
that serves, and with those of text search (`beside_text`).

It reads snapshots, mirrors and labels, and switches nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from pyroaring import BitMap

from cogr.errors import CheckFailedError, SnapshotError
from cogr.matching.mirror import Mirror
from cogr.metrics import figures_of_pair
from cogr.records import SIDES, Say, Side, Split
from cogr.snapshots import Snapshot, open_snapshot, read_manifest
from cogr.store import Store
from indexers.backends.memory import mirror_of
from indexers.generators import batched
from indexers.release.beside_text import Comparison, beside_text
from indexers.telemetry import prometheus
from indexers.telemetry.prometheus import stage
from indexers.workspace import Workspace

MIN_VOCABULARY = 0.5
"""Distinct keywords that a side keeps at least, as a share of the serving snapshot's. Another model
or catalogue may move it a little; where it halves, something broke.
"""
MAX_GROWTH = 0.05
"""How much these shares may grow: items that no query reaches, and empty keyword sets of a side."""
BESIDE_TEXT = "text search (BM25)"
_ROWS = 4096


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
    """The gate's reasons for a refusal, if any, and the figures behind them, of the pair that would
    serve and of the one that serves; None where a pair is not complete.

    Attributes:
        f1: macro F1 of whole retrieved sets (paper, eq. 1) on `split`, where there are labels.
        unreached: share of items that no keyword and no text of any query of the query snapshot
            reaches.
        beside_text: what would serve beside text search. It may be worse where it is not worse
            than what serves, which somebody let through.
        not_compared: why not all of that is known; "" otherwise.
    """

    reasons: Sequence[str] = ()
    split: Split | None = None
    f1: float | None = None
    f1_before: float | None = None
    unreached: float | None = None
    unreached_before: float | None = None
    beside_text: Sequence[Comparison] = ()
    not_compared: str = ""

    @property
    def advice(self) -> str:
        """What to do after a refusal, for a person."""
        if any(BESIDE_TEXT in reason for reason in self.reasons):
            return (
                "label more queries of that kind, use the keywords beside your text search as a "
                "second clause only (docs/combining.md)"
            )
        return "publish an item and a query snapshot that belong together in one call"

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "reasons"}


def check_gate(
    workspace: Workspace,
    ids: Sequence[str],
    serving_now: Mapping[Side, str | None],
    held_out: HeldOutF1 | None = None,
    say: Say = lambda _: None,
) -> Verdict:
    """Compare the snapshots that would serve with those that serve, where a side serves already,
    and with text search. Raises CheckFailedError with every reason when the gate says no.
    """
    with stage("gate", read_manifest(workspace.store, ids[0]).side if len(ids) == 1 else "pair"):
        verdict = _compare(workspace, ids, serving_now, held_out)
    prometheus.GATE_VERDICTS.labels("refused" if verdict.reasons else "passed").inc()
    if verdict.reasons:
        raise CheckFailedError(
            f"The gate keeps {' and '.join(ids)} from serving: {'; '.join(verdict.reasons)}. What "
            f"serves stays; {verdict.advice}, or overrule it with cogr-index publish --no-gate."
        )
    if verdict.beside_text:
        worse = any(
            one.is_lost(workspace.settings.publish.tolerance) for one in verdict.beside_text
        )
        warning = "Warning, still worse than text search, as what serves is; " if worse else ""
        say(f"{warning}beside text search: {'; '.join(map(str, verdict.beside_text))}")
    if verdict.not_compared:
        say(f"What serves can't be compared with text search: {verdict.not_compared}.")
    return verdict


def _compare(
    workspace: Workspace,
    ids: Sequence[str],
    serving_now: Mapping[Side, str | None],
    held_out: HeldOutF1 | None,
) -> Verdict:
    store, tolerance = workspace.store, workspace.settings.publish.tolerance
    serving = {side: id_ for side, id_ in serving_now.items() if id_ in store.list("snapshots")}
    after: dict[Side, str] = {**serving, **{read_manifest(store, id_).side: id_ for id_ in ids}}
    if after == serving:
        return Verdict()
    splits: tuple[Split, ...] = ("dev", "test")
    split = next((one for one in splits if workspace.dataset.queries.get(one)), None)
    f1, unreached = _figures(workspace, split, after, held_out, "candidate")
    f1_before, unreached_before = _figures(workspace, split, serving, held_out, "serving")
    learned_dev = _learned_dev(workspace, after, held_out)
    compared, why = beside_text(workspace, after, learned_dev=learned_dev)
    lost = [one for one in compared if one.is_lost(tolerance)]
    if lost and len(serving) == len(SIDES):
        # What serves was let through by a person: a candidate that is no worse replaces it.
        learned_dev = _learned_dev(workspace, serving, held_out)
        kept, _ = beside_text(workspace, serving, learned_dev=learned_dev)
        least = {(one.measure, one.on): one.serves for one in kept if one.is_lost(tolerance)}
        lost = [
            one
            for one in lost
            if not one.serves >= least.get((one.measure, one.on), np.inf) - tolerance
        ]
    reasons = []
    if f1 is not None and f1_before is not None and not f1 >= f1_before - tolerance:
        reasons.append(
            f"F1 on {split} would go from {f1_before:.4f} to {f1:.4f} (publish.tolerance is "
            f"{tolerance:g})"
        )
    if unreached is not None and unreached_before is not None:
        reasons += _grown("items that no query reaches", unreached_before, unreached)
    for side in (side for side in SIDES if side in serving and after[side] != serving[side]):
        reasons += _side_reasons(store, serving[side], after[side])
    reasons += [
        f"{one.measure} would be {one.serves:.4f} where {BESIDE_TEXT} has {one.text:.4f}, "
        f"{one.text - one.serves:.4f} more, on {one.on} (publish.tolerance is {tolerance:g})"
        for one in lost
    ]
    return Verdict(reasons, split, f1, f1_before, unreached, unreached_before, compared, why)


def _learned_dev(
    workspace: Workspace, pair: Mapping[Side, str], held_out: HeldOutF1 | None
) -> bool:
    if held_out is None or len(pair) < len(SIDES):
        return False
    item, query = (open_snapshot(workspace.store, pair[side]) for side in ("item", "query"))
    return held_out.learned_dev(item, query)


def _figures(
    workspace: Workspace,
    split: Split | None,
    pair: Mapping[Side, str],
    held_out: HeldOutF1 | None,
    name: str,
) -> tuple[float | None, float | None]:
    if len(pair) < len(SIDES):
        return None, None
    try:
        item, query = (open_snapshot(workspace.store, pair[side]) for side in ("item", "query"))
    except SnapshotError as error:
        raise SnapshotError(
            f"The gate can't compare: {str(error).rstrip('.')}, or overrule the gate with "
            "cogr-index publish --no-gate."
        ) from error
    mirror = mirror_of(item)
    f1 = None
    if held_out and held_out.learned_dev(item, query):
        f1 = held_out.f1
    elif split:
        f1 = figures_of_pair(mirror, workspace.dataset, split, query).means["f1"]
    unreached = _unreached(mirror, query)
    prometheus.GATE_UNREACHED.labels(name).set(unreached)
    if f1 is not None:
        prometheus.GATE_F1.labels(name).set(f1)
    return f1, unreached


def _side_reasons(store: Store, before: str, now: str) -> Iterator[str]:
    old, new = read_manifest(store, before), read_manifest(store, now)
    if not old.entities:
        return  # the side had no keywords yet, such as the query side before the first log
    was, is_ = (one.empty / max(1, one.entities) for one in (old, new))
    yield from _grown(f"empty keyword sets ({new.side} side)", was, is_)
    if not new.vocabulary >= MIN_VOCABULARY * old.vocabulary:
        yield (
            f"the vocabulary of the {new.side} side would go from {old.vocabulary:,} to "
            f"{new.vocabulary:,} keywords (the least is {MIN_VOCABULARY:.0%})"
        )


def _grown(what: str, before: float, now: float) -> Iterator[str]:
    if not now <= before + MAX_GROWTH:
        yield (
            f"the share of {what} would go from {before:.1%} to {now:.1%} (the most is "
            f"{MAX_GROWTH:.0%} more)"
        )
