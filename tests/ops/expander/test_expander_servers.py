"""The expander over real servers: OpenSearch, Valkey, an OpenAI-compatible endpoint.

Cache, model, switches of the pair.
"""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path

import httpx
import pytest
import redis

from cogr.keywords import NORMALISER
from cogr.settings.indexing import RedisSettings
from cogr.snapshots import Row
from indexers.backends.opensearch.client import Cluster
from indexers.release import release
from indexers.workspace import Workspace
from tests.indexers.backends.opensearch_worlds import overrides_of
from tests.indexers.generators.fake_endpoint import FakeEndpoint, completion
from tests.ops.expander.expander_worlds import (
    ITEMS,
    Running,
    freeze,
    running,
    serve_pair,
    wait_for,
    workspace,
)
from tests.web_server import json_answer

pytestmark = pytest.mark.slow


@pytest.fixture
def cache(valkey: RedisSettings) -> redis.Redis:
    """Empty."""
    client = redis.Redis.from_url(str(valkey.url))
    client.flushdb()
    return client


def with_valkey(folder: Path, valkey: RedisSettings, *more: str) -> Workspace:
    # Waits as they may be on a busy machine: what is late here is a fault and not a load.
    sets = (f"redis.url={valkey.url}", "serving.deadline=20")
    return workspace(folder, *sets, *more)


INVALID = [
    *(b"\xff\xfe", b"{}", b'{"keywords": ["\\ud800"]}', b'["sofa"]', b'"text"', b""),
    *(
        b'{"keywords": ["sofa"], "weights": [%b]}' % weights
        for weights in (b"1", b"1, 2, 3", b"-1, 1", b"1000001, 1", b"NaN, 1", b'"2", 1')
    ),
    b'{"keywords": ["sofa"], "confidence": 1.5}',
]


def test_an_answer_is_cached_under_its_pair_and_an_invalid_entry_is_none(
    tmp_path: Path, valkey: RedisSettings, cache: redis.Redis
) -> None:
    opened = with_valkey(tmp_path, valkey)
    row = Row("q1", "green couch", ("sofa", "couch"), weights=(2.5, 0.8, 0.5), confidence=0.7)
    ids = serve_pair(opened, ITEMS, [row, Row("q2", "Reading LIGHT", ("lamp", "light"))])
    key = f"cogr:expand:{ids[0]}:{ids[1]}:{NORMALISER}:green couch"
    with running(opened, model="m-{round}", hot_queries=0) as expander:
        again = expander.until("green couch", "cache")
        assert again["keywords"] == ["green couch", "sofa", "couch"]
        assert (again["weights"], again["confidence"]) == ([0.5, 2.5, 0.8], 0.7)
        assert cache.exists(key)
        for invalid in INVALID:
            wait_for(lambda: not expander.metric("cogr_expander_in_flight"))
            cache.set(key, invalid)
            assert expander.expand("green couch")["source"] == "index", invalid


def test_reads_at_once_are_each_answered_with_their_own(
    tmp_path: Path, valkey: RedisSettings, cache: redis.Redis
) -> None:
    opened = with_valkey(tmp_path, valkey)
    rows = [Row(f"q{n:03}", f"query {n}", (f"word {n}",)) for n in range(40)]
    serve_pair(opened, ITEMS, rows)

    async def ask(url: str) -> list[str]:
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            asked = [client.post("/expand", json={"query": f"query {n % 40}"}) for n in range(80)]
            said = [answer.json() for answer in await asyncio.gather(*asked)]
        words = [answer["keywords"][1] for answer in said]
        assert words == [f"word {n % 40}" for n in range(80)]
        return [answer["source"] for answer in said]

    with running(opened, model="m-{round}", hot_queries=0) as expander:
        wait_for(lambda: expander.parts.follower.pair.matches)
        wait_for(lambda: set(asyncio.run(ask(expander.url))) == {"cache"})
        assert expander.metric("cogr_expander_bugs_total") == 0


def test_a_model_is_asked_once_and_its_answer_cached(
    tmp_path: Path, valkey: RedisSettings, cache: redis.Redis
) -> None:
    said = json_answer(completion("velvet, Sofa, blue chair"))
    with FakeEndpoint(lambda *_: said) as endpoint:
        opened = with_valkey(tmp_path, valkey, "serving.live=openai", *endpoint.settings)
        serve_pair(opened, round_=4)
        with running(opened, model="m-{round}", hot_queries=0) as expander:
            wait_for(lambda: expander.parts.models.state == "openai")
            answer = expander.expand("Blue Chair")
            assert answer["source"] == "model"
            assert answer["keywords"] == ["blue chair", "velvet", "sofa"]
            # What is answered is written to Redis a moment later.
            wait_for(lambda: not expander.metric("cogr_expander_in_flight"))
            expander.until("blue chair", "cache")
            assert len(endpoint.bodies) == 1
            assert endpoint.bodies[0]["model"] == "m-4"
            assert "blue chair" in json.dumps(endpoint.bodies[0]["messages"])


def test_a_slow_model_answers_the_next_one(
    tmp_path: Path, valkey: RedisSettings, cache: redis.Redis
) -> None:
    with FakeEndpoint(delay=3.0) as endpoint:
        live = ("serving.live=openai", "serving.deadline=1", *endpoint.settings)
        opened = with_valkey(tmp_path, valkey, *live)
        serve_pair(opened)
        with running(opened, model="m-{round}", hot_queries=0) as expander:
            wait_for(lambda: expander.parts.models.state == "openai")
            assert expander.expand("blue chair")["reason"] == "deadline"
            # Who asks before the answer is in Redis would have the model asked again.
            wait_for(lambda: not expander.metric("cogr_expander_in_flight"))
            expander.until("blue chair", "cache")
            assert len(endpoint.bodies) == 1


def test_a_model_in_process_belongs_to_what_it_wrote(
    tmp_path: Path, valkey: RedisSettings, cache: redis.Redis
) -> None:
    """The extractive generator of the same data answers in process; of other data it does not."""
    opened = with_valkey(tmp_path, valkey, "serving.live=auto", "generator.name=extractive")
    written_by = dict(opened.generator("query").fingerprint)
    query = freeze(opened, "query", [Row("q", "green sofa", ("sofa",))], **written_by)
    release(opened, [freeze(opened, "item", ITEMS).id, query.id], gate=False)
    with running(opened, model="m-{round}", hot_queries=0) as expander:
        wait_for(lambda: expander.parts.models.state == "extractive")
        answer = expander.expand("velvet table")
        assert answer["source"] == "model"
        other = freeze(
            opened, "query", [Row("q", "green", ("x",))], **{**written_by, "dataset_hash": "other"}
        )
        release(opened, [other.id], gate=False)
        wait_for(lambda: expander.parts.models.state == "failed")
        assert expander.expand("oak sofa")["source"] == "none"


@pytest.fixture
def on_opensearch(tmp_path: Path, cluster: Cluster) -> Workspace:
    return workspace(tmp_path, *overrides_of(cluster.settings), "serving.deadline=20")


ODD = [{}, {"round": "one"}, {"snapshot": {"a": 1}}]


def test_an_odd_meta_is_counted_and_following_goes_on(
    on_opensearch: Workspace, cluster: Cluster
) -> None:
    serve_pair(on_opensearch)

    def says(index: str, meta: dict[str, object]) -> None:
        cluster.call("PUT", f"/{index}/_mapping", body={"_meta": meta}, doing="spoiling")

    with running(on_opensearch) as expander:
        wait_for(lambda: expander.parts.follower.pair.matches)
        index = expander.parts.follower.pair.query.index
        found = cluster.call("GET", f"/{index}", doing="reading")[index]["mappings"]["_meta"]
        for odd in ODD:
            says(index, {**found, **odd} if odd else {})
            wait_for(lambda: expander.parts.follower.problem == "BadAnswerError")
            ready = expander.client.get("/readyz")
            assert (ready.status_code, ready.json()["pair_problem"]) == (503, "BadAnswerError")
            assert ready.json()["problems"]
            assert expander.client.get("/readyz?exclude=warnings").status_code == 200
            assert expander.expand("green couch")["source"] in ("index", "cache")
            says(index, found)
            wait_for(lambda: not expander.parts.follower.problem)
        assert expander.metric("cogr_expander_upstream_open", upstream="opensearch") == 0
        later = serve_pair(on_opensearch, round_=1)
        wait_for(lambda: list(expander.expand("green couch")["snapshots"].values()) == later)


def test_every_answer_during_switches_is_of_one_round(on_opensearch: Workspace) -> None:
    """Keywords say their round; under load, each answer's keywords, snapshots and index must be of
    one.
    """
    pairs = [
        serve_pair(on_opensearch, queries=[Row("q1", "green couch", (f"round {n}",))], round_=n)
        for n in (1, 2)
    ]
    release(on_opensearch, pairs[0], gate=False)
    with running(on_opensearch) as expander:
        wait_for(lambda: expander.parts.follower.pair.matches)
        answers = asyncio.run(asked_during(expander, on_opensearch, pairs))
    seen = {answer["keywords"][1] for answer in answers if len(answer["keywords"]) > 1}
    assert seen == {"round 1", "round 2"}
    for answer in answers:
        assert answer["source"] in ("index", "cache")
        round_ = int(answer["keywords"][1].removeprefix("round "))
        assert list(answer["snapshots"].values()) == pairs[round_ - 1]
        assert answer["index"].endswith(pairs[round_ - 1][0])


async def asked_during(
    expander: Running, opened: Workspace, pairs: list[list[str]]
) -> list[dict[str, object]]:
    """Answers of four clients while the pair is switched five times."""
    done = asyncio.Event()

    async def ask(client: httpx.AsyncClient) -> list[dict[str, object]]:
        found = []
        while not done.is_set():
            answer = await client.post("/expand", json={"query": "green couch"})
            assert answer.status_code == 200
            found.append(answer.json())
        return found

    async with httpx.AsyncClient(base_url=expander.url, timeout=60) as client:
        clients = [asyncio.create_task(ask(client)) for _ in range(4)]
        for turn in range(1, 6):
            wanted = pairs[turn % 2]
            await asyncio.to_thread(partial(release, opened, wanted, gate=False))
            while expander.parts.follower.pair.name != ":".join(wanted):
                await asyncio.sleep(0.02)
        done.set()
        return [answer for found in await asyncio.gather(*clients) for answer in found]
