"""A coordinator and a worker in the process of the test, without a broker."""

from __future__ import annotations

from typing import Any

from indexers.rebuild.fleet.broker import Message
from indexers.rebuild.fleet.run_files import FleetRun, RunFolder, new_run
from indexers.rebuild.fleet.worker import Worker
from indexers.rebuild.plan import make_plan
from indexers.rebuild.run import RebuildRequest, make_job
from indexers.workspace import Workspace

SHARD = "00000"


def begin(workspace: Workspace, **more: Any) -> tuple[FleetRun, RunFolder]:
    """A run with one shard of all entities, as a coordinator writes it; with more in its
    fingerprint.
    """
    job = make_job(workspace, RebuildRequest("item"))
    plan, folder = make_plan(job), new_run(workspace.store, "item")
    fingerprint = {**job.generator.fingerprint, **more}
    run = FleetRun(id=folder.run, side="item", fingerprint=fingerprint, to_generate=20)
    folder.write(run, "run")
    folder.write_shard(SHARD, [(plan.keys[i], job.request(plan.entities[i])) for i in plan.missing])
    return run, folder


def task(of: FleetRun, **more: Any) -> dict[str, Any]:
    return {"side": "item", "run": of.id, "shard": SHARD, **more}


def missing(workspace: Workspace) -> int:
    """How many answers the cache lacks."""
    return len(make_plan(make_job(workspace, RebuildRequest("item"))).missing)


class Straight:
    """A broker that hands its tasks to a worker of this process."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.said: list[str] = []

    def send(self, message: Message) -> None:
        self.said.append(self.worker.take(message.model_dump()))

    def waiting(self) -> int:
        return 0

    def active(self, _: str) -> set[str]:
        return set()
