"""A client of the CoGR query expander and of the OpenSearch index behind it: `Client`, and
`AsyncClient` for asyncio.
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
