"""Celery on Redis or Valkey, configured for shards: the application, messages, queues. This module
knows neither files nor generators.

Celery delivers a message to one worker, keeps it until that worker acknowledges it after its work,
and delivers it again after the visibility timeout. Redis Cluster does not work: Celery has no
broker on it (kombu 5.7); `redis.url` names one server or sentinels.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit, urlunsplit

from pydantic import BaseModel, ConfigDict, Field

from cogr.errors import MissingExtraError, ServiceError, SettingsError
from cogr.records import Side
from cogr.settings import GeneratorSettings
from cogr.settings.fleet import RedisSettings
from indexers.fleet.run_files import FORMAT

if TYPE_CHECKING:
    from celery import Celery

TASK = "cogr.shard"
"""The name of the only task."""
VISIBILITY_SECONDS = 6 * 3600.0
"""Seconds after which Celery delivers an unacknowledged message again. Longer than any shard takes,
since a busy worker can't extend it. The coordinator notices a dead worker earlier, by its
heartbeats.
"""
NAME = r"^[A-Za-z0-9-]+$"
"""Names of runs and shards: a message can't name a path outside the run's folder."""


class Message(BaseModel):
    """A task: one attempt at a shard of a run. `trace` is the trace context for its spans."""

    model_config = ConfigDict(frozen=True)

    format: int = FORMAT
    side: Side
    run: str = Field(pattern=NAME)
    shard: str = Field(pattern=NAME)
    attempt: int = Field(ge=1)
    trace: Mapping[str, str] = {}


def queue_of(side: Side, settings: GeneratorSettings) -> str:
    """The queue of one side, one generator and one message format; only workers with the same ones
    listen to it.

    Args:
        settings: the generator's settings, with `auto` resolved.
    """
    # The NUL keeps the queue names of former versions.
    digest = hashlib.sha256(f"{settings.model or ''}\0".encode()).hexdigest()[:8]
    return f"v{FORMAT}.{side}.{settings.name}.{digest}"


def make_app(redis: RedisSettings) -> Celery:
    """The Celery application of coordinator and workers; connects to nothing yet.

    Raises:
        MissingExtraError: celery or redis is not installed.
        SettingsError: redis.url is not set.
    """
    if importlib.util.find_spec("celery") is None or importlib.util.find_spec("redis") is None:
        raise MissingExtraError("A rebuild on workers", "fleet")
    from celery import Celery

    app = Celery("cogr", set_as_current=False)
    app.conf.update(
        broker_url=broker_url(redis),
        broker_transport_options=_transport_options(redis),
        broker_use_ssl=_ssl_options(redis),
        broker_connection_timeout=redis.timeout,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        # Results are files; the broker carries only names of shards.
        result_backend=None,
        task_ignore_result=True,
        task_serializer="json",
        accept_content=["json"],
        # The message of a dead worker comes back after the visibility timeout.
        task_acks_late=True,
        worker_prefetch_multiplier=1,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
    )
    return app


def server_version(redis: RedisSettings) -> str:
    """The version of the broker. Raises ServiceError when it can't be reached or refuses."""
    broker = Broker(redis, "")
    info = broker.call("be asked", lambda connection: _client(connection).info("server"))
    return str(info.get("valkey_version") or info["redis_version"])


def broker_url(redis: RedisSettings) -> str:
    """The URL for kombu, with user and password. Never print it."""
    if not redis.url:
        raise SettingsError(
            "Workers need a broker, and redis.url is not set: run cogr-ops redis start, then set "
            "redis.url or COGR_REDIS__URL."
        )
    return ";".join(_with_credentials(part.strip(), redis) for part in redis.url.split(";"))


def _with_credentials(url: str, redis: RedisSettings) -> str:
    parts = urlsplit(url)
    if redis.password is None:
        return url
    host = parts.netloc.rpartition("@")[2]
    user = quote(redis.username or "", safe="")
    secret = quote(redis.password.get_secret_value(), safe="")
    return urlunsplit(parts._replace(netloc=f"{user}:{secret}@{host}"))


def printable(redis: RedisSettings) -> str:
    """The broker's address, without user and password."""
    urls = [urlsplit(part.strip()) for part in (redis.url or "").split(";")]
    without_user = [url._replace(netloc=url.netloc.rpartition("@")[2], query="") for url in urls]
    return ";".join(urlunsplit(url) for url in without_user)


def _transport_options(redis: RedisSettings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "visibility_timeout": VISIBILITY_SECONDS,
        "global_keyprefix": f"{redis.prefix}:",
        "socket_timeout": redis.timeout,
        "socket_connect_timeout": redis.timeout,
        "socket_keepalive": True,
        # One attempt a call: the caller decides how long to wait for an unreachable broker.
        "max_retries": 1,
        "interval_start": 0,
    }
    if redis.sentinel_master:
        options["master_name"] = redis.sentinel_master
        if redis.sentinel_password:
            options["sentinel_kwargs"] = {"password": redis.sentinel_password.get_secret_value()}
    return options


def _ssl_options(redis: RedisSettings) -> dict[str, Any] | bool:
    """redis-py's options for TLS; False without TLS."""
    import ssl

    if not (redis.tls or (redis.url or "").startswith("rediss://")):
        return False
    options = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True}
    files = {"ssl_ca_certs": redis.ca_file, "ssl_certfile": redis.cert_file}
    files |= {"ssl_keyfile": redis.key_file}
    return options | {name: path for name, path in files.items() if path}


class Broker:
    """The coordinator's side: sends messages to a queue and counts those that wait."""

    def __init__(self, redis: RedisSettings, queue: str) -> None:
        self._app = make_app(redis)
        self._redis = redis
        self._queue = queue

    def send(self, message: Mapping[str, Any]) -> None:
        """Put one task into the queue. Raises ServiceError when the broker is away or refuses."""
        task = {"kwargs": dict(message), "queue": self._queue, "retry": False}
        self.call(
            "take messages", lambda broker: self._app.send_task(TASK, connection=broker, **task)
        )

    def waiting(self) -> int:
        """Messages in the queue that no worker has taken. Raises ServiceError."""
        return int(self.call("be asked", lambda connection: _client(connection).llen(self._queue)))

    def call(self, doing: str, what: Callable[[Any], Any]) -> Any:
        """Call a function with a new connection, which can't be stale. Raises ServiceError."""
        from kombu.exceptions import OperationalError
        from redis.exceptions import RedisError

        try:
            with self._app.connection_for_write() as connection:
                return what(connection)
        except (OperationalError, RedisError, OSError) as error:
            reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
            raise ServiceError(
                f"The broker {printable(self._redis)} can't {doing} ({reason}); start it, or "
                "correct redis.url."
            ) from error


def _client(connection: Any) -> Any:
    """The client of Redis below a connection of kombu's."""
    return connection.default_channel.client
