"""How requests reach an OpenAI-compatible endpoint: an HTTP client that limits how many are in
flight, retries included, and the forms of a request.

Endpoints disagree: OpenAI refuses top_k, its newer models `max_tokens` too, others know no
`max_completion_tokens`. The forms are tried from the one with the most parameters on; a form that
is refused for a parameter is followed by the next one. Imports openai when a client is made.

How many requests are in flight at once grows while the endpoint answers well and shrinks when it is
overloaded (AIMD), as TCP does it: up by one for each round of good answers (by one for each answer
until the first trouble), down to half when the endpoint says that it is too much (429, 503) or
gives no answer in time, down a little when answers take longer than they should. A round trip
brings one cut at most, however many requests of it fail.
"""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from cogr.settings import Sampling
from indexers.generators.model_folders import first_line
from indexers.telemetry import prometheus


def limited_http_client(gate: Gate) -> Any:
    """The HTTP client for `openai.AsyncOpenAI`: the library's own (proxies from the environment
    included), with every attempt going through the gate.
    """
    from openai import DefaultAsyncHttpxClient

    http = _library_of(DefaultAsyncHttpxClient)

    class LimitedClient(DefaultAsyncHttpxClient):  # type: ignore[misc]
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

    return LimitedClient(limits=http.Limits(max_connections=None, max_keepalive_connections=None))


def _library_of(client: type) -> Any:
    """The HTTP library that openai's client is made with: httpx, since openai 3 httpx2, and only
    that one is installed with it.
    """
    made_with = next(one for one in client.__mro__ if one.__name__ == "AsyncClient")
    return importlib.import_module(made_with.__module__.partition(".")[0])


def outcome_of(status: int) -> Outcome:
    """What an HTTP status says about the endpoint."""
    if status < 400:
        return "answered"
    if status == 429:
        return "limited"
    return "unavailable" if status >= 500 else "refused"


_SAID = 300
_TOO_LONG = (
    "context length",
    "context_length",
    "maximum context",
    "too long",
    "too many tokens",
    "max_model_len",
)
_EXTRA = ("top_k", "chat_template_kwargs", "enable_thinking")
# Messages of servers that refuse an unknown parameter without naming it.
_UNNAMED = (
    "unrecognized",
    "unknown",
    "unexpected",
    "unsupported",
    "not permitted",
    "extra",
    "additional propert",
)


@dataclass(frozen=True)
class Form:
    """One way to ask.

    Attributes:
        limit: the parameter that bounds the answer's length.
        extra: whether `top_k` and the switch that turns thinking off are sent; OpenAI's own API has
            neither.
        without: what this form leaves out or spells otherwise, compared with the one before it.
    """

    limit: Literal["max_tokens", "max_completion_tokens"]
    extra: bool
    without: str

    def body(
        self, model: str, messages: Sequence[Mapping[str, str]], sampling: Sampling
    ) -> dict[str, Any]:
        """The arguments of openai's `chat.completions.create`."""
        body: dict[str, Any] = {
            "model": model,
            "messages": messages,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            self.limit: sampling.max_tokens,
        }
        beyond = {"top_k": sampling.top_k or -1, "chat_template_kwargs": {"enable_thinking": False}}
        return body | {"extra_body": beyond} if self.extra else body

    def is_blamed(self, error: Exception) -> bool:
        """Whether a refusal is about a parameter that this form has and the next one does not."""
        text = str(error).lower()
        if is_too_long(error) and self.limit not in text:
            return False
        if self.extra:
            return any(word in text for word in (*_EXTRA, *_UNNAMED, self.limit))
        return self.limit in text


_FULL = Form("max_tokens", extra=True, without="")
_PLAIN = Form("max_tokens", extra=False, without="top_k and chat_template_kwargs")
_NEWEST = Form("max_completion_tokens", extra=False, without="max_tokens")
FORMS: Sequence[Form] = (_FULL, _PLAIN, _NEWEST)
"""The forms in the order in which they are tried. An endpoint with OpenAI's API alone refuses the
first.
"""


def is_too_long(error: Exception) -> bool:
    """Whether a refusal says that the prompt does not fit."""
    text = str(error).lower()
    return any(sign in text for sign in _TOO_LONG)


def said_by(error: BaseException) -> str:
    """What an endpoint says in a refusal, without the JSON around it; else the error's own first
    line. At most 300 characters.
    """
    body = getattr(error, "body", None)
    message = body.get("message") or body.get("detail") if isinstance(body, dict) else None
    words = " ".join(message.split()) if isinstance(message, str) else first_line(error)
    return words[:_SAID]


Outcome = Literal["answered", "limited", "unavailable", "timeout", "lost", "refused"]
"""answered: well. limited: 429. unavailable: 5xx. lost: the connection broke. refused: any other
status.
"""

REQUESTS = prometheus.counter(
    "cogr_endpoint_requests_total", "Requests to the generator's endpoint, retries too", "outcome"
)
SECONDS = prometheus.histogram(
    "cogr_endpoint_request_duration_seconds", "How long an answer of the endpoint took"
)
IN_FLIGHT = prometheus.gauge("cogr_endpoint_requests_in_flight", "Requests under way now")
LIMIT = prometheus.gauge(
    "cogr_endpoint_requests_limit", "Requests that may be under way at once, as adapted"
)

START = 8
"""Requests at once at the beginning."""
_CUT, _EASE = 0.5, 0.9
_OVERLOADED: frozenset[Outcome] = frozenset({"limited", "unavailable", "timeout"})
_REMEMBERED = 0.8


@dataclass
class Limit:
    """How many requests may be in flight now, and the rule that adapts it. Times are seconds of one
    clock.

    Attributes:
        least, most: bounds.
        target: seconds that an answer should take at most, on average.
        limit: as adapted; a request may begin while fewer are under way.
    """

    least: int
    most: int
    target: float
    limit: float = field(init=False)
    _eager: bool = True
    _cut_at: float = 0.0
    _latency: float | None = None

    def __post_init__(self) -> None:
        self.limit = float(max(self.least, min(START, self.most)))

    def learn(self, outcome: Outcome, started: float, now: float, *, crowded: bool) -> None:
        """Adapt the limit to the outcome of a request.

        Args:
            started, now: when the request began and ended.
            crowded: whether the limit was reached; otherwise a good answer says nothing about a
                higher limit.
        """
        # A request that began before the last cut says nothing about the new limit.
        news = started >= self._cut_at
        if outcome in _OVERLOADED:
            if news:
                self._shrink(_CUT, now)
            return
        if outcome != "answered":
            return
        took = now - started
        self._latency = (
            took
            if self._latency is None
            else _REMEMBERED * self._latency + (1 - _REMEMBERED) * took
        )
        if self._latency > self.target:
            if news:
                self._shrink(_EASE, now)
                self._latency = None
        elif crowded:
            self.limit = min(
                float(self.most), self.limit + (1.0 if self._eager else 1.0 / self.limit)
            )

    def _shrink(self, factor: float, now: float) -> None:
        self.limit = max(float(self.least), self.limit * factor)
        self._eager = False
        self._cut_at = now


class Gate:
    """Lets requests pass while the limit allows. Belongs to one event loop."""

    def __init__(self, limit: Limit) -> None:
        self.limit = limit
        self._running = 0
        self._changed = asyncio.Condition()

    @asynccontextmanager
    async def passing(self) -> AsyncIterator[Passage]:
        """Wait until a request may start. The block is one request and sets its outcome."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._running < int(self.limit.limit))
            self._running += 1
        IN_FLIGHT.inc()
        passage = Passage(time.monotonic())
        crowded = self._running >= int(self.limit.limit)
        try:
            yield passage
        finally:
            now = time.monotonic()
            self._running -= 1
            IN_FLIGHT.dec()
            if passage.outcome is not None:
                self.limit.learn(passage.outcome, passage.started, now, crowded=crowded)
                REQUESTS.labels(passage.outcome).inc()
                SECONDS.observe(now - passage.started)
                LIMIT.set(int(self.limit.limit))
            async with self._changed:
                self._changed.notify_all()


@dataclass
class Passage:
    """One request under way. Without an outcome it was cancelled here and says nothing about the
    endpoint.
    """

    started: float
    outcome: Outcome | None = None
