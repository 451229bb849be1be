"""The history of what was published, by which a rollback finds its destination: what served before.
What serves now, the backend says.

It is a stack, and written before the switch: a publish puts an entry on it, a rollback a note of
where it goes back to, which after the switch takes off what is above. Where a process died in
between, what serves tells whether its switch was made, and `settle` leaves the entries up to that
one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import NotRequired

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from cogr.errors import LockedError, SnapshotError, StorageError
from cogr.records import SIDES, Side
from cogr.store import Store, as_json

_KEPT = 200
Serving = Mapping[Side, str | None]
ServingState = Mapping[str, str | None]
"""What serves in every place of a catalogue: `item` and `query`, the aliases, and by `INDEX/FIELD`
the fields of indexes of other teams.
"""


class HistoryEntry(TypedDict):
    """One switch: what serves since then in every place, and who made it. `paired` are the fields
    of other indexes that the queries were published with; `rolled_back` the digests of rules that a
    rollback took away; of a rollback under way, `back_to` is the number of the entry that it goes
    back to.
    """

    time: str
    serving: dict[str, str]
    by: NotRequired[str]
    paired: NotRequired[list[str]]
    rolled_back: NotRequired[list[str]]
    back_to: NotRequired[int]


_ENTRIES = TypeAdapter(list[HistoryEntry])


class History:
    """Every remembered switch of a catalogue, oldest first, the last one perhaps not made. Raises
    StorageError when the file is damaged.
    """

    def __init__(self, store: Store, catalogue: str) -> None:
        self._store, self._path = store, f"history-{catalogue}.json"
        self._read: bytes | None = None
        with suppress(FileNotFoundError):
            self._read = store.read(self._path)
        try:
            content = b"[]" if self._read is None else self._read
            self.entries: Sequence[HistoryEntry] = _ENTRIES.validate_json(content)
        except ValidationError as error:
            raise StorageError(
                f"The history {self._path} in {self._store.url} is damaged; restore it from a "
                "backup, or remove it: what was published before is then forgotten, and the next "
                "publish begins a new one."
            ) from error

    def write(self, entries: Sequence[HistoryEntry]) -> None:
        """Replace the entries that were read. Raises LockedError where another process has."""
        content = as_json(entries[-_KEPT:])
        if content == self._read:
            return
        if not self._store.swap(self._path, self._read, content):
            raise LockedError(
                f"Another process switched in the meantime, according to {self._path} in "
                f"{self._store.url}; nothing was switched here. Run the same command again."
            )
        self._read, self.entries = content, entries[-_KEPT:]

    @property
    def places(self) -> list[str]:
        """The fields of other teams' indexes that something was published to."""
        return sorted(
            {place for entry in self.entries for place in entry["serving"] if "/" in place}
        )

    def last(self, place: str) -> str | None:
        """What was published last to a place."""
        snapshots = (entry["serving"].get(place) for entry in reversed(self.entries))
        return next(filter(None, snapshots), None)

    def forget(self, places: Collection[str]) -> None:
        """Leave out places whose index is gone."""
        kept: list[HistoryEntry] = []
        for entry in self.entries:
            serving = {place: id_ for place, id_ in entry["serving"].items() if place not in places}
            if not kept or kept[-1]["serving"] != serving:
                kept.append(HistoryEntry(**{**entry, "serving": serving}))
        self.write(kept)

    @property
    def newest(self) -> HistoryEntry | None:
        return self.entries[-1] if self.entries else None

    @property
    def paired(self) -> list[str]:
        """The fields of other indexes that serve with the queries."""
        return self.newest.get("paired", []) if self.newest else []

    @property
    def rolled_back(self) -> list[str]:
        """Rules that a rollback took away; they are not applied again until the file changes."""
        return self.newest.get("rolled_back", []) if self.newest else []

    def settled(self, state: ServingState) -> tuple[Sequence[HistoryEntry], ServingState | None]:
        """The entries up to the one that serves now, ignoring places whose index is gone; and, for
        a rollback that died after its switch, what served before it.
        """
        now, entries, before = named(state), [*self.entries], None
        if entries and (back_to := entries[-1].get("back_to")) is not None:
            note = entries.pop().copy()
            if note["serving"] == now:
                before = entries[-1]["serving"]
                del note["back_to"]
                entries = [*entries[:back_to], note]
        gone = {place for place, id_ in state.items() if "/" in place and not id_}
        if (number := newest_with(entries, now, gone)) is not None:
            return entries[: number + 1], before
        if len(entries) > 1 and is_half(now, *(entry["serving"] for entry in entries[-2:])):
            entries.pop()
        return entries, before

    def settle(self, state: ServingState) -> None:
        """Leave the entries up to what serves."""
        self.write(self.settled(state)[0])


def kept_histories(store: Store) -> list[str]:
    """The catalogues that have a history."""
    names = (re.fullmatch(r"history-(.*)\.json", name) for name in store.list(""))
    return [name[1] for name in names if name]


def previous(
    entries: Sequence[HistoryEntry], state: ServingState, places: Collection[str] = SIDES
) -> tuple[int, dict[str, str]]:
    """The newest entry with something in these places that does not serve there now: its number,
    and what differs, in any place. Raises SnapshotError when there is none.
    """
    for number in reversed(range(len(entries))):
        then = entries[number]["serving"]
        changed = {place: id_ for place, id_ in then.items() if state.get(place) != id_}
        if changed.keys() & {*places}:
            return number, changed
    raise SnapshotError(
        "Nothing was published before what serves now; name a snapshot with --to (cogr-index "
        "list shows them)."
    )


def newest_with(
    entries: Sequence[HistoryEntry], serving: Mapping[str, str], gone: Collection[str] = ()
) -> int | None:
    """The number of the newest entry by which this served, whatever was in places that are gone."""
    for number in reversed(range(len(entries))):
        then = entries[number]["serving"]
        if {place: id_ for place, id_ in then.items() if place not in gone} == serving:
            return number
    return None


def is_half(now: Mapping[str, str], before: Mapping[str, str], after: Mapping[str, str]) -> bool:
    """Whether a switch between two entries was made in some places alone."""
    return all(now.get(place) in (before.get(place), id_) for place, id_ in after.items())


def named(state: ServingState) -> dict[str, str]:
    """A state without the places where nothing serves."""
    return {place: id_ for place, id_ in state.items() if id_}
