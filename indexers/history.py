"""What was published when, so that a rollback knows where to go. The backend says what serves; this remembers what did."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TypedDict

from cogr.errors import SnapshotError
from cogr.records import Side
from cogr.store import Store

KEPT = 200


class Entry(TypedDict):
    """One switch: when, and what served on each side after it."""

    time: str
    serving: dict[str, str]


def _path(catalogue: str) -> str:
    return f"history-{catalogue}.json"


def read_history(store: Store, catalogue: str) -> list[Entry]:
    """Every remembered switch, oldest first."""
    path = _path(catalogue)
    return list(store.read_json(path)) if store.exists(path) else []


def kept_histories(store: Store) -> list[str]:
    """What histories are remembered of: backends, and fields of other indexes."""
    names = (name for name in store.list("") if name.startswith("history-") and name.endswith(".json"))
    return [name.removeprefix("history-").removesuffix(".json") for name in names]


def remember(store: Store, catalogue: str, serving: Mapping[Side, str | None]) -> None:
    """Note what serves after a switch."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    entry: Entry = {"time": now, "serving": {side: id_ for side, id_ in serving.items() if id_}}
    store.write_json(_path(catalogue), [*read_history(store, catalogue), entry][-KEPT:])


def previous(store: Store, catalogue: str, serving: Mapping[Side, str | None]) -> dict[Side, str]:
    """The newest remembered pair that differs from what serves. Raises SnapshotError when there is none."""
    now = {side: id_ for side, id_ in serving.items() if id_}
    for entry in reversed(read_history(store, catalogue)):
        changed = {side: id_ for side, id_ in entry["serving"].items() if now.get(side) != id_}  # type: ignore[call-overload]
        if changed:
            return changed  # type: ignore[return-value]
    raise SnapshotError(
        "Nothing was published before what serves now; name a snapshot with --to (cogr-index list shows them)."
    )
