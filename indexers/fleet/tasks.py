"""The Celery side of a worker: its application with the one task, and the worker process itself.

Solo pool: the shard runs in the worker's main process, where an engine may start processes of its
own. One message at a time, acknowledged when it is over. Importing this loads neither Celery nor a
model.
"""

from __future__ import annotations

import logging
import signal
import warnings
from collections.abc import Sequence
from typing import Any

from indexers.fleet.broker import TASK, make_app
from indexers.fleet.station import Station, worker_name
from indexers.workspace import Workspace

log = logging.getLogger(__name__)


def serve(workspace: Workspace, queues: Sequence[str], *, name: str | None = None) -> bool:
    """Work until asked to stop. Returns whether the process should start anew, with another engine.

    SIGTERM and Ctrl-C end it between two answers: what was generated is kept, the rest of the shard
    goes to others.

    Args:
        workspace: the worker's own configuration.
        queues: the queues to listen to.
        name: the worker's name; host and process by default.
    """
    from celery.platforms import SecurityWarning
    from celery.signals import setup_logging, worker_ready
    from celery.worker import state

    # A container's user is root more often than not; what root must not do is to unpickle, and only
    # JSON is read.
    warnings.simplefilter("ignore", SecurityWarning)
    # The command has set up logging; Celery would add handlers of its own.
    setup_logging.connect(_leave_logging_alone)
    worker_ready.connect(_end_softly_by_ctrl_c)
    app = make_app(workspace.settings.redis, workspace.settings.fleet)
    # What a worker is told is in its queue: it neither greets other workers nor takes orders by
    # broadcast.
    app.conf.update(worker_enable_remote_control=False, worker_send_task_events=False)
    station = Station(workspace, name or worker_name(), _asked_to_stop)

    def shard(**task: Any) -> None:
        log.info("%s", station.take(task))
        if station.changing_over:
            state.should_stop = 0

    app.task(name=TASK)(shard)
    worker = app.Worker(
        hostname=f"{name or worker_name()}@cogr",
        pool="solo",
        concurrency=1,
        queues=list(queues),
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        quiet=True,
    )
    try:
        worker.start()
    finally:
        station.engines.close()
    return station.changing_over


def _leave_logging_alone(**_: Any) -> None:
    """For Celery's signal."""


def _end_softly_by_ctrl_c(**_: Any) -> None:
    """The first Ctrl-C does what SIGTERM does: end between two answers, by whatever Celery has set
    up for it.
    """
    signal.signal(signal.SIGINT, signal.getsignal(signal.SIGTERM))


def _asked_to_stop() -> bool:
    """Whether this worker has got a signal to end (0 is a reason to end, too)."""
    from celery.worker import state

    return any(
        asked is not None and asked is not False
        for asked in (state.should_stop, state.should_terminate)
    )
