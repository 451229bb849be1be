"""Settings of rebuilds, in one process and on workers: the tables `[rebuild]` and `[redis]`.

What they do is in `indexers.rebuild` and `indexers.fleet`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote

from pydantic import Field, field_validator

from cogr.settings.table import Table, check_url

_SCHEMES = ("redis", "rediss", "sentinel", "unix")
_EXAMPLE = "redis://host:6379/0, rediss://, unix:///path or sentinel://"
_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_CHECKS = {"ssl_cert_reqs": "required", "ssl_check_hostname": "true"}
_OPTIONS = {
    "redis": (),
    "rediss": (*_TLS_FILES, *_CHECKS),
    "unix": ("db",),
    "sentinel": ("master_name", "sentinel_password", "ssl", *_TLS_FILES, *_CHECKS),
}


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


@dataclass(frozen=True)
class RedisAddress:
    """`redis.url`, taken apart.

    Attributes:
        hosts: the server, or all sentinels.
        tls: redis-py's options for TLS, which check certificate and host name; None without TLS.
    """

    scheme: str
    hosts: tuple[tuple[str, int], ...]
    username: str | None
    password: str | None
    database: int
    path: str
    tls: Mapping[str, Any] | None
    master: str
    sentinel_password: str | None

    @classmethod
    def parse(cls, url: str) -> RedisAddress:
        """Raises ValueError with the part of a sentence that follows the setting's name."""
        if "cluster" in url.partition("://")[0]:
            raise ValueError(
                "Celery has no broker on Redis Cluster; name one server (redis://), or sentinels "
                "(sentinel://)"
            )
        parts = [check_url(one.strip(), _SCHEMES, _EXAMPLE, host=False) for one in url.split(";")]
        first, last = parts[0], parts[-1]
        scheme = first.scheme.lower()
        options = dict(parse_qsl(last.query, keep_blank_values=True))
        _check_options(scheme, options)
        database = options.get("db", "0") if scheme == "unix" else last.path.strip("/") or "0"
        if not re.fullmatch(r"\d{1,4}", database):
            raise ValueError(
                "the part after the host is not a database number; write it as redis://host:6379/0"
            )
        files = {name: options[name] for name in _TLS_FILES if options.get(name)}
        if relative := [name for name, file in files.items() if not Path(file).is_absolute()]:
            raise ValueError(f"the file of {relative[0]} is relative; write its absolute path")
        tls = scheme == "rediss" or files or options.get("ssl") == "true"
        port = 26379 if scheme == "sentinel" else 6379
        return cls(
            scheme=scheme,
            hosts=tuple((part.hostname or "localhost", part.port or port) for part in parts),
            username=unquote(first.username) if first.username else None,
            password=unquote(first.password) if first.password else None,
            database=int(database),
            path=unquote(first.path),
            tls={"ssl_cert_reqs": "required", "ssl_check_hostname": True, **files} if tls else None,
            master=options.get("master_name", ""),
            sentinel_password=options.get("sentinel_password"),
        )


def _check_options(scheme: str, options: Mapping[str, str]) -> None:
    known = _OPTIONS[scheme]
    if odd := [name for name in options if name not in known]:
        offered = f"; {scheme}:// knows {', '.join(known)}" if known else ""
        raise ValueError(f"its option {odd[0]} is unknown{offered}")
    for name, value in _CHECKS.items():
        if options.get(name, value).lower() != value:
            raise ValueError(
                f"{name}={options[name]} would switch off a check of the server's certificate; "
                "remove it, and name the certificate's authority by ssl_ca_certs=/FILE"
            )
    if scheme == "sentinel" and not options.get("master_name"):
        raise ValueError("it names sentinels but no master; end it with ?master_name=NAME")


class RedisSettings(Table):
    """Redis or Valkey: the broker of task messages between the coordinator and its workers, and the
    cache of the expander.
    """

    url: str | None = Field(
        None,
        description=(
            "redis://user:password@host:6379/0; rediss:// for TLS (?ssl_ca_certs=/FILE, "
            "ssl_certfile, ssl_keyfile); unix:///path?db=0; "
            "sentinel://:password@a:26379;sentinel://b:26379/0?master_name=NAME. "
            "With a password it is a secret: set COGR_REDIS__URL. Each catalogue needs a database "
            "of its own"
        ),
    )

    @field_validator("url")
    @classmethod
    def _is_an_address(cls, url: str | None) -> str | None:
        if url:
            RedisAddress.parse(url)
        return url
