"""A client of the CoGR query expander and of the OpenSearch index behind it: `Client`, and
`AsyncClient` for asyncio.

`cogr_client.langchain` and `cogr_client.haystack` make a retriever of it; they need the extras of
these names.
"""

from cogr_client.clients import (
    AsyncClient,
    Client,
    Expansion,
    Found,
    Hit,
    RefusedError,
    SearchError,
)

__all__ = ["AsyncClient", "Client", "Expansion", "Found", "Hit", "RefusedError", "SearchError"]
