"""Who may come in and how much they may bring: body size, batch and query length, bearer token,
rate limit.

Refusals name the limit or the field, and never repeat a query.
"""

from __future__ import annotations

import asyncio
import difflib
import hmac
import re
from collections.abc import Sequence

from fastapi import Request
from pydantic import ValidationError

from cogr.errors import SettingsError
from cogr.settings.serving import ServingSettings
from ops.expander.schema import Ask

READ_SECONDS = 5.0
"""Time for a head, and then for a body: a few kilobytes that take longer never come."""
MAX_BODY_BYTES = 65_536
"""Largest body: room for the most queries of the usual longest."""
MAX_QUERIES = 64
"""Most queries of a request; more belong into several, which share out over processes."""
_NAME = re.compile(r"[A-Za-z_]{1,20}")
"""A field's name that is repeated; anything else may be a query in the wrong place."""


class RefusedError(Exception):
    """A request that is not answered: HTTP status, one sentence, headers."""

    def __init__(self, status: int, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class Door:
    """The checks before a request is answered.

    Raises:
        SettingsError: serving.rate_limit is none.
    """

    def __init__(self, settings: ServingSettings) -> None:
        self._settings = settings
        self._token = settings.token.get_secret_value().encode() if settings.token else None
        self._rate = _Rate(settings.rate_limit) if settings.rate_limit else None

    async def admit(self, request: Request) -> tuple[list[str], bool]:
        """The queries of a request, and whether it has the form for several.

        Raises RefusedError.
        """
        return self._queries(await self.read(request))

    async def read(self, request: Request) -> bytes:
        """The body of a request that may come in. Raises RefusedError."""
        self._check_token(request)
        if self._rate is not None:
            await self._rate.check(request.client.host if request.client else "")
        return await self._body(request)

    def _check_token(self, request: Request) -> None:
        if self._token is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(
            given.strip().encode("utf-8", "replace"), self._token
        ):
            raise RefusedError(
                401, "Send the header Authorization: Bearer TOKEN.", www_authenticate="Bearer"
            )

    async def _body(self, request: Request) -> bytes:
        """The body, read no further and no longer than the limits."""
        most, seconds, parts, size = (
            MAX_BODY_BYTES,
            READ_SECONDS,
            [],
            0,
        )
        try:
            async with asyncio.timeout(seconds):
                async for part in request.stream():
                    size += len(part)
                    if size > most:
                        raise RefusedError(
                            413, f"A request body has at most {most} bytes.", connection="close"
                        )
                    parts.append(part)
        except TimeoutError:
            raise RefusedError(
                408, f"A request body arrives within {seconds:g} seconds.", connection="close"
            ) from None
        return b"".join(parts)

    def _queries(self, body: bytes) -> tuple[list[str], bool]:
        try:
            ask = Ask.model_validate_json(body)
        except ValidationError as error:
            raise RefusedError(422, _explain(error)) from None
        if (ask.query is None) == (ask.queries is None):
            raise RefusedError(422, 'Send {"query": "..."} or {"queries": ["...", "..."]}.')
        queries = [ask.query] if ask.query is not None else list(ask.queries or ())
        self._check_sizes(queries)
        return queries, ask.query is None

    def _check_sizes(self, queries: Sequence[str]) -> None:
        if len(queries) > MAX_QUERIES:
            raise RefusedError(422, f"A request has at most {MAX_QUERIES} queries.")
        if any(len(query) > self._settings.max_query_chars for query in queries):
            raise RefusedError(
                422, f"A query has at most {self._settings.max_query_chars} characters."
            )


def _explain(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return "The body is no valid JSON."
    if first["type"] == "extra_forbidden":
        return _unknown(str(first["loc"][-1]))
    where = ".".join(
        str(part) for part in first["loc"] if part in Ask.model_fields or isinstance(part, int)
    )
    return f"{where or 'the body'}: {first['msg']}."


def _unknown(field: str) -> str:
    """A field that no request has, and the nearest one that it may have."""
    near = (*difflib.get_close_matches(field.lower(), Ask.model_fields, n=1), "query")[0]
    shown = f'The field "{field}"' if _NAME.fullmatch(field) else "A field"
    return f'{shown} is unknown; the nearest known one is "{near}".'


class _Rate:
    """The library `limits`, a moving window for each client address, in this process."""

    def __init__(self, spelled: str) -> None:
        from limits import parse
        from limits.aio.storage import MemoryStorage
        from limits.aio.strategies import SlidingWindowCounterRateLimiter

        try:
            self._most = parse(spelled)
        except ValueError as error:
            raise SettingsError(
                f"serving.rate_limit {spelled!r} is no rate; write it as 50/second or 1000/minute."
            ) from error
        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())

    async def check(self, client: str) -> None:
        if not await self._limiter.hit(self._most, client):
            seconds = max(1, self._most.get_expiry())
            raise RefusedError(
                429, f"A client may send {self._most} requests.", retry_after=str(seconds)
            )
