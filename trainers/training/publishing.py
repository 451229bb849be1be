"""A pair to the backend: gated, pushed, verified, switched by one call.

A gate that says no rolls back nothing.
"""

from __future__ import annotations

from cogr.errors import CheckFailedError, SnapshotError
from cogr.progress import Say
from cogr.snapshots import Snapshot, open_snapshot
from indexers.backends.memory import MemoryBackend
from indexers.release import release
from indexers.release.push import push_and_verify
from indexers.workspace import Workspace
from trainers.evaluation import ensure_pushed, evaluate
from trainers.training.contest import STATISTICAL, Contender, of_round
from trainers.training.holdout import is_set_apart
from trainers.training.state import Round


def publish_round(workspace: Workspace, done: Round, say: Say) -> None:
    """Push both snapshots of a finished round, verify them, and let the pair serve. Raises as
    `publish_pair` does.

    Raises:
        CheckFailedError: the round is not built upon.
    """
    if done.verdict != "accepted":
        raise _refused(f"Round {done.number}", done.reason)
    publish_pair(workspace, of_round(done), say)


def publish_pair(
    workspace: Workspace,
    pair: Contender,
    say: Say,
    *,
    gate: bool = True,
    stand_in: Contender | None = None,
) -> None:
    """Push both snapshots of a pair, verify them, and let it serve.

    Args:
        gate: refuse a pair that is worse than what serves, by its dev F1.
        stand_in: `statistical` without the dev labels; its figure counts where what serves is that
            generator's and knows them.

    Raises:
        CheckFailedError: the pair is worse than what serves, has too many entities that were set
            aside, or what was pushed differs; what serves stays.
        ServiceError: the service went away; the same command goes on.
    """
    snapshots = [open_snapshot(workspace.store, id_) for id_ in (pair.items, pair.queries)]
    for snapshot in snapshots:
        _check_set_aside(workspace, pair, snapshot)
    if gate:
        _check_against_serving(workspace, pair, say, stand_in)
    for snapshot in snapshots:
        push_and_verify(
            workspace.backend,
            workspace.store,
            snapshot,
            workspace.settings.rebuild.verify_queries,
            say,
        )
    release(workspace, [snapshot.id for snapshot in snapshots], gate=False, say=say)
    say(f"{pair.name} serves: {pair.items}, {pair.queries}")


def _refused(what: str, reason: str) -> CheckFailedError:
    name = "SFT" if what == "sft" else what[0].upper() + what[1:]
    return CheckFailedError(f"{name} is not published: {reason}; what serves stays.")


def _check_set_aside(workspace: Workspace, pair: Contender, snapshot: Snapshot) -> None:
    manifest, allowed = snapshot.manifest, workspace.settings.rebuild.max_failure_share
    share = manifest.set_aside / max(1, manifest.entities)
    if share > allowed:
        raise _refused(
            pair.name,
            f"{manifest.set_aside} of {manifest.entities} entities of {snapshot.id} have no "
            "keywords of their own "
            f"({share:.1%}, rebuild.max_failure_share is {allowed:.1%})",
        )


def _check_against_serving(
    workspace: Workspace, pair: Contender, say: Say, stand_in: Contender | None
) -> None:
    """Refuse a pair whose dev F1 is below that of the pair that serves, by more than the gate's
    tolerance.
    """
    gate, now = workspace.settings.training.gate, pair.dev_f1
    items, queries = (workspace.backend.serving()[side] for side in ("item", "query"))
    if (
        not gate.on
        or now is None
        or not items
        or not queries
        or (items, queries) == (pair.items, pair.queries)
    ):
        return
    try:
        before = _dev_f1_of(workspace, items, queries, stand_in)
    except SnapshotError as error:
        say(f"What serves can't be compared with: {error}")
        return
    if before is not None and not now >= before - gate.tolerance:
        raise _refused(
            pair.name,
            f"its dev F1 is {now:.4f}, that of what serves {before:.4f} (tolerance "
            f"{gate.tolerance:g}): {items}, {queries}",
        )


def _dev_f1_of(
    workspace: Workspace, items: str, queries: str, stand_in: Contender | None
) -> float | None:
    """Measured in memory, whatever serves: the figures are equal.

    None where the pair knows the dev labels and nothing stands in.
    """
    item, query = open_snapshot(workspace.store, items), open_snapshot(workspace.store, queries)
    if knows_dev(workspace, item, query):
        return None if stand_in is None else stand_in.dev_f1
    backend = MemoryBackend(workspace.store)
    ensure_pushed(backend, item)
    return evaluate(backend, workspace.dataset, item, query, "dev").figures["f1"]


def knows_dev(workspace: Workspace, *pair: Snapshot) -> bool:
    """Whether `statistical` learned one of these from all labels, those of the queries that are set
    apart here among them.
    """
    return is_set_apart(workspace.dataset) and any(
        one.manifest.generator.get("kind") == STATISTICAL
        and one.manifest.dataset_hash != workspace.dataset.dataset_hash
        for one in pair
    )
