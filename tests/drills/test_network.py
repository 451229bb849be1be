"""A bad network between each pair of parties while a rebuild is under way: it takes longer, and
comes to the same.

Latency of 2 s, connections that are reset, 10 KB/s, a cut, and a cable that is pulled without a
word.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cogr.settings.serving import OpenSearchSettings
from tests.drills.fire import Fire
from tests.drills.nursery import Nursery
from tests.drills.relay import Link
from tests.drills.servers import Broker
from tests.indexers.generators.fake_endpoint import FakeEndpoint

CUT = float(os.environ.get("DRILL_CUT", "60"))
"""Seconds for which a pair is parted; also for which connections are reset."""

pytestmark = [pytest.mark.server, pytest.mark.drill, pytest.mark.timeout(1800)]

HARMS: dict[str, tuple[dict[str, float | bool], float | None]] = {
    "2 s of latency": ({"latency": 1.0}, None),
    "10 KB/s": ({"rate": 10_000}, None),
    f"resets for {CUT:g} s": ({"resets": True}, CUT),
    f"cut for {CUT:g} s": ({"cut": True}, CUT),
    f"silent for {CUT:g} s": ({"silent": True}, CUT),
}
"""What is done, and for how long: None is to the end."""

ENDPOINT = {
    "generator.name": "openai",
    "generator.model": "fake",
    "generator.openai.api_key": "none",
}


@pytest.fixture
def endpoint() -> Iterator[FakeEndpoint]:
    with FakeEndpoint(delay=0.02) as endpoint:
        yield endpoint


KEYS = {
    "broker": "redis.url",
    "OpenSearch": "opensearch.url",
    "endpoint": "generator.openai.base_url",
}


@pytest.mark.parametrize("what", HARMS)
@pytest.mark.parametrize(
    "pair",
    ["coordinator - broker", "worker - broker", "coordinator - OpenSearch", "worker - endpoint"],
)
def test_a_rebuild_over_a_bad_network(
    tmp_path: Path,
    nursery: Nursery,
    broker: Broker,
    opensearch: OpenSearchSettings,
    endpoint: FakeEndpoint,
    drill_table: list[str],
    pair: str,
    what: str,
) -> None:
    (who, target), (harm, seconds) = pair.split(" - "), HARMS[what]
    urls = {
        "broker": str(broker.redis.url),
        "OpenSearch": str(opensearch.url),
        "endpoint": endpoint.url,
    }
    link = Link(urls[target])
    more = ENDPOINT | {KEYS[target]: endpoint.url} if target == "endpoint" else {}
    own = {who: {KEYS[target]: link.url}}
    with Fire(
        tmp_path, nursery, broker, opensearch, items=150, weights={}, workers=2, own=own, more=more
    ) as fire:
        fire.first()
        started = time.monotonic()
        with ExitStack() as stack:
            stack.enter_context(link.harmed(**harm))
            if seconds is not None:
                healing = threading.Timer(seconds, stack.close)
                healing.start()
                stack.callback(healing.cancel)
            fire.next_edition("rebuild", 0, 0)
        ends = ", ".join(f"{count} with status {status}" for status, count in fire.statuses.items())
        took = f"done in {time.monotonic() - started:.0f} s, nothing lost; commands ended: {ends}"
        drill_table.append(f"network, {pair}  {what}: {took}")
    link.close()
