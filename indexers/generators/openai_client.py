"""OpenAI's client with every try of it, retries included, sent through a gate (`pacing`). Imports openai when it is made."""

from __future__ import annotations

from typing import Any

from indexers.generators.pacing import Gate, Outcome


def paced_http_client(gate: Gate) -> Any:
    """The HTTP client for `openai.AsyncOpenAI`: its own one, proxies of the environment included, behind the gate."""
    import httpx
    from openai import DefaultAsyncHttpxClient

    class Paced(DefaultAsyncHttpxClient):  # type: ignore[misc]
        async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
            async with gate.passing() as passage:
                try:
                    response: httpx.Response = await super().send(request, **options)
                except httpx.TimeoutException:
                    passage.outcome = "timeout"
                    raise
                except httpx.TransportError:
                    passage.outcome = "lost"
                    raise
                passage.outcome = outcome_of(response.status_code)
                return response

    return Paced(limits=httpx.Limits(max_connections=None, max_keepalive_connections=None))


def outcome_of(status: int) -> Outcome:
    """What a status says of the endpoint."""
    if status < 400:
        return "answered"
    if status == 429:
        return "limited"
    return "unavailable" if status >= 500 else "refused"
