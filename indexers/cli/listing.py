"""`cogr-index list`: every snapshot of the store, what the backend has of it, what serves, and how
good it was found.
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cogr.records import Side
from cogr.snapshots import Manifest, damaged_snapshots, list_snapshots
from indexers.backends.protocol import Listed, side_of
from indexers.release.gate import known_figures
from indexers.workspace import Workspace

_COLUMNS = ("snapshot", "state", "entities", "keywords", "F1", "age", "MB", "generator", "parent")
_BY_NEED = ("snapshot", "state", "F1", "age", "entities", "generator", "MB", "keywords", "parent")
"""Columns by what a reader needs most."""
_ALWAYS = 2
"""So many of them are shown however narrow the terminal is."""
_NUMBERS = ("entities", "keywords", "F1", "age", "MB")
_BETWEEN = 2
"""Spaces between two columns: rich pads each by one on both sides."""
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def listing(workspace: Workspace) -> list[dict[str, Any]]:
    """One row a snapshot, oldest first.

    `state` is serving, standby (pushed and whole), half-written, stored (in the store alone),
    foreign (in the backend alone), or damaged: then `damage` says what is wrong with its files, and
    `serving` whether it serves nevertheless. `f1` is the gate's figure of the snapshot with what
    serves on the other side, where it was measured.
    """
    backend = workspace.backend
    pushed, serving = {entry.snapshot: entry for entry in backend.list()}, backend.serving()
    damaged = damaged_snapshots(workspace.store)
    rows = [_damaged(id_, why, pushed.pop(id_, None)) for id_, why in damaged.items()]
    for manifest in (one for one in list_snapshots(workspace.store) if one.id not in damaged):
        f1 = _f1(workspace, manifest, serving)
        rows.append(_row(manifest, pushed.pop(manifest.id, None)) | {"f1": f1})
    # What another store pushed to the same cluster: it is there, so it is shown.
    return [*rows, *(_foreign(entry) for entry in pushed.values())]


def _damaged(id_: str, why: str, entry: Listed | None) -> dict[str, Any]:
    """A snapshot whose files can't be trusted: what the backend knows of it, and what is wrong."""
    known = entry or Listed(id_, side_of(id_), 0, None, False, False)
    entities = entry.documents if entry else None
    return {
        **_foreign(known),
        "state": "damaged",
        "entities": entities,
        "pushed": known.complete,
        "damage": why,
    }


def _row(manifest: Manifest, entry: Listed | None) -> dict[str, Any]:
    return {
        "snapshot": manifest.id,
        "side": manifest.side,
        "state": _state(entry),
        "entities": manifest.entities,
        "keywords": manifest.keywords,
        "generator": str(manifest.generator.get("kind", "")),
        "parent": manifest.parent,
        "created": manifest.created,
        "pushed": entry is not None and entry.complete,
        "serving": entry is not None and entry.serving,
        "bytes": entry.bytes if entry else None,
    }


def _foreign(entry: Listed) -> dict[str, Any]:
    return {
        "snapshot": entry.snapshot,
        "side": entry.side,
        "state": "serving" if entry.serving else "foreign",
        "entities": entry.documents,
        "keywords": None,
        "generator": "",
        "parent": None,
        "created": "",
        "pushed": entry.complete,
        "serving": entry.serving,
        "bytes": entry.bytes,
        "f1": None,
    }


def _state(entry: Listed | None) -> str:
    if entry is None:
        return "stored"
    if entry.serving:
        return "serving"
    return "standby" if entry.complete else "half-written"


def _f1(
    workspace: Workspace, manifest: Manifest, serving: Mapping[Side, str | None]
) -> float | None:
    other = serving["query" if manifest.side == "item" else "item"]
    if other is None:
        return None
    pair = (manifest.id, other) if manifest.side == "item" else (other, manifest.id)
    figures = known_figures(workspace.store, *pair)
    return figures.f1 if figures else None


def listed(out: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """The listing as a table: of its columns those that there is room for, ids always whole."""
    if not rows:
        out.print("No snapshot yet: run cogr-index rebuild --side item.")
        return
    columns = {name: [_cell(name, row) for row in rows] for name in _COLUMNS}
    shown, left_out = _fitting(columns, out.width)
    table = Table(box=None, pad_edge=False)
    for name in shown:
        table.add_column(name, no_wrap=True, justify="right" if name in _NUMBERS else "left")
    for cells in zip(*(columns[name] for name in shown), strict=True):
        table.add_row(*map(Text, cells))
    out.print(table, soft_wrap=len(shown) <= _ALWAYS)
    for row in rows:
        if row["state"] == "damaged":
            out.print(f"{row['damage']}{' It serves.' if row['serving'] else ''}", soft_wrap=True)
    if left_out:
        out.print(
            f"No room for: {', '.join(left_out)} (a wider terminal, or --json, shows them).",
            soft_wrap=True,
        )


def _fitting(columns: Mapping[str, Sequence[str]], width: int) -> tuple[list[str], list[str]]:
    """The columns that fit, in their order, and those that don't; what matters most is
    taken first.
    """
    room = width
    shown: list[str] = []
    for name in _BY_NEED:
        needed = max(map(len, (name, *columns[name]))) + _BETWEEN * bool(shown)
        if needed <= room or len(shown) < _ALWAYS:
            shown.append(name)
            room -= needed
    return [name for name in columns if name in shown], [
        name for name in columns if name not in shown
    ]


def _cell(name: str, row: Mapping[str, Any]) -> str:
    """One value, spelled for people."""
    if name == "age":
        return age(row["created"], time.time())
    value = row[{"F1": "f1", "MB": "bytes"}.get(name, name)]
    if value is None:
        return ""
    if name == "MB":
        return f"{value / 1e6:.1f}"
    return (
        f"{value:.4f}" if name == "F1" else f"{value:,}" if isinstance(value, int) else str(value)
    )


def age(created: str, now: float) -> str:
    """How long ago a manifest's time is, in its largest unit: 3 d, 5 h, 12 min; "" for none."""
    if not created:
        return ""
    seconds = max(0.0, now - calendar.timegm(time.strptime(created, "%Y-%m-%dT%H:%M:%SZ")))
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
