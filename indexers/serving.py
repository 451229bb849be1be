"""What serves: one look at it for every command that shows, verifies or searches it. The backend
sees the pair of snapshots and where it is; here it is compared with what was published last, so
that a half of a pair is told from a whole one, and with the command that mends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cogr.records import Side
from indexers.backends import Pair
from indexers.release import destination
from indexers.release.order import History
from indexers.workspace import Workspace


def what_serves(workspace: Workspace) -> Pair:
    """What serves now, with its flaws. Raises ServiceError, StorageError, and UserError as
    `destination`.
    """
    return judged(workspace.backend.pair(), last_published(workspace))


def last_published(workspace: Workspace) -> Sequence[Mapping[Side, str]]:
    """The pairs that have served where the settings let snapshots serve, the last one last."""
    place = destination(workspace)
    pairs = (
        place.pair(entry["serving"]) for entry in History(place.store, place.catalogue).entries
    )
    return [{side: id_ for side, id_ in pair.items() if id_} for pair in pairs]


def judged(pair: Pair, entries: Sequence[Mapping[Side, str]]) -> Pair:
    """A pair with all its flaws: what a backend saw, a side that is gone, and sides that are not
    one pair, or never served together. `advice` publishes again what was published last.
    """
    last = entries[-1] if entries else {}
    flaws = list(pair.flaws)
    served = {side: id_ for side, id_ in pair.ids.items() if id_}
    gone = [side for side in last if side not in served]
    if gone and not flaws:
        flaws += [f"no {side} snapshot serves, {last[side]} was published last" for side in gone]
    elif served and "item" not in served and not flaws:
        flaws.append("no item snapshot serves")
    if pair.mismatch:
        flaws.append(pair.mismatch)
    known = {id_ for entry in entries for id_ in entry.values()}
    together = [entry for entry in entries if entry.items() >= served.items()]
    if not gone and known & {*served.values()} and not together:
        flaws.append(f"{' and '.join(served.values())} were never published together")
    advice = " ".join(["cogr-index publish", *last.values()]) if flaws and last else ""
    return replace(pair, flaws=tuple(flaws), advice=advice)
