"""Celery on Redis or Valkey, configured for shards: the application, messages, queues. This module
knows neither files nor generators.

Celery delivers a message to one worker, keeps it until that worker has acknowledged it after its
work, and knows which shards live workers are at (`inspect`). Redis Cluster does not work: Celery
has no broker on it (kombu 5.7).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from pydantic import BaseModel, Field

from cogr.errors import ServiceError, require
from cogr.records import Side
from cogr.redaction import masked
from cogr.settings.indexing import KEY_PREFIX, GeneratorSettings, RedisSettings

if TYPE_CHECKING:
    from celery import Celery

TASK = "cogr.shard"
"""The name of the only task."""
_TIMEOUT = 10.0
"""Seconds to wait for a connection or an answer."""
VISIBILITY_SECONDS = 3600.0
"""Seconds after which Celery delivers an unacknowledged message again: some twenty shards."""
INSPECT_SECONDS = 2.0
"""Seconds in which workers say which shards they are at."""
_NAME = r"^[A-Za-z0-9-]+$"
"""Names of runs and shards: a message can't name a path outside the run's folder."""


class Message(BaseModel):
    """A task: one shard of a run."""

    side: Side
    run: str = Field(pattern=_NAME)
    shard: str = Field(pattern=_NAME)


def queue_of(side: Side, settings: GeneratorSettings) -> str:
    """The queue of one side, one generator and one form of messages; only workers with the same
    ones listen to it.
    """
    form, model = ",".join(Message.model_fields), settings.model or ""
    return f"{_digest(form)}.{side}.{settings.name}.{_digest(model)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def make_app(redis: RedisSettings) -> Celery:
    """The Celery application of coordinator and workers; connects to nothing yet. Raises
    MissingExtraError and SettingsError.
    """
    require("A rebuild on workers", "fleet", "celery", "redis")
    from celery import Celery

    url = redis.address
    app = Celery("cogr", set_as_current=False)
    app.conf.update(
        broker_url=_kombu_url(url),
        broker_transport_options={
            "visibility_timeout": VISIBILITY_SECONDS,
            "global_keyprefix": f"{KEY_PREFIX}:",
            "socket_timeout": _TIMEOUT,
            "socket_connect_timeout": _TIMEOUT,
            "socket_keepalive": True,
            # One attempt a call: the caller decides how long to wait for an unreachable broker.
            "max_retries": 1,
            "interval_start": 0,
        },
        # Where the URL has no options of TLS of its own, kombu would check nothing.
        broker_use_ssl={"ssl_cert_reqs": "required"} if url.startswith("rediss://") else False,
        broker_connection_timeout=_TIMEOUT,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        # At a failover the old master refuses writes for a while.
        broker_channel_error_retry=True,
        # Results are files; the broker carries only names of shards.
        task_ignore_result=True,
        accept_content=["json"],
        # A worker takes its next message when it has done its shard.
        task_acks_late=True,
        worker_prefetch_multiplier=1,
    )
    return app


def _kombu_url(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "unix":
        return url
    database = dict(parse_qsl(parts.query)).get("db", "0")
    return f"redis+socket://{parts.netloc}{parts.path}?virtual_host={database}"


def server_version(redis: RedisSettings) -> str:
    """The version of the broker, or that its user may not know it. Raises ServiceError when it
    can't be reached or refuses.
    """
    from redis.exceptions import NoPermissionError

    def ask(connection: Any) -> str:
        client = _client(connection)
        client.ping()
        try:
            info = client.info("server")
        except NoPermissionError:
            return "version not known, since the user may not ask INFO"
        return str(info.get("valkey_version") or info["redis_version"])

    return str(Broker(redis, "").call("be asked", ask))


def check_writable(connection: Any) -> None:
    """Raises redis-py's ReadOnlyError where a replica answers."""
    _client(connection).delete("writable")


def printable(redis: RedisSettings) -> str:
    """The broker's address, without user, password and options."""
    return masked(redis.address).partition("?")[0]


class Broker:
    """The coordinator's side: sends messages to a queue, counts those that wait, and asks which
    shards workers are at.
    """

    def __init__(self, redis: RedisSettings, queue: str) -> None:
        self._app = make_app(redis)
        self._redis = redis
        self._queue = queue

    def send(self, message: Message) -> None:
        """Put one task into the queue. Raises ServiceError when the broker is away or refuses."""
        task = {"kwargs": message.model_dump(), "queue": self._queue, "retry": False}
        task["task_id"] = f"{message.run}.{message.shard}"
        self.call(
            "take messages", lambda broker: self._app.send_task(TASK, connection=broker, **task)
        )

    def waiting(self) -> int:
        """Messages in the queue that no worker has taken. Raises ServiceError."""
        return int(self.call("be asked", lambda connection: _client(connection).llen(self._queue)))

    def active(self, run: str) -> set[str]:
        """The shards of a run that live workers are at. Raises ServiceError."""

        def ask(connection: Any) -> Mapping[str, list[Mapping[str, Any]]]:
            control = self._app.control.inspect(timeout=INSPECT_SECONDS, connection=connection)
            return control.active() or {}

        tasks = [task for its in self.call("be asked", ask).values() for task in its]
        ids = (str(task["id"]).partition(".") for task in tasks)
        return {shard for of, _, shard in ids if of == run}

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
    return connection.default_channel.client
