"""What serves: one look at it for every command that shows, verifies or searches it, and for the
query expander.

A backend sees the pair of snapshots and where it is (`Backend.pair`). Here it is compared with what
was published, so that a half of a pair is told from a whole one, and joined with the command that
mends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from cogr.records import ProgressBar, Side
from cogr.snapshots import Manifest, open_snapshot, side_of, surveyed
from indexers.backends import Listed, Pair
from indexers.release import order
from indexers.release.external import ForeignIndex
from indexers.release.history import History
from indexers.release.rules import rules_of
from indexers.workspace import Workspace


@dataclass(frozen=True)
class Published:
    """What was published together, and since when, in UTC."""

    time: str
    ids: Mapping[Side, str]

    @property
    def name(self) -> str:
        """The name of the pair for people, such as 2026-01-31 03:00:07."""
        return self.time.replace("T", " ").rstrip("Z")


def published(workspace: Workspace) -> list[Published]:
    """What was published to where the settings let snapshots serve, oldest first. Raises
    StorageError where the history is damaged.
    """
    into, result = workspace.settings.serving.into, list[Published]()
    items = f"{into.index}/{into.field}" if into.index else "item"
    for entry in History(workspace.store, workspace.backend.catalogue).entries:
        places: dict[Side, str] = {"item": items, "query": "query"}
        there = entry["serving"]
        ids = {side: there[place] for side, place in places.items() if place in there}
        if not result or result[-1].ids != ids:
            result.append(Published(entry["time"], ids))
    return result


def what_serves(workspace: Workspace) -> Pair:
    """What serves now, with its flaws. Raises ServiceError, StorageError, and UserError as
    `destination`.
    """
    return with_flaws(workspace.backend.pair(counted=True), published(workspace))


def with_flaws(pair: Pair, history: Sequence[Published]) -> Pair:
    """A pair with all its flaws: what the backend saw, a side that is gone, two sides that are of
    two rounds or were never published together. `advice` publishes again what was published last,
    or writes an item side where there was none.
    """
    last = history[-1].ids if history else {}
    flaws = [*pair.flaws]
    served = pair.served
    if pair.item is None and served and not flaws:
        flaws.append("no item snapshot serves")
    if pair.query is None and "query" in last:
        flaws.append("no query snapshot serves")
    if not served and last and not flaws:
        flaws.append("nothing serves")
    if pair.mismatch:
        flaws.append(pair.mismatch)
    elif len(served) > 1 and not _together(served, history):
        flaws.append(f"{pair.ids['item']} and {pair.ids['query']} were never published together")
    advice = " ".join(["cogr-index publish", *last.values()]) if last else ""
    if pair.item is None and "item" not in last:
        advice = "cogr-index rebuild --side item"
    return replace(pair, flaws=tuple(flaws), advice=advice)


SWITCHING = timedelta(minutes=1)
"""Time that a switch may take; a half pair is one only after it."""


def _together(served: Mapping[Side, str], history: Sequence[Published]) -> bool:
    known = {id_ for one in history for id_ in one.ids.values()}
    if known.isdisjoint(served.values()) or any(one.ids == served for one in history):
        return True
    # A switch under way: the field of an index of one's own follows the alias of the queries.
    newest = {id_ for one in history[-2:] for id_ in one.ids.values()}
    since = datetime.now(UTC) - datetime.fromisoformat(history[-1].time)
    return newest >= {*served.values()} and since < SWITCHING


def name_of(pair: Pair, history: Sequence[Published]) -> str:
    """The name of a pair: the time at which it was published last; "" where it never was."""
    return next((one.name for one in reversed(history) if one.ids == pair.served), "")


def verify(
    workspace: Workspace, snapshot: str | None, bar: ProgressBar, *, every: bool
) -> tuple[dict[str, Any], Sequence[str]]:
    """Compare what serves, or one snapshot, with the store's files. Returns what was compared, by
    snapshot, and sentences about what is wrong.

    Args:
        every: compare every document of CoGR's own indexes, not a sample. In an index of one's own
            every document is compared.

    Raises CheckFailedError at the first difference in an index of CoGR's own, SnapshotError, and as
    `what_serves`.
    """
    pair, verified, wrong = what_serves(workspace), dict[str, Any](), list[str]()
    for id_ in [snapshot] if snapshot else filter(None, pair.ids.values()):
        if workspace.settings.serving.into.index and pair.item and id_ == pair.item.snapshot:
            merged = ForeignIndex(workspace).verify()
            verified[id_] = merged.as_dict()
            if merged.coverage.lacking or merged.coverage.different:
                wrong.append(merged.coverage.spoken(merged.index))
            continue
        opened = open_snapshot(workspace.store, id_)
        with bar(f"documents of {id_}", opened.manifest.entities) as advance:
            done = order.verify_snapshot(workspace.backend, opened, every=every, advance=advance)
        verified[id_] = asdict(done)
    pair = replace(pair, warnings=(*wrong, *pair.warnings))
    return verified, () if snapshot and not wrong else pair.problems


def listing(workspace: Workspace) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What serves and where, and one row a snapshot, oldest first.

    `state` is serving, standby (pushed and whole), half-written, stored (in the store alone),
    foreign (in the backend alone), or damaged: then `damage` says what is wrong with its files, and
    `serving` whether it serves nevertheless. `pairs` names the pairs that it was published in.
    """
    backend, store, history = workspace.backend, workspace.store, published(workspace)
    pair, into = with_flaws(backend.pair(counted=True), history), workspace.settings.serving.into
    pushed = {entry.snapshot: entry for entry in backend.list()}
    manifests, damaged = surveyed(store)
    stored = {one.id: one for one in manifests if one.id not in damaged}
    serving: dict[str, Any] = {
        "index": into.index or (pair.item.index if pair.item else ""),
        "field": into.field if into.index else "",
        "pair": name_of(pair, history),
        "item": pair.ids["item"],
        "query": pair.ids["query"],
        "rules": len(rules_of(store, query).rules) if (query := pair.ids["query"]) in stored else 0,
        "coverage": pair.coverage,
        "problems": list(pair.problems),
    }
    rows = []
    for id_ in dict.fromkeys((*damaged, *stored, *pushed)):
        row = _row(id_, stored.get(id_), pushed.get(id_), serves=id_ in pair.ids.values())
        names = dict.fromkeys(one.name for one in history if id_ in one.ids.values())
        state = {"state": "damaged"} if id_ in damaged else {}
        rows.append({**row, **state, "pairs": [*names], "damage": damaged.get(id_, "")})
    return serving, rows


def _row(
    id_: str, manifest: Manifest | None, entry: Listed | None, *, serves: bool
) -> dict[str, Any]:
    state = "stored"
    if serves:
        state = "serving"
    elif entry and manifest is None:
        state = "foreign"  # Another store pushed it to the same cluster.
    elif entry:
        state = "standby" if entry.complete else "half-written"
    return {
        "snapshot": id_,
        "side": side_of(id_),
        "state": state,
        "serving": serves,
        "pushed": entry is not None and entry.complete,
        "entities": manifest.entities if manifest else entry.documents if entry else None,
        "keywords": manifest.keywords if manifest else None,
        "generator": str(manifest.generator.get("kind", "")) if manifest else "",
        "parent": manifest.parent if manifest else None,
        "created": manifest.created if manifest else "",
    }
