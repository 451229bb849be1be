"""Switches logs and traces on as the settings say. Every command calls `observe` once it has its
settings.

Metrics are served by those alone that work for long (`metrics.serve`): a look at the status must
not need a port.
"""

from __future__ import annotations

from cogr.settings import Settings
from indexers.telemetry import logs, traces


def observe(settings: Settings, service: str) -> None:
    """Begin to log and to trace. May be called again; what is on stays on.

    Args:
        service: the kind of process, such as cogr-index or cogr-worker: the traces' service name.

    Raises:
        MissingExtraError: traces are wanted, and OpenTelemetry is not installed.
    """
    logs.configure(settings.log)
    traces.start(settings.traces, service)
