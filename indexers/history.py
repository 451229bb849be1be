"""What was published when, so that a rollback knows where to go. The backend says what serves; this remembers what did."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TypedDict, cast

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from cogr.errors import SnapshotError, StorageError
from cogr.records import Side
from cogr.store import Store

KEPT = 200

log = logging.getLogger(__name__)


class Entry(TypedDict):
    """One switch: when, and what served on each side after it."""

    time: str
    serving: dict[str, str]


class _Line(BaseModel):
    """An entry as it is read. What a later version added stays."""

    model_config = ConfigDict(extra="allow")

    time: str
    serving: dict[str, str]


_LINES = TypeAdapter(list[_Line])


def _path(catalogue: str) -> str:
    return f"history-{catalogue}.json"


def read_history(store: Store, catalogue: str) -> list[Entry]:
    """Every remembered switch, oldest first. Raises StorageError when the file is damaged."""
    path = _path(catalogue)
    try:
        return [cast("Entry", line.model_dump()) for line in _LINES.validate_json(store.read(path))]
    except FileNotFoundError:
        return []
    except ValidationError as error:
        raise StorageError(
            f"The history {path} in {store.url} is damaged; restore it from a backup, or remove it: what was published before "
            "is then forgotten, and the next publish begins a new one."
        ) from error


def kept_histories(store: Store) -> list[str]:
    """What histories are remembered of: backends, and fields of other indexes."""
    names = (name for name in store.list("") if name.startswith("history-") and name.endswith(".json"))
    return [name.removeprefix("history-").removesuffix(".json") for name in names]


def remember(store: Store, catalogue: str, serving: Mapping[Side, str | None]) -> None:
    """Note what serves after a switch."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    entry: Entry = {"time": now, "serving": {side: id_ for side, id_ in serving.items() if id_}}
    store.write_json(_path(catalogue), [*_known(store, catalogue), entry][-KEPT:])


def _known(store: Store, catalogue: str) -> list[Entry]:
    """As `read_history`; a damaged file is put beside, since the switch that is to be remembered has been made."""
    try:
        return read_history(store, catalogue)
    except StorageError:
        path = _path(catalogue)
        store.write(f"{path}.damaged", store.read(path))
        log.warning("%s in %s was damaged: it is kept as %s.damaged, and a new one begun.", path, store.url, path)
        return []


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
