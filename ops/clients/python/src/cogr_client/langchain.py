"""A LangChain retriever: search results as documents. Needs the extra `langchain`."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import (
    AsyncCallbackManagerForRetrieverRun,
    CallbackManagerForRetrieverRun,
)
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from pydantic import ConfigDict, Field

from cogr_client.clients import AsyncClient, Client, Found


class CogrRetriever(BaseRetriever):
    """Items for a query, best first; the text is the item's, the metadata hold its id, score and
    the keywords that matched.

    Attributes:
        client: searches for `invoke`.
        async_client: searches for `ainvoke`; without one, `client` does, in a thread.
        options: how to search, as of `Client.search`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    client: Client
    async_client: AsyncClient | None = None
    options: dict[str, Any] = Field(default_factory=dict)

    def _get_relevant_documents(
        self,
        query: str,
        *,
        run_manager: CallbackManagerForRetrieverRun,  # noqa: ARG002
    ) -> list[Document]:
        return _documents(self.client.search(query, **self.options))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: AsyncCallbackManagerForRetrieverRun
    ) -> list[Document]:
        if self.async_client is None:
            return await super()._aget_relevant_documents(query, run_manager=run_manager)
        return _documents(await self.async_client.search(query, **self.options))


def _documents(found: Found) -> list[Document]:
    return [
        Document(
            id=hit.id,
            page_content=hit.source["text"],
            metadata={
                **hit.source,
                "tier": hit.tier,
                "score": hit.score,
                "matched": list(hit.matched),
            },
        )
        for hit in found.hits
    ]
