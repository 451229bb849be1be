"""Settings of what a process says about itself: logs and metrics.

What they do is in `indexers.telemetry`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from cogr.settings.table import Table, http_url


class LogSettings(Table):
    """Logs on standard error: warnings, and with -v the steps too. Texts of items and queries are
    never logged.
    """

    format: Literal["text", "json"] = Field(
        "text", description="text: for people; json: one JSON object a line"
    )


class MetricsSettings(Table):
    """Prometheus metrics of this process. See docs/observability.md for every one of them."""

    port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description=(
            "Port for scrapes, on all addresses of this host; 0 takes a free one and prints it; "
            "off unless set"
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
