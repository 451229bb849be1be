"""The HTTP side of the playground: its files, the five requests of the page, and security headers.
Any other request is rejected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import astuple
from itertools import repeat
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from starlette.middleware.trustedhost import TrustedHostMiddleware

from cogr.errors import CogrError
from cogr.keywords import self_keyword
from cogr.snapshots import Row
from cogr.snapshots.writing import HEAVIEST
from indexers.backends import text_boost
from indexers.backends.opensearch.search import MAX_CLAUSES
from indexers.release.rules import rules_of
from indexers.workspace import Workspace
from ops.expander.app import AdmissionControl, RejectedError
from ops.expander.expander import Parts
from ops.expander.precomputed import weigh
from ops.playground import views
from ops.playground.views import (
    Catalogue,
    Listing,
    PageData,
    Search,
    Words,
    snapshots_of,
)

Text = Annotated[str, StringConstraints(max_length=4096)]
ItemSnapshot = Annotated[str, StringConstraints(pattern=r"^item-r\d{3,}-[0-9a-f]{12}$")]
QuerySnapshot = Annotated[str, StringConstraints(pattern=r"^query-r\d{3,}-[0-9a-f]{12}$")]


class PageRequest(BaseModel):
    """A request of the page; by itself that for the available pairs and data."""

    model_config = ConfigDict(extra="forbid", strict=True)


class WeightedText(PageRequest):
    """A keyword as typed, and its weight."""

    text: Text
    weight: float = Field(1.0, ge=0, le=HEAVIEST, allow_inf_nan=False)


class RequestedPair(PageRequest):
    """A pair of snapshots, and the keywords to search for instead of the query's own."""

    item: ItemSnapshot
    query: QuerySnapshot | None = None
    keywords: list[WeightedText] | None = Field(None, max_length=MAX_CLAUSES)


class SearchRequest(PageRequest):
    """A query to search with one pair, or with two side by side."""

    query: Text
    pairs: list[RequestedPair] = Field(min_length=1, max_length=2)
    size: int = Field(20, ge=1, le=200)


class QueriesRequest(PageRequest):
    """The labelled queries, with figures of one or two pairs."""

    pairs: list[RequestedPair] = Field(min_length=1, max_length=2)
    shown: int = Field(0, ge=0, le=1, description="The pair whose figures sort")
    match: Text = ""
    sort: views.Order = "worst"
    size: int = Field(50, ge=1, le=1000)


class BaselineRequest(PageRequest):
    """The same query by the words of the items' text, cut at the size of the set."""

    query: Text
    cut: int = Field(ge=0)
    size: int = Field(20, ge=1, le=200)


class ItemRequest(PageRequest):
    """One item of a pair."""

    id: Text
    pair: RequestedPair


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

    def answer(path: str, model: type[BaseModel], give: Callable[[Any], Any]) -> None:
        @app.post(f"/api/{path}")
        async def route(request: Request) -> dict[str, Any]:
            # Browsers let no page elsewhere send this type without asking first.
            if request.headers.get("content-type", "").partition(";")[0] != "application/json":
                raise RejectedError(415, "Send the header Content-Type: application/json.")
            asked = model.model_validate_json(await admission.read(request))
            words = await answers.words(asked) if isinstance(asked, SearchRequest) else []
            found: dict[str, Any] = await asyncio.to_thread(give, asked, *words)
            return found

    answer("page", PageRequest, answers.page)
    answer("search", SearchRequest, answers.search)
    answer("queries", QueriesRequest, answers.queries)
    answer("baseline", BaselineRequest, answers.baseline)
    answer("item", ItemRequest, answers.item)
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
    """Answers the page's requests, in threads."""

    def __init__(self, workspace: Workspace, parts: Parts) -> None:
        self._parts = parts
        self._data = PageData(workspace)
        self._listing = Listing(self._data)

    def page(self, _: PageRequest) -> dict[str, Any]:
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

    def search(self, ask: SearchRequest, *words: Words) -> dict[str, Any]:
        """One query with one pair or two, each as the page shows it."""
        catalogue, _ = self._catalogue()
        searches = [
            Search(ask.query, one, self._data.opened(asked.item), catalogue)
            for asked, one in zip(ask.pairs, words, strict=True)
        ]
        besides = searches[::-1] if len(searches) > 1 else [None]
        shown = [
            one.as_dict(ask.size, beside) for one, beside in zip(searches, besides, strict=True)
        ]
        return {"pairs": shown}

    def queries(self, ask: QueriesRequest) -> dict[str, Any]:
        """The labelled queries, with the figures of each pair."""
        pairs = [(pair.item, pair.query) for pair in ask.pairs]
        chosen = ask.model_dump(include={"shown", "match", "sort", "size"})
        return self._listing.answer(pairs, **chosen)

    def baseline(self, ask: BaselineRequest) -> dict[str, Any]:
        """The same query by the words of the items' text."""
        return views.baseline(self._data.catalogue, ask.query, ask.cut, ask.size)

    def item(self, ask: ItemRequest) -> dict[str, Any]:
        """One item of a pair."""
        items, query = self._data.opened(ask.pair.item), ask.pair.query
        queries = self._data.opened(query) if query else None
        return views.item(items, queries, self._catalogue()[0], ask.id)

    async def words(self, ask: SearchRequest) -> list[Words]:
        """The keywords that each pair of a search searches for: those of the page, those that the
        expander serves, or those of the pair's query snapshot.
        """
        pair = self._parts.follower.pair
        found = []
        for asked in ask.pairs:
            if asked.keywords is None and (asked.item, asked.query) == snapshots_of(pair):
                (one,) = (await self._parts.expander.expand([ask.query], pair)).expansions
                told = (one.source, one.reason, one.confidence)
                found.append(self._found(one.keywords, one.weights, *told))
            else:
                found.append(await asyncio.to_thread(self._unserved, ask.query, asked))
        return found

    def _unserved(self, query: str, asked: RequestedPair) -> Words:
        self._data.opened(asked.item)
        if asked.keywords is not None:
            given: dict[str, float] = {}
            for one in asked.keywords:
                if word := self_keyword(one.text):
                    given.setdefault(word, one.weight)
            weights = [*given.values()] if any(one != 1 for one in given.values()) else []
            return self._found([*given], weights, "given")
        row = self._data.opened(asked.query).row_of(query) if asked.query else None
        words, weights_ = weigh(self_keyword(query), row or Row("", "", ()))
        told = ("index", "", row.confidence) if row else ("none", "unknown")
        return self._found(words, weights_, *told)

    def _found(self, words: Sequence[str], weights: Sequence[float], *told: Any) -> Words:
        keywords = dict(zip(words, weights or repeat(1.0), strict=False))
        return Words(keywords, text_boost(weights, self._parts.settings.blend), *told)

    def _catalogue(self) -> tuple[Catalogue | None, str]:
        try:
            return self._data.catalogue, ""
        except CogrError as error:
            return None, str(error)
