"""A round's pair to the backend: gated, pushed, verified, switched by one call. A gate that says no rolls back nothing."""

from __future__ import annotations

from collections.abc import Callable

from cogr.errors import CheckFailedError, SnapshotError
from cogr.snapshots import Snapshot, open_snapshot
from indexers.backends.memory import MemoryBackend
from indexers.publishing import push_and_verify
from indexers.release import release
from indexers.workspace import Workspace
from trainers.evaluation import ensure_pushed, evaluate
from trainers.training.judging import dev_f1
from trainers.training.state import Round

Say = Callable[[str], None]


def publish_round(workspace: Workspace, done: Round, say: Say) -> None:
    """Push both snapshots of a finished round, verify them, and let the pair serve.

    Raises:
        CheckFailedError: the round is not built upon, is worse than what serves, has too many entities that were set
            aside, or what was pushed differs; what serves stays.
        ServiceError: the service went away; the same command goes on.
    """
    if done.verdict != "accepted":
        raise _refused(done, done.reason)
    snapshots = [open_snapshot(workspace.store, id_) for id_ in (done.items, done.queries)]
    for snapshot in snapshots:
        _check_set_aside(workspace, done, snapshot)
    _check_against_serving(workspace, done, say)
    for snapshot in snapshots:
        push_and_verify(workspace.backend, workspace.store, snapshot, workspace.settings.rebuild.verify_queries, say)
    release(workspace, [snapshot.id for snapshot in snapshots], gate=False, say=say)
    say(f"round {done.number} serves: {done.items}, {done.queries}")


def _refused(done: Round, reason: str) -> CheckFailedError:
    return CheckFailedError(f"Round {done.number} is not published: {reason}; what serves stays.")


def _check_set_aside(workspace: Workspace, done: Round, snapshot: Snapshot) -> None:
    manifest, allowed = snapshot.manifest, workspace.settings.rebuild.max_failure_share
    share = manifest.set_aside / max(1, manifest.entities)
    if share > allowed:
        raise _refused(
            done,
            f"{manifest.set_aside} of {manifest.entities} entities of {snapshot.id} have no keywords of their own "
            f"({share:.1%}, rebuild.max_failure_share is {allowed:.1%})",
        )


def _check_against_serving(workspace: Workspace, done: Round, say: Say) -> None:
    """Refuse a pair whose dev F1 is below that of the pair that serves, by more than the gate's tolerance."""
    gate, now = workspace.settings.training.gate, dev_f1(done.stage("evaluate"))
    items, queries = (workspace.backend.serving()[side] for side in ("item", "query"))
    if not gate.on or now is None or not items or not queries or (items, queries) == (done.items, done.queries):
        return
    try:
        before = _dev_f1_of(workspace, items, queries)
    except SnapshotError as error:
        say(f"What serves can't be compared with: {error}")
        return
    if not now >= before - gate.tolerance:
        raise _refused(
            done,
            f"its dev F1 is {now:.4f}, that of what serves {before:.4f} (tolerance {gate.tolerance:g}): {items}, {queries}",
        )


def _dev_f1_of(workspace: Workspace, items: str, queries: str) -> float:
    """Measured in memory, whatever serves: the figures are equal."""
    item, query = open_snapshot(workspace.store, items), open_snapshot(workspace.store, queries)
    backend = MemoryBackend(workspace.store)
    ensure_pushed(backend, item)
    return evaluate(backend, workspace.dataset, item, query, "dev").figures["f1"]
