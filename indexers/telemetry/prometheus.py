"""Every Prometheus metric of indexing, the registry that holds them, and the endpoint that
Prometheus scrapes.

Names begin with `cogr_` and end with their unit; labels have few values, known beforehand: ids of
runs, shards, entities and workers are in logs and traces. Gauges named `cogr_rebuild_*` are the
coordinator's and describe the run under way or the last one. docs/observability.md lists them all,
and a test compares it with this file.

Other packages define their own by `counter`, `gauge` and `histogram`, in the same registry.
"""

from __future__ import annotations

import atexit
import errno
import signal
import threading
from functools import partial
from pathlib import Path
from socketserver import BaseServer
from wsgiref.simple_server import WSGIServer

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    start_http_server,
    write_to_textfile,
)

from cogr.errors import SettingsError
from cogr.records import Side
from cogr.settings.telemetry import MetricsSettings
from cogr.store import require_file, storage_errors
from indexers.generators import Answer, Completion
from indexers.telemetry import logs

REGISTRY = CollectorRegistry()
"""Not the library's default one, which engines in the same process (vLLM) fill with theirs."""
ProcessCollector(registry=REGISTRY)

LONG = (1, 5, 15, 60, 180, 600, 1800, 3600, 10_800, 36_000, 86_400)
"""Buckets of stages and shards, in seconds."""
SHORT = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
"""Buckets of requests, in seconds."""


def counter(name: str, help_: str, *labels: str) -> Counter:
    """A counter in our registry; its name ends with _total."""
    return Counter(name, help_, labels, registry=REGISTRY)


def gauge(name: str, help_: str, *labels: str) -> Gauge:
    """A gauge in our registry."""
    return Gauge(name, help_, labels, registry=REGISTRY)


def histogram(name: str, help_: str, *labels: str, buckets: tuple[float, ...] = SHORT) -> Histogram:
    """A histogram in our registry."""
    return Histogram(name, help_, labels, registry=REGISTRY, buckets=buckets)


# Runs: rebuilds and updates, local or on workers.
RUNS = counter("cogr_runs_total", "Rebuilds and updates that ended", "side", "command", "outcome")
LAST_SUCCESS = gauge(
    "cogr_last_success_timestamp_seconds", "When a run last ended well", "side", "command"
)
STAGE_SECONDS = histogram(
    "cogr_stage_duration_seconds", "How long a stage of a run took", "side", "stage", buckets=LONG
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
SNAPSHOT_KEYWORDS = gauge("cogr_rebuild_snapshot_keywords", "Keywords in the last snapshot", "side")
SNAPSHOT_VOCABULARY = gauge(
    "cogr_rebuild_snapshot_vocabulary", "Distinct keywords in the last snapshot", "side"
)
SNAPSHOT_EMPTY = gauge(
    "cogr_rebuild_snapshot_empty_sets", "Empty keyword sets in the last snapshot", "side"
)
SNAPSHOT_CUT = gauge(
    "cogr_rebuild_snapshot_cut_sets", "Sets cut to the budget in the last snapshot", "side"
)

# The coordinator of a rebuild on workers.
UNPLANNED = gauge("cogr_rebuild_entities_unplanned", "Entities that no shard holds yet", "side")
SHARDS = gauge(
    "cogr_rebuild_shards",
    "Shards of the run by state: waiting, running, done, given_up",
    "side",
    "state",
)
WORKERS = gauge("cogr_rebuild_workers", "Workers at a shard", "side")
QUEUE = gauge(
    "cogr_rebuild_queue_messages", "Messages in the broker's queue when it was last asked", "side"
)
ENTITY_RATE = gauge(
    "cogr_rebuild_entities_per_second", "Entities a second of all workers together", "side"
)
TOKEN_RATE = gauge(
    "cogr_rebuild_tokens_per_second", "Tokens a second of all workers together", "side"
)
SETBACKS = gauge("cogr_rebuild_setbacks", "Failed attempts in a row; at 20 the run stops", "side")
BROKER_UP = gauge(
    "cogr_rebuild_broker_up", "1 when the broker answered the last call, else 0", "side"
)
ATTEMPTS = counter(
    "cogr_rebuild_attempts_total", "Workers' attempts at shards that ended", "side", "outcome"
)

# Whoever generates: a worker, or a local rebuild.
ANSWERS = counter(
    "cogr_answers_total",
    "Answers of the generator: completion, permanent or transient failure",
    "side",
    "outcome",
)
TOKENS = counter("cogr_generated_tokens_total", "Tokens generated", "side")
FLUSHES = counter(
    "cogr_cache_segments_written_total",
    "Files of answers written into the generation cache",
    "side",
)

# A worker.
WORKER_SHARDS = counter(
    "cogr_worker_shards_total", "Shards that this worker tried", "side", "outcome"
)
WORKER_SHARD_SECONDS = histogram(
    "cogr_worker_shard_duration_seconds", "How long a shard took", "side", buckets=LONG
)
WORKER_BUSY = gauge("cogr_worker_busy", "1 while this worker is at a shard, else 0", "side")
ENGINE_LOAD_SECONDS = histogram(
    "cogr_worker_engine_load_duration_seconds", "How long an engine took to be ready", buckets=LONG
)
LAST_ANSWER = gauge(
    "cogr_worker_last_answer_timestamp_seconds", "When this worker last got an answer", "side"
)

# Publishing.
PUSHED = counter("cogr_pushed_documents_total", "Documents written to the backend", "side")
PUSH_RATE = gauge("cogr_push_documents_per_second", "Documents a second of the last push", "side")
VERIFICATIONS = counter(
    "cogr_verifications_total",
    "Comparisons of the backend with a snapshot: equal, different",
    "side",
    "outcome",
)
GATE = counter("cogr_gate_verdicts_total", "Verdicts of the gate: passed, refused", "outcome")
GATE_F1 = gauge(
    "cogr_gate_f1", "F1 of the pair when the gate last looked: candidate, serving", "pair"
)
GATE_UNREACHED = gauge(
    "cogr_gate_unreached_share", "Share of items that no query reaches: candidate, serving", "pair"
)
PUBLISHES = counter("cogr_publishes_total", "Switches of what serves: switched, failed", "outcome")


class AnswerCounts:
    """Counts the generator's answers for one side, in a local rebuild and in a worker.

    Labels are looked up once, since `add` is called for every answer.
    """

    def __init__(self, side: Side) -> None:
        kinds = ("completion", "permanent_failure", "transient_failure")
        self._completions, self._permanent, self._transient = (
            ANSWERS.labels(side, kind) for kind in kinds
        )
        self._tokens = TOKENS.labels(side)
        self._flushes = FLUSHES.labels(side)

    def add(self, answer: Answer) -> None:
        """Count one answer."""
        if isinstance(answer, Completion):
            self._completions.inc()
            self._tokens.inc(answer.tokens)
        else:
            (self._permanent if answer.permanent else self._transient).inc()

    def flushed(self) -> None:
        """Count one segment of the cache."""
        self._flushes.inc()


_lock = threading.Lock()
_server: WSGIServer | None = None


def serve(settings: MetricsSettings) -> int | None:
    """Answer scrapes, where a port is set. A process has one endpoint: a second call returns the
    port of the first.

    Raises:
        SettingsError: no port of those that may be tried is free, or the host is none of this
            machine.
    """
    global _server
    if settings.port is None:
        return None
    with _lock:
        if _server is None:
            _server = _listen(settings)
            atexit.register(_linger, settings.linger_seconds)
            logs.say(f"Metrics: http://{settings.host}:{_server.server_port}/metrics")
        return int(_server.server_port)


def _listen(settings: MetricsSettings) -> WSGIServer:
    first = settings.port or 0
    last = min(first + settings.ports - 1, 65535) if first else 0
    for port in range(first, last + 1):
        try:
            return start_http_server(port, settings.host, REGISTRY)[0]
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise SettingsError(
                    f"Metrics can't be served on {settings.host}:{port} "
                    f"({error.strerror or error}); correct metrics.host or metrics.port."
                ) from error
    wanted = f"port {first} is" if first == last else f"all ports from {first} to {last} are"
    raise SettingsError(
        f"Metrics can't be served on {settings.host}: {wanted} taken, maybe by another process "
        "of cogr; set metrics.ports to the "
        "number of processes on a host, or metrics.port=0 for a free one."
    )


def _linger(seconds: float) -> None:
    """Keep a process that is done for so long, so that its last figures are scraped; SIGTERM and
    SIGINT end it at once. Its exit status is known by now and stays.
    """
    if seconds and _server is not None:
        asked = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: asked.set())
        # From Python 3.12 on no thread begins while a process ends; the server's own is there.
        in_one_thread = partial(BaseServer.process_request, _server)
        _server.process_request = in_one_thread  # type: ignore[method-assign]
        logs.say(f"Done; here for {seconds:g} seconds more for a last scrape.")
        asked.wait(seconds)


def stop() -> None:
    """Close the endpoint."""
    global _server
    with _lock:
        if _server is not None:
            _server.shutdown()
            _server.server_close()
        _server = None


def write(settings: MetricsSettings) -> None:
    """Write all metrics into `metrics.file`, where it is set: for commands that end before they are
    scraped.

    Raises:
        StorageError: the file can't be written.
    """
    if not settings.file:
        return
    path = Path(settings.file)
    with storage_errors(settings.file):
        path.parent.mkdir(parents=True, exist_ok=True)
        # It is replaced by a rename.
        require_file(path)
        write_to_textfile(str(path), REGISTRY)
