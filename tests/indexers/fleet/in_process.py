"""A coordinator and a worker in the process of the test, without a broker."""

from __future__ import annotations

from typing import Any

from indexers.fleet.broker import Message
from indexers.fleet.run_files import Attempt, FleetRun, RunFolder, new_run_id, public_settings
from indexers.fleet.worker import Worker
from indexers.rebuild.plan import make_plan
from indexers.rebuild.run import RebuildRequest, make_job
from indexers.workspace import Workspace

SHARD = "00000"


def begin(workspace: Workspace) -> tuple[FleetRun, RunFolder]:
    """A run with one shard of all entities, as a coordinator writes it."""
    job = make_job(workspace, RebuildRequest("item"))
    plan = make_plan(job)
    settings = workspace.generator_settings("item")
    run = FleetRun(
        id=new_run_id(),
        side="item",
        fingerprint=job.generator.fingerprint,
        generator=public_settings(settings),
        entities=len(plan.entities),
        to_generate=len(plan.missing),
    )
    folder = RunFolder(workspace.store, "item", run.id)
    folder.write(run, "run")
    keyed = [(plan.keys[i], job.request(plan.entities[i])) for i in plan.missing]
    folder.write_shard(SHARD, keyed)
    return run, folder


def task(of: FleetRun, **more: Any) -> dict[str, Any]:
    return {"side": "item", "run": of.id, "shard": SHARD, **more}


def attempts_of(folder: RunFolder) -> list[Attempt]:
    return folder.attempts()


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
