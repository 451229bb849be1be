"""Every Prometheus metric of indexing, the registry that holds them, the endpoint that Prometheus
scrapes, and the push of a command's last figures to a Pushgateway. `stage` times a run's stages.

Names begin with `cogr_` and end with their unit; labels have few values, known beforehand: ids of
runs, shards, entities and workers are in logs. Gauges named `cogr_rebuild_*` are the
coordinator's and describe the run under way or the last one. docs/observability.md lists them all,
and a test compares it with this file.

Other packages define their own by `counter`, `gauge` and `histogram`, in the same registry.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    pushadd_to_gateway,
    start_http_server,
)

from cogr.errors import SettingsError
from cogr.records import SIDES
from cogr.settings.serving import MetricsSettings
from indexers.telemetry import logs

log = logging.getLogger(__name__)

REGISTRY = CollectorRegistry()
"""Not the library's default registry, which engines in the same process (vLLM) use."""
ProcessCollector(registry=REGISTRY)

LONG = (1, 5, 15, 60, 180, 600, 1800, 3600, 10_800, 36_000, 86_400)
"""Buckets of stages and shards, in seconds."""


def counter(name: str, help_: str, *labels: str) -> Counter:
    """A counter in our registry; its name ends with _total."""
    return Counter(name, help_, labels, registry=REGISTRY)


def gauge(name: str, help_: str, *labels: str) -> Gauge:
    return Gauge(name, help_, labels, registry=REGISTRY)


def histogram(name: str, help_: str, *labels: str) -> Histogram:
    """A histogram of seconds in our registry."""
    return Histogram(name, help_, labels, registry=REGISTRY, buckets=LONG)


# Runs: rebuilds and updates, local or on workers.
RUNS = counter("cogr_runs_total", "Rebuilds and updates that ended", "side", "command", "outcome")
LAST_SUCCESS = gauge(
    "cogr_last_success_timestamp_seconds", "When a run last ended well", "side", "command"
)
STAGE_SECONDS = histogram(
    "cogr_stage_duration_seconds", "How long a stage of a run took", "side", "stage"
)
ENTITIES = gauge("cogr_rebuild_entities", "Entities of the side", "side")
TO_GENERATE = gauge(
    "cogr_rebuild_entities_to_generate", "Entities that had no answer when the run began", "side"
)
ANSWERED = gauge(
    "cogr_rebuild_entities_answered",
    "Entities of those that have an answer or a reason now",
    "side",
)
SET_ASIDE = gauge(
    "cogr_rebuild_entities_set_aside", "Entities without keywords in the last snapshot", "side"
)

# The coordinator of a rebuild on workers.
QUEUE = gauge(
    "cogr_rebuild_queue_messages", "Messages in the broker's queue when it was last asked", "side"
)
SETBACKS = gauge("cogr_rebuild_setbacks", "Rounds in a row without an answer", "side")
BROKER_UP = gauge(
    "cogr_rebuild_broker_up", "1 when the broker answered the last call, else 0", "side"
)

# Whoever generates: a worker, or a local rebuild.
ANSWERS = counter(
    "cogr_answers_total",
    "Answers of the generator: completion, permanent or transient failure",
    "side",
    "outcome",
)
TOKENS = counter("cogr_generated_tokens_total", "Tokens generated", "side")

# A worker.
WORKER_SHARDS = counter(
    "cogr_worker_shards_total", "Shards that this worker tried", "side", "outcome"
)
WORKER_BUSY = gauge("cogr_worker_busy", "1 while this worker is at a shard, else 0", "side")
ENGINE_LOAD_SECONDS = histogram(
    "cogr_worker_engine_load_duration_seconds", "How long an engine took to be ready"
)
LAST_ANSWER = gauge(
    "cogr_worker_last_answer_timestamp_seconds", "When this worker last got an answer", "side"
)

# Publishing.
VERIFICATIONS = counter(
    "cogr_verifications_total",
    "Comparisons of the backend with a snapshot: equal, different",
    "side",
    "outcome",
)
GATE_VERDICTS = counter(
    "cogr_gate_verdicts_total", "Verdicts of the gate: passed, refused", "outcome"
)
GATE_F1 = gauge(
    "cogr_gate_f1", "F1 of the pair when the gate last looked: candidate, serving", "pair"
)
GATE_UNREACHED = gauge(
    "cogr_gate_unreached_share", "Share of items that no query reaches: candidate, serving", "pair"
)
PUBLISHES = counter("cogr_publishes_total", "Switches of what serves: switched, failed", "outcome")

# Alerts look at these: a count from 0 shows the first one as an increase, and a push of 0 replaces
# what an earlier command pushed.
for _outcome in ("passed", "refused"):
    GATE_VERDICTS.labels(_outcome)
for _outcome in ("switched", "failed"):
    PUBLISHES.labels(_outcome)
for _side in SIDES:
    for _outcome in ("equal", "different"):
        VERIFICATIONS.labels(_side, _outcome)

LAST = CollectorRegistry()
"""What still holds when a process has ended, and is pushed then. Not what a process was doing: an
alert on that would fire until the next push."""
for _metric in (
    *(RUNS, LAST_SUCCESS, STAGE_SECONDS, ENTITIES, SET_ASIDE),
    *(VERIFICATIONS, GATE_VERDICTS, GATE_F1, GATE_UNREACHED, PUBLISHES),
):
    LAST.register(_metric)

PUSH_SECONDS = 5.0
"""Longest time that a push waits for the gateway."""


@contextmanager
def stage(name: str, side: str) -> Iterator[None]:
    """A stage of a run: a duration in the metrics, a line of the log, and a field of all lines in
    it.
    """
    started, outcome = time.monotonic(), "finished"
    with logs.bound(stage=name):
        try:
            yield
        except BaseException as error:
            outcome = type(error).__name__
            raise
        finally:
            seconds = time.monotonic() - started
            STAGE_SECONDS.labels(side, name).observe(seconds)
            log.info("%s (%s): %s after %.1f s", name, side, outcome, seconds)


_server: WSGIServer | None = None


def serve_metrics(settings: MetricsSettings) -> None:
    """Answer scrapes, where a port is set. A process has one endpoint: a second call changes
    nothing. Raises SettingsError.
    """
    global _server
    if settings.port is None or _server is not None:
        return
    try:
        _server = start_http_server(settings.port, registry=REGISTRY)[0]
    except OSError as error:
        raise SettingsError(
            f"Metrics can't be served on port {settings.port} ({error.strerror or error}); set "
            "metrics.port to another one, or to 0 for a free one."
        ) from error
    logs.say(f"Metrics: http://127.0.0.1:{_server.server_port}/metrics")


def push_metrics(settings: MetricsSettings, job: str, instance: str) -> None:
    """Push the last figures of a command to `metrics.pushgateway`, where it is set.

    They replace figures of the same names that this job and instance pushed before. Others stay,
    such as the time of the last success when the command failed. A command without a stage counted
    nothing and pushes nothing. A gateway that can't be reached is a warning.
    """
    if not settings.pushgateway or not any(family.samples for family in STAGE_SECONDS.collect()):
        return
    group = {"instance": instance}
    try:
        pushadd_to_gateway(settings.pushgateway, job, LAST, group, timeout=PUSH_SECONDS)
    except (OSError, HTTPException) as error:
        log.warning("The last metrics were not pushed to metrics.pushgateway: %s", error)
