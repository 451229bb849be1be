"""Turns refusals of a cluster, and exceptions of the client library, into sentences.

Nothing here sends or retries a request; `is_transient` only says which failures may pass by
themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cogr.errors import CogrError, ServiceError

_TRANSIENT = {429, 502, 503, 504}
_LONGEST = 500
"""Most characters of a reason."""
_ITS_OWN = {"error", "found", "status", "_index", "acknowledged"}
_PROXIES = {401, 403, 413, 429, 502, 503, 504}
"""A page without JSON is the answer of a proxy before the cluster."""
_PLAIN_HTTP = (
    "WRONG_VERSION_NUMBER",
    "RECORD_LAYER_FAILURE",
    "HTTP_REQUEST",
    "UNKNOWN_PROTOCOL",
    "PACKET_LENGTH_TOO_LONG",
)
"""OpenSSL's messages for a server that does not speak TLS."""


@dataclass(frozen=True)
class Refusal:
    """A failed request or a failed document, in the cluster's words.

    Attributes:
        status: the HTTP status; 0 without an answer.
        kind: the cluster's error type, such as cluster_block_exception; for no answer "timeout",
            "tls" or "connection"; for an answer of something else "no_json".
    """

    status: int
    kind: str = ""
    reason: str = ""

    @property
    def is_transient(self) -> bool:
        """True when the same request may succeed a little later.

        A block (read-only, disk full) has status 429 or 403 but stays until an operator acts.
        """
        if self.kind == "cluster_block_exception":
            return "no master" in self.reason or "not recovered" in self.reason
        return self.status in _TRANSIENT or self.kind in ("timeout", "connection")

    @property
    def answered(self) -> bool:
        """True when the cluster answered, so that the request has certainly ended."""
        return self.status > 0

    @property
    def already_exists(self) -> bool:
        """True when the index to be created exists already."""
        return self.kind == "resource_already_exists_exception"


def refusal_of(error: Exception) -> Refusal:
    """The refusal behind an exception of opensearch-py."""
    from opensearchpy import exceptions

    if isinstance(error, exceptions.ConnectionError):
        if isinstance(error.info, UnicodeDecodeError):
            return Refusal(0, "no_json")
        timed_out = isinstance(error, exceptions.ConnectionTimeout)
        tls = isinstance(error, exceptions.SSLError)
        kind = "timeout" if timed_out else "tls" if tls else "connection"
        return Refusal(0, kind, str(error.error))
    if isinstance(error, exceptions.TransportError):
        return _answered(error.status_code, error.info, str(error.error))
    # A page instead of JSON, or JSON of another shape, raises various errors in the library.
    return Refusal(200 if isinstance(error, exceptions.SerializationError) else 0, "no_json")


def _answered(status: int, info: Any, fallback: str) -> Refusal:
    body = info.get("error") if isinstance(info, Mapping) else None
    if not isinstance(body, Mapping):
        # A cluster's own answer is empty, or has one of these; any other comes from another program
        # and is not shown.
        if not fallback or (isinstance(info, Mapping) and not info.keys().isdisjoint(_ITS_OWN)):
            return Refusal(status, "", str(body or fallback)[:_LONGEST])
        return Refusal(status, "" if status in _PROXIES else "no_json")
    causes = body.get("root_cause") or [body]
    cause = causes[0] if isinstance(causes[0], Mapping) else body
    reason = str(cause.get("reason") or body.get("reason"))[:_LONGEST]
    return Refusal(status, str(cause.get("type") or body.get("type", "")), reason)


class IndexGoneError(ServiceError):
    """An index was removed meanwhile."""


class ForbiddenError(ServiceError):
    """The user lacks a permission."""


def service_error(refusal: Refusal, url: str, doing: str) -> CogrError:
    """One sentence: the failure, the address (without credentials), the activity, what to do."""
    what, remedy = _sentence(refusal)
    gone, blocked = (f"{kind}_exception" for kind in ("index_not_found", "cluster_block"))
    forbidden = refusal.status == 403 and refusal.kind != blocked
    kind = IndexGoneError if refusal.kind == gone else ForbiddenError if forbidden else ServiceError
    return kind(f"OpenSearch at {url} {what.format(refusal)} ({doing}); {remedy}.")


_AGAIN = "the same command goes on from here"
_LIFT = f"free disk space or lift the block; {_AGAIN}"
_KINDS = {
    "connection": (
        "can't be reached",
        f"check that it runs and that opensearch.url is right; {_AGAIN}",
    ),
    "timeout": ("did not answer in time", f"see the cluster's load; {_AGAIN}"),
    # A cluster's message when every node's disk is above the high watermark.
    "index_create_block_exception": (
        "creates no indexes: {0.reason}",
        f"its disks are nearly full, or somebody blocked it: {_LIFT}",
    ),
    "cluster_block_exception": ("is blocked: {0.reason}", f"lift the block; {_AGAIN}"),
    "index_not_found_exception": (
        "does not have it: {0.reason}",
        "it was removed meanwhile; push the snapshot again",
    ),
}
_KINDS |= dict.fromkeys(
    ("invalid_alias_name_exception", "invalid_index_name_exception"),
    (
        "refuses the name: {0.reason}",
        "choose another opensearch.prefix or remove what has the name",
    ),
)
_STATUS = {
    401: (
        "does not accept the credentials",
        "check opensearch.username and opensearch.password",
    ),
    404: (
        "does not have it: {0.reason}",
        "it was removed meanwhile; run the same command again",
    ),
    413: ("finds the request too large", "raise the limit there, or of a proxy before it"),
    429: ("is overloaded and kept refusing", f"see its load; {_AGAIN}"),
}
_STATUS |= dict.fromkeys(
    (502, 503, 504),
    ("is not available (status {0.status})", f"see the cluster's health; {_AGAIN}"),
)


def _sentence(refusal: Refusal) -> tuple[str, str]:
    kind, reason = refusal.kind, refusal.reason
    if kind == "tls":
        return _of_tls(reason)
    if kind == "no_json":
        status = " (status {0.status})" if refusal.status else ""
        return (
            f"does not answer as OpenSearch does{status}",
            "check that opensearch.url is a cluster and not a web page",
        )
    if kind == "cluster_block_exception" and ("flood" in reason or "read-only" in reason):
        return "is read-only: {0.reason}", _LIFT
    if found := _KINDS.get(kind) or _STATUS.get(refusal.status):
        return found
    if refusal.status == 403:
        return (
            f"does not allow this to the user: {'{0.reason}' if reason else 'forbidden'}",
            "grant the privileges listed in docs/opensearch.md, then run the same command again",
        )
    told = " ".join(f"{{0.{name}}}" for name in ("kind", "reason") if getattr(refusal, name))
    return (
        f"refuses with status {{0.status}}{': ' if told else ''}{told}",
        "see the cluster's log",
    )


def _of_tls(reason: str) -> tuple[str, str]:
    if any(sign in reason.replace(" ", "_").upper() for sign in _PLAIN_HTTP):
        return (
            "does not speak TLS",
            "write http:// in opensearch.url, or name the port that speaks TLS",
        )
    if "CERTIFICATE" not in reason.upper():
        return (
            "can't be spoken to by TLS: {0.reason}",
            "check scheme and port of opensearch.url, and the versions of TLS that it takes",
        )
    return (
        "has a certificate that can't be verified: {0.reason}",
        "set opensearch.ca_file to the CA that signed it, and use a host name that is in it",
    )
