"""The HTTP side of the expander: its routes, its answers as OpenAPI shows them, and how they are
written.

What is answered is decided in `expander`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from pydantic import BaseModel, Field
from pydantic_core import to_json
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from cogr import __version__
from cogr.snapshots.manifest import Mode
from indexers.backends.opensearch.search import clause, query_body
from ops.expander.admission import AdmissionControl, ExpandRequest, RejectedError
from ops.expander.expander import Expanded, Expansion, Parts
from ops.expander.follower import Pair

log = logging.getLogger(__name__)


class Snapshots(BaseModel):
    """The pair of snapshots that an answer belongs to."""

    item: str | None
    query: str | None


class ExpansionAnswer(BaseModel):
    """One query's keywords."""

    keywords: list[str] = Field(description="The normalised query first, then its keywords")
    weights: list[float] = Field(
        description="How much each keyword counts in the order of what is found, in their order"
    )
    confidence: float | None = Field(
        description="Expected F1 of what the keywords find, 0 to 1; null where it is unknown"
    )
    mode: Mode = Field(
        description="What to search by: the clause, the clause beside your own text query, or that"
    )
    text_boost: float = Field(description="Boost of your text query beside the clause")
    source: Literal["cache", "index", "model", "none"]
    reason: Literal["", "unknown", "deadline", "overloaded", "away", "empty"] = Field(
        description="Why, for the fallback none: the query alone"
    )
    clause: dict[str, Any] = Field(
        description="The OpenSearch query: put it where a query clause goes"
    )


class OneAnswer(ExpansionAnswer):
    """The answer to one query."""

    snapshots: Snapshots
    index: str | None = Field(
        description="The index to search, so that no rounds mix; null in the memory backend"
    )


class ManyAnswers(BaseModel):
    """The answers to several queries, in their order."""

    answers: list[ExpansionAnswer]
    snapshots: Snapshots
    index: str | None


class Problem(BaseModel):
    """Why a request was rejected. Never repeats the query."""

    detail: str


def write(expanded: Expanded, *, many: bool) -> bytes:
    """The JSON of an answer."""
    answers = [_answer(expansion) for expansion in expanded.expansions]
    body = (
        b'"answers":[%b]' % b",".join(b"{%b}" % answer for answer in answers)
        if many
        else answers[0]
    )
    return b"{%b,%b}" % (body, _pair(expanded.pair))


# Made once from `query_body`, since serialising its many small objects takes longer than all else:
# what stands before the first clause and after the last one, before and after each keyword, and
# before and after the boost of one that weighs something else than 1.
_MARK, _BOOST = "?", 0.5
_FIRST, _LAST = to_json(query_body([_MARK])).split(to_json(clause(_MARK)))
_BEFORE, _AFTER = to_json(clause(_MARK)).split(to_json(_MARK))
_TO_BOOST, _AFTER_BOOST = (
    to_json(clause(_MARK, boost=_BOOST)).split(to_json(_MARK))[1].split(to_json(_BOOST))
)
_NOTHING = to_json(query_body([]))


def _answer(expansion: Expansion) -> bytes:
    keywords = [to_json(word) for word in expansion.keywords]
    weights = (
        to_json(expansion.weights)[1:-1].split(b",")
        if expansion.weights
        else [_ONE] * len(keywords)
    )
    fields = (
        b",".join(keywords),
        b",".join(weights),
        to_json(expansion.confidence),
        to_json(expansion.mode),
        to_json(expansion.text_boost),
        to_json(expansion.source),
        to_json(expansion.reason),
        _clause(keywords, weights if expansion.weights else ()),
    )
    return _FIELDS % fields


_FIELDS = (
    b'"keywords":[%b],"weights":[%b],"confidence":%b,"mode":%b,"text_boost":%b,"source":%b,'
    b'"reason":%b,"clause":%b'
)
_ONE = to_json(1.0)
_BETWEEN = b"%b,%b" % (_AFTER, _BEFORE)


def _clause(keywords: Sequence[bytes], weights: Sequence[bytes]) -> bytes:
    if not keywords:
        return _NOTHING
    if not weights:
        return b"".join((_FIRST, _BEFORE, _BETWEEN.join(keywords), _AFTER, _LAST))
    clauses = [
        b"%b%b%b" % (_BEFORE, word, _AFTER)
        if weight == _ONE
        else b"%b%b%b%b%b" % (_BEFORE, word, _TO_BOOST, weight, _AFTER_BOOST)
        for word, weight in zip(keywords, weights, strict=True)
    ]
    return b"%b%b%b" % (_FIRST, b",".join(clauses), _LAST)


def _pair(pair: Pair) -> bytes:
    snapshots = {
        "item": pair.item and pair.item.snapshot,
        "query": pair.query and pair.query.snapshot,
    }
    return to_json({"snapshots": snapshots, "index": (pair.item and pair.item.index) or None})[1:-1]


_JSON = "application/json"
_REJECTIONS: dict[int | str, dict[str, Any]] = {
    401: {"model": Problem, "description": "The bearer token is missing or wrong"},
    408: {"model": Problem, "description": "The body took too long to arrive"},
    413: {"model": Problem, "description": "The body is too large"},
    422: {
        "model": Problem,
        "description": "No valid request, too many queries, or too long a query",
    },
    429: {"model": Problem, "description": "Too many requests of one client"},
}
_ROOT_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
_ROOT = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>CoGR query expander</title>
<h1>CoGR query expander</h1>
<p>It answers programs: <code>POST /expand</code> with
<code>{"query": "green velvet sofa"}</code>.</p>
<ul>
<li><a href="openapi.json">openapi.json</a>: every request and answer
<li><a href="readyz">readyz</a>: which pair of snapshots it follows
<li><a href="metrics">metrics</a>: what it counts
</ul>
<p><code>docs/serving.md</code> describes the service.
<code>cogr-ops serve --playground</code> has a page to search with.</p>
</html>
"""
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            _JSON: {
                "schema": ExpandRequest.model_json_schema(),
                "examples": {
                    "one": {"value": {"query": "green velvet sofa"}},
                    "several": {"value": {"queries": ["green velvet sofa", "floor lamp"]}},
                },
            }
        },
    }
}


class _App(FastAPI):
    """Answers `POST /expand` itself: the way through the framework's middleware, routes and checks
    takes a third of the time of an answer.
    """

    expand: Callable[[Request], Awaitable[Response]]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/expand" and scope["method"] == "POST":
            answer = await self.expand(Request(scope, receive))
            await answer(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


def create_app(parts: Parts, *, playground: bool = False) -> FastAPI:
    """The application over its parts; it starts them and closes them.

    Args:
        playground: whether `ops.playground` will be added, so that the root leads there instead of
            to the documentation.
    """
    admission = AdmissionControl(parts.settings)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        following = asyncio.create_task(parts.follower.run())
        yield
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await parts.close()

    app = _App(
        title="CoGR query expander",
        version=__version__,
        description="Keywords for queries, and the OpenSearch clause that searches for them.",
        lifespan=life,
        docs_url=None,
        redoc_url=None,
    )

    async def expand(request: Request) -> Response:
        """Keywords of one query or several, always within the deadline.

        Search the named index with the clause.
        """
        try:
            queries, many = await admission.admit(request)
            started = time.perf_counter()
            expanded = await parts.expander.expand(queries, parts.follower.pair)
            seconds = time.perf_counter() - started
            parts.metrics.seconds.observe(seconds)
            return Response(write(expanded, many=many), media_type=_JSON)
        except RejectedError as error:
            parts.metrics.rejected.labels(str(error.status)).inc()
            return _problem(error.status, error.detail, error.headers)
        except ClientDisconnect:
            return Response(status_code=400)
        except Exception as error:  # noqa: BLE001
            return _bug(parts, error)

    app.expand = expand
    app.add_api_route(
        "/expand",
        expand,
        methods=["POST"],
        responses={200: {"model": OneAnswer | ManyAnswers}, **_REJECTIONS},
        openapi_extra=_BODY,
    )
    _add_state_routes(app, parts, "playground/" if playground else "")

    @app.exception_handler(Exception)
    async def bug(_: Request, error: Exception) -> Response:
        return _bug(parts, error)

    return app


def _add_state_routes(app: FastAPI, parts: Parts, page: str) -> None:
    """The routes that are asked by GET; the root leads to `page`, where there is one."""

    @app.get("/", include_in_schema=False)
    async def root() -> Response:
        return RedirectResponse(page) if page else HTMLResponse(_ROOT, headers=_ROOT_HEADERS)

    @app.get("/healthz")
    async def healthz() -> dict[str, str]:
        """Whether the process lives."""
        return {"status": "ok"}

    @app.get("/readyz", responses={503: {"description": "Still starting"}})
    async def readyz(response: Response) -> dict[str, Any]:
        """Whether queries are answered.

        An upstream that is away does not change it: the query alone is an answer, the fallback.
        """
        ready = parts.follower.looked.is_set()
        response.status_code = 200 if ready else 503
        return {"ready": ready, **parts.state()}

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Counts for Prometheus."""
        return Response(parts.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _bug(parts: Parts, error: Exception) -> Response:
    parts.metrics.bugs.inc()
    log.error("Something unexpected; the request was answered with 500.", exc_info=error)
    return _problem(500, "Something went wrong here.")


def _problem(status: int, detail: str, headers: Mapping[str, str] | None = None) -> Response:
    return Response(Problem(detail=detail).model_dump_json(), status, headers, media_type=_JSON)
