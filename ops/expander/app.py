"""The HTTP side of the expander: routes, refusals, life.

What is answered is decided in `expander`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from ops.expander.door import Door, RefusedError
from ops.expander.expander import Expanded
from ops.expander.parts import Parts
from ops.expander.schema import Ask, ManyAnswers, OneAnswer, Problem, write

log = logging.getLogger(__name__)

_JSON = "application/json"
_REFUSALS: dict[int | str, dict[str, Any]] = {
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
<p>It answers programs: <code>POST /expand</code> with <code>{"query": "green velvet sofa"}</code>.</p>
<ul>
<li><a href="openapi.json">openapi.json</a>: every request and answer
<li><a href="readyz">readyz</a>: which pair of snapshots it follows
<li><a href="metrics">metrics</a>: what it counts
</ul>
<p><code>docs/serving.md</code> describes the service. <code>cogr-ops serve --playground</code> has a page to search with.</p>
</html>
"""
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            _JSON: {
                "schema": Ask.model_json_schema(),
                "examples": {
                    "one": {"value": {"query": "green velvet sofa"}},
                    "several": {"value": {"queries": ["green velvet sofa", "floor lamp"]}},
                },
            }
        },
    }
}


class _Direct(APIRoute):
    """A route whose endpoint reads the request and writes the answer itself; FastAPI's own reading
    would come on top of it.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler: Callable[[Request], Coroutine[Any, Any, Response]] = self.endpoint
        return handler


def create_app(parts: Parts, *, playground: bool = False) -> FastAPI:
    """The application over its parts; it starts them and closes them.

    Args:
        playground: whether `ops.playground` will be added, so that the root leads there instead of
            to the documentation.
    """
    settings, door = parts.settings, Door(parts.settings)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        following = asyncio.create_task(parts.follower.run())
        yield
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await parts.close()

    app = FastAPI(
        title="CoGR query expander",
        description="Keywords for queries, and the OpenSearch clause that searches for them.",
        lifespan=life,
        docs_url=None,
        redoc_url=None,
    )

    async def expand(request: Request) -> Response:
        """Keywords of one query or several, always within the deadline.

        Search the named index with the clause.
        """
        queries, many = await door.admit(request)
        started = time.perf_counter()
        expanded = await parts.expander.expand(queries, parts.follower.pair)
        seconds = time.perf_counter() - started
        parts.metrics.seconds.observe(seconds)
        if settings.log_queries:
            _log(queries, expanded, seconds)
        return Response(write(expanded, many=many), media_type=_JSON)

    app.router.add_api_route(
        "/expand",
        expand,
        methods=["POST"],
        responses={200: {"model": OneAnswer | ManyAnswers}, **_REFUSALS},
        openapi_extra=_BODY,
        route_class_override=_Direct,
    )

    _add_looks(app, parts, "playground/" if playground else "")
    _add_refusals(app, parts)
    return app


def _add_looks(app: FastAPI, parts: Parts, page: str) -> None:
    """What is asked by GET; the root leads to `page`, where there is one."""

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

        An upstream that is away does not change it: the bare query is an answer.
        """
        ready = parts.follower.looked.is_set()
        response.status_code = 200 if ready else 503
        return {"ready": ready, **parts.state()}

    @app.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Counts for Prometheus."""
        return Response(parts.metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_refusals(app: FastAPI, parts: Parts) -> None:
    @app.exception_handler(RefusedError)
    async def refused(_: Request, error: RefusedError) -> Response:
        parts.metrics.refused.labels(str(error.status)).inc()
        return Response(
            Problem(detail=error.detail).model_dump_json(),
            error.status,
            error.headers,
            media_type=_JSON,
        )

    @app.exception_handler(Exception)
    async def bug(_: Request, error: Exception) -> Response:
        parts.metrics.bugs.inc()
        log.error("Something unexpected; the request was answered with 500.", exc_info=error)
        return Response(
            Problem(detail="Something went wrong here.").model_dump_json(), 500, media_type=_JSON
        )

    @app.exception_handler(ClientDisconnect)
    async def gone(_: Request, __: ClientDisconnect) -> Response:
        return Response(status_code=400)


def _log(queries: list[str], expanded: Expanded, seconds: float) -> None:
    for query, expansion in zip(queries, expanded.expansions, strict=True):
        log.info("%r: %s %s in %.1f ms", query, expansion.source, expansion.reason, 1000 * seconds)
