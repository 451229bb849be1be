"""Rounds and a real OpenSearch: a pair published by one call."""

from __future__ import annotations

import uuid

import pytest

from cogr.settings.serving import OpenSearchSettings
from indexers.backends.opensearch import OpenSearchBackend
from tests.indexers.backends.fault_proxy import Fault, proxy_to
from tests.trainers.conftest import Command
from tests.trainers.shop import Shop
from trainers.training.rounds import open_run

pytestmark = [pytest.mark.slow, pytest.mark.model]


def test_a_round_is_published_as_a_pair_by_one_call(
    copied: Shop,
    opensearch: OpenSearchSettings,
    cogr_train: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("indexers.backends.opensearch.client.FIRST_WAIT", 0.001)
    # Rivals are fitted and compared elsewhere.
    monkeypatch.setattr("trainers.training.driver.rivals", lambda *_: None)
    prefix = f"train-{uuid.uuid4().hex[:8]}"
    with proxy_to(opensearch.url or "") as proxy:
        own = (f"opensearch.url={proxy.url}", f"opensearch.prefix={prefix}")
        asked = ["run", "--publish", "--rounds", "1", "-c", copied.config, "--json"]
        asked += [part for setting in own for part in ("--set", setting)]
        # The cluster goes away while the finished round is pushed: the same command goes on with
        # publishing, not with round 2.
        proxy.faults.append(Fault("POST", "_bulk", None))
        assert cogr_train(*asked).status == 3
        proxy.faults.clear()
        done = cogr_train(*asked)
        assert done.status == 0, done.err
        assert (done.json["rounds"][-1]["round"], proxy.count("POST", "_aliases")) == (1, 1)
        first = open_run(copied.workspace(), "main").state().rounds[-1]
        backend = OpenSearchBackend(
            OpenSearchSettings(url=proxy.url, prefix=prefix), copied.workspace().store
        )
        assert dict(backend.serving()) == {"item": first.items, "query": first.queries}
        backend.cluster.call("DELETE", f"/{prefix}*", doing="cleaning up")
        backend.close()
