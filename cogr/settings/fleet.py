"""Settings of rebuilds, in one process and on workers: the tables `[rebuild]`, `[fleet]` and
`[redis]`.

What they do is in `indexers.rebuild` and `indexers.fleet`.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from cogr.settings.table import LONGEST, Table, check_url, usable_path

_SCHEMES = ("redis", "rediss", "sentinel")


class RebuildSettings(Table):
    """How a rebuild generates keywords."""

    workers: Literal["local", "celery"] = Field(
        "local",
        description=(
            "local: in this process; celery: on workers (cogr-ops worker), through redis.url"
        ),
    )
    max_failure_share: float = Field(
        0.02,
        ge=0,
        le=1,
        description="Nothing is published if a larger share of items or queries was set aside",
    )


class RedisSettings(Table):
    """Redis or Valkey: the broker of task messages between the coordinator and its workers, and the
    cache of the expander.
    """

    url: str | None = Field(
        None,
        description=(
            "redis://host:6379/0; rediss:// for TLS; sentinel://a:26379;sentinel://b:26379 with "
            "sentinel_master"
        ),
    )
    username: str | None = Field(None, description="User of an access control list")
    password: SecretStr | None = Field(None, description="Password of the server; never printed")
    prefix: str = Field(
        "cogr", pattern=r"^[a-z0-9][a-z0-9_-]*$", description="All keys begin with it"
    )
    sentinel_master: str | None = Field(
        None, description="Name of the master that the sentinels watch"
    )
    sentinel_password: SecretStr | None = Field(
        None, description="Password of the sentinels; never printed"
    )
    tls: bool = Field(False, description="TLS for sentinel:// too; rediss:// always has it")
    ca_file: str | None = Field(
        None, description="CA certificates of the server, PEM; the system's by default"
    )
    cert_file: str | None = Field(None, description="Client certificate, PEM")
    key_file: str | None = Field(None, description="Key of the client certificate, PEM")
    timeout: float = Field(
        10.0, gt=0, le=LONGEST, description="Seconds to wait for a connection or an answer"
    )

    _are_paths = field_validator("ca_file", "cert_file", "key_file")(usable_path)

    @field_validator("url")
    @classmethod
    def _known_scheme(cls, url: str | None) -> str | None:
        for part in url.split(";") if url else ():
            if "cluster" in part.partition("://")[0]:
                raise ValueError(
                    "Celery has no broker on Redis Cluster; name one server (redis://), or "
                    "sentinels (sentinel://)"
                )
            parts = check_url(
                part.strip(), _SCHEMES, "redis://host:6379/0, rediss:// or sentinel://", host=False
            )
            if not re.fullmatch(r"/?\d*", parts.path):
                raise ValueError(
                    "after its host is no number of a database; write it as redis://host:6379/0"
                )
        return url

    @model_validator(mode="after")
    def _sentinels_have_a_master(self) -> RedisSettings:
        if self.url and self.url.startswith("sentinel://") and not self.sentinel_master:
            raise ValueError("redis.url names sentinels, but redis.sentinel_master is not set")
        return self


class FleetSettings(Table):
    """How a rebuild is distributed to workers."""

    lost_seconds: float = Field(
        45.0,
        gt=0,
        le=600,
        description=(
            "A worker or a coordinator that is silent for so many seconds counts as dead; raise "
            "it where machines pause"
        ),
    )

    @property
    def heartbeat_seconds(self) -> float:
        """How often a worker writes that it lives: eight beats may be late before it is lost."""
        return self.lost_seconds / 9

    @property
    def lease_seconds(self) -> float:
        """Silence after which a coordinator may be replaced: that of workers."""
        return self.lost_seconds

    @property
    def poll_seconds(self) -> float:
        """How often the coordinator looks at what workers wrote; once a second is cheap."""
        return min(1.0, self.lost_seconds / 45)
