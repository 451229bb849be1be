"""Keywords as a field of an index that another team owns: `publish`, `rollback` and `prune` with `--into INDEX --field NAME`.

The order of the steps, what served before, and what is still needed; the steps themselves are `backends.opensearch.into`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from cogr.errors import UserError
from cogr.snapshots import open_snapshot
from indexers.backends.checks import sample
from indexers.backends.mirrors import mirror_of
from indexers.backends.opensearch import OpenSearchBackend
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.into.cleaning import move_without
from indexers.backends.opensearch.into.filling import Filled, check_values, fill
from indexers.backends.opensearch.into.target import Target, add_field, field_of, open_target
from indexers.backends.opensearch.into.template import switch, switched_to, template_name
from indexers.history import previous, read_history, remember
from indexers.workspace import Workspace

Say = Callable[[str], None]


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
    """An index of another team, and the fields of ours in it.

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
            raise UserError("--into writes to an index in OpenSearch; set opensearch.url to its cluster.")
        self._workspace = workspace
        self._cluster: Cluster = backend.cluster
        self.target: Target = open_target(self._cluster, name, field)
        self.template = template_name(backend.prefix, self.target)

    @property
    def _history(self) -> str:
        return f"into-{self.template}"

    @cached_property
    def serving(self) -> str | None:
        """The snapshot whose field searches use now."""
        return switched_to(self._cluster, self.template, self.target)

    def publish(self, snapshot_id: str, say: Say) -> Merged:
        """Fill the snapshot's field, look at it, and let searches use it.

        Raises:
            CheckFailedError: documents keep losing the field, or hold other values; searches go on as before.
            ServiceError: the cluster went away; the same call goes on.
        """
        store = self._workspace.store
        snapshot = open_snapshot(store, snapshot_id)
        mirror = mirror_of(store, snapshot)
        name = add_field(self._cluster, self.target, snapshot_id)
        filled = fill(self._cluster, self.target, name, mirror)
        say(f"{filled.written} documents of {self.target.index} got the field {name}, in {filled.sweeps} sweeps")
        compared = check_values(self._cluster, self.target, name, mirror, sample(snapshot))
        say(f"compared {compared} documents with the snapshot")
        before = self.serving
        switch(self._cluster, self.template, name)
        if before != snapshot_id:
            remember(store, self._history, {"item": snapshot_id})
        return Merged(snapshot_id, before, self.target.index, name, self.template, filled)

    def before(self) -> str:
        """The snapshot that served before the one that serves now. Raises SnapshotError when there is none."""
        return previous(self._workspace.store, self._history, {"item": self.serving})["item"]

    def old_fields(self, keep: int) -> list[str]:
        """The fields that nothing needs: all but the one that serves and those of the last `keep` published snapshots."""
        published = [entry["serving"]["item"] for entry in read_history(self._workspace.store, self._history)]
        last = list(dict.fromkeys(reversed(published)))[: max(0, keep)]
        kept = {field_of(self.target.field, id_) for id_ in {*last, *filter(None, [self.serving])}}
        return [name for name in self.target.fields if name not in kept]

    def clean(self, dropped: list[str], to: str) -> int:
        """Move the index to a new one without these fields; the number of documents."""
        return move_without(self._cluster, self.target, dropped, to)
