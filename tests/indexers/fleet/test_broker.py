"""The broker: what redis.url may say, and what kombu and redis-py make of it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from cogr.errors import ServiceError, SettingsError
from cogr.settings.indexing import GeneratorSettings, RedisSettings
from indexers.fleet.broker import Broker, make_app, printable, queue_of
from ops.expander.redis_cache import connect

SENTINELS = (
    "sentinel://u:p%40ss@a:26379;sentinel://b/3?master_name=main&sentinel_password=inner"
    "&ssl_ca_certs=/ca.pem"
)


@pytest.mark.parametrize(
    ("url", "broker", "database", "shown"),
    [
        ("redis://h", "redis://h:6379/0", 0, "redis://h:6379/0"),
        ("redis://:p%2Fw@h:1/2", "redis://:p%2Fw@h:1/2", 2, "redis://h:1/2"),
        ("rediss://u:p@[::1]/1", "rediss://u:p@[::1]:6379/1", 1, "rediss://::1:6379/1"),
        ("unix:///run/v.sock?db=4", "redis+socket:///run/v.sock?virtual_host=4", 4, None),
        (
            SENTINELS,
            "sentinel://u:p%40ss@a:26379/3;sentinel://u:p%40ss@b:26379/3",
            3,
            "sentinel://a:26379;sentinel://b:26379/3",
        ),
    ],
)
def test_one_url_says_all_to_broker_and_cache(
    url: str, broker: str, database: int, shown: str | None
) -> None:
    redis = RedisSettings(url=url)
    assert make_app(redis).conf.broker_url == broker
    client: Any = connect(redis)
    assert client.connection_pool.connection_kwargs["db"] == database
    assert printable(redis) == (shown or "unix:///run/v.sock")


def test_sentinels_have_a_master_and_secrets_of_their_own() -> None:
    redis = RedisSettings(url=SENTINELS)
    conf = make_app(redis).conf
    assert conf.broker_transport_options["master_name"] == "main"
    assert conf.broker_transport_options["sentinel_kwargs"] == {"password": "inner"}
    assert conf.accept_content == ["json"]
    tls = {"ssl_cert_reqs": "required", "ssl_check_hostname": True, "ssl_ca_certs": "/ca.pem"}
    assert conf.broker_use_ssl == tls
    pool: Any = connect(redis).connection_pool
    assert (pool.service_name, pool.connection_kwargs["password"]) == ("main", "p@ss")
    assert pool.sentinel_manager.sentinels[1].connection_pool.connection_kwargs["host"] == "b"


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("redis+cluster://host:7000", "Redis Cluster"),
        ("rediss+cluster://host", "Redis Cluster"),
        ("amqp://host", "redis://"),
        ("host:6379", "redis://"),
        ("redis://host/catalogue", "not a database number"),
        ("sentinel://a:26379", "master_name"),
        ("redis://host?ssl_ca_certs=/ca.pem", "ssl_ca_certs is unknown"),
        ("rediss://host?ssl_ca_certs=ca.pem", "the file of ssl_ca_certs is relative"),
        ("rediss://host?ssl_ca_path=/ca", "ssl_ca_path is unknown; rediss:// knows ssl_ca_certs"),
        ("rediss://host?ssl_cert_reqs=none", "would switch off a check"),
        ("rediss://host?ssl_cert_reqs=optional", "would switch off a check"),
        ("rediss://host?ssl_cert_reqs=CERT_NONE", "would switch off a check"),
        ("rediss://host?ssl_check_hostname=False", "would switch off a check"),
        ("sentinel://a?master_name=m&ssl_cert_reqs=none", "would switch off a check"),
    ],
)
def test_a_url_that_can_t_be_meant_is_refused(url: str, why: str) -> None:
    with pytest.raises(ValidationError, match=why):
        RedisSettings(url=url)


def test_no_broker_is_one_sentence() -> None:
    with pytest.raises(SettingsError, match="cogr-ops redis start"):
        Broker(RedisSettings(), "q")
    broker = Broker(RedisSettings(url="redis://u:secret@127.0.0.1:1/0"), "q")
    with pytest.raises(ServiceError, match=r"The broker redis://127.0.0.1:1/0 can't be asked"):
        broker.waiting()


def test_each_side_and_model_has_a_queue() -> None:
    one, two = GeneratorSettings(name="vllm", model="a"), GeneratorSettings(name="vllm", model="b")
    queues = {queue_of("item", one), queue_of("item", two), queue_of("query", one)}
    assert len(queues) == 3
    assert all(queue.startswith("v3.") for queue in queues)
