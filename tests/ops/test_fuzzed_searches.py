"""Hostile queries all the way: expander, stored template, search.

Each finds what the mirror says, so that none was more than data.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

import httpx
import pytest

from cogr.keywords import self_keyword
from cogr.matching.mirror import Mirror
from cogr.settings.serving import OpenSearchSettings
from cogr.snapshots import Row, open_snapshot
from tests.indexers.hostile_texts import hostile
from tests.ops.expander.expander_worlds import (
    ITEMS,
    QUERIES,
    Running,
    running,
    serve_pair,
    wait_for,
    workspace,
)

pytestmark = [pytest.mark.server, pytest.mark.slow]
BATCH, AT_ONCE = 50, 4
KNOWN = 300
"""Hostile texts that are keywords of items, and known queries."""


@dataclass(frozen=True)
class Shop:
    """A live expander and OpenSearch, and what the mirror of its items says."""

    expander: Running
    opensearch: httpx.Client
    template: str
    mirror: Mirror

    def search(self, texts: tuple[str, ...]) -> int:
        """Expand and search all of them; how many found something."""
        answer = self.expander.client.post("/expand", content=json.dumps({"queries": texts}))
        assert answer.status_code == 200, answer.text
        expanded = answer.json()
        lines: list[object] = []
        for one in expanded["answers"]:
            params = {"keywords": one["keywords"], "explain": True, "highlight": True, "size": 3}
            lines += [{"index": one["index"]}, {"id": self.template, "params": params}]
        body = "".join(json.dumps(line) + "\n" for line in lines)
        headers = {"content-type": "application/x-ndjson"}
        found = self.opensearch.post("/_msearch/template", content=body, headers=headers).json()[
            "responses"
        ]
        for text, one, response in zip(texts, expanded["answers"], found, strict=True):
            own = self_keyword(text)
            assert one["keywords"][:1] == ([own] if own else []), text
            assert response["status"] == 200, text
            assert response["hits"]["total"]["value"] == self.mirror.count(one["keywords"]), text
        return sum(response["hits"]["total"]["value"] > 0 for response in found)


def batches(texts: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Fifty at a time."""
    rest = iter(texts)
    while batch := tuple(islice(rest, BATCH)):
        yield batch


@pytest.fixture(scope="module")
def shop(
    tmp_path_factory: pytest.TempPathFactory, opensearch: OpenSearchSettings
) -> Iterator[Shop]:
    """Fifty texts of up to 20,000 characters make a larger body than shoppers send."""
    prefix = f"fuzz{os.getpid()}"
    patient = ("serving.deadline=60",)
    cluster = (
        f"opensearch.url={opensearch.url}",
        f"opensearch.prefix={prefix}",
    )
    opened = workspace(tmp_path_factory.mktemp("fuzz"), *cluster, *patient)
    texts = dict.fromkeys(word for text in hostile(1, KNOWN) if (word := self_keyword(text)))
    items = [Row(f"i{number}", f"Item {number}", (word,)) for number, word in enumerate(texts)]
    queries = [
        Row(f"h{number}", word, ("sofa",)) for number, word in enumerate(texts) if number % 2
    ]
    item, _ = serve_pair(opened, [*ITEMS, *items], [*QUERIES, *queries])
    mirror = Mirror.build(open_snapshot(opened.store, item))
    with (
        pytest.MonkeyPatch.context() as patch,
        running(opened) as expander,
        httpx.Client(base_url=str(opensearch.url), timeout=120) as client,
    ):
        patch.setattr("ops.expander.app.MAX_BODY_BYTES", 10_000_000)
        patch.setattr("ops.expander.app.MAX_QUERY_CHARS", 20_000)
        wait_for(lambda: expander.parts.follower.pair.matches)
        yield Shop(expander, client, f"{prefix}-search", mirror)


def test_hostile_queries_find_what_the_mirror_says(shop: Shop) -> None:
    known = sum(shop.search(texts) for texts in batches(hostile(1, KNOWN)))
    assert known > KNOWN / 2
    for texts in batches(hostile(2, 500)):
        shop.search(texts)
    assert shop.expander.metric("cogr_expander_bugs_total") == 0


@pytest.mark.drill
@pytest.mark.timeout(0)
def test_a_million_hostile_queries(shop: Shop) -> None:
    """DRILL_FUZZ: how many. DRILL_FUZZ_SECONDS: ends earlier."""
    wanted, ends = (
        int(os.environ.get("DRILL_FUZZ", 1_000_000)),
        float(os.environ.get("DRILL_FUZZ_SECONDS", "inf")),
    )
    started, asked, found = time.monotonic(), 0, 0
    rest = batches(hostile(3, wanted))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        while time.monotonic() - started < ends and (some := list(islice(rest, 10 * AT_ONCE))):
            found += sum(pool.map(shop.search, some))
            asked += sum(map(len, some))
    assert shop.expander.metric("cogr_expander_bugs_total") == 0
    print(
        f"{asked:,} hostile queries, {found:,} found something, {time.monotonic() - started:.0f} s"
    )
