"""`cogr-index update`: a new snapshot of one side from its parent and a list of changes.

The keywords of unchanged entities are carried over, so the snapshot equals that of a full rebuild.
`extractive` reads the whole collection: one change may alter the keywords of every entity, so
nothing is carried. `statistical` keeps the fit that wrote the parent, and gives new items the
keywords by which the known queries find them; `update_both` then writes the queries anew that gain
by other keywords. The other kinds write what changed as a rebuild does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from cogr.datasets.changes import (
    Changes,
    changes_of_log,
    changes_since,
    read_changes,
)
from cogr.datasets.query_logs import QueryLog, read_log
from cogr.errors import SettingsError, SnapshotError
from cogr.keywords import query_key
from cogr.records import ProgressBar, Query, Say, self_text
from cogr.snapshots import Manifest, Snapshot, read_set_aside
from indexers.generators.statistical.generator import KeptFit, Statistical, options_hash
from indexers.imports import save_queries
from indexers.rebuild.assembly import Rebuilt
from indexers.rebuild.plan import Carried, Job
from indexers.rebuild.run import RebuildRequest, RebuildRun, make_job
from indexers.release import MovedError, release
from indexers.workspace import Workspace

_T = TypeVar("_T")


@dataclass(frozen=True)
class UpdateRequest(RebuildRequest):
    """The options of the command. One of `changed`, `since` and `log` names the changes, else
    SettingsError is raised.

    Attributes:
        since: entities with a later time of update in the data set have changed; entities that it
            lacks are removed.
        log: the files of a search log; queries in it that became frequent get keywords.
        min_count: fewest clients that asked a query of the log for it to be taken; fewest searches
            where the log has no clients.
        save: a file to which the log's queries that the data set lacks are added first.
    """

    changed: Path | None = None
    since: datetime | None = None
    log: Sequence[Path] | None = None
    min_count: int = 10
    save: Path | None = None

    def __post_init__(self) -> None:
        if [self.changed, self.since, self.log].count(None) != 2:
            raise SettingsError(
                "An update takes one of --changed FILE, --since TIME and --from-log FILE; give "
                "exactly one."
            )
        if self.log is not None and self.side != "query":
            raise SettingsError("--from-log reads searches; use it with --side query.")
        if self.save is not None and self.log is None:
            raise SettingsError("--save stores the queries of a log; use it with --from-log.")


def update_side(workspace: Workspace, request: UpdateRequest, bar: ProgressBar, say: Say) -> Update:
    """Make the snapshot that follows from the changes; push, verify and publish it where asked.

    Raises:
        DataError: a bad record of changes.
        SnapshotError: there is no parent, or another generator, prompt or budget wrote it, so that
            a rebuild is needed.
        LockedError, CheckFailedError, ServiceError: as of a rebuild.
    """
    update = Update(workspace, request, bar, say)
    update.carry_out()
    return update


def update_both(
    workspace: Workspace, request: UpdateRequest, bar: ProgressBar, say: Say
) -> tuple[Update, Update]:
    """Update the items, then write those known queries anew that gain by other keywords; both go
    live in one switch, where asked. Raises as `update_side`, and SettingsError without a kept fit.
    """
    items = Update(workspace, replace(request, publish=False), bar, say)
    queries = GainingQueries(items)
    with items.held() as first, queries.held() as second:

        def work() -> None:
            both = items.work(first), queries.work(second)
            if not request.publishes:
                return
            base = {one.side: one.job.parent for one in (items, queries)}
            ids = [one.snapshot.id for one in both]
            for lease in (first, second):
                lease.check()
            release(items.job.workspace, ids, say=say, check_lease=second.check, base=base)
            items.rebuilt, queries.rebuilt = (replace(one, published=True) for one in both)

        until_unmoved(work, say)
    return items, queries


def until_unmoved(work: Callable[[], _T], say: Say) -> _T:
    """Do the work of an update, and again from what serves now where another process switched
    meanwhile: what is unchanged is carried over, so that costs little.
    """
    while True:
        try:
            return work()
        except MovedError as moved:
            say(
                "Another process switched in the meantime; the update starts from what serves "
                f"now: {moved}"
            )


class Update(RebuildRun):
    """A run of `update`.

    Attributes:
        log: the figures of the search log.
    """

    command = "update"
    request: UpdateRequest
    changes: Changes
    log: Mapping[str, int] | None = None

    def carry_out(self) -> Rebuilt:
        with self.held() as lease:
            return until_unmoved(partial(self.work, lease), self.say)

    def as_dict(self) -> dict[str, Any]:
        """For --json. `carried` counts the rows taken from the parent."""
        return {
            "parent": self.job.parent,
            "changed": len(self.changes.upserts),
            "gone": len(self.changes.deletes),
            "carried": self.rebuilt.snapshot.manifest.entities - len(self.job.entities),
            **({} if self.log is None else {"log": dict(self.log)}),
            **self.rebuilt.as_dict(),
        }

    def load(self) -> Job:
        parent = self.workspace.serving(self.side).base
        self.changes = self._find_changes(parent)
        after = self.workspace.with_dataset(self.changes.applied_to(self.workspace.dataset))
        return narrowed(_on_kept_fit(make_job(after, self.request), parent), parent, self.changes)

    def _find_changes(self, parent: Snapshot) -> Changes:
        request, workspace = self.request, self.workspace
        if request.log is not None:
            return self._changes_of_log(read_log(request.log), parent)
        if request.changed is not None:
            return read_changes(request.changed, self.side, workspace.reading)
        assert request.since is not None, "one of the three is given"
        return changes_since(workspace.dataset, self.side, request.since, parent.ids())

    def _changes_of_log(self, log: QueryLog, parent: Snapshot) -> Changes:
        known = {row.key for row in parent.rows()}
        queries, save = self.workspace.dataset.entities("query"), self.request.save
        saved = {query_key(self_text(query)) for query in queries}
        result = changes_of_log(log, self.request.min_count, known, saved)
        added = save_queries(save, result.unsaved) if save else 0
        told = {name: count for name, count in result.counts.items() if name != "left_out"}
        told |= log.left_out
        self.say(f"log: {', '.join(f'{count:,} {name}' for name, count in told.items())}")
        self.log = {**result.counts, "saved": added}
        return result.changes


class GainingQueries(Update):
    """The second half of `update_both`, after the first one."""

    def __init__(self, items: Update) -> None:
        asked = replace(items.request, side="query")
        super().__init__(items.workspace, asked, items.bar, items.say)
        self._items = items

    def load(self) -> Job:
        self.workspace = self._items.job.workspace
        parent, joined = self.workspace.serving("query").base, self._items.rebuilt.snapshot.id
        whole = _on_kept_fit(make_job(self.workspace, self.request), parent, joined)
        if not isinstance(whole.generator, KeptFit):
            raise SettingsError(
                "--side both needs the fit of statistical that wrote what serves, and the store "
                "has none; run cogr-index rebuild --side item, then --side query."
            )
        ids = whole.generator.gaining(self._items.changes.upserts.keys())
        upserts = {row.id: Query(row.id, row.text) for row in parent.rows() if row.id in ids}
        self.changes = Changes("query", upserts, frozenset())
        return narrowed(whole, parent, self.changes)


def _on_kept_fit(whole: Job, parent: Snapshot, items: str | None = None) -> Job:
    generator = whole.generator
    if not isinstance(generator, Statistical):
        return whole
    sides = {**whole.workspace.backend.serving(), whole.side: parent.id}
    if items is not None:
        sides["item"] = items
    kept = generator.keeping(parent.manifest.generator, sides.get("item"), sides.get("query"))
    return whole if kept is None else replace(whole, generator=kept)


def narrowed(whole: Job, parent: Snapshot, changes: Changes) -> Job:
    """The job of a whole side, narrowed to the changes where the rest can be carried over from the
    parent, with its extra fields.

    Raises:
        SnapshotError: the parent was written with other settings, or has entities that the data set
            lacks and a generator that reads the whole collection needs.
    """
    _check_written_alike(whole, parent.manifest)
    child = replace(whole, parent=parent.id, round=parent.manifest.round)
    read, now = (
        of.get("dataset_hash") for of in (parent.manifest.generator, whole.generator.fingerprint)
    )
    if read != now:
        _check_same_entities(whole, changes, parent)
        return child
    aside = read_set_aside(parent.store, parent.id)
    # Transient failures are generated again, as in a rebuild; permanent ones are in the cache.
    failed = aside.keys() - changes.upserts.keys()
    again = [entity for entity in whole.entities if entity.id in failed] if failed else []
    without = frozenset({*changes.upserts, *changes.deletes, *(entity.id for entity in again)})
    kept_aside = {id_: reason for id_, reason in aside.items() if id_ not in without}
    carried = Carried(parent, without, kept_aside)
    return replace(child, entities=[*changes.upserts.values(), *again], carried=carried)


def _check_written_alike(job: Job, manifest: Manifest) -> None:
    settings, generator = job.workspace.settings, job.generator.fingerprint
    k_max = settings.keywords.k_max
    had, fields = ({*some} for some in (manifest.fields, settings.publish.fields))
    had_texts, wants_texts = manifest.texts is not None, settings.publish.search_text
    had_named, named = (", ".join(sorted(some)) or "none" for some in (had, fields))
    reasons = {
        "by another generator": options_hash(generator) != options_hash(manifest.generator),
        "with another prompt": manifest.prompt_hash != job.template.hash,
        f"with a budget of {manifest.k_max} keywords instead of {k_max}": manifest.k_max != k_max,
        f"with the item fields {had_named} instead of {named} (publish.fields)": job.side == "item"
        and had != fields,
        f"with{'' if had_texts else 'out'} the items' texts (publish.search_text)": job.side
        == "item"
        and had_texts != wants_texts,
    }
    for reason, holds in reasons.items():
        if holds:
            raise SnapshotError(
                f"Snapshot {manifest.id} was written {reason}, so an update would mix two kinds of "
                "keywords; run "
                f"cogr-index rebuild --side {job.side}."
            )


def _check_same_entities(job: Job, changes: Changes, parent: Snapshot) -> None:
    expected = {*parent.ids()} - changes.deletes | changes.upserts.keys()
    given = {entity.id for entity in job.entities}
    if given == expected:
        return
    odd = min(given ^ expected)
    where = "the data set" if odd in given else "the snapshot"
    raise SnapshotError(
        f"{len(given ^ expected)} {job.side} ids are in only one of the data set and the snapshot "
        f"{parent.id} (the first, {odd!r}, only in {where}), but this generator reads the whole "
        "collection; bring the data set up to date and run "
        f"cogr-index rebuild --side {job.side}."
    )
