"""Keywords as a field of an index that another team owns, which `serving.into` names.

The order is that of `indexers.release`; the steps are in `backends.opensearch.foreign_field`. With
a query snapshot a publish switches the field and the alias of the queries, one right after the
other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from cogr.errors import CheckFailedError, CogrError, LockedError, UserError
from cogr.records import Say, Side
from cogr.snapshots import open_snapshot, side_of
from indexers.backends.memory import mirror_of
from indexers.backends.opensearch import OpenSearchBackend
from indexers.backends.opensearch.foreign_field import (
    LOW,
    SWEEPS,
    Coverage,
    Target,
    add_field,
    compare_field,
    field_of,
    fill,
    holders,
    mend,
    open_target,
    point_to,
    scroll,
)
from indexers.backends.opensearch.indexes import refresh
from indexers.lease import awaited_lease, lease_to_fill
from indexers.release import Destination, Released, release, roll_back
from indexers.release.history import History, Serving, ServingState
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
                "An index of your own is in OpenSearch; set opensearch.url to its cluster."
            )
        into = workspace.settings.serving.into
        self._cluster = self.backend.cluster
        self._merged: tuple[int, Coverage] | None = None
        self._filled: tuple[Target, str, int] | None = None
        self._refills = SWEEPS
        self._queries = False
        self.target = open_target(self._cluster, into.index, into.field, into.id_field)
        self.items = f"{into.index}/{into.field}"

    def state(self, history: History) -> ServingState:
        """What serves in every place, in this one the snapshot whose field searches use now. The
        target is the index that the name stands for now.
        """
        target = self.target
        self.target = open_target(self._cluster, target.name, target.field, target.id_field)
        return {**super().state(history), self.items: self.target.serving}

    def pair(self, state: ServingState) -> dict[Side, str | None]:
        """The snapshot of the field, and the queries that serve or are published with it."""
        item = state.get(self.items)
        return {"item": item, "query": state.get("query") if item or self._queries else None}

    def current(self, state: ServingState, history: History, /) -> list[str]:
        """The item snapshot that serves, or served in the index that the name stood for before."""
        serving = state.get(self.items) or history.last(self.items)
        if serving is None:
            raise UserError(
                f"Nothing was published into {self.target.name} yet; publish an item snapshot: "
                f"cogr-index publish SNAPSHOT --into {self.target.name}."
            )
        return [serving]

    def publish(self, ids: Sequence[str], say: Say, *, gate: bool = True) -> Merged:
        """Fill the item snapshot's field, compare it, and let searches use it, together with a
        query snapshot where one is named. Without an item snapshot, what serves is carried over to
        the index that the name stands for now.

        Raises as `release`, UserError where no document is of an item, and CheckFailedError where
        documents keep losing the field, or hold other values.
        """
        self._queries = any(side_of(id_) == "query" for id_ in ids)
        if self._queries and len(ids) == 1:
            history, state = self.look()
            ids = [*self.current(state, history), *ids]
        gate = gate and bool(ids)
        released = release(self.workspace, ids, gate=gate, say=say, into=self)
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
        history, state = self.look()
        (id_,) = self.current(state, history)
        target = self.target
        field, again = field_of(target.field, id_), f"cogr-index publish --into {target.name}"
        with stage("verify", "item"):
            if target.serving is None:
                prometheus.VERIFICATIONS.labels("item", "different").inc()
                raise CheckFailedError(
                    f"{target.name} names {target.index}, which lacks the field {target.field} of "
                    f"{id_}; run {again}."
                )
            mirror = mirror_of(open_snapshot(self.store, id_))
            coverage = compare_field(self._cluster, target, field, mirror)
        outcome = "different" if coverage.lacking or coverage.different else "equal"
        prometheus.VERIFICATIONS.labels("item", outcome).inc()
        return Merged(id_, target.index, field, coverage)

    def _outcome(self, released: Released, say: Say) -> Merged:
        id_ = str(released.serving["item"])
        if self._merged is None:  # Only queries changed, or a rollback that had died was finished.
            self._merged = self._fill(id_, say)
        (written, coverage), target = self._merged, self.target
        before, query = released.before.get("item"), released.serving.get("query")
        field = field_of(target.field, id_)
        return Merged(id_, target.index, field, coverage, written, before, query)

    def names(self, place: str, changes: Mapping[str, str], /) -> bool:
        """Whether a place is this field, by another name of its index."""
        index, _, field = place.rpartition("/")
        same = index in (self.target.index, *self.target.state.aliases)
        return same and field == self.target.field and self.items in changes

    @contextmanager
    def prepared(self, changes: Mapping[str, str], say: Say, /) -> Iterator[None]:
        """Write the snapshot's field into the documents and compare it; searches don't use it. For
        the time of the block no other process fills this field of the index.
        """
        id_, target = changes.get(self.items), self.target
        if id_ is None:
            yield
            return
        history = History(self.store, self.catalogue)
        if target.serving is None and (last := history.last(self.items)):
            say(
                f"{target.name} names {target.index} now, which lacks the field {target.field} of "
                f"what served, {last}."
            )
        before = (entry["serving"].get(self.items) for entry in reversed(history.entries))
        kept = next((one for one in before if one and one != target.serving), None)
        kind, doing = lease_to_fill(target.index, target.field), f"filling of {target.index}"
        with awaited_lease(self.store, kind, f"{doing} from {id_}", say) as lease:
            self._merged = self._fill(id_, say, kept)
            name = field_of(target.field, id_)
            self._filled = target, name, holders(self._cluster, target, [name])[name]
            lease.check()
            yield

    def lost(self) -> str:
        """Whether documents have lost the field since they were compared. Raises UserError where
        the name stands for another index than the one that was filled.
        """
        if self._filled is None:
            return ""
        (filled, name, wanted), now = self._filled, self.target
        if (filled.index, filled.state.uuid) != (now.index, now.state.uuid):
            raise UserError(
                f"{now.name} names {now.index} since then, and {filled.index} was filled; run the "
                "same command again."
            )
        held = holders(self._cluster, now, [name])[name]
        if held >= LOW * wanted:
            return ""
        told = f"{wanted - held} documents of {now.index} have lost the field {name} since"
        self._refills -= 1
        if not self._refills:
            raise CheckFailedError(f"{told}; find out what removes it, and run the command again.")
        return f"{told}; they get it again."

    def _fill(self, id_: str, say: Say, kept: str | None = None) -> tuple[int, Coverage]:
        mirror, target = mirror_of(open_snapshot(self.store, id_)), self.target
        refresh(self._cluster, target.index)
        if not any(
            mirror.ids.find(target.item_of(hit)) >= 0
            for hit in scroll(self._cluster, target.index, {"match_all": {}}, **target.wanted)
        ):
            coverage = compare_field(self._cluster, target, field_of(target.field, id_), mirror)
            theirs, ours = (coverage.first.get(kind, [])[:2] for kind in ("unknown", "absent"))
            raise UserError(
                f"No document of {target.index} has the id of an item of {id_}: documents are "
                f"called {', '.join(map(repr, theirs)) or 'nothing, since there are none'}, items "
                f"{', '.join(map(repr, ours))}; name the field that holds the item's id in "
                "serving.into.id_field, such as sku. Nothing was written."
            )
        name = add_field(self._cluster, target, id_)
        fields = [field_of(target.field, one) for one in (id_, kept) if one]
        written = fill(self._cluster, target, fields, mirror)
        say(f"{written} documents of {target.index} got the field {name}")
        for _ in range(SWEEPS):
            coverage = compare_field(self._cluster, target, name, mirror)
            if not coverage.different:
                break
            mended = mend(self._cluster, target, name, mirror)
            say(f"{mended} documents of {target.index} had other keywords in {name} than {id_}")
        else:
            raise CheckFailedError(
                f"{coverage.different} documents of {target.index} still have other keywords in "
                f"{name} than {id_}, such as {coverage.first['different'][0]!r}: another program "
                "writes to the field; stop it and run the same command again."
            )
        add_field(self._cluster, target, id_, coverage.share)
        say(f"{'Warning: only ' if coverage.share < LOW else ''}{coverage.spoken(target.index)}.")
        return written, coverage

    def finish(
        self, changes: Mapping[str, str], state: ServingState, check: Callable[[], None]
    ) -> None:
        """Let searches use the snapshot's field. Where that fails, the queries are as before; where
        this process slept and another one has the lease, that one's field is used.
        """
        id_, old = changes.get(self.items), state.get("query")
        if id_ is None:
            return
        try:
            check()
            point_to(self._cluster, self.target, field_of(self.target.field, id_))
            check()
        except LockedError:
            if now := History(self.store, self.catalogue).last(self.items):
                point_to(self._cluster, self.target, field_of(self.target.field, now))
            raise
        except CogrError:
            if old and "query" in changes:
                switched: Serving = {"item": state.get("item"), "query": changes["query"]}
                self.backend.publish({"query": old}, switched)
            raise
