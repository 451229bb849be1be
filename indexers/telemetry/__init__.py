"""Logs, metrics and traces of a process, off or silent by default, and progress for people.

    logs        lines for people or JSON lines, with the ids of run, shard and snapshot
    prometheus  every Prometheus metric of indexing, their registry, the endpoint for scrapes and
                the push to a gateway
    traces      OpenTelemetry spans sent by OTLP over HTTP, and the stages of a run
    terminal    progress as a bar or as lines, durations, and a console that shows text as it is

Text of items and queries is in no metric and no span, and in no log line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cogr.settings import Settings


def observe(settings: Settings, service: str) -> None:
    """Begin to log as the settings say, and to trace as OpenTelemetry's variables do.

    Every command calls it once it has its settings; a second call changes no trace that is on.

    Only long-running commands serve metrics (`prometheus.serve`), so that short ones need no port.
    Raises MissingExtraError.
    """
    # Imported here, because otherwise every module of this package would load both.
    from indexers.telemetry import logs, traces

    logs.configure(settings.log)
    traces.start(service)
