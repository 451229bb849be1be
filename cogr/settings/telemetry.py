"""Settings of what a process says about itself: logs and metrics.

What they do is in `indexers.telemetry`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from cogr.settings.table import Table, http_url, usable_path


class LogSettings(Table):
    """Logs on standard error. Texts of items and queries appear only at the level debug."""

    format: Literal["text", "json"] = Field(
        "text", description="text: for people; json: one JSON object a line"
    )
    level: Literal["debug", "info", "warning"] = Field(
        "warning", description="Lowest level that is logged; -v sets info"
    )


class MetricsSettings(Table):
    """Prometheus metrics of this process. See docs/observability.md for every one of them."""

    port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description=("Port for scrapes; 0 takes a free one and prints it; off unless set"),
    )
    ports: int = Field(
        1,
        ge=1,
        le=1000,
        description=(
            "Number of ports from metrics.port on to try, for several processes on a host"
        ),
    )
    host: str = Field(
        "127.0.0.1", description="Address to listen on; 0.0.0.0 for scrapes from other hosts"
    )
    file: str | None = Field(
        None,
        description=(
            "Write the metrics to this file after each successful rebuild or update, for the "
            "node exporter (*.prom)"
        ),
    )
    pushgateway: str | None = Field(
        None,
        description=(
            "Pushgateway that gets the last figures of a command that ends, such as "
            "http://pushgateway:9091; off unless set"
        ),
    )

    _is_url = field_validator("pushgateway")(http_url)
    _is_path = field_validator("file")(usable_path)
