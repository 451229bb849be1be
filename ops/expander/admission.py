"""Admission control: checks of bearer token, body size, and the number and length of queries.

A rejection names the limit or the field, and never repeats a query.
"""

from __future__ import annotations

import asyncio
import difflib
import hmac
import re

from fastapi import Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

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

    def __init__(self, status: int, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers


class AdmissionControl:
    """The checks before a request is answered."""

    def __init__(self, settings: ServingSettings) -> None:
        self._token = settings.token.get_secret_value().encode() if settings.token else None

    async def admit(self, request: Request) -> tuple[list[str], bool]:
        """Check a request. Returns its queries, and whether they came as a list.

        Raises RejectedError.
        """
        return _queries(await self.read(request))

    async def read(self, request: Request) -> bytes:
        """The body of a request after all checks. Raises RejectedError."""
        self._check_token(request)
        try:
            async with asyncio.timeout(READ_SECONDS):
                return await _body(request)
        except TimeoutError:
            raise RejectedError(
                408, f"A request body arrives within {READ_SECONDS:g} seconds.", _CLOSE
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
            raise RejectedError(413, f"A request body has at most {MAX_BODY_BYTES} bytes.", _CLOSE)
    return bytes(body)


def _queries(body: bytes) -> tuple[list[str], bool]:
    try:
        asked = ExpandRequest.model_validate_json(body)
    except ValidationError as error:
        raise RejectedError(422, _explain(error)) from None
    if (asked.query is None) == (asked.queries is None):
        raise RejectedError(422, 'Send {"query": "..."} or {"queries": ["...", "..."]}.')
    queries = [asked.query] if asked.query is not None else list(asked.queries or ())
    if len(queries) > MAX_QUERIES:
        raise RejectedError(422, f"A request has at most {MAX_QUERIES} queries.")
    if any(len(query) > MAX_QUERY_CHARS for query in queries):
        raise RejectedError(422, f"A query has at most {MAX_QUERY_CHARS} characters.")
    return queries, asked.query is None


def _explain(error: ValidationError) -> str:
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return "The body is not valid JSON."
    known = ExpandRequest.model_fields
    if first["type"] == "extra_forbidden":
        field = str(first["loc"][-1])
        near = (*difflib.get_close_matches(field.lower(), known, n=1), "query")[0]
        shown = f'The field "{field}"' if _NAME.fullmatch(field) else "A field"
        return f'{shown} is unknown; the nearest known one is "{near}".'
    where = ".".join(str(part) for part in first["loc"] if part in known or isinstance(part, int))
    return f"{where or 'the body'}: {first['msg']}."
