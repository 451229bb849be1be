"""The playground, `cogr-ops serve --playground`: a page that shows what keywords do to a search.
Here are its files, the five requests of the page, and security headers; any other request is
rejected.

Hits of the pair that serves are the cluster's own. All else is computed by the mirror from the
store's snapshots, because it retrieves and scores keywords as the cluster does, bit for bit, also
for snapshots that no cluster holds. `views` makes the answers,
`static/` is the page itself. It changes nothing, and it is not a part of serving searches.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from pydantic import ConfigDict, TypeAdapter, ValidationError, validate_call
from starlette.middleware.trustedhost import TrustedHostMiddleware

from cogr.errors import CogrError
from indexers.workspace import Workspace
from ops.expander.app import AdmissionControl, RejectedError
from ops.expander.expander import Parts
from ops.playground.views import PlaygroundAnswers

_BODY = TypeAdapter(dict[str, Any])
LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
STATIC = Path(__file__).parent / "static"
# No content from other origins, no inline scripts or styles, no text as markup.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for "
    "'script'; trusted-types 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def add_playground(
    expander: FastAPI, workspace: Workspace, parts: Parts, hosts: Sequence[str] = ()
) -> None:
    """Mount the page at /playground of the expander's application, whose parts it asks for
    keywords.
    """
    app = FastAPI(title="CoGR playground", openapi_url=None)
    # A page elsewhere whose name is made to lead here (DNS rebinding) has another host.
    app.add_middleware(
        TrustedHostMiddleware, allowed_hosts=[*LOCAL_HOSTS, *hosts], www_redirect=False
    )
    answers = PlaygroundAnswers(workspace, parts)
    admission = AdmissionControl(parts.settings)

    @app.middleware("http")
    async def headers(
        request: Request, call_next: Callable[[Request], Awaitable[Response]]
    ) -> Response:
        response = await call_next(request)
        response.headers.update(_HEADERS)
        return response

    def answer(give: Callable[..., Any]) -> None:
        checked = validate_call(config=ConfigDict(strict=True))(give)

        @app.post(f"/api/{give.__name__}")
        async def route(request: Request) -> dict[str, Any]:
            # Browsers let no page elsewhere send this type without asking first.
            if request.headers.get("content-type", "").partition(";")[0] != "application/json":
                raise RejectedError(415, "Send the header Content-Type: application/json.")
            asked = _BODY.validate_json(await admission.read(request))
            if inspect.iscoroutinefunction(give):
                result: dict[str, Any] = await checked(**asked)
            else:
                result = await asyncio.to_thread(checked, **asked)
            return result

    for give in (answers.page, answers.search, answers.queries, answers.baseline, answers.item):
        answer(give)
    _reject_in_sentences(app)
    app.mount("/", StaticFiles(directory=STATIC, html=True))
    expander.mount("/playground", app)


def _reject_in_sentences(app: FastAPI) -> None:
    @app.exception_handler(RejectedError)
    async def rejected(_: Request, error: RejectedError) -> Response:
        return JSONResponse({"detail": error.detail}, error.status, error.headers)

    @app.exception_handler(ValidationError)
    async def unknown(_: Request, __: ValidationError) -> Response:
        detail = (
            "The page sent a request that this server does not know or that is too large; reload "
            "the page."
        )
        return JSONResponse({"detail": detail}, 422)

    @app.exception_handler(CogrError)
    async def failed(_: Request, error: CogrError) -> Response:
        return JSONResponse({"detail": str(error)}, 409)
