"""A round's pair to the backend: pushed, verified, switched by one call. The gate is the round's verdict."""

from __future__ import annotations

from collections.abc import Callable

from cogr.errors import CheckFailedError
from cogr.snapshots import open_snapshot
from indexers.history import remember
from indexers.publishing import publish, push_and_verify
from indexers.workspace import Workspace
from trainers.training.state import Round


def publish_round(workspace: Workspace, done: Round, say: Callable[[str], None]) -> None:
    """Push both snapshots of a finished round, verify them, and let the pair serve.

    Raises:
        CheckFailedError: the round is not built upon, too many entities were set aside, or what was pushed differs; what
            serves stays.
        ServiceError: the service went away; the same command goes on.
    """
    if done.verdict != "accepted":
        raise CheckFailedError(f"Round {done.number} is not published: {done.reason}; what serves stays.")
    allowed = workspace.settings.rebuild.max_failure_share
    snapshots = [open_snapshot(workspace.store, id_) for id_ in (done.items, done.queries)]
    for snapshot in snapshots:
        share = snapshot.manifest.set_aside / max(1, snapshot.manifest.entities)
        if share > allowed:
            raise CheckFailedError(
                f"Round {done.number} is not published: {snapshot.manifest.set_aside} of {snapshot.manifest.entities} "
                f"entities of {snapshot.id} have no keywords of their own ({share:.1%}, rebuild.max_failure_share is "
                f"{allowed:.1%}); what serves stays."
            )
    for snapshot in snapshots:
        push_and_verify(workspace.backend, workspace.store, snapshot, workspace.settings.rebuild.verify_queries, say)
    publish(workspace.backend, workspace.store, [snapshot.id for snapshot in snapshots])
    remember(workspace.store, workspace.backend.name, workspace.backend.serving())
    say(f"round {done.number} serves: {done.items}, {done.queries}")
