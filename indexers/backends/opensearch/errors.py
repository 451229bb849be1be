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
        reason: the cluster's own explanation.
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

    if isinstance(error, exceptions.ConnectionError) and isinstance(error.info, UnicodeDecodeError):
        return Refusal(0, "no_json")
    if isinstance(error, exceptions.ConnectionTimeout):
        return Refusal(0, "timeout", str(error.error))
    if isinstance(error, exceptions.SSLError):
        return Refusal(0, "tls", str(error.error))
    if isinstance(error, exceptions.ConnectionError):
        return Refusal(0, "connection", str(error.error))
    if isinstance(error, exceptions.TransportError):
        return _answered(error.status_code, error.info, str(error.error))
    # A page instead of JSON, or JSON of another shape, raises various errors in the library.
    return Refusal(200 if isinstance(error, exceptions.SerializationError) else 0, "no_json")


_PROXIES = {401, 403, 413, 429, 502, 503, 504}
"""A page without JSON is the answer of a proxy before the cluster."""


def _answered(status: int, info: Any, fallback: str) -> Refusal:
    body = info.get("error") if isinstance(info, Mapping) else None
    if not isinstance(body, Mapping):
        # A cluster's own answer is empty, or has one of these; any other comes from another program
        # and is not shown.
        its_own = not fallback or (
            isinstance(info, Mapping) and not info.keys().isdisjoint(_ITS_OWN)
        )
        if its_own:
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
    """One sentence: the failure, the address, what to do.

    Args:
        refusal: the cluster's refusal.
        url: its address, without credentials.
        doing: the activity, such as "writing to the index shop-items-...".
    """
    what, todo = _sentence(refusal)
    kind = _KINDS.get(refusal.kind) or (ForbiddenError if refusal.status == 403 else ServiceError)
    return kind(f"OpenSearch at {url} {what} ({doing}); {todo}.")


_KINDS = {
    "index_not_found_exception": IndexGoneError,
    "cluster_block_exception": ServiceError,
}
_AGAIN = "the same command goes on from here"


def _sentence(refusal: Refusal) -> tuple[str, str]:
    by_kind = _by_kind(refusal)
    if by_kind:
        return by_kind
    match refusal.status:
        case 401:
            return (
                "does not accept the credentials",
                "check opensearch.username and opensearch.password",
            )
        case 403:
            return (
                f"does not allow this to the user: {refusal.reason or 'forbidden'}",
                "grant the privileges listed in docs/opensearch.md, then run the same command "
                "again",
            )
        case 404:
            return (
                f"does not have it: {refusal.reason}",
                "it was removed meanwhile; run the same command again",
            )
        case 413:
            return "finds the request too large", "raise the limit there, or of a proxy before it"
        case 429:
            return (
                "is overloaded and kept refusing",
                f"wait or lower opensearch.bulk_threads; {_AGAIN}",
            )
        case 502 | 503 | 504:
            return (
                f"is not available (status {refusal.status})",
                f"see the cluster's health; {_AGAIN}",
            )
    return f"refuses with status {refusal.status}: {refusal.kind} {refusal.reason}".rstrip(
        ": "
    ), "see the cluster's log"


def _by_kind(refusal: Refusal) -> tuple[str, str] | None:
    match refusal.kind:
        case "connection":
            return (
                "can't be reached",
                f"check that it runs and that opensearch.url is right; {_AGAIN}",
            )
        case "timeout":
            return (
                "did not answer in time",
                f"see the cluster's load or raise opensearch.timeout; {_AGAIN}",
            )
        case "tls" if any(sign in refusal.reason.replace(" ", "_").upper() for sign in _PLAIN_HTTP):
            return (
                "speaks no TLS",
                "write http:// in opensearch.url, or name the port that speaks TLS",
            )
        case "tls" if "CERTIFICATE" not in refusal.reason.upper():
            return (
                f"can't be spoken to by TLS: {refusal.reason}",
                "check scheme and port of opensearch.url, and the versions of TLS that the "
                "cluster takes",
            )
        case "tls":
            return (
                f"has a certificate that can't be verified: {refusal.reason}",
                "set opensearch.ca_file to the CA that signed it, and use a host name that is in "
                "it",
            )
        case "no_json":
            return (
                "answers as no OpenSearch "
                f"does{f' (status {refusal.status})' if refusal.status else ''}",
                "check that opensearch.url is a cluster and not a web page",
            )
        case "cluster_block_exception" if (
            "flood" in refusal.reason or "read-only" in refusal.reason
        ):
            return f"is read-only: {refusal.reason}", f"free disk space or lift the block; {_AGAIN}"
        case "index_create_block_exception":
            # A cluster's message when every node's disk is above the high watermark.
            return (
                f"creates no indexes: {refusal.reason}",
                "its disks are nearly full, or somebody blocked it: free disk space or lift the "
                f"block; {_AGAIN}",
            )
        case "cluster_block_exception":
            return f"is blocked: {refusal.reason}", f"lift the block; {_AGAIN}"
        case "index_not_found_exception":
            return (
                f"does not have it: {refusal.reason}",
                "it was removed meanwhile; push the snapshot again",
            )
        case "invalid_alias_name_exception" | "invalid_index_name_exception":
            return (
                f"refuses the name: {refusal.reason}",
                "choose another opensearch.prefix or remove what has the name",
            )
    return None
