"""The history of publishes, by which a rollback finds its destination. The backend says what
serves; the history says what served before.

A history is a stack. A publish adds an entry; a rollback goes to an earlier one and marks those
above it as rolled back, so that the next rollback goes one step further. A switch is noted before
it is made (`begin_switch`). If the process dies, the next one sees from what serves whether the
switch was made, and finishes the entry (`finish_switch`). Every writer holds the catalogue's lease.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NotRequired

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from cogr.errors import SnapshotError, StorageError
from cogr.records import Side
from cogr.store import Store

KEPT = 200
Kind = Literal["publish", "rollback"]
Serving = Mapping[Side, str | None]

log = logging.getLogger(__name__)


class Entry(TypedDict):
    """One switch. While it is under way it also has its kind (`begun`), what served before, and of
    a rollback the number of the entry that it goes to.
    """

    time: str
    serving: dict[Side, str]
    rolled_back: NotRequired[str]
    begun: NotRequired[Kind]
    before: NotRequired[dict[Side, str]]
    to: NotRequired[int]


@dataclass(frozen=True)
class Step:
    """The destination of a rollback: the number of its entry, and the snapshots to switch to."""

    to: int
    changed: dict[Side, str]


_ENTRIES = TypeAdapter(list[Entry])


def _path(catalogue: str) -> str:
    return f"history-{catalogue}.json"


def _read(store: Store, catalogue: str) -> tuple[list[Entry], Entry | None]:
    path = _path(catalogue)
    try:
        entries = _ENTRIES.validate_json(store.read(path))
    except FileNotFoundError:
        return [], None
    except ValidationError as error:
        raise StorageError(
            f"The history {path} in {store.url} is damaged; restore it from a backup, or remove "
            "it: what was published before is then forgotten, and the next publish begins a new "
            "one."
        ) from error
    begun = entries.pop() if entries and "begun" in entries[-1] else None
    return entries, begun


def _known(store: Store, catalogue: str) -> tuple[list[Entry], Entry | None]:
    try:
        return _read(store, catalogue)
    except StorageError:
        path = _path(catalogue)
        store.move(path, f"{path}.damaged")
        log.warning(
            "%s in %s was damaged: it is kept as *.damaged, and a new one begun.", path, store.url
        )
        return [], None


def read_history(store: Store, catalogue: str) -> list[Entry]:
    """Every remembered switch, oldest first. Raises StorageError when the file is damaged."""
    return _read(store, catalogue)[0]


def kept_histories(store: Store) -> list[str]:
    """The catalogues that have a history: backends, and fields of other indexes."""
    names = (re.fullmatch(r"history-(.*)\.json", name) for name in store.list(""))
    return [name[1] for name in names if name]


def named_last(store: Store, catalogue: str) -> set[str]:
    """The snapshots that serve by a catalogue according to its history, and those of a switch under
    way.
    """
    _, begun = _read(store, catalogue)
    entries = (*standing(store, catalogue)[-1:], *filter(None, [begun]))
    return {id_ for entry in entries for id_ in entry["serving"].values()}


def standing(store: Store, catalogue: str) -> list[Entry]:
    """The switches that were not rolled back, oldest first."""
    return [entry for entry in read_history(store, catalogue) if "rolled_back" not in entry]


def begin_switch(
    store: Store, catalogue: str, before: Serving, after: Serving, to: int | None = None
) -> None:
    """Note a switch that is about to be made; `to` is the entry that a rollback goes to."""
    entries, _ = _known(store, catalogue)
    entry: Entry = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "serving": _named(after),
        "before": _named(before),
        "begun": "publish",
    }
    if to is not None:
        entry |= {"begun": "rollback", "to": to}
    store.write_json(_path(catalogue), [*entries, entry])


def finish_switch(store: Store, catalogue: str, serving: Serving) -> Entry | None:
    """Finish a switch that was begun: add an entry if its snapshots serve, and return it; else
    forget it.
    """
    entries, begun = _known(store, catalogue)
    if begun is None:
        return None
    done = begun["serving"] == _named(serving)
    if done:
        entries = _after(entries, begun)
    store.write_json(_path(catalogue), entries[-KEPT:])
    return begun if done else None


def _after(entries: list[Entry], begun: Entry) -> list[Entry]:
    to = begun.get("to")
    if to is not None:
        late: list[Entry] = [{"rolled_back": begun["time"], **entry} for entry in entries[to + 1 :]]
        return [*entries[: to + 1], *late]
    top = _standing(entries)[-1:]
    if top and entries[top[0]]["serving"] == begun["serving"]:
        return entries  # Published again.
    return [*entries, {"time": begun["time"], "serving": begun["serving"]}]


def unfinished_switch(store: Store, catalogue: str, serving: Serving) -> Entry | None:
    """A switch that was made but not entered: its process died in between, or has not come to it
    yet.
    """
    _, begun = _read(store, catalogue)
    return begun if begun is not None and begun["serving"] == _named(serving) else None


def previous(store: Store, catalogue: str, serving: Serving) -> Step:
    """The newest pair that served before what serves now, and was not rolled back.

    Raises SnapshotError when there is none.
    """
    entries, now = read_history(store, catalogue), _named(serving)
    at = _newest(entries, now)
    for number in reversed(_standing(entries[:at])):
        then = entries[number]["serving"]
        if changed := {side: id_ for side, id_ in then.items() if now.get(side) != id_}:
            return Step(number, changed)
    raise SnapshotError(
        "Nothing was published before what serves now; name a snapshot with --to (cogr-index "
        "list shows them)."
    )


def entry_of(store: Store, catalogue: str, serving: Serving) -> int | None:
    """The number of the newest entry that served exactly this and was not rolled back."""
    return _newest(read_history(store, catalogue), _named(serving))


def _newest(entries: Sequence[Entry], serving: Mapping[Side, str]) -> int | None:
    found = [number for number in _standing(entries) if entries[number]["serving"] == serving]
    return found[-1] if found else None


def _standing(entries: Sequence[Entry]) -> list[int]:
    return [number for number, entry in enumerate(entries) if "rolled_back" not in entry]


def _named(serving: Serving) -> dict[Side, str]:
    return {side: id_ for side, id_ in serving.items() if id_}
