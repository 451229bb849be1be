"""Keywords as a field of an index that another team owns, which `serving.into` names.

The order is that of `indexers.release`; the steps are in `backends.opensearch.foreign_field`. With
a query snapshot a publish switches the field and the alias of the queries, one right after the
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cogr.errors import CheckFailedError, UserError
from cogr.records import Say, Side
from cogr.snapshots import open_snapshot, side_of
from indexers.backends.memory import mirror_of
from indexers.backends.opensearch import OpenSearchBackend
from indexers.backends.opensearch.foreign_field import (
    LOW,
    Coverage,
    add_field,
    compare,
    field_of,
    fill,
    open_target,
    point_to,
    scroll,
)
from indexers.release import Destination, Released, release, roll_back
from indexers.release.order import Serving, read_history
from indexers.telemetry import prometheus
from indexers.telemetry.prometheus import stage
from indexers.workspace import Workspace


@dataclass(frozen=True)
class Merged:
    """The outcome of a publish into another index, or of a verification there, which has `serving`
    to `coverage` alone: what serves, where, and how the documents compare with it; how many were
    written, the item snapshot that served before, and the query snapshot.
    """

    serving: str
    index: str
    field: str
    coverage: Coverage
    written: int = 0
    before: str | None = None
    query: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        named = {name: value for name, value in vars(self).items() if name != "coverage"}
        return {**named, **asdict(self.coverage)}


class ForeignIndex(Destination):
    """The index of `serving.into`, and our fields in it. Raises UserError: another backend, no such
    index, or one that can't be used.
    """

    own = False

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        if not isinstance(self.backend, OpenSearchBackend):
            raise UserError(
                "--into writes to an index in OpenSearch; set opensearch.url to its cluster."
            )
        into = workspace.settings.serving.into
        self._cluster = self.backend.cluster
        self._merged: tuple[int, Coverage] | None = None
        self._queries = False
        self.target = open_target(self._cluster, into.index, into.field, into.id_field)
        self.catalogue = f"into-{self.backend.prefix}-{into.index}-{into.field}"

    def serving(self) -> Serving:
        """The snapshot whose field searches use now, and where a publish brought queries with it,
        those that serve. The target is the index that the name stands for now.
        """
        target = self.target
        self.target = open_target(self._cluster, target.name, target.field, target.id_field)
        found: dict[Side, str | None] = {"item": self.target.serving}
        if self._queries or "query" in self._last():
            found["query"] = self.backend.serving()["query"]
        return found

    def _last(self) -> dict[Side, str]:
        entries = read_history(self.store, self.catalogue)[-1:]
        return {side: id_ for entry in entries for side, id_ in entry["serving"].items()}

    @property
    def current(self) -> str:
        """The item snapshot that serves, or served in the index that the name stood for before."""
        found = self.target.serving or self._last().get("item")
        if found is None:
            raise UserError(
                f"Nothing was published into {self.target.name} yet; name an item snapshot, such "
                f"as in cogr-index publish SNAPSHOT --into {self.target.name}."
            )
        return found

    def publish(self, ids: Sequence[str], say: Say, *, gate: bool = True) -> Merged:
        """Fill the item snapshot's field, compare it, and let searches use it, together with a
        query snapshot where one is named. Without a snapshot, what serves is carried over to the
        index that the name stands for now.

        Raises as `release`, UserError where no document is of an item, and CheckFailedError where
        documents keep losing the field, or hold other values.
        """
        self._queries = any(side_of(id_) == "query" for id_ in ids)
        if self._queries and len(ids) == 1:
            raise UserError("--into takes an item snapshot, alone or with its query snapshot.")
        gate = gate and bool(ids)
        released = release(self.workspace, ids or [self.current], gate=gate, say=say, into=self)
        return self._outcome(released, say)

    def roll_back(self, to: Sequence[str], say: Say) -> Merged:
        """Let searches use the snapshot that served before, or another one; each rollback goes one
        step further back. Raises as `indexers.release.roll_back`.
        """
        return self._outcome(roll_back(self.workspace, to, say, into=self), say)

    def verify(self) -> Merged:
        """Compare every document with the snapshot that serves there; the coverage says which
        differ. Raises CheckFailedError where the index lacks the field.
        """
        target, id_ = self.target, self.current
        field, again = field_of(target.field, id_), f"cogr-index publish --into {target.name}"
        with stage("verify", "item"):
            if target.serving is None:
                prometheus.VERIFICATIONS.labels("item", "different").inc()
                raise CheckFailedError(
                    f"{target.name} names {target.index}, which lacks the field {target.field} of "
                    f"{id_}; run {again}."
                )
            mirror = mirror_of(open_snapshot(self.store, id_))
            found = compare(self._cluster, target, field, mirror)
        outcome = "different" if found.lacking or found.different else "equal"
        prometheus.VERIFICATIONS.labels("item", outcome).inc()
        return Merged(id_, target.index, field, found)

    def _outcome(self, released: Released, say: Say) -> Merged:
        id_ = str(released.serving["item"])
        if self._merged is None:  # Only queries changed, or a rollback that had died was finished.
            self._merged = self._fill(id_, say)
        (written, found), target = self._merged, self.target
        before, query = released.before.get("item"), released.serving.get("query")
        field = field_of(target.field, id_)
        return Merged(id_, target.index, field, found, written, before, query)

    def prepare(self, ids: Sequence[str], say: Say) -> None:
        """Write the snapshot's field into the documents and compare it; searches don't use it."""
        target = self.target
        if target.serving is None and (last := self._last().get("item")):
            say(
                f"{target.name} names {target.index} now, which lacks the field {target.field} of "
                f"what served, {last}."
            )
        for id_ in (id_ for id_ in ids if side_of(id_) == "item"):
            self._merged = self._fill(id_, say)

    def _fill(self, id_: str, say: Say) -> tuple[int, Coverage]:
        mirror, target = mirror_of(open_snapshot(self.store, id_)), self.target
        if not any(
            mirror.ids.find(target.item_of(hit)) >= 0
            for hit in scroll(self._cluster, target.index, {"match_all": {}}, **target.wanted)
        ):
            found = compare(self._cluster, target, field_of(target.field, id_), mirror)
            theirs, ours = (found.first.get(kind, [])[:2] for kind in ("unknown", "absent"))
            raise UserError(
                f"No document of {target.index} has the id of an item of {id_}: documents are "
                f"called {', '.join(map(repr, theirs)) or 'nothing, since there are none'}, items "
                f"{', '.join(map(repr, ours))}; name the field that holds the item's id, as by "
                "--id-field sku. Nothing was written."
            )
        name = add_field(self._cluster, target, id_)
        written = fill(self._cluster, target, name, mirror)
        say(f"{written} documents of {target.index} got the field {name}")
        found = compare(self._cluster, target, name, mirror)
        if found.different:
            raise CheckFailedError(
                f"{found.different} documents of {target.index} have other keywords in {name} than "
                f"{id_}, such as {found.first['different'][0]!r}: something else writes to it; "
                "remove the field's values there and run the same command again."
            )
        say(f"{'Warning: only ' if found.share < LOW else ''}{found.spoken(target.index)}.")
        return written, found

    def switch(self, ids: Sequence[str]) -> Serving:
        """Let searches use the snapshot's field, and the query snapshot after it. Raises UserError
        where the name stands for another index than when it was prepared.
        """
        before, target = self.serving(), self.target
        for id_ in sorted(ids):
            if side_of(id_) == "item":
                field = field_of(target.field, id_)
                if field not in target.fields:
                    raise UserError(
                        f"{target.name} names {target.index} since then, which lacks the field "
                        f"{field}; run the same command again."
                    )
                point_to(self._cluster, target, field)
            elif id_ != before.get("query"):
                release(self.workspace, [id_], gate=False, rules=False)
        return before
