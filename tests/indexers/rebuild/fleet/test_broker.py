"""The broker: what redis.url may say, and what kombu and redis-py make of it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from redis import Redis

from cogr.errors import ServiceError, SettingsError
from cogr.settings.indexing import GeneratorSettings, RedisSettings
from indexers.rebuild.fleet.broker import Broker, Message, make_app, printable, queue_of


@pytest.mark.parametrize(
    ("url", "password", "user", "broker", "shown"),
    [
        ("redis://:p%2Fw@h:1/2", None, None, "redis://:p%2Fw@h:1/2", "redis://...@h:1/2"),
        ("rediss://u:p@[::1]/2", None, "u", "rediss://u:p@[::1]/2", "rediss://...@[::1]/2"),
        (
            "redis://shop@h:1/2",
            "p@s/w",
            "shop",
            "redis://shop:p%40s%2Fw@h:1/2",
            "redis://...@h:1/2",
        ),
        (
            "unix:///run/v.sock?db=2",
            "p@s/w",
            None,
            "redis+socket://:p%40s%2Fw@/run/v.sock?virtual_host=2",
            "unix://...@/run/v.sock",
        ),
    ],
)
def test_one_url_says_all_to_broker_and_cache_and_a_password_may_be_given_apart(
    url: str, password: str | None, user: str | None, broker: str, shown: str
) -> None:
    redis = RedisSettings.model_validate({"url": url, "password": password})
    assert make_app(redis).conf.broker_url == broker
    client: Any = Redis.from_url(redis.address)
    options = client.connection_pool.connection_kwargs
    assert (options.get("username"), options["db"]) == (user, 2)
    assert options["password"] == (password or options["password"])
    assert printable(redis) == shown
    assert password is None or password not in repr(redis)


def test_certificates_are_checked_unless_the_url_says_otherwise() -> None:
    assert make_app(RedisSettings(url="rediss://h")).connection_for_write().ssl == {
        "ssl_cert_reqs": "required"
    }
    named = make_app(RedisSettings(url="rediss://h?ssl_ca_certs=/ca.pem"))
    assert named.connection_for_write().ssl == {"ssl_ca_certs": "/ca.pem"}  # redis-py checks
    assert named.conf.accept_content == ["json"]


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis+cluster://host:7000", "redis://"),
        ("host:6379", "redis://"),
        ("redis://host/catalogue", "not a database number"),
        ("redis://host?ssl_ca_certs=/ca.pem", "ssl_ca_certs is unknown"),
        ("rediss://host?ssl_ca_path=/ca", "ssl_ca_path is unknown; use redis://"),
        ("redis://:a@h", r"redis\.password"),
    ],
)
def test_a_url_that_can_t_be_meant_is_refused(url: str, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        RedisSettings.model_validate({"url": url, "password": "b" if "@" in url else None})


def test_no_broker_is_one_sentence() -> None:
    with pytest.raises(SettingsError, match="cogr-ops redis start"):
        Broker(RedisSettings(), "q")
    broker = Broker(RedisSettings(url="redis://u:secret@127.0.0.1:1/0"), "q")
    with pytest.raises(ServiceError, match=r"redis://\.\.\.@127.0.0.1:1/0 "):
        broker.waiting()


def test_each_side_and_model_and_form_of_messages_has_a_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, two = GeneratorSettings(name="vllm", model="a"), GeneratorSettings(name="vllm", model="b")
    queues = {queue_of("item", one), queue_of("item", two), queue_of("query", one)}
    monkeypatch.setattr(Message, "__pydantic_fields__", dict.fromkeys(["side", "run"]))
    assert len({*queues, queue_of("item", one)}) == 4
