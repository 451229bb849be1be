"""`cogr-index update`: a new snapshot of one side from its parent and a list of changes.

The keywords of unchanged entities are carried over, so the snapshot equals that of a full rebuild.
`extractive` reads the whole collection: one change may alter the keywords of every entity, so
nothing is carried. `statistical` keeps the fit that wrote the parent, and gives new items the
keywords by which the known queries find them; `vllm` and `transformers` write them in the keywords
of known queries. `update_both` then writes the queries anew that gain by other keywords.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from cogr.datasets.changes import (
    Changes,
    changes_of_log,
    changes_since,
    read_changes,
)
from cogr.datasets.query_logs import read_log
from cogr.errors import SettingsError, SnapshotError
from cogr.keywords import self_keyword
from cogr.records import ProgressBar, Query, Say, self_text
from cogr.snapshots import Snapshot, read_set_aside
from indexers.generators.model_folders import LocalModelGenerator
from indexers.generators.statistical.generator import KeptFit, Statistical, options_hash
from indexers.imports import save_queries
from indexers.rebuild.plan import Carried, Job
from indexers.rebuild.run import Outcome, RebuildRequest, carry_out, make_job, side_held
from indexers.release import release
from indexers.telemetry.prometheus import stage
from indexers.workspace import Workspace


@dataclass(frozen=True)
class UpdateRequest(RebuildRequest):
    """The options of the command. One of `changed`, `since` and `log` names the changes.

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


@dataclass(frozen=True)
class Updated:
    """The outcome of an update.

    Attributes:
        after: the workspace with the changed data set.
        log: the figures of the search log.
    """

    outcome: Outcome
    parent: str
    after: Workspace
    changes: Changes
    carried: int
    log: Mapping[str, int] | None = None

    def as_dict(self) -> dict[str, Any]:
        """For --json. `carried` counts the rows taken from the parent."""
        counts = {"changed": len(self.changes.upserts), "gone": len(self.changes.deletes)}
        log = {} if self.log is None else {"log": dict(self.log)}
        return {
            "parent": self.parent,
            **counts,
            "carried": self.carried,
            **log,
            **self.outcome.as_dict(),
        }


def update_side(
    workspace: Workspace, request: UpdateRequest, bar: ProgressBar, say: Say
) -> Updated:
    """Make the snapshot that follows from the changes; push, verify and publish it where asked.

    Raises:
        SettingsError: not exactly one of the ways to name the changes.
        DataError: a bad record of changes.
        SnapshotError: there is no parent, or another generator, prompt or budget wrote it, so that
            a rebuild is needed.
        LockedError, CheckFailedError, ServiceError: as of a rebuild.
    """
    _check_request(request)
    counts = None
    with side_held(workspace, "update", request.side) as lease:
        with stage("load", request.side):
            parent = workspace.serving(request.side).base
            if request.log is not None:
                changes, counts = _changes_of_log(workspace, request, parent, say)
            else:
                changes = find_changes(workspace, request, parent)
            after = workspace.with_dataset(changes.applied_to(workspace.dataset))
            job = job_of_changes(after, request, parent, changes)
        outcome = carry_out(after, request, job, lease, bar, say)
    return _updated(outcome, job, parent, after, changes, counts)


def job_of_changes(
    after: Workspace, request: RebuildRequest, parent: Snapshot, changes: Changes
) -> Job:
    """The job of an update, in a workspace that has the changed data set. Raises as `narrowed`."""
    whole = _in_known_words(after, make_job(after, request))
    return narrowed(_on_kept_fit(after, whole, parent), parent, changes)


def _in_known_words(workspace: Workspace, whole: Job) -> Job:
    """A language model of ours writes new items in the keywords of the queries that serve. No query
    is written anew, so what it makes up besides would match nothing.
    """
    generator, queries = whole.generator, workspace.backend.serving().get("query")
    if whole.side == "query" or queries is None or not isinstance(generator, LocalModelGenerator):
        return whole
    return replace(whole, generator=generator.within(queries, whole.k_max))


def _updated(
    outcome: Outcome,
    job: Job,
    parent: Snapshot,
    after: Workspace,
    changes: Changes,
    log: Mapping[str, int] | None = None,
) -> Updated:
    carried = outcome.rebuilt.snapshot.manifest.entities - len(job.entities)
    return Updated(outcome, parent.id, after, changes, carried, log)


def update_both(
    workspace: Workspace, request: UpdateRequest, bar: ProgressBar, say: Say
) -> tuple[Updated, Updated]:
    """Update the items, then write those known queries anew that gain by other keywords; both go
    live in one switch, where asked. Raises as `update_side`, and SettingsError without a kept fit.
    """
    items = update_side(workspace, replace(request, publish=False), bar, say)
    queries = _update_gaining(items, replace(request, side="query", publish=False), bar, say)
    found = (items, queries)
    if request.push and request.publish:
        release(items.after, [one.outcome.rebuilt.snapshot.id for one in found], say=say)
        items, queries = (replace(o, outcome=replace(o.outcome, published=True)) for o in found)
    return items, queries


def _update_gaining(items: Updated, request: RebuildRequest, bar: ProgressBar, say: Say) -> Updated:
    after = items.after
    with side_held(after, "update", "query") as lease:
        with stage("load", "query"):
            parent = after.serving("query").base
            joined = items.outcome.rebuilt.snapshot.id
            whole = _on_kept_fit(after, make_job(after, request), parent, joined)
            changes = _gaining(whole, parent, items.changes.upserts.keys())
            job = narrowed(whole, parent, changes)
        outcome = carry_out(after, request, job, lease, bar, say)
    return _updated(outcome, job, parent, after, changes)


def _gaining(whole: Job, parent: Snapshot, items: Collection[str]) -> Changes:
    """The known queries that gain by these items, as changes."""
    if not isinstance(whole.generator, KeptFit):
        raise SettingsError(
            "--side both needs the fit of statistical that wrote what serves, and the store has "
            "none; run cogr-index rebuild --side item, then --side query."
        )
    ids = whole.generator.gaining(items)
    upserts = {row.id: Query(row.id, row.text) for row in parent.rows() if row.id in ids}
    return Changes("query", upserts, frozenset())


def _on_kept_fit(
    workspace: Workspace, whole: Job, parent: Snapshot, items: str | None = None
) -> Job:
    generator = whole.generator
    if not isinstance(generator, Statistical) or whole.search_results is not None:
        return whole
    sides = {**workspace.backend.serving(), whole.side: parent.id}
    if items is not None:
        sides["item"] = items
    kept = generator.keeping(parent.manifest.generator, sides.get("item"), sides.get("query"))
    return whole if kept is None else replace(whole, generator=kept)


def _check_request(request: UpdateRequest) -> None:
    if [request.changed, request.since, request.log].count(None) != 2:
        raise SettingsError(
            "An update takes one of --changed FILE, --since TIME and --from-log FILE; give "
            "exactly one."
        )
    if request.log is not None and request.side != "query":
        raise SettingsError("--from-log is of searches; give it with --side query.")
    if request.save is not None and request.log is None:
        raise SettingsError("--save keeps the queries of a log; give it with --from-log.")


def find_changes(workspace: Workspace, request: UpdateRequest, parent: Snapshot) -> Changes:
    """The changes, from `changed` or `since`."""
    if request.changed is not None:
        return read_changes(request.changed, request.side, workspace.reading)
    assert request.since is not None, "one of the three is given"
    return changes_since(workspace.dataset, request.side, request.since, parent.ids())


def _changes_of_log(
    workspace: Workspace, request: UpdateRequest, parent: Snapshot, say: Say
) -> tuple[Changes, Mapping[str, int]]:
    log = read_log(request.log or ())
    known = {own for batch in parent.batches() for own in batch["self"].to_pylist()}
    saved = {self_keyword(self_text(query)) for query in workspace.dataset.entities("query")}
    found = changes_of_log(log, request.min_count, known, saved)
    added = save_queries(request.save, found.unsaved) if request.save else 0
    told = {name: count for name, count in found.counts.items() if name != "left_out"}
    told |= log.left_out
    say(f"log: {', '.join(f'{count:,} {name}' for name, count in told.items())}")
    return found.changes, {**found.counts, "saved": added}


def narrowed(whole: Job, parent: Snapshot, changes: Changes) -> Job:
    """The job of a whole side, narrowed to the changes where the rest can be carried over from the
    parent, with its extra fields.

    Raises:
        SnapshotError: the parent was written with other settings, or has entities that the data set
            lacks and a generator that reads the whole collection needs.
    """
    _check_written_alike(whole, parent)
    child = replace(whole, parent=parent.id, round=parent.manifest.round)
    if not _carries(whole, parent):
        _check_same_entities(
            whole, {*parent.ids()} - changes.deletes | changes.upserts.keys(), parent
        )
        return child
    aside = read_set_aside(parent.store, parent.id)
    # Transient failures are generated again, as in a rebuild; permanent ones are in the cache.
    failed = aside.keys() - changes.upserts.keys()
    again = [entity for entity in whole.entities if entity.id in failed] if failed else []
    without = frozenset({*changes.upserts, *changes.deletes, *(entity.id for entity in again)})
    kept_aside = {id_: reason for id_, reason in aside.items() if id_ not in without}
    carried = Carried(parent, without, kept_aside, _still_cut(parent, without))
    return replace(child, entities=[*changes.upserts.values(), *again], carried=carried)


def _check_written_alike(job: Job, parent: Snapshot) -> None:
    manifest = parent.manifest
    reasons = {
        "by another generator": options_hash(job.generator.fingerprint)
        != options_hash(manifest.generator),
        "with another prompt": manifest.prompt_hash != job.prompter.template.hash,
        f"with a budget of {manifest.k_max} keywords instead of {job.k_max}": manifest.k_max
        != job.k_max,
        f"with the item fields {_named(manifest.fields)} instead of {_named(job.fields)} "
        "(publish.fields)": job.side == "item" and set(manifest.fields) != set(job.fields),
    }
    for reason, holds in reasons.items():
        if holds:
            raise SnapshotError(
                f"Snapshot {parent.id} was written {reason}, so an update would mix two kinds of "
                "keywords; run "
                f"cogr-index rebuild --side {job.side}."
            )


def _named(fields: Iterable[str]) -> str:
    return ", ".join(sorted(fields)) or "none"


def _carries(job: Job, parent: Snapshot) -> bool:
    read, now = (
        parent.manifest.generator.get("dataset_hash"),
        job.generator.fingerprint.get("dataset_hash"),
    )
    return read == now and job.search_results is None


def _check_same_entities(job: Job, expected: set[str], parent: Snapshot) -> None:
    given = {entity.id for entity in job.entities}
    if given == expected:
        return
    odd = min(given ^ expected)
    where = "the data set" if odd in given else f"the snapshot {parent.id}"
    raise SnapshotError(
        f"{len(given ^ expected)} {job.side} ids are in the data set or in the snapshot alone "
        f"(the first, {odd!r}, in {where}), "
        "but this generator reads the whole collection; bring the data set up to date and run "
        f"cogr-index rebuild --side {job.side}."
    )


def _still_cut(parent: Snapshot, without: frozenset[str]) -> int:
    manifest = parent.manifest
    if not manifest.cut_to_budget:
        return 0
    full = sum(len(row.keywords) == manifest.k_max for row in parent.rows() if row.id in without)
    return max(0, manifest.cut_to_budget - full)
