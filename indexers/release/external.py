"""Keywords as a field of an index that another team owns: `publish`, `rollback` and `verify` with
`--into INDEX --field NAME`.

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
from cogr.snapshots import open_snapshot
from indexers.backends import side_of
from indexers.backends.memory import mirror_of
from indexers.backends.opensearch import OpenSearchBackend, search
from indexers.backends.opensearch.foreign_field import (
    LOW,
    Coverage,
    Filled,
    Target,
    add_field,
    compare,
    field_of,
    fill,
    open_target,
    point_to,
    template_name,
)
from indexers.release import Released, release, roll_back
from indexers.release.order import WARM_UP_QUERIES, Serving, read_history, warm_up
from indexers.telemetry import prometheus
from indexers.telemetry.prometheus import stage
from indexers.workspace import Workspace


@dataclass(frozen=True)
class Merged:
    """The outcome of a publish into another index, or of a verification there."""

    snapshot: str
    index: str
    field: str
    coverage: Coverage
    filled: Filled | None = None
    template: str = ""
    before: str | None = None
    query: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        named: dict[str, Any] = {"serving": self.snapshot, "index": self.index, "field": self.field}
        if self.filled is not None:
            named |= {"before": self.before, "query": self.query, "template": self.template}
        return named | (asdict(self.filled) if self.filled else {}) | asdict(self.coverage)


class ForeignIndex:
    """An index of another team, by its name or an alias, and our fields in it: `field` points to
    the one that serves, and their names begin with it. `ids` says how documents name items
    (`ItemIds`). Raises UserError: another backend, no such index, or one that can't be used.
    """

    def __init__(self, workspace: Workspace, name: str, field: str, ids: str = "{id}") -> None:
        backend = workspace.backend
        if not isinstance(backend, OpenSearchBackend):
            raise UserError(
                "--into writes to an index in OpenSearch; set opensearch.url to its cluster."
            )
        self._workspace, self._store, self._backend = workspace, workspace.store, backend
        self._cluster, self._ids = backend.cluster, ids
        self._merged: tuple[Filled, Coverage] | None = None
        self._queries = False
        self.target: Target = open_target(self._cluster, name, field, ids)
        self.template = template_name(backend.prefix, self.target)

    @property
    def catalogue(self) -> str:
        """What its history and its lease are called."""
        return f"into-{self.template}"

    def serving(self) -> Serving:
        """The snapshot whose field searches use now, and where a publish brought queries with it,
        those that serve.
        """
        found: dict[Side, str | None] = {"item": self._opened(self.target.name).serving}
        if self._queries or "query" in self._last():
            found["query"] = self._backend.serving()["query"]
        return found

    def _opened(self, name: str) -> Target:
        return open_target(self._cluster, name, self.target.field, self._ids)

    def _last(self) -> dict[Side, str]:
        entries = read_history(self._store, self.catalogue)[-1:]
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
        released = release(self._workspace, ids or [self.current], gate=gate, say=say, into=self)
        return self._outcome(released, say)

    def roll_back(self, to: Sequence[str], say: Say) -> Merged:
        """Let searches use the snapshot that served before, or another one; each rollback goes one
        step further back. Raises as `indexers.release.roll_back`.
        """
        return self._outcome(roll_back(self._workspace, to, say, into=self), say)

    def verify(self) -> Merged:
        """Compare every document with the snapshot that serves there. Raises CheckFailedError where
        a document lacks its keywords, has others, or the index lacks the field.
        """
        target = self.target = self._opened(self.target.name)
        id_ = self.current
        field, again = field_of(target.field, id_), f"cogr-index publish --into {target.name}"
        with stage("verify", "item"):
            if target.serving is None:
                _count("different")
                raise CheckFailedError(
                    f"{target.name} names {target.index}, which lacks the field {target.field} of "
                    f"{id_}; run {again}."
                )
            mirror = mirror_of(open_snapshot(self._store, id_))
            found = compare(self._cluster, target, field, mirror)
        _count("different" if found.lacking or found.different else "equal")
        return Merged(id_, target.index, field, found)

    def _outcome(self, released: Released, say: Say) -> Merged:
        id_ = str(released.serving["item"])
        if self._merged is None:  # Only queries changed, or a rollback that had died was finished.
            self._merged = self._fill(self.target, id_, say)
        (filled, found), target = self._merged, self.target
        before, query = released.before.get("item"), released.serving.get("query")
        field = field_of(target.field, id_)
        return Merged(id_, target.index, field, found, filled, self.template, before, query)

    def prepare(self, ids: Sequence[str], seen: Serving, say: Say) -> None:
        """Write the snapshot's field into the documents and compare it; searches don't use it."""
        if seen["item"] is None and (last := self._last().get("item")):
            say(
                f"{self.target.name} names {self.target.index} now, which lacks the field "
                f"{self.target.field} of what served, {last}."
            )
        for id_ in ids:
            if side_of(id_) == "item":
                self._merged = self._fill(self.target, id_, say)
            elif id_ != seen.get("query"):
                warm_up(self._backend, self._store, [id_], WARM_UP_QUERIES)

    def _fill(self, target: Target, id_: str, say: Say) -> tuple[Filled, Coverage]:
        mirror = mirror_of(open_snapshot(self._store, id_))
        name = add_field(self._cluster, target, id_)
        filled = fill(self._cluster, target, name, mirror)
        written = f"{filled.written} documents of {target.index} got the field {name}"
        say(f"{written}, in {filled.sweeps} sweeps")
        found = compare(self._cluster, target, name, mirror)
        if found.documents == found.unknown:
            theirs, ours = (found.first.get(kind, [])[:2] for kind in ("unknown", "absent"))
            raise UserError(
                f"No document of {target.index} has the id of an item of {id_}: documents are "
                f"called {', '.join(map(repr, theirs)) or 'nothing, since there are none'}, items "
                f"{', '.join(map(repr, ours))}; name the field that holds the item's id, as by "
                "--id-field sku, or a template of _id, as by --id-field 'de:{id}'."
            )
        if found.different:
            raise CheckFailedError(
                f"{found.different} documents of {target.index} have other keywords in {name} than "
                f"{id_}, such as {found.first['different'][0]!r}: something else writes to it; "
                "remove the field's values there and run the same command again."
            )
        say(f"{'Warning: only ' if found.share < LOW else ''}{found.spoken(target.index)}.")
        return filled, found

    def is_prepared(self, say: Say) -> bool:
        """False when the name stands for another index by now; that index is the target from then
        on.
        """
        before, self.target = self.target.index, self._opened(self.target.name)
        if before != self.target.index:
            say(f"{self.target.name} is {self.target.index} since then: that gets the field too.")
        return before == self.target.index

    def switch(self, ids: Sequence[str]) -> Serving:
        """Let searches use the snapshot's field, and the query snapshot after it."""
        before, text_fields = self.serving(), self._workspace.settings.publish.text_fields
        source = search.template_source(
            search.Fields(self.target.field, text_fields, text_fields, id=None), shown=()
        )
        search.install_template(self._cluster, self.template, source)
        for id_ in sorted(ids):
            if side_of(id_) == "item":
                point_to(self._cluster, self.target, field_of(self.target.field, id_))
            elif id_ != before.get("query"):
                release(self._workspace, [id_], gate=False, rules=False)
        return before


def _count(outcome: str) -> None:
    prometheus.VERIFICATIONS.labels("item", outcome).inc()
