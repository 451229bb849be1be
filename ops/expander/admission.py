"""Admission control: checks of bearer token, rate limit, body size, and the number and length of
queries.

A rejection names the limit or the field, and never repeats a query.
"""

from __future__ import annotations

import asyncio
import difflib
import hmac
import re
from collections.abc import Sequence

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cogr.errors import SettingsError
from cogr.settings.serving import ServingSettings

READ_SECONDS = 5.0
"""Seconds for a head, and then for a body: a few kilobytes that take longer will not arrive."""
MAX_BODY_BYTES = 65_536
"""Largest body in bytes: enough for the most queries of the greatest usual length."""
MAX_QUERIES = 64
"""Most queries of a request. Send more as several requests, which several processes can answer."""
MAX_QUERY_CHARS = 1024
"""Longest query in characters: shoppers type tens, and a keyword keeps 256."""
_NAME = re.compile(r"[A-Za-z_]{1,20}")
"""Field names that an error may repeat; anything else may be a query in the wrong place."""


class ExpandRequest(BaseModel):
    """A query, or several."""

    model_config = ConfigDict(extra="forbid", strict=True)

    query: str | None = Field(None, description="What a shopper typed")
    queries: list[str] | None = Field(None, description="Several of them; instead of query")


class RejectedError(Exception):
    """A request is rejected: HTTP status, one sentence, headers."""

    def __init__(self, status: int, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


class AdmissionControl:
    """The checks before a request is answered.

    Raises:
        SettingsError: serving.rate_limit can't be read.
    """

    def __init__(self, settings: ServingSettings) -> None:
        self._settings = settings
        self._token = settings.token.get_secret_value().encode() if settings.token else None
        self._rate_limit = _RateLimit(settings.rate_limit) if settings.rate_limit else None

    async def admit(self, request: Request) -> tuple[list[str], bool]:
        """Check a request. Returns its queries, and whether they came as a list.

        Raises RejectedError.
        """
        return self._queries(await self.read(request))

    async def read(self, request: Request) -> bytes:
        """The body of a request after all checks. Raises RejectedError."""
        self._check_token(request)
        if self._rate_limit is not None:
            await self._rate_limit.check(request.client.host if request.client else "")
        return await self._body(request)

    def _check_token(self, request: Request) -> None:
        if self._token is None:
            return
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(
            given.strip().encode("utf-8", "replace"), self._token
        ):
            raise RejectedError(
                401, "Send the header Authorization: Bearer TOKEN.", www_authenticate="Bearer"
            )

    async def _body(self, request: Request) -> bytes:
        """The body, read up to the limits of size and time."""
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
                        raise RejectedError(
                            413, f"A request body has at most {most} bytes.", connection="close"
                        )
                    parts.append(part)
        except TimeoutError:
            raise RejectedError(
                408, f"A request body arrives within {seconds:g} seconds.", connection="close"
            ) from None
        return b"".join(parts)

    def _queries(self, body: bytes) -> tuple[list[str], bool]:
        try:
            asked = ExpandRequest.model_validate_json(body)
        except ValidationError as error:
            raise RejectedError(422, _explain(error)) from None
        if (asked.query is None) == (asked.queries is None):
            raise RejectedError(422, 'Send {"query": "..."} or {"queries": ["...", "..."]}.')
        queries = [asked.query] if asked.query is not None else list(asked.queries or ())
        self._check_sizes(queries)
        return queries, asked.query is None

    def _check_sizes(self, queries: Sequence[str]) -> None:
        if len(queries) > MAX_QUERIES:
            raise RejectedError(422, f"A request has at most {MAX_QUERIES} queries.")
        if any(len(query) > MAX_QUERY_CHARS for query in queries):
            raise RejectedError(422, f"A query has at most {MAX_QUERY_CHARS} characters.")


def _explain(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return "The body is no valid JSON."
    if first["type"] == "extra_forbidden":
        return _unknown(str(first["loc"][-1]))
    where = ".".join(
        str(part)
        for part in first["loc"]
        if part in ExpandRequest.model_fields or isinstance(part, int)
    )
    return f"{where or 'the body'}: {first['msg']}."


def _unknown(field: str) -> str:
    """The sentence for an unknown field, with the nearest one that there is."""
    near = (*difflib.get_close_matches(field.lower(), ExpandRequest.model_fields, n=1), "query")[0]
    shown = f'The field "{field}"' if _NAME.fullmatch(field) else "A field"
    return f'{shown} is unknown; the nearest known one is "{near}".'


class _RateLimit:
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
            raise RejectedError(
                429, f"A client may send {self._most} requests.", retry_after=str(seconds)
            )
