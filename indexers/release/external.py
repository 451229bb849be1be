"""Keywords as a field of an index that another team owns: `publish`, `rollback` and `prune` with
`--into INDEX --field NAME`.

The order of the steps, what served before, and what is still needed; the steps themselves are
`backends.opensearch.field` and `moving`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from cogr.errors import UserError
from cogr.progress import Say
from cogr.records import Side
from cogr.snapshots import open_snapshot
from indexers.backends.memory import mirror_of
from indexers.backends.opensearch import OpenSearchBackend
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.field import (
    Filled,
    Target,
    add_field,
    check_values,
    field_of,
    fill,
    open_target,
    switch,
    switched_to,
    template_name,
)
from indexers.backends.opensearch.moving import move_without
from indexers.backends.protocol import sample
from indexers.rebuild.lease import alone
from indexers.release.history import (
    Entry,
    begin_switch,
    finish_switch,
    previous,
    standing,
    unfinished_switch,
)
from indexers.workspace import Workspace


@dataclass(frozen=True)
class Merged:
    """What a publish into another index came to."""

    snapshot: str
    before: str | None
    index: str
    field: str
    template: str
    filled: Filled

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        filled = asdict(self.filled)
        named = {"index": self.index, "field": self.field, "template": self.template}
        return {"serving": self.snapshot, "before": self.before, **named, **filled}


class Place:
    """An index of another team, and our fields in it.

    Args:
        workspace: its backend must be OpenSearch.
        name: the index, or an alias of it.
        field: what the names of the fields begin with.

    Raises:
        UserError: another backend, no such index, or one that can't be used.
    """

    def __init__(self, workspace: Workspace, name: str, field: str) -> None:
        backend = workspace.backend
        if not isinstance(backend, OpenSearchBackend):
            raise UserError(
                "--into writes to an index in OpenSearch; set opensearch.url to its cluster."
            )
        self._store = workspace.store
        self._cluster: Cluster = backend.cluster
        self.target: Target = open_target(self._cluster, name, field)
        self.template = template_name(backend.prefix, self.target)
        self._history = f"into-{self.template}"

    def serving(self) -> str | None:
        """The snapshot whose field searches use now."""
        return switched_to(self._cluster, self.template, self.target)

    def publish(self, snapshot_id: str, say: Say) -> Merged:
        """Fill the snapshot's field, look at it, and let searches use it.

        Raises:
            CheckFailedError: documents keep losing the field, or hold other values; searches go on
                as before.
            LockedError: somebody else switches or prunes this place and does not come to an end.
            ServiceError: the cluster went away; the same call goes on.
        """
        while True:
            filled = self._fill(snapshot_id, say)
            with self._turn(f"publish of {snapshot_id} into {self.target.name}", say):
                if not self._moved():
                    return self._switch(snapshot_id, filled)
            say(
                f"{self.target.name} is {self.target.index} since then, so that gets the field too."
            )

    def roll_back(self, say: Say) -> Merged:
        """Let the snapshot that served before be searched again; each rollback goes one further
        back. Raises as `publish`.

        Raises:
            SnapshotError: nothing was published before.
            UserError: somebody else switched meanwhile.
        """
        seen: dict[Side, str | None] = {"item": self.serving()}
        died = unfinished_switch(self._store, self._history, seen)
        snapshot_id = (
            died["serving"]["item"]
            if died
            else previous(self._store, self._history, seen).changed["item"]
        )
        while True:
            filled = self._fill(snapshot_id, say)
            with self._turn(f"rollback in {self.target.name}", say) as finished:
                if finished and finished["begun"] == "rollback":
                    say("The rollback before this one had switched and died; it is finished now.")
                    return self._merged(snapshot_id, finished["before"].get("item"), filled)
                if died or self.serving() != seen["item"]:
                    raise UserError(
                        f"Somebody else has switched meanwhile: {self.serving()} serves in "
                        f"{self.target.name} now. Nothing was rolled "
                        "back; run the same command again to go back from there."
                    )
                if not self._moved():
                    return self._switch(
                        snapshot_id, filled, previous(self._store, self._history, seen).to
                    )

    def _fill(self, snapshot_id: str, say: Say) -> Filled:
        """Give the documents the snapshot's field; looked at, and not searched yet."""
        snapshot = open_snapshot(self._store, snapshot_id)
        mirror = mirror_of(self._store, snapshot)
        name = add_field(self._cluster, self.target, snapshot_id)
        filled = fill(self._cluster, self.target, name, mirror)
        say(
            f"{filled.written} documents of {self.target.index} got the field {name}, in "
            f"{filled.sweeps} sweeps"
        )
        compared = check_values(self._cluster, self.target, name, mirror, sample(snapshot))
        say(f"compared {compared} documents with the snapshot")
        return filled

    def _moved(self) -> bool:
        """True when the name stands for another index by now, since somebody has pruned fields:
        that is the target then.
        """
        before, self.target = (
            self.target,
            open_target(self._cluster, self.target.name, self.target.field),
        )
        return before.index != self.target.index

    @contextmanager
    def _turn(self, doing: str, say: Say) -> Iterator[Entry | None]:
        """This place's lease, and what a process that died had switched to and not noted."""
        with alone(self._store, self._history, doing, say):
            yield finish_switch(self._store, self._history, {"item": self.serving()})

    def _switch(self, snapshot_id: str, filled: Filled, back_to: int | None = None) -> Merged:
        before = self.serving()
        begin_switch(self._store, self._history, {"item": before}, {"item": snapshot_id}, back_to)
        switch(self._cluster, self.template, field_of(self.target.field, snapshot_id))
        finish_switch(self._store, self._history, {"item": snapshot_id})
        return self._merged(snapshot_id, before, filled)

    def _merged(self, snapshot_id: str, before: str | None, filled: Filled) -> Merged:
        field = field_of(self.target.field, snapshot_id)
        return Merged(snapshot_id, before, self.target.index, field, self.template, filled)

    def prune(self, keep: int, to: str | None, say: Say, *, dry_run: bool) -> list[str]:
        """Move the index to a new one without the fields that nothing needs; their names.

        Needed are the one that serves and those of the last `keep` published snapshots.

        Args:
            to: the new index.

        Raises:
            UserError: a field is to go, and no new index is named or it can't be used.
            CheckFailedError, LockedError, ServiceError: as of `move_without` and `publish`.
        """
        if dry_run:
            return self._old_fields(keep)
        with self._turn(f"prune of {self.target.name}", say):
            self._moved()
            dropped = self._old_fields(keep)
            if dropped and to is None:
                raise UserError(
                    f"Leaving {len(dropped)} fields out takes a new index: give it a name with "
                    "--to."
                )
            if dropped and to is not None:
                move_without(self._cluster, self.target, dropped, to, self._store, self._history)
        return dropped

    def _old_fields(self, keep: int) -> list[str]:
        published = [entry["serving"]["item"] for entry in standing(self._store, self._history)]
        last = list(dict.fromkeys(reversed(published)))[: max(0, keep)]
        kept = {
            field_of(self.target.field, id_) for id_ in {*last, *filter(None, [self.serving()])}
        }
        return [name for name in self.target.fields if name not in kept]
