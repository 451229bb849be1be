"""Switches logs, metrics and traces on as the settings say. Every command calls `observe` once it has its settings."""

from __future__ import annotations

from cogr.settings import Settings
from indexers.telemetry import logs, metrics, traces


def observe(settings: Settings, service: str) -> int | None:
    """Begin to log, to answer scrapes and to trace. May be called again; what is on stays on.

    Args:
        service: the kind of process, such as cogr-index or cogr-worker: the traces' service name.

    Returns:
        The port where metrics are, or None.

    Raises:
        SettingsError: no port is free.
        MissingExtraError: traces are wanted, and OpenTelemetry is not installed.
    """
    logs.configure(settings.log)
    traces.start(settings.traces, service)
    return metrics.serve(settings.metrics)
