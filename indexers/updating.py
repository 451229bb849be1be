"""`cogr-index update`: a new snapshot of one side that differs from its parent in what changed, as a full rebuild would have it.

What a generator wrote for an entity that did not change is carried over. A generator that reads the whole collection
(`extractive`, `statistical`) may see every entity otherwise once one has changed, so then nothing is carried.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from cogr.datasets.changes import Changes, changes_of_ids, changes_of_log, changes_since, read_changes, read_ids
from cogr.errors import SettingsError, SnapshotError
from cogr.records import Query, Side
from cogr.snapshots import Snapshot, open_snapshot
from indexers.backends.checks import check_side
from indexers.backends.opensearch import OpenSearchBackend
from indexers.backends.opensearch.drift import Drift
from indexers.backends.opensearch.inplace import Changed
from indexers.cache import fingerprint_hash
from indexers.extra_fields import items_with_fields
from indexers.gate import check
from indexers.history import remember
from indexers.publishing import probes
from indexers.rebuild import Carried, Job, read_set_aside
from indexers.rebuilding import (
    Outcome,
    ProgressBar,
    Say,
    Wishes,
    Workers,
    finished,
    generate,
    hand_over,
    make_job,
    means_of,
    planned,
)
from indexers.run_report import reported
from indexers.telemetry import metrics
from indexers.telemetry.stages import stage
from indexers.workspace import Workspace


@dataclass(frozen=True)
class UpdateWishes:
    """What the command line asked for. One of `changed`, `ids`, `since` and `log` says what changed.

    Attributes:
        side: which side.
        changed: a file of changes (`cogr.datasets.changes.read_changes`).
        ids: a file of ids; the data set says what has become of them.
        since: entities that the data set says were updated since then; what it no longer has is gone.
        log: a search log; queries in it that became frequent get keywords.
        min_count: how often a query of the log must have been asked.
        save: a file for the log's new queries, as records of the data set.
        parent: the snapshot to start from; what serves by default.
        in_place: change the index that serves instead of making a new one.
        push: write the snapshot to the backend.
        publish: switch what serves to it.
        workers: instead of the settings' rebuild.workers.
    """

    side: Side
    changed: Path | None = None
    ids: Path | None = None
    since: datetime | None = None
    log: Path | None = None
    min_count: int = 10
    save: Path | None = None
    parent: str | None = None
    in_place: bool = False
    push: bool = True
    publish: bool = True
    workers: Workers | None = None


@dataclass(frozen=True)
class Updated:
    """What an update came to. `carried` counts the rows that are the parent's."""

    outcome: Outcome
    parent: str
    changed: int
    gone: int
    carried: int
    drift: Drift | None = None

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        counts: dict[str, Any] = {"changed": self.changed, "gone": self.gone, "carried": self.carried}
        if self.drift:
            counts["drift"] = asdict(self.drift)
        return {"parent": self.parent, **counts, **self.outcome.as_dict()}


def run_update(workspace: Workspace, wishes: UpdateWishes, bar: ProgressBar, say: Say) -> Updated:
    """Make, and where asked push, verify and publish, the snapshot that follows from the changes.

    Raises:
        SettingsError: not exactly one of the three ways to say what changed.
        DataError: a bad record of changes, or an id that nobody knows.
        SnapshotError: there is no parent, or another generator, prompt or budget wrote it, so that it takes a rebuild.
        LockedError, CheckFailedError, ServiceError: as of a rebuild.
    """
    _check_wishes(wishes)
    if wishes.in_place:
        _check_in_place(workspace, wishes)
    side = wishes.side
    metrics.serve(workspace.settings.metrics)
    asked = means_of(workspace, Wishes(side, workers=wishes.workers), "update", say)
    with asked as means, reported(workspace.store, "update", side, means) as report:
        with stage("load", side):
            parent = _parent(workspace, wishes)
            changes = find_changes(workspace, wishes, parent)
            after = workspace.with_dataset(changes.applied_to(workspace.dataset))
            whole = make_job(after, Wishes(side, push=wishes.push))
        with whole.generator:
            job = narrowed(whole, parent, changes, all_fields=wishes.changed is None)
            rebuilt = generate(job, planned(job), bar, means)
        push = wishes.push and not wishes.in_place
        outcome = hand_over(after, rebuilt, say, push=push, publish=wishes.publish, means=means)
        drift = None
        if wishes.in_place:
            changed = _change_in_place(after, parent, rebuilt.snapshot, say)
            outcome, drift = replace(outcome, index=changed.index, published=True), changed.drift
        outcome = finished(report, outcome)
    metrics.write(workspace.settings.metrics)
    carried = rebuilt.snapshot.manifest.entities - len(job.entities)
    return Updated(outcome, parent.id, len(changes.upserts), len(changes.deletes), carried, drift)


def _change_in_place(workspace: Workspace, parent: Snapshot, snapshot: Snapshot, say: Say) -> Changed:
    """Gate, change what serves, verify it, and say how far its statistics are off."""
    backend, store, settings = workspace.backend, workspace.store, workspace.settings
    assert isinstance(backend, OpenSearchBackend), "looked at before anything was generated"
    if settings.publish.gate:
        check(workspace, [snapshot.id])
    with stage("push", snapshot.side) as step:
        changed = backend.change(parent, snapshot, settings.publish.max_drift)
        step.add(
            index=changed.index, written=changed.written, **{f"drift_{k}": v for k, v in asdict(changed.drift).items()}
        )
    found = changed.drift
    say(
        f"changed {changed.written} documents of {changed.index} in place; {found.deleted} deleted ones count, by which N is "
        f"{found.documents:.2%} off, avgdl {found.length:.2%}, the worst idf {found.idf:.2%}"
    )
    with stage("verify", snapshot.side):
        backend.verify(snapshot, probes(backend, store, snapshot, settings.rebuild.verify_queries))
    remember(store, backend.catalogue, backend.serving())
    return changed


def _check_in_place(workspace: Workspace, wishes: UpdateWishes) -> None:
    if not (wishes.push and wishes.publish):
        raise SettingsError("--in-place changes what serves; leave --no-push and --no-publish out.")
    if not isinstance(workspace.backend, OpenSearchBackend):
        raise SettingsError("--in-place is for OpenSearch; the backend memory writes a new mirror in seconds.")


def _check_wishes(wishes: UpdateWishes) -> None:
    if sum(given is not None for given in (wishes.changed, wishes.ids, wishes.since, wishes.log)) != 1:
        raise SettingsError(
            "An update takes one of --changed FILE, --ids FILE, --since TIME and --from-log FILE; give exactly one."
        )
    if wishes.log is not None and wishes.side != "query":
        raise SettingsError("--from-log is of searches; give it with --side query.")
    if wishes.save is not None and wishes.log is None:
        raise SettingsError("--save keeps the queries of a log; give it with --from-log.")


def _parent(workspace: Workspace, wishes: UpdateWishes) -> Snapshot:
    if wishes.parent is None:
        return workspace.serving(wishes.side)
    check_side(wishes.parent, wishes.side)
    return open_snapshot(workspace.store, wishes.parent)


def find_changes(workspace: Workspace, wishes: UpdateWishes, parent: Snapshot) -> Changes:
    """What changed, by the one way that was given."""
    if wishes.changed is not None:
        return read_changes(wishes.changed, wishes.side, workspace.settings.publish.fields)
    if wishes.ids is not None:
        return changes_of_ids(workspace.dataset, wishes.side, read_ids(wishes.ids), parent.ids())
    if wishes.log is not None:
        known = {own for batch in parent.batches() for own in batch["self"].to_pylist()}
        changes = changes_of_log(wishes.log, wishes.min_count, known)
        _save(wishes.save, changes)
        return changes
    assert wishes.since is not None, "one of the four is given"
    return changes_since(workspace.dataset, wishes.side, wishes.since, parent.ids())


def _save(path: Path | None, changes: Changes) -> None:
    """Add the queries to a file of records, for the data set to have them at the next rebuild."""
    if path is not None and changes.upserts:
        with path.open("a", encoding="utf-8") as file:
            file.writelines(
                json.dumps({"id": q.id, "text": q.text}, ensure_ascii=False) + "\n" for q in _queries(changes)
            )


def _queries(changes: Changes) -> list[Query]:
    return [one for one in changes.upserts.values() if isinstance(one, Query)]


def narrowed(whole: Job, parent: Snapshot, changes: Changes, *, all_fields: bool = False) -> Job:
    """The job of a whole side, cut down to what changed where the rest can be carried over from the parent.

    Args:
        all_fields: the data set says what the extra fields of all items are, also of those whose keywords are carried over;
            otherwise these keep the parent's.

    Raises:
        SnapshotError: the parent was written otherwise, or holds entities that a generator of whole collections needs
            and the data set has not.
    """
    _check_written_alike(whole, parent)
    keeps = bool(parent.manifest.fields) and not all_fields
    child = replace(whole, parent=parent.id, round=parent.manifest.round)
    if not _carries(whole, parent):
        _check_same_entities(whole, {*parent.ids()} - changes.deletes | changes.upserts.keys(), parent)
        return replace(child, entities=items_with_fields(child.entities, parent, changes.upserts)) if keeps else child
    aside = read_set_aside(parent.store, parent.id)
    # Failures that may have passed are asked for again, as a rebuild would; lasting ones are in the cache.
    again = [e for e in whole.entities if e.id in aside and e.id not in changes.upserts] if aside else []
    without = frozenset({*changes.upserts, *changes.deletes, *(entity.id for entity in again)})
    kept_aside = {id_: reason for id_, reason in aside.items() if id_ not in without}
    carried = Carried(parent, without, kept_aside, _still_cut(parent, without), whole.entities if all_fields else None)
    retried = items_with_fields(again, parent, changes.upserts) if keeps else again
    return replace(child, entities=[*changes.upserts.values(), *retried], carried=carried)


def _check_written_alike(job: Job, parent: Snapshot) -> None:
    """Refuse to mix the keywords of two generators, prompts or budgets in one snapshot."""
    manifest = parent.manifest
    reasons = {
        "by another generator": _without_data(job.generator.fingerprint) != _without_data(manifest.generator),
        "with another prompt": manifest.prompt_hash != job.prompter.template.hash,
        f"with a budget of {manifest.k_max} keywords instead of {job.k_max}": manifest.k_max != job.k_max,
        f"with the item fields {_named(manifest.fields)} instead of {_named(job.fields)} (publish.fields)": job.side
        == "item"
        and set(manifest.fields) != set(job.fields),
    }
    for reason, holds in reasons.items():
        if holds:
            raise SnapshotError(
                f"Snapshot {parent.id} was written {reason}, so an update would mix two kinds of keywords; run "
                f"cogr-index rebuild --side {job.side}."
            )


def _named(fields: Iterable[str]) -> str:
    return ", ".join(sorted(fields)) or "none"


def _without_data(fingerprint: Mapping[str, object]) -> str:
    return fingerprint_hash({key: value for key, value in fingerprint.items() if key != "dataset_hash"})


def _carries(job: Job, parent: Snapshot) -> bool:
    """True when the keywords of what did not change are still the same: they depend on no other entity, or on none that changed."""
    read, now = parent.manifest.generator.get("dataset_hash"), job.generator.fingerprint.get("dataset_hash")
    return read == now and job.search_results is None


def _check_same_entities(job: Job, expected: set[str], parent: Snapshot) -> None:
    given = {entity.id for entity in job.entities}
    if given == expected:
        return
    odd = min(given ^ expected)
    where = "the data set" if odd in given else f"the snapshot {parent.id}"
    raise SnapshotError(
        f"{len(given ^ expected)} {job.side} ids are in the data set or in the snapshot alone (the first, {odd!r}, in {where}), "
        f"but this generator reads the whole collection; bring the data set up to date and run cogr-index rebuild --side {job.side}."
    )


def _still_cut(parent: Snapshot, without: frozenset[str]) -> int:
    """How many carried sets were cut to the budget: all of the parent's but the full ones among those left out."""
    manifest = parent.manifest
    if not manifest.cut_to_budget:
        return 0
    full = sum(len(row.keywords) == manifest.k_max for row in parent.rows() if row.id in without)
    return max(0, manifest.cut_to_budget - full)
