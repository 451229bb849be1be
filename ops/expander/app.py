"""The HTTP side of the expander: its routes, the models of its answers for OpenAPI, and the server,
Granian, with its limits. `expander` makes the answers. Admission control checks bearer token, body
size, and the length of the query; a rejection names the limit or the field, and never
repeats a query.

The server speaks only HTTP/1.1 and ignores offers of another protocol (RFC 9110, section 7.8), such
as of Java's HttpClient. Slow heads and idle connections are closed. Connections take at most half
of the process's file descriptors; the kernel keeps the others waiting.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import resource
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Literal

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from granian import Granian
from granian.constants import HTTPModes, Interfaces, Loops
from granian.http import HTTP1Settings
from granian.log import LogLevels
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import to_json
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from cogr import __version__
from cogr.errors import ServiceError
from cogr.settings.serving import ServingSettings
from indexers.backends import Pair
from ops.expander.expander import Expansion, Parts, Reason, Source

READ_SECONDS = 5.0
"""Seconds for a head, and then for a body: a few kilobytes that take longer will not arrive."""
MAX_BODY_BYTES = 65_536
"""Largest body in bytes: enough for the most queries of the greatest usual length."""
MAX_QUERY_CHARS = 16_384
"""Longest query in characters: 1,000 words and more, though shoppers type few."""


class ExpandRequest(BaseModel):
    """The text of a query, as the shopper typed it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    query: str = Field(description="What a shopper typed", max_length=MAX_QUERY_CHARS)


class RejectedError(Exception):
    """A request is rejected: HTTP status, one sentence, headers."""

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers


class AdmissionControl:
    """The checks before a request is answered."""

    def __init__(self, settings: ServingSettings) -> None:
        self._token = settings.token.get_secret_value().encode() if settings.token else None

    async def read(self, request: Request) -> bytes:
        """The body of a request after all checks. Raises RejectedError."""
        self._check_token(request)
        try:
            async with asyncio.timeout(READ_SECONDS):
                return await _body(request)
        except TimeoutError:
            raise RejectedError(
                408, f"The request body must arrive within {READ_SECONDS:g} seconds.", _CLOSE
            ) from None

    def _check_token(self, request: Request) -> None:
        if self._token is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(
            given.strip().encode("utf-8", "replace"), self._token
        ):
            raise RejectedError(
                401, "Send the header Authorization: Bearer TOKEN.", {"www-authenticate": "Bearer"}
            )


_CLOSE = {"connection": "close"}


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY_BYTES:
            raise RejectedError(
                413, f"A request body may have at most {MAX_BODY_BYTES} bytes.", _CLOSE
            )
    return bytes(body)


def _query(body: bytes) -> str:
    try:
        return ExpandRequest.model_validate_json(body).query
    except ValidationError as error:
        raise RejectedError(422, _explain(error)) from None


def _explain(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return "The body is not valid JSON."
    # Other parts of the place may be a query.
    known = ExpandRequest.model_fields
    where = ".".join(str(part) for part in first["loc"] if part in known or isinstance(part, int))
    return f'{where or "the body"}: {first["msg"]}; send {{"query": "..."}}.'


log = logging.getLogger(__name__)

START_SECONDS = 10.0
"""Most seconds that the start waits for the serving pair and for Redis."""


class Snapshots(BaseModel):
    """The pair of snapshots that an answer belongs to."""

    item: str | None
    query: str | None


class OneAnswer(BaseModel):
    """The keywords of one query, and the clause to search with."""

    keywords: list[str] = Field(description="The normalised query first, then its keywords")
    weights: list[float] = Field(
        description="How much each keyword counts in the order of what is found, in their order"
    )
    confidence: float | None = Field(
        description="Expected F1 of what the keywords find, 0 to 1; null where it is unknown"
    )
    text_boost: float = Field(description="Weight of the text's score beside the keywords'")
    source: Source
    reason: Reason = Field(
        description="Why, for the fallback none (the query alone): the query is unknown, the pair "
        "or its model is being loaded, the deadline passed, there are too many requests, an "
        "upstream is away, or nothing is left of the query"
    )
    clause: dict[str, Any] = Field(
        description="The OpenSearch query: first the set, then what more the text finds"
    )
    set: dict[str, Any] = Field(
        description="The query of the set alone, as a filter for its count and facets"
    )
    snapshots: Snapshots
    index: str | None = Field(
        description="The index to search, so that no rounds mix; null in the memory backend"
    )


class Problem(BaseModel):
    """Why a request was rejected. Never repeats the query."""

    detail: str


def _write(expansion: Expansion, pair: Pair, parts: Parts) -> bytes:
    """The JSON of an answer, from one pair."""
    item, keywords = pair.item, expansion.keywords
    nothing: dict[str, Any] = {"match_none": {}}
    clause, own = parts.index.bodies(pair, expansion) if keywords else (nothing, nothing)
    answer = {
        "keywords": list(keywords),
        "weights": list(keywords.values()),
        "confidence": expansion.confidence,
        "text_boost": expansion.words.boost,
        "source": expansion.source,
        "reason": expansion.reason,
        "clause": clause,
        "set": own,
        "snapshots": {
            "item": item and item.snapshot,
            "query": pair.query and pair.query.snapshot,
        },
        "index": (item and item.index) or None,
    }
    return to_json(answer)


_JSON = "application/json"
_REJECTIONS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": description}
    for status, description in {
        401: "The bearer token is missing or wrong",
        408: "The body took too long to arrive",
        413: "The body is too large",
        422: "No valid request, or too long a query",
    }.items()
}


async def _expand(parts: Parts, admission: AdmissionControl, request: Request) -> Response:
    try:
        query = _query(await admission.read(request))
        started, pair = time.perf_counter(), parts.follower.pair
        expansion = await parts.expander.expand(query, pair)
        parts.metrics.seconds.observe(time.perf_counter() - started)
        return Response(_write(expansion, pair, parts), media_type=_JSON)
    except RejectedError as error:
        parts.metrics.rejected.labels(str(error.status)).inc()
        return _problem(error.status, error.detail, error.headers)
    except ClientDisconnect:
        return Response(status_code=400)
    except Exception as error:  # noqa: BLE001
        return _bug(parts, error)


class _App(FastAPI):
    expand: Callable[[Request], Awaitable[Response]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/expand" and scope["method"] == "POST":
            answer = await self.expand(Request(scope, receive))
            await answer(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create_app(
    parts: Parts, *, playground: bool = False, started: Callable[[], None] = lambda: None
) -> FastAPI:
    """The application with its parts, which it starts and closes."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        following = asyncio.create_task(parts.follower.run())
        # The first query finds the pair read and the connections open.
        starting = asyncio.create_task(parts.started())
        await asyncio.wait({starting}, timeout=START_SECONDS)
        started()
        yield
        starting.cancel()
        following.cancel()
        await asyncio.gather(starting, following, return_exceptions=True)
        await parts.close()

    app = _App(
        title="CoGR query expander",
        version=__version__,
        description="Keywords for queries, and the OpenSearch clause that searches for them.",
        lifespan=life,
        docs_url=None,
        redoc_url=None,
    )
    app.expand = partial(_expand, parts, AdmissionControl(parts.settings))

    @app.post("/expand", responses=_REJECTIONS)
    async def expand(_: ExpandRequest) -> OneAnswer:
        """Keywords of a query, always within the deadline.

        Search the named index with the clause.
        """
        raise AssertionError("`_App` answers; this is for the OpenAPI document")

    _add_state_routes(app, parts, "playground/" if playground else "openapi.json")

    @app.exception_handler(Exception)
    async def bug(_: Request, error: Exception) -> Response:
        return _bug(parts, error)

    return app


def _add_state_routes(app: FastAPI, parts: Parts, page: str) -> None:
    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        return RedirectResponse(page)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Status 200 while the process lives, whatever serves."""
        return {"status": "ok"}

    @app.get("/readyz", responses={503: {"description": "Still starting, or no whole pair serves"}})
    async def readyz(response: Response, exclude: Literal["", "warnings"] = "") -> dict[str, Any]:
        """Whether queries are answered, and what serves is a whole pair; else `problems` says what
        is missing or wrong and which command mends it.

        An unreachable upstream does not change it: the fallback, the query alone, is an answer too.
        A load balancer excludes warnings: what serves is less than it was, but still of use.
        """
        follower = parts.follower
        wrong = follower.pair.flaws or (not exclude and follower.pair.warnings)
        ready = follower.looked.is_set() and not wrong
        response.status_code = 200 if ready else 503
        return {"ready": ready, **parts.state()}

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """The expander's metrics in Prometheus' text format."""
        return Response(parts.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _bug(parts: Parts, error: Exception) -> Response:
    parts.metrics.bugs.inc()
    log.error("Something unexpected; the request was answered with 500.", exc_info=error)
    return _problem(500, "Something went wrong here.")


def _problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(Problem(detail=detail).model_dump_json(), status, headers, media_type=_JSON)


HEAD_BYTES = 16_384
"""Largest head; over it 431."""
CONNECTIONS = 10_000
"""Most connections at once, if there are enough file descriptors."""
_GRACE = 10
"""Seconds that open connections have when the server is to end; then they are cut."""
_WAITING = 2048
"""Connections that the kernel keeps waiting."""


def free_address(host: str, port: int) -> tuple[str, int]:
    """The IP address and port to listen on; a port of 0 becomes a free one. Raises ServiceError."""
    try:
        # The server opens its port for sharing, so another server on the same port would go
        # unnoticed.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.create_server((host, port), family=family) as probe:
            address: tuple[str, int] = probe.getsockname()[:2]
    except OSError as error:
        raise ServiceError(
            f"Nothing can listen on {host}:{port} ({error.strerror}); choose another --host or "
            "--port."
        ) from error
    return address


def serve_expander(make: Callable[[], FastAPI], address: tuple[str, int]) -> None:
    """Serve the application that `make` gives, in one worker process, until SIGTERM or SIGINT.
    Requests under way are finished. Raises ServiceError.
    """
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    server = Granian(
        "",
        address=address[0],
        port=address[1],
        interface=Interfaces.ASGI,
        loop=Loops.uvloop,
        http=HTTPModes.http1,
        websockets=False,
        backlog=_WAITING,
        # Half of the descriptors are left for files and upstreams.
        backpressure=min(CONNECTIONS, descriptors // 2),
        http1_settings=HTTP1Settings(
            header_read_timeout=round(1000 * READ_SECONDS),
            max_buffer_size=HEAD_BYTES,
            pipeline_flush=True,
        ),
        workers_kill_timeout=_GRACE,
        log_level=LogLevels.error,
        log_dictconfig={"loggers": {"_granian": {"propagate": True}}},
    )
    try:
        server.serve(target_loader=make, wrap_loader=False)
    except SystemExit as ended:
        raise ServiceError("The HTTP server ended by itself; the lines above say why.") from ended
