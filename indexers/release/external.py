"""Keywords as a field of an index that another team owns: `publish`, `rollback` and `prune` with
`--into INDEX --field NAME`.

The order is that of `indexers.release`; the steps are in `backends.opensearch.foreign_field` and
`moving`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cogr.errors import UserError
from cogr.records import Say
from cogr.snapshots import open_snapshot
from indexers.backends import sample
from indexers.backends.memory import mirror_of
from indexers.backends.opensearch import OpenSearchBackend
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.foreign_field import (
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
from indexers.lease import switching_lease
from indexers.release import Released, release, roll_back
from indexers.release.history import Serving, finish_switch, standing
from indexers.workspace import Workspace


@dataclass(frozen=True)
class Merged:
    """The outcome of a publish into another index."""

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


class ForeignIndex:
    """An index of another team, by its name or an alias, and our fields in it, whose names begin
    with `field`. Raises UserError: another backend, no such index, or one that can't be used.
    """

    def __init__(self, workspace: Workspace, name: str, field: str) -> None:
        backend = workspace.backend
        if not isinstance(backend, OpenSearchBackend):
            raise UserError(
                "--into writes to an index in OpenSearch; set opensearch.url to its cluster."
            )
        self._workspace, self._store = workspace, workspace.store
        self._filled: Filled | None = None
        self._cluster: Cluster = backend.cluster
        self.target: Target = open_target(self._cluster, name, field)
        self.template = template_name(backend.prefix, self.target)

    @property
    def catalogue(self) -> str:
        """What its history and its lease are called."""
        return f"into-{self.template}"

    def serving(self) -> Serving:
        """The snapshot whose field searches use now."""
        return {"item": switched_to(self._cluster, self.template, self.target)}

    def publish(self, snapshot_id: str, say: Say, *, gate: bool = True) -> Merged:
        """Fill the snapshot's field, verify it, and let searches use it. Raises as `release`, and
        CheckFailedError where documents keep losing the field, or hold other values.
        """
        released = release(self._workspace, [snapshot_id], gate=gate, say=say, into=self)
        return self._merged(released, say)

    def roll_back(self, to: Sequence[str], say: Say) -> Merged:
        """Let searches use the snapshot that served before, or another one; each rollback goes one
        step further back. Raises as `indexers.release.roll_back`.
        """
        return self._merged(roll_back(self._workspace, to, say, into=self), say)

    def _merged(self, released: Released, say: Say) -> Merged:
        snapshot_id = str(released.serving["item"])
        if self._filled is None:  # This call only finished a rollback that had died.
            self.prepare([snapshot_id], released.serving, say)
        assert self._filled is not None
        field = field_of(self.target.field, snapshot_id)
        before = released.before.get("item")
        return Merged(snapshot_id, before, self.target.index, field, self.template, self._filled)

    def prepare(self, ids: Sequence[str], seen: Serving, say: Say) -> None:  # noqa: ARG002
        """Write the snapshot's field into the documents and verify it; searches don't use it."""
        for snapshot in (open_snapshot(self._store, id_) for id_ in ids):
            mirror = mirror_of(self._store, snapshot)
            name = add_field(self._cluster, self.target, snapshot.id)
            filled = fill(self._cluster, self.target, name, mirror)
            say(
                f"{filled.written} documents of {self.target.index} got the field {name}, in "
                f"{filled.sweeps} sweeps"
            )
            compared = check_values(self._cluster, self.target, name, mirror, sample(snapshot))
            say(f"compared {compared} documents with the snapshot")
            self._filled = filled

    def is_prepared(self, say: Say) -> bool:
        """False when the name stands for another index by now, because a prune moved it; that index
        is the target from then on.
        """
        before = self.target.index
        self.target = open_target(self._cluster, self.target.name, self.target.field)
        if before != self.target.index:
            say(f"{self.target.name} is {self.target.index} since then: that gets the field too.")
        return before == self.target.index

    def switch(self, ids: Sequence[str]) -> Serving:
        """Let searches use the snapshot's field."""
        before, text_fields = self.serving(), self._workspace.settings.publish.text_fields
        (snapshot_id,) = ids
        switch(self._cluster, self.template, field_of(self.target.field, snapshot_id), text_fields)
        return before

    def prune(self, keep: int, to: str | None, say: Say, *, dry_run: bool) -> list[str]:
        """Copy the index to a new one without unneeded fields. Returns the names of these fields.

        Needed are the field that serves and those of the last `keep` published snapshots. Raises as
        `move_without`, and UserError where a field is to be removed and no new index is named.
        """
        if dry_run:
            return self._old_fields(keep)
        with switching_lease(self._store, self.catalogue, f"prune of {self.target.name}", say):
            finish_switch(self._store, self.catalogue, self.serving())
            self.target = open_target(self._cluster, self.target.name, self.target.field)
            dropped = self._old_fields(keep)
            if dropped and to is None:
                raise UserError(
                    f"Leaving {len(dropped)} fields out takes a new index: give it a name with "
                    "--to."
                )
            if dropped and to is not None:
                move_without(self._cluster, self.target, dropped, to, self._store, self.catalogue)
        return dropped

    def _old_fields(self, keep: int) -> list[str]:
        published = [entry["serving"]["item"] for entry in standing(self._store, self.catalogue)]
        last = list(dict.fromkeys(reversed(published)))[: max(0, keep)]
        needed = {*last, *filter(None, self.serving().values())}
        kept = {field_of(self.target.field, id_) for id_ in needed}
        return [name for name in self.target.fields if name not in kept]
