"""The broker: its settings, its secrets, its queues."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cogr.errors import ServiceError, SettingsError
from cogr.settings import GeneratorSettings
from cogr.settings.fleet import RedisSettings
from indexers.fleet.broker import Broker, broker_url, make_app, printable, queue_of


def test_urls_carry_secrets_that_are_never_printed() -> None:
    redis = RedisSettings(url="rediss://host:6380/1", username="u", password="p@ss/w")
    assert broker_url(redis) == "rediss://u:p%40ss%2Fw@host:6380/1"
    assert printable(RedisSettings(url="redis://u:secret@host/0")) == "redis://host/0"
    assert "p@ss" not in repr(redis)
    conf = make_app(redis).conf
    assert conf.broker_use_ssl["ssl_check_hostname"] is True
    assert conf.accept_content == ["json"]


def test_sentinels_need_the_name_of_their_master() -> None:
    urls = "sentinel://a:26379;sentinel://b:26379"
    with pytest.raises(ValidationError, match="sentinel_master"):
        RedisSettings(url=urls)
    redis = RedisSettings(
        url=urls, sentinel_master="main", sentinel_password="inner", password="outer"
    )
    conf = make_app(redis).conf
    assert conf.broker_transport_options["master_name"] == "main"
    assert conf.broker_transport_options["sentinel_kwargs"] == {"password": "inner"}
    assert broker_url(redis) == "sentinel://:outer@a:26379;sentinel://:outer@b:26379"


@pytest.mark.parametrize(
    "url", ["redis+cluster://host:7000", "rediss+cluster://host", "amqp://host", "host:6379"]
)
def test_what_is_no_broker_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match=r"Redis Cluster|redis://"):
        RedisSettings(url=url)


def test_no_broker_is_one_sentence() -> None:
    with pytest.raises(SettingsError, match="cogr-ops redis start"):
        Broker(RedisSettings(), "q")
    broker = Broker(RedisSettings(url="redis://127.0.0.1:1/0"), "q")
    with pytest.raises(ServiceError, match=r"The broker redis://127.0.0.1:1/0 can't be asked"):
        broker.waiting()


def test_each_side_and_model_has_a_queue() -> None:
    one, two = GeneratorSettings(name="vllm", model="a"), GeneratorSettings(name="vllm", model="b")
    queues = {queue_of("item", one), queue_of("item", two), queue_of("query", one)}
    assert len(queues) == 3
    assert all(queue.startswith("v2.") for queue in queues)
