"""A Haystack component: search results as documents. Needs the extra `haystack`."""

from __future__ import annotations

from typing import Any

from haystack import Document, component
from haystack.utils import Secret

from cogr_client.clients import Client


@component
class CogrRetriever:
    """Items for a query, best first; the content is the item's text, `meta` holds the keywords that
    matched.

    A pipeline with it can be saved; for secrets it saves the names of their environment variables.

    Args:
        expander: address of the expander.
        opensearch: address of OpenSearch.
        prefix: `opensearch.prefix` of the configuration that publishes.
        token: bearer token of the expander.
        username: of OpenSearch.
        password: of OpenSearch.
        options: how to search, as of `Client.search`.
        patience: seconds to wait for the expander; beyond it the query alone is used.
    """

    def __init__(
        self,
        expander: str,
        opensearch: str,
        prefix: str = "cogr",
        token: Secret | None = None,
        username: str | None = None,
        password: Secret | None = None,
        options: dict[str, Any] | None = None,
        patience: float = 0.5,
    ) -> None:
        # Haystack saves attributes by the names of the arguments.
        self.expander, self.opensearch, self.prefix = expander, opensearch, prefix
        self.token, self.username, self.password = token, username, password
        self.options, self.patience = options, patience

    @component.output_types(documents=list[Document])
    def run(self, query: str, top_k: int | None = None) -> dict[str, list[Document]]:
        """Search. Raises SearchError and RefusedError."""
        options: dict[str, Any] = {**(self.options or {})} | ({"size": top_k} if top_k else {})
        secrets = (self.token, self.password)
        token, password = (one.resolve_value() if one else None for one in secrets)
        with Client(
            self.expander,
            self.opensearch,
            prefix=self.prefix,
            token=token,
            auth=(self.username, password) if self.username and password else None,
            patience=self.patience,
        ) as client:
            hits = client.search(query, **options).hits
        documents = [
            Document(
                id=hit.id,
                content=hit.source["text"],
                score=hit.score,
                meta={**hit.source, "tier": hit.tier, "matched": list(hit.matched)},
            )
            for hit in hits
        ]
        return {"documents": documents}
