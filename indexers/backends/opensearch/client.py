"""One cluster: connection, authentication, version, and requests with retries of transient
failures.

Every request of this package goes through `Cluster.call`, so that every failure becomes one
sentence. Nothing here knows snapshots or indexes.
"""

from __future__ import annotations

import logging
import random
import ssl
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from cogr.errors import CogrError, ServiceError, SettingsError, UserError, require
from cogr.matching.bm25 import BM25
from cogr.redaction import learn_address
from cogr.settings.serving import OpenSearchSettings

_TRANSIENT = {429, 502, 503, 504}
_MAX_REASON = 500
"""Most characters of a reason."""
_PROXIES = {401, 403, 413, 429, 502, 503, 504}
"""Another answer than a cluster's is that of a proxy before it."""


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
        return _answered(error.status_code, error.info)
    # A page instead of JSON, or JSON of another shape, raises various errors in the library.
    return Refusal(200 if isinstance(error, exceptions.SerializationError) else 0, "no_json")


def _answered(status: int, info: Any) -> Refusal:
    body = info.get("error") if isinstance(info, Mapping) else None
    if isinstance(body, str):
        return Refusal(status, "", body[:_MAX_REASON])
    if not isinstance(body, Mapping):
        return Refusal(status, "" if status in _PROXIES else "no_json", "forbidden")
    causes = body.get("root_cause") or [body]
    cause = causes[0] if isinstance(causes[0], Mapping) else body
    reason = str(cause.get("reason") or body.get("reason"))[:_MAX_REASON]
    return Refusal(status, str(cause.get("type") or body.get("type", "")), reason)


def service_error(refusal: Refusal, url: str, doing: str) -> CogrError:
    """One sentence: the failure, the address (without credentials), the activity, what to do. A
    UserError where the same request would be refused for ever.
    """
    what, remedy = _SAID.get(refusal.kind) or _SAID.get(refusal.status) or _OTHER
    kind = UserError if (what, remedy) == _WRONG else ServiceError
    return kind(f"OpenSearch at {url} {what.format(refusal)} ({doing}); {remedy}.")


_AGAIN = "the same command goes on from here"
_BLOCKED = (
    "is blocked: {0.reason}",
    f"free disk space, or lift the block (set index.blocks.* of that index to null); {_AGAIN}",
)
_WRONG = (
    "returned status {0.status}: {0.kind} {0.reason}",
    "correct what it names; the same command would be refused again",
)
_AWAY = ("is not available (status {0.status})", f"see the cluster's health; {_AGAIN}")
_SAID: Mapping[str | int, tuple[str, str]] = {
    "connection": (
        "can't be reached",
        f"check that it runs and that opensearch.url is right; {_AGAIN}",
    ),
    "timeout": ("did not answer in time", f"see the cluster's load; {_AGAIN}"),
    "tls": (
        "can't be reached over TLS: {0.reason}",
        "check scheme, host and port of opensearch.url, and set opensearch.ca_file to the CA that "
        "signed its certificate",
    ),
    "no_json": (
        "does not answer as OpenSearch does (status {0.status})",
        "check that opensearch.url is a cluster and not a web page",
    ),
    # A cluster's message when every node's disk is above the high watermark.
    "index_create_block_exception": _BLOCKED,
    "cluster_block_exception": _BLOCKED,
    401: ("does not accept the credentials", "check opensearch.username and opensearch.password"),
    403: (
        "does not allow this to the user: {0.reason}",
        "grant the privileges listed in docs/opensearch.md, then run the same command again",
    ),
    404: (
        "does not have what was asked for: {0.reason}",
        "it was removed in the meantime; run the same command again",
    ),
    413: ("rejected the request as too large", "raise its limit, or that of a proxy before it"),
    429: ("is overloaded and kept refusing", f"see its load; {_AGAIN}"),
    **dict.fromkeys((502, 503, 504), _AWAY),
    **dict.fromkeys((400, 405, 406, 415, 422), _WRONG),
}
_OTHER = ("returned status {0.status}: {0.kind} {0.reason}", "see the cluster's log")


RETRIES = 7
"""Retries after the first attempt; with the waits below they last about half a minute."""
TIMEOUT = 60.0
"""Seconds that a request may take."""
BULK_THREADS = 2
"""Bulk requests in flight."""
FIRST_WAIT = 0.25
MAX_WAIT = 16.0
OLDEST = (2, 4)
"""The first version with point in time, which paging needs."""

# The library logs every failed request as a warning, which unconfigured logging would print in
# addition to our sentence.
logging.getLogger("opensearch").addHandler(logging.NullHandler())


def waits() -> Iterator[float]:
    """Seconds to wait before each retry: exponential, half of it jitter, so that clients spread
    out.
    """
    for attempt in range(RETRIES):
        yield min(MAX_WAIT, FIRST_WAIT * 2.0**attempt) * (0.5 + 0.5 * random.random())


@dataclass(frozen=True, slots=True)
class Version:
    """The version of OpenSearch that a cluster reports."""

    major: int
    minor: int
    text: str

    @property
    def has_use_similarity(self) -> bool:
        """3.x scores keyword fields only with this option of the mapping, which 2.x lacks."""
        return self.major >= 3

    @property
    def bm25(self) -> BM25:
        """How keyword fields are scored: 2.x has LegacyBM25Similarity."""
        return BM25(flavour="3.x" if self.major >= 3 else "2.x")


class Cluster:
    """An OpenSearch cluster. Nothing is sent before the first request. Raises SettingsError and
    MissingExtraError.
    """

    def __init__(self, settings: OpenSearchSettings) -> None:
        from opensearchpy import OpenSearch, Urllib3HttpConnection

        class Connection(Urllib3HttpConnection):  # type: ignore[misc]
            def _create_urllib3_pool(self) -> None:
                self.pool: Any = self._urllib3_pool_factory()
                if proxy := _proxy(self.host):
                    self.pool = _through(proxy, self.pool)

        self.settings = settings
        self.urls = _urls(settings)
        self.url = ",".join(self.urls)
        client = OpenSearch(
            pool_maxsize=BULK_THREADS + 1, connection_class=Connection, **_options(settings)
        )
        self._transport = client.transport
        self._reached = False

    @cached_property
    def version(self) -> Version:
        """The cluster's version, requested once. Raises ServiceError as `read_version`."""
        return read_version(self.call("GET", "/", doing="asking for its version"), self.url)

    def call(
        self,
        method: str,
        path: str,
        *,
        doing: str,
        body: Any = None,
        params: dict[str, Any] | None = None,
        missing_ok: bool = False,
        exists_ok: bool = False,
        retry_connection: bool = True,
    ) -> Any:
        """Send one request and return the parsed answer. Transient failures are retried with
        growing waits, but a cluster that was never reached is not, so that a wrong URL shows at
        once. Raises ServiceError, and UserError as `service_error`.

        Args:
            doing: the activity, for error sentences.
            missing_ok: 404 gives None.
            exists_ok: so does the refusal to create an index that exists.
            retry_connection: False for requests that must not run twice.
        """
        pauses = waits()
        while True:
            answer, refusal = self.try_once(method, path, body, params)
            if refusal is None:
                return answer
            exists = refusal.kind == "resource_already_exists_exception"
            if (missing_ok and refusal.status == 404) or (exists_ok and exists):
                return None
            # A request that was answered has certainly ended.
            patient = refusal.status > 0 or (retry_connection and self._reached)
            wait = next(pauses, None) if refusal.is_transient and patient else None
            if wait is None:
                raise service_error(refusal, self.url, doing)
            time.sleep(wait)

    def try_once(
        self, method: str, path: str, body: Any, params: dict[str, Any] | None = None
    ) -> tuple[Any, Refusal | None]:
        """One request without retries: the answer, or the refusal."""
        from opensearchpy.exceptions import OpenSearchException

        params, answer, refusal = {**(params or {}), "request_timeout": TIMEOUT}, None, None
        try:
            answer = self._transport.perform_request(method, path, params=params, body=body)
        except (OpenSearchException, AttributeError) as error:
            # The latter because the library expects the JSON of a refusal to be an object.
            refusal = refusal_of(error)
        self._reached = self._reached or refusal is None or refusal.status > 0
        return answer, refusal

    def close(self) -> None:
        self._transport.close()


def read_version(info: Any, url: str) -> Version:
    """The version in the answer of `GET /`. Raises ServiceError where we can't use it."""
    version = info.get("version") if isinstance(info, dict) else None
    facts = version if isinstance(version, dict) else {}
    kind, number = facts.get("distribution"), str(facts.get("number"))
    if kind == "opensearch":
        major, minor = (int(part) for part in number.split(".")[:2])
        if (major, minor) >= OLDEST:
            return Version(major, minor, number)
    raise ServiceError(
        f"{url} must be OpenSearch {'.'.join(map(str, OLDEST))} or newer, since others score or "
        f"page differently, but reports distribution {kind}, version {number}; check "
        "opensearch.url, upgrade it, or turn compatibility.override_main_response_version off."
    )


def _urls(settings: OpenSearchSettings) -> list[str]:
    urls = [url.strip().rstrip("/") for url in (settings.url or "").split(",") if url.strip()]
    if not urls:
        raise SettingsError(
            "opensearch.url is not set; give the address of the cluster, such as "
            "http://localhost:9200."
        )
    return urls


def connect_async(settings: OpenSearchSettings) -> Any:
    """A client for asyncio, to the same hosts with the same credentials. Raises as `Cluster`."""
    from opensearchpy import AIOHttpConnection, AsyncOpenSearch

    class Connection(AIOHttpConnection):  # type: ignore[misc]
        async def _create_aiohttp_session(self) -> None:
            await super()._create_aiohttp_session()
            # A redirect would take requests to another host; the other client follows none.
            more = {"allow_redirects": False, "proxy": _proxy(self.host)}
            self.session.request = partial(self.session.request, **more)

    return AsyncOpenSearch(connection_class=Connection, **_options(settings, for_async=True))


def _proxy(url: str) -> str | None:
    """The proxy that HTTPS_PROXY and NO_PROXY name for this address."""
    parts = urlsplit(url)
    if parts.scheme != "https" or proxy_bypass(parts.hostname or ""):
        return None
    return getproxies().get("https")


_TLS = ("cert_reqs", "ca_certs", "cert_file", "key_file")


def _through(proxy: str, pool: Any) -> Any:
    """A pool of connections to the same host through a proxy."""
    from urllib3 import ProxyManager, make_headers

    learn_address(proxy)
    user = unquote(urlsplit(proxy).netloc.rpartition("@")[0])
    headers = make_headers(proxy_basic_auth=user) if user else None
    manager = ProxyManager(
        proxy,
        proxy_headers=headers,
        maxsize=BULK_THREADS + 1,
        timeout=pool.timeout,
        **{name: getattr(pool, name) for name in _TLS},
    )
    return manager.connection_from_host(pool.host, pool.port, "https")


def _options(settings: OpenSearchSettings, *, for_async: bool = False) -> dict[str, Any]:
    urls = _urls(settings)
    return {
        "hosts": urls,
        "http_auth": _auth(settings, for_async=for_async),
        "max_retries": len(urls) - 1,
        "retry_on_status": (),
        "retry_on_timeout": False,
        **_tls(settings, urls),
    }


def _tls(settings: OpenSearchSettings, urls: Collection[str]) -> dict[str, Any]:
    if not any(url.startswith("https:") for url in urls):
        return {}
    path = settings.ca_file or None
    try:
        context = ssl.create_default_context(cafile=path)
    except OSError as error:
        raise SettingsError(
            f"opensearch.ca_file {path} can't be used ({error}); give a PEM file of CA "
            "certificates."
        ) from error
    if settings.client_cert:
        try:
            context.load_cert_chain(settings.client_cert, settings.client_key or None, _no_password)
        except OSError as error:
            raise SettingsError(
                f"opensearch.client_cert {settings.client_cert} can't be used ({error}); give a "
                "PEM file of the certificate, and its key, without a password, in the same file "
                "or in opensearch.client_key."
            ) from error
    own = {"client_cert": settings.client_cert or None, "client_key": settings.client_key or None}
    return {"verify_certs": True, "ca_certs": path, **own}


def _no_password() -> str:
    # Else OpenSSL would ask on the terminal.
    raise OSError("its key has a password")


def _auth(settings: OpenSearchSettings, *, for_async: bool = False) -> Any:
    if settings.aws_region:
        return _sigv4(settings.aws_region, for_async=for_async)
    if (settings.username is None) != (settings.password is None):
        raise SettingsError(
            "opensearch.username and opensearch.password go together; set both or none."
        )
    if settings.username is None or settings.password is None:
        return None
    return (settings.username, settings.password.get_secret_value())


def _sigv4(region: str, *, for_async: bool) -> Any:
    require("Signing requests for AWS (opensearch.aws_region)", "s3", "boto3")
    import boto3
    from opensearchpy import AWSV4SignerAsyncAuth, Urllib3AWSV4SignerAuth

    credentials = boto3.Session().get_credentials()
    if credentials is None:
        raise SettingsError(
            "opensearch.aws_region is set, but no AWS credentials are found; set AWS_PROFILE or "
            "AWS_ACCESS_KEY_ID, or give the machine a role."
        )
    signer = AWSV4SignerAsyncAuth if for_async else Urllib3AWSV4SignerAuth
    return signer(credentials, region, "es")
