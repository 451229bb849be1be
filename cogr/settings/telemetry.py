"""Settings of what a process says about itself: logs and metrics.

What they do is in `indexers.telemetry`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from cogr.settings.table import LONGEST, Table, usable_path


class LogSettings(Table):
    """What goes to standard error.

    Texts of items and queries are in no line above the level debug.
    """

    format: Literal["text", "json"] = Field(
        "text", description="text: for people; json: one JSON object a line"
    )
    level: Literal["debug", "info", "warning"] = Field(
        "warning", description="Lines of this level and above; -v asks for info"
    )


class MetricsSettings(Table):
    """Prometheus metrics of this process. See docs/observability.md for every one of them."""

    port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description=(
            "Answer scrapes on this port; 0 takes a free one and says which; off unless set"
        ),
    )
    ports: int = Field(
        1,
        ge=1,
        le=1000,
        description=(
            "How many ports from metrics.port on may be tried, for several processes on a host"
        ),
    )
    host: str = Field(
        "127.0.0.1", description="Address to listen on; 0.0.0.0 for scrapes from other hosts"
    )
    file: str | None = Field(
        None,
        description=(
            "Write the metrics into this file when a command ends, for the node exporter (*.prom)"
        ),
    )
    linger_seconds: float = Field(
        0.0,
        ge=0,
        le=LONGEST,
        description=(
            "Go on answering scrapes so long after the work is done: a job's last figures are "
            "seen, whatever it came to"
        ),
    )

    _is_path = field_validator("file")(usable_path)
