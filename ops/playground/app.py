"""The HTTP side of the playground: its files, the five requests of the page, and security headers.
Any other request is rejected.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    TypeAdapter,
    ValidationError,
    validate_call,
)
from starlette.middleware.trustedhost import TrustedHostMiddleware

from cogr.errors import CogrError
from cogr.keywords import self_keyword
from cogr.snapshots.writing import HEAVIEST
from indexers.backends import text_boost
from indexers.backends.opensearch.search import MAX_CLAUSES
from indexers.release.rules import rules_of
from indexers.workspace import Workspace
from ops.expander.app import AdmissionControl, RejectedError
from ops.expander.expander import Expansion, Parts
from ops.expander.precomputed import weigh
from ops.playground import views
from ops.playground.views import (
    Catalogue,
    Listing,
    PageData,
    Search,
    snapshots_of,
)

Text = Annotated[str, StringConstraints(max_length=4096)]
ItemSnapshot = Annotated[str, StringConstraints(pattern=r"^item-r\d{3,}-[0-9a-f]{12}$")]
QuerySnapshot = Annotated[str, StringConstraints(pattern=r"^query-r\d{3,}-[0-9a-f]{12}$")]


Size = Annotated[int, Field(ge=1, le=200)]


class WeightedText(BaseModel):
    """A keyword as typed, and its weight."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: Text
    weight: float = Field(1.0, ge=0, le=HEAVIEST, allow_inf_nan=False)


class RequestedPair(BaseModel):
    """A pair of snapshots, and the keywords to search for instead of the query's own."""

    model_config = ConfigDict(extra="forbid", strict=True)

    item: ItemSnapshot
    query: QuerySnapshot | None = None
    keywords: list[WeightedText] | None = Field(None, max_length=MAX_CLAUSES)


Pairs = Annotated[list[RequestedPair], Field(min_length=1, max_length=2)]
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
_EXAMPLES = 6


def add_playground(
    expander: FastAPI, workspace: Workspace, parts: Parts, hosts: Sequence[str] = ()
) -> None:
    """Mount the page at /playground of the expander's application, whose parts it asks for
    keywords.
    """
    expander.mount("/playground", _create(workspace, parts, hosts))


def _create(workspace: Workspace, parts: Parts, hosts: Sequence[str]) -> FastAPI:
    app = FastAPI(title="CoGR playground", openapi_url=None)
    # A page elsewhere whose name is made to lead here (DNS rebinding) has another host.
    app.add_middleware(
        TrustedHostMiddleware, allowed_hosts=[*LOCAL_HOSTS, *hosts], www_redirect=False
    )
    answers = Answers(workspace, parts)
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
                found: dict[str, Any] = await checked(**asked)
            else:
                found = await asyncio.to_thread(checked, **asked)
            return found

    for give in (answers.page, answers.search, answers.queries, answers.baseline, answers.item):
        answer(give)
    _reject_in_sentences(app)
    app.mount("/", StaticFiles(directory=STATIC, html=True))
    return app


def _reject_in_sentences(app: FastAPI) -> None:
    @app.exception_handler(RejectedError)
    async def rejected(_: Request, error: RejectedError) -> Response:
        return JSONResponse({"detail": error.detail}, error.status, error.headers)

    @app.exception_handler(ValidationError)
    async def unknown(_: Request, __: ValidationError) -> Response:
        return JSONResponse(
            {"detail": "The page asked something unknown or too large; reload it."}, 422
        )

    @app.exception_handler(CogrError)
    async def failed(_: Request, error: CogrError) -> Response:
        return JSONResponse({"detail": str(error)}, 409)


class Answers:
    """Answers the page's requests."""

    def __init__(self, workspace: Workspace, parts: Parts) -> None:
        self._parts = parts
        self._data = PageData(workspace)
        self._listing = Listing(self._data)

    def page(self) -> dict[str, Any]:
        """The pairs to choose from, and what the data set holds."""
        pair = self._parts.follower.pair
        pairs = self._data.pairs(pair)
        choices = [views.listed(one, pair) for one in pairs]
        catalogue, problem = self._catalogue()
        absent = pair.item is not None and not any(choice["serving"] for choice in choices)
        return {
            "pairs": choices,
            "absent": pair.item.snapshot if pair.item and absent else None,
            "data": catalogue and catalogue.counts,
            "rules": [astuple(rule) for rule in rules_of(pairs[0][0])] if pairs else [],
            "examples": catalogue.examples(_EXAMPLES) if catalogue else [],
            "problem": problem,
        }

    async def search(self, query: Text, pairs: Pairs, size: Size = 20) -> dict[str, Any]:
        """One query with one pair, or with two side by side."""
        words = [await self._words(query, asked) for asked in pairs]
        boosts = [text_boost(one.weights, self._parts.settings.blend) for one in words]

        def searched() -> list[dict[str, Any]]:
            catalogue, _ = self._catalogue()
            searches = [
                Search(query, one, boost, self._data.opened(asked.item), catalogue)
                for asked, one, boost in zip(pairs, words, boosts, strict=True)
            ]
            besides = searches[::-1] if len(searches) > 1 else [None]
            return [one.as_dict(size, of) for one, of in zip(searches, besides, strict=True)]

        return {"pairs": await asyncio.to_thread(searched)}

    def queries(
        self,
        pairs: Pairs,
        shown: Annotated[int, Field(ge=0, le=1)] = 0,
        sort: views.Order = "worst",
    ) -> dict[str, Any]:
        """The labelled queries, with figures of one or two pairs; those of pair `shown` sort."""
        return self._listing.answer([(pair.item, pair.query) for pair in pairs], shown, sort)

    def baseline(
        self, query: Text, cut: Annotated[int, Field(ge=0)], size: Size = 20
    ) -> dict[str, Any]:
        """The same query by the words of the items' text, cut at the size of the set."""
        return views.baseline(self._data.catalogue, query, cut, size)

    def item(self, id: Text, pair: RequestedPair) -> dict[str, Any]:
        """One item of a pair."""
        items = self._data.opened(pair.item)
        queries = self._data.opened(pair.query) if pair.query else None
        return views.item(items, queries, self._catalogue()[0], id)

    async def _words(self, query: str, asked: RequestedPair) -> Expansion:
        """The keywords to search for: those of the page, those that the expander serves, or those
        of the pair's query snapshot.
        """
        pair = self._parts.follower.pair
        if asked.keywords is not None or (asked.item, asked.query) != snapshots_of(pair):
            return await asyncio.to_thread(self._unserved, query, asked)
        return await self._parts.expander.expand(query, pair)

    def _unserved(self, query: str, asked: RequestedPair) -> Expansion:
        self._data.opened(asked.item)
        if asked.keywords is not None:
            given: dict[str, float] = {}
            for one in asked.keywords:
                if word := self_keyword(one.text):
                    given.setdefault(word, one.weight)
            weights = [*given.values()] if any(one != 1 for one in given.values()) else []
            return Expansion([*given], "none", weights=weights)
        text = self_keyword(query)
        row = self._data.opened(asked.query).row_of(query) if asked.query else None
        if row is None:
            return Expansion([text] if text else [], "none", "unknown")
        words, row_weights = weigh(text, row)
        return Expansion(words, "index", "", row_weights, row.confidence)

    def _catalogue(self) -> tuple[Catalogue | None, str]:
        try:
            return self._data.catalogue, ""
        except CogrError as error:
            return None, str(error)
