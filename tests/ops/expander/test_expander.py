"""The query expander over the memory backend: what it answers, what it refuses, how it follows what
serves.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cogr.keywords import NORMALISER
from cogr.records import SIDES
from cogr.settings import Settings
from cogr.snapshots import Row
from indexers.backends import Pair, ServedSide, Words
from indexers.backends.opensearch.search import bodies, query_body
from ops.expander.app import OneAnswer
from ops.expander.expander import Expander, Follower, make_parts
from ops.expander.live_models import Models
from ops.expander.upstream import Metrics, UnavailableError, Upstream
from tests.commands import program, ran
from tests.documents import examples
from tests.ops.expander.expander_worlds import (
    ITEMS,
    Running,
    running,
    serve_pair,
    workspace,
)

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """An expander over a published pair in the memory backend."""
    opened = workspace(tmp_path_factory.mktemp("shop"))
    serve_pair(opened)
    with running(opened) as expander:
        yield expander


def test_a_known_query_has_its_stored_keywords(shop: Running) -> None:
    answer = shop.expand("  Green COUCH!")
    assert answer["keywords"] == ["green couch", "sofa", "couch"]
    assert (answer["source"], answer["reason"]) == ("index", "")
    keywords, text, _, tier = answer["clause"]["bool"]["should"]
    assert keywords == query_body(["green couch", "sofa", "couch"])
    assert text == {"multi_match": {"query": "Green COUCH!", "fields": ["whole_text"]}}
    assert tier == {"constant_score": {"filter": answer["set"], "boost": 1024.0}}
    assert answer["snapshots"]["item"].startswith("item-r000-")
    assert answer["index"] is None


def test_the_request_in_the_docs_has_the_answer_in_the_docs(tmp_path: Path) -> None:
    (request,), (answer, *_) = (examples("serving.md", language) for language in ("sh", "json"))
    opened, shown = workspace(tmp_path, "serving.deadline=20"), json.loads(answer)
    own, *weights = shown["weights"]
    row = Row(
        "q",
        "green velvet sofa",
        tuple(shown["keywords"][1:]),
        weights=(*weights, own),
        confidence=shown["confidence"],
    )
    serve_pair(opened, ITEMS, [row])
    program("curl")
    with running(opened) as expander:
        line = request.replace("localhost:8600", expander.url)
        said = json.loads(ran("sh", "-c", line))
    assert shown["index"] == f"shop-items-{shown['snapshots']['item']}"
    assert shown == said | {"snapshots": shown["snapshots"], "index": shown["index"]}
    assert OneAnswer.model_validate(shown)
    assert shown["snapshots"].keys() == said["snapshots"].keys()


def test_weights_and_confidence_come_from_the_query_snapshot(tmp_path: Path) -> None:
    """`keywords.weights = false` leaves the weights out; `serving.blend` sets the text's."""
    sure = Row("q1", "green couch", ("sofa", "couch"), weights=(2.5, 1.0, 0.4), confidence=0.9)
    unsure = Row("q2", "reading light", ("lamp",), weights=(3.0, 1.0), confidence=0.3)
    silent = Row("q4", "floor", ("lamp",))
    for sets, boosts, beside in (
        ((), [0.4, 2.5, 1.0], (0.2, 1.0)),
        (("keywords.weights=false",), [1.0, 1.0, 1.0], (1.0, 1.0)),
        (("serving.blend=0.3",), [0.4, 2.5, 1.0], (0.3, 0.3)),
    ):
        opened = workspace(tmp_path, "serving.deadline=20", *sets)
        serve_pair(opened, ITEMS, [sure, unsure, silent])
        with running(opened) as expander:
            answer = expander.expand("green couch")
            assert answer["keywords"] == ["green couch", "sofa", "couch"]
            assert answer["weights"] == boosts
            keywords = dict(zip(answer["keywords"], boosts, strict=True))
            words = Words("green couch", beside[0])
            assert (answer["clause"], answer["set"]) == bodies(keywords, words)
            found = {
                query: (said["confidence"], said["text_boost"])
                for query in ("green couch", "reading light", "floor", "nobody")
                if (said := expander.expand(query))
            }
            assert found == {
                "green couch": (0.9, beside[0]),
                "reading light": (0.3, beside[0]),
                "floor": (None, beside[1]),
                "nobody": (None, beside[1]),
            }


@pytest.mark.parametrize(
    ("overrides", "then"), [((), "unknown"), (("opensearch.url=http://127.0.0.1:9",), "away")]
)
async def test_until_the_pair_was_read_the_reason_says_so(
    tmp_path: Path, overrides: tuple[str, ...], then: str
) -> None:
    parts = make_parts(workspace(tmp_path, "serving.deadline=20", *overrides))
    for reason in ("loading", then):
        answer = await parts.expander.expand("sofa", parts.follower.pair)
        assert (answer.source, answer.reason) == ("none", reason)
        await parts.follower.look()
        while parts.models.state == "loading":
            await asyncio.sleep(0.01)
    await parts.models.follow(parts.follower.pair)
    assert (await parts.expander.expand("lamp", parts.follower.pair)).reason == "loading"
    await parts.close()


def test_without_keywords_the_query_alone_is_the_answer(shop: Running) -> None:
    for query, reason, words in (("Blue chair", "unknown", ["blue chair"]), ("?!", "empty", [])):
        answer = shop.expand(query)
        assert [answer[name] for name in ("source", "reason", "keywords")] == [
            "none",
            reason,
            words,
        ]
        nothing: dict[str, Any] = {"match_none": {}}
        expected = bodies(words, Words(query))[0] if words else nothing
        assert answer["clause"] == expected


REFUSED: list[tuple[bytes, int, str]] = [
    (b"", 422, "not valid JSON"),
    (b"[]", 422, "the body:"),
    (b"{}", 422, 'query: Field required; send {"query": "..."}.'),
    (b'{"query": {"canary": 1}}', 422, "query:"),
    (b'{"query": "canary', 422, "not valid JSON"),
    (b'{"query": "\\ud800"}', 422, "not valid JSON"),
    (b'{"query": "\xff"}', 422, "not valid JSON"),
    (b'{"query": "a", "canary sofa": 1}', 422, "the body: Extra inputs are not permitted; send {"),
    (json.dumps({"query": "a" * 16_385}).encode(), 422, "at most 16384 characters"),
    (b'{"query": "' + b"a" * 70_000 + b'"}', 413, "at most 65536 bytes"),
]


def test_bad_requests_are_refused_in_one_sentence(shop: Running) -> None:
    """It repeats nothing of the request but the name of a field that is none of a query's."""
    for body, status, says in REFUSED:
        answer = shop.client.post("/expand", content=body)
        (detail,) = answer.json().values()
        assert (answer.status_code, says in detail, detail[-1]) == (status, True, "."), body[:50]
        assert "canary" not in detail


def pair(round_: int = 0) -> Pair:
    return Pair(*(ServedSide(f"{side}-{round_}", side, round_, NORMALISER) for side in SIDES))


async def test_a_follower_outlives_every_error(caplog: pytest.LogCaptureFixture) -> None:
    """Of reading, and of what is told of a new pair; what it followed stays, and counts as not
    seen.
    """
    broken, away = KeyError("round"), UnavailableError("x")
    looks: list[Pair | Exception] = [pair(), broken, broken, away, pair(1), pair(1)]
    told: list[Pair] = []

    async def read() -> Pair:
        look = looks.pop(0)
        if isinstance(look, Exception):
            raise look
        return look

    async def changed(found: Pair) -> None:
        told.append(found)
        if len(told) == 2:
            raise RuntimeError("of a model")

    metrics = Metrics()
    follower, count = Follower(read, changed, 0.001, metrics), metrics.registry.get_sample_value
    problems = ("", "KeyError", "KeyError", "UnavailableError", "RuntimeError", "")
    for problem, served in zip(problems, [0, 0, 0, 0, 0, 1], strict=True):
        seen = count("cogr_expander_pair_seen_timestamp_seconds")
        await follower.look()
        assert (follower.problem, follower.pair) == (problem, pair(served))
        assert (count("cogr_expander_pair_seen_timestamp_seconds") == seen) == bool(problem)
    assert count("cogr_expander_bugs_total") == 3
    messages = [record.getMessage() for record in caplog.records]
    said = [line for line in messages if line.startswith("The serving pair")]
    assert [("(" in line, "again" in line) for line in said] == [(True, False), (False, True)]


async def test_a_breaker_opens_for_an_upstream_that_fails_and_tries_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ops.expander.upstream.BREAKER_FAILURES", 2)
    monkeypatch.setattr("ops.expander.upstream.BREAKER_SECONDS", 0.1)

    async def fail() -> None:
        raise OSError("canary")

    metrics = Metrics()
    upstream, count = Upstream("redis", metrics), metrics.registry.get_sample_value
    for ask in (fail, lambda: asyncio.sleep(60)):
        with pytest.raises(UnavailableError) as raised:
            await upstream.call(ask, 0.01)
        assert "canary" not in str(raised.value)
    assert upstream.is_open
    with pytest.raises(UnavailableError, match="redis"):
        await upstream.call(fail, 1)
    while upstream.is_open:
        await asyncio.sleep(0.01)
    assert await upstream.call(lambda: asyncio.sleep(0, "fine"), 1) == "fine"
    failed = {"upstream": "redis", "error": "OSError"}
    assert count("cogr_expander_upstream_failures_total", failed) == 1
    assert count("cogr_expander_upstream_open", {"upstream": "redis"}) == 0


class Slow:
    """A query index that answers when it is told to, and counts."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked = 0

    async def pair(self) -> Pair:
        return pair()

    async def lookup(self, pair: Pair, text: str) -> Row | None:
        self.asked += 1
        await self.gate.wait()
        if text == "bug":
            raise RuntimeError("nobody expected this")
        return Row("", "", ("sofa",))

    async def close(self) -> None:
        """Nothing."""


def made(index: Slow, deadline: float = 30) -> Expander:
    """An expander over this index alone."""
    settings, metrics = Settings(dataset={"loader": "jsonl"}), Metrics()
    settings.serving.deadline = deadline
    models = Models(pytest.fail, metrics)
    follower = Follower(index.pair, models.follow, 1, metrics)
    return Expander(None, index, models, follower, settings, metrics)


async def test_one_unknown_query_is_looked_up_once_whoever_asks() -> None:
    index = Slow()
    expander = made(index)
    asked = [asyncio.create_task(expander.expand("green couch", pair())) for _ in range(20)]
    while not index.asked:
        await asyncio.sleep(0)
    index.gate.set()
    for answer in await asyncio.gather(*asked):
        assert (list(answer.keywords), answer.source) == (["green couch", "sofa"], "index")
    assert index.asked == 1


async def test_what_was_found_is_remembered_for_a_while_and_for_its_pair(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ops.expander.expander.HOT_QUERIES", 2)
    index = Slow()
    index.gate.set()
    expander = made(index)
    # Another round's keywords are other ones.
    asked = [(pair(), "index"), (pair(), "cache"), (pair(1), "index"), (pair(1), "cache")]
    for of, source in (*asked, (pair(), "cache")):
        answer = await expander.expand("a", of)
        assert (list(answer.keywords), answer.source) == (["a", "sofa"], source)
    monkeypatch.setattr("ops.expander.expander.HOT_SECONDS", 0.0)
    expander = made(index)
    assert [(await expander.expand("c", pair())).source for _ in range(2)] == ["index", "index"]


async def test_the_deadline_and_the_bounds_hold_and_a_bug_is_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = Slow()
    monkeypatch.setattr("ops.expander.expander.MAX_IN_FLIGHT", 2)
    expander = made(index, deadline=0.05)
    late = await asyncio.gather(*(expander.expand(text, pair()) for text in "abc"))
    assert [one.reason for one in late] == ["deadline", "deadline", "overloaded"]
    assert index.asked == 2
    await expander.close()
    index.gate.set()
    assert (await made(index).expand("bug", pair())).reason == "away"
