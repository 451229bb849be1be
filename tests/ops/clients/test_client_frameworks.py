"""The LangChain retriever and the Haystack component, against a live expander and OpenSearch.

Their imports take seconds.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cogr_client import AsyncClient, Client
from tests.ops.clients.client_worlds import CONFORMANCE, ClientWorld

pytestmark = [pytest.mark.server, pytest.mark.clients]
EXPECTED = CONFORMANCE["cases"][0]["expect"]["ids"]
QUERY = CONFORMANCE["cases"][0]["query"]


def addresses(world: ClientWorld) -> dict[str, Any]:
    return {
        "expander": world.expander["up"],
        "opensearch": world.opensearch["up"],
        "prefix": world.prefix,
        "patience": 30,
    }


def test_langchain(world: ClientWorld) -> None:
    from cogr_client.langchain import CogrRetriever

    async def asked(client: Client) -> list[list[str | None]]:
        async with AsyncClient(**addresses(world), token=world.token) as own:
            both = (CogrRetriever(client=client, async_client=own), CogrRetriever(client=client))
            return [[document.id for document in await one.ainvoke(QUERY)] for one in both]

    with Client(**addresses(world), token=world.token) as client:
        documents = CogrRetriever(
            client=client, options={"size": 1, "fields": ["keywords"]}
        ).invoke(QUERY)
        assert asyncio.run(asked(client)) == [EXPECTED, EXPECTED]
    (document,) = documents
    assert document.id == EXPECTED[0]
    assert document.page_content.startswith("Cowhide couch")
    assert document.metadata["matched"] == ["cowhide sofa", "sofa"]
    assert "sofa" in document.metadata["keywords"]


def test_haystack(world: ClientWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    from haystack import Pipeline
    from haystack.utils import Secret

    from cogr_client.haystack import CogrRetriever

    monkeypatch.setenv("SHOP_TOKEN", world.token)
    pipeline = Pipeline()
    pipeline.add_component(
        "retriever", CogrRetriever(**addresses(world), token=Secret.from_env_var("SHOP_TOKEN"))
    )
    saved = pipeline.dumps()
    assert world.token not in saved
    loaded = Pipeline.loads(saved, allowed_modules=["cogr_client.haystack"])
    found = loaded.run({"retriever": {"query": QUERY, "top_k": 2}})["retriever"]["documents"]
    assert [document.id for document in found] == EXPECTED[:2]
    assert found[0].meta["matched"] == ["cowhide sofa", "sofa"]
