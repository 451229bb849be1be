"""OpenAI's client with every try of it, retries included, sent through a gate (`pacing`).

Imports openai when it is made.
"""

from __future__ import annotations

import importlib
from typing import Any

from indexers.generators.pacing import Gate, Outcome


def paced_http_client(gate: Gate) -> Any:
    """The HTTP client for `openai.AsyncOpenAI`: its own one, proxies of the environment included,
    behind the gate.
    """
    from openai import DefaultAsyncHttpxClient

    http = _library_of(DefaultAsyncHttpxClient)

    class Paced(DefaultAsyncHttpxClient):  # type: ignore[misc]
        async def send(self, request: Any, **options: Any) -> Any:
            async with gate.passing() as passage:
                try:
                    response = await super().send(request, **options)
                except http.TimeoutException:
                    passage.outcome = "timeout"
                    raise
                except http.TransportError:
                    passage.outcome = "lost"
                    raise
                passage.outcome = outcome_of(response.status_code)
                return response

    return Paced(limits=http.Limits(max_connections=None, max_keepalive_connections=None))


def _library_of(client: type) -> Any:
    """The HTTP library that openai's client is made with: httpx, since openai 3 httpx2, and only
    that one is installed with it.
    """
    made_with = next(one for one in client.__mro__ if one.__name__ == "AsyncClient")
    return importlib.import_module(made_with.__module__.partition(".")[0])


def outcome_of(status: int) -> Outcome:
    """What a status says of the endpoint."""
    if status < 400:
        return "answered"
    if status == 429:
        return "limited"
    return "unavailable" if status >= 500 else "refused"
