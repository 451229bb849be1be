"""The Python client against a running expander and a live OpenSearch, blocking and asyncio; and against nothing at all."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cogr.settings import OpenSearchSettings
from cogr_client import AsyncClient, Client, SearchError
from tests.ops.broken_servers import RUBBISH, broken
from tests.ops.expander_worlds import Running, running, serve_pair, wait_for, workspace

pytestmark = pytest.mark.slow
README = Path(__file__).parents[2] / "ops/clients/python/README.md"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, opensearch: OpenSearchSettings) -> Iterator[Running]:
    """An expander over a published pair in OpenSearch."""
    prefix = f"client{os.getpid()}"
    folder = tmp_path_factory.mktemp("client")
    patient = ("serving.deadline=20", "serving.index_timeout=20")
    opened = workspace(folder, f"opensearch.url={opensearch.url}", f"opensearch.prefix={prefix}", *patient)
    serve_pair(opened)
    with running(opened) as expander:
        wait_for(lambda: expander.expand("green couch")["source"] == "index")
        yield expander


@pytest.mark.server
def test_expand_and_search_in_a_line(shop: Running, opensearch: OpenSearchSettings) -> None:
    with Client(shop.url, opensearch.url, patience=30, timeout=30) as client:
        found = client.search("Green COUCH", aggs={"n": {"value_count": {"field": "item_id"}}}, fields=["keywords"])
        assert [hit.id for hit in found.hits] == ["a"]
        assert set(found.hits[0].matched) == {"sofa", "couch"}
        assert found.hits[0].source["text"] == "Velvet sofa"
        assert "green" in found.hits[0].source["keywords"]
        assert found.aggregations["n"]["value"] == found.total == 1
        assert found.expansion.source == "index"
        assert client.search("green couch", filters=[{"ids": {"values": ["b"]}}]).total == 0
        assert client.search("green couch", search_after=found.hits[-1].sort).hits == []
        several = client.expand_many(["reading light", "nobody"])
        assert [one.source for one in several] == ["index", "none"]
        assert client.search("?!").total == 0


@pytest.mark.server
def test_the_same_for_asyncio(shop: Running, opensearch: OpenSearchSettings) -> None:
    async def search() -> None:
        async with AsyncClient(shop.url, opensearch.url, patience=30, timeout=30) as client:
            found, expanded, several = await asyncio.gather(
                client.search("green couch"), client.expand("reading light"), client.expand_many(["a", "b"])
            )
            assert [hit.id for hit in found.hits] == ["a"]
            assert expanded.keywords == ("reading light", "lamp", "light")
            assert len(several) == 2

    asyncio.run(search())


@pytest.mark.parametrize("fault", ["absent", "hanging", "closing", "error", "noise"])
def test_without_an_expander_the_query_is_bare(fault: str) -> None:
    with broken(fault) as port, Client(f"http://127.0.0.1:{port}", patience=0.3) as client:
        expansion = client.expand("Green  COUCH")
        assert (expansion.keywords, expansion.source, expansion.reason) == (("green couch",), "none", "no expander")
        assert [one.source for one in client.expand_many(["a", "b"])] == ["none", "none"]
        with pytest.raises(SearchError, match="no address"):
            client.search("green couch")


@pytest.mark.parametrize("fault", ["absent", "closing", *(name for name in RUBBISH if not name.startswith("redis"))])
def test_without_opensearch_a_search_is_an_error(fault: str) -> None:
    with broken("absent") as nobody, broken(fault) as port:
        here = f"http://127.0.0.1:{port}"
        with Client(f"http://127.0.0.1:{nobody}", here, timeout=0.5) as client, pytest.raises(SearchError):
            client.search("green couch")


def test_a_refusal_is_an_error(tmp_path: Path) -> None:
    with running(workspace(tmp_path, "serving.token=sesame")) as expander:
        with Client(expander.url, patience=30) as client, pytest.raises(ValueError, match="401"):
            client.expand("a")
        with Client(expander.url, token="sesame", patience=30) as client:
            assert client.expand("a").source == "none"


def test_the_readme_names_what_there_is() -> None:
    import cogr_client

    imported = re.findall(r"from cogr_client import (\w+)", README.read_text("utf-8"))
    assert imported
    assert set(imported) <= set(cogr_client.__all__)
