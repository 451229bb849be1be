"""Rounds and a real OpenSearch: equal figures on both backends, a pair published by one call, a
gate that says no.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from cogr.settings.serving import OpenSearchSettings
from indexers.backends.opensearch import OpenSearchBackend
from tests.indexers.backends.fault_proxy import Fault, Proxy, proxy_to
from tests.trainers.conftest import Command
from tests.trainers.shop import Shop
from trainers.training.rounds import Round, open_run

pytestmark = [pytest.mark.slow, pytest.mark.model]


class Cluster:
    """A prefix of its own in a real cluster, reached through a proxy that sees every request."""

    def __init__(self, proxy: Proxy, prefix: str) -> None:
        self.proxy = proxy
        self.prefix = prefix

    @property
    def options(self) -> list[str]:
        return [
            "--set",
            f"opensearch.url={self.proxy.url}",
            "--set",
            f"opensearch.prefix={self.prefix}",
        ]

    def backend(self, shop: Shop) -> OpenSearchBackend:
        settings = OpenSearchSettings(url=self.proxy.url, prefix=self.prefix)
        return OpenSearchBackend(settings, shop.workspace().store)

    def switches(self) -> int:
        """Calls that changed an alias."""
        return self.proxy.count("POST", "_aliases")


@pytest.fixture
def cluster(opensearch: OpenSearchSettings) -> Iterator[Cluster]:
    with proxy_to(opensearch.url or "") as proxy:
        yield Cluster(proxy, f"train-{uuid.uuid4().hex[:8]}")
    backend = OpenSearchBackend(opensearch, None)  # type: ignore[arg-type]
    backend.cluster.call("DELETE", "/train-*", doing="cleaning up")
    backend.close()


def rounds(shop: Shop, run: str = "main") -> tuple[Round, ...]:
    return open_run(shop.workspace(), run).state().rounds


FIGURES = (
    "p",
    "r",
    "f1",
    "f1_se",
    "judged_f1",
    "mrr@10",
    "ndcg@10",
    "p@10",
    "r@100",
    "queries",
    "keywords_per_query",
)


def test_a_round_is_published_as_a_pair_by_one_call(
    copied: Shop, cluster: Cluster, cogr_train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexers.backends.opensearch.client.FIRST_WAIT", 0.001)
    # Rivals are fitted and compared elsewhere.
    monkeypatch.setattr("trainers.training.driver.rivals", lambda *_: None)
    asked = ("-c", copied.config, "--json", *cluster.options)
    # The cluster goes away while the finished round is pushed: the same command goes on with
    # publishing, not with round 2.
    cluster.proxy.faults.append(Fault("POST", "_bulk", None))
    asked += ("--rounds", "1")
    away = cogr_train("run", "--publish", *asked)
    assert (away.status, rounds(copied)[-1].number) == (3, 1)
    cluster.proxy.faults.clear()
    done = cogr_train("run", "--publish", *asked)
    assert done.status == 0, done.err
    assert (done.json["rounds"][-1]["round"], cluster.switches()) == (1, 1)
    first, backend = rounds(copied)[-1], cluster.backend(copied)
    assert dict(backend.serving()) == {"item": first.items, "query": first.queries}
    asked = asked[:-2]
    memory = cogr_train(
        "evaluate",
        *asked,
        "--item",
        first.items,
        "--query",
        first.queries,
        "--set",
        "backend=memory",
    )
    live = cogr_train("evaluate", *asked)
    assert {name: live.json[name] for name in FIGURES} == {
        name: memory.json[name] for name in FIGURES
    }
    for query in copied.workspace().dataset.queries["test"][:3]:
        stored = backend.lookup(query.text, snapshot=first.queries)
        words = stored.weighted if stored else ()
        assert list(backend.search(words, snapshot=first.items).hits) == list(
            copied.workspace().backend.search(words, snapshot=first.items).hits
        )
    backend.close()
