"""The connection: what is refused before and at the first contact, what an error says, how requests
are signed; how bulk requests are cut, and how little is held at once.
"""

from __future__ import annotations

import asyncio
import base64
import datetime
import ipaddress
import json
import socket
import ssl
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from opensearchpy import TransportError
from pydantic import SecretStr, ValidationError

from cogr.errors import MissingExtraError, ServiceError, SettingsError, UserError
from cogr.settings.serving import OpenSearchSettings
from indexers.backends.opensearch import client, push
from indexers.backends.opensearch.client import Cluster, Refusal, connect_async, service_error
from tests.web_server import Answer, Request, serve


def info(number: str, distribution: str | None = "opensearch") -> dict[str, Any]:
    version = {"number": number, "lucene_version": "9"}
    return {"version": version | ({"distribution": distribution} if distribution else {})}


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FIRST_WAIT", 0.0005)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (info("7.10.2", None), "OpenSearch 2.4 or newer, .* distribution None, version 7.10.2"),
        (info("2.3.0"), "OpenSearch 2.4 or newer, .* distribution opensearch, version 2.3.0"),
        ({"tagline": "something else"}, "distribution None, .*; check opensearch.url"),
        ([], "check opensearch.url"),
    ],
)
def test_what_is_no_opensearch_of_2_4_or_newer_is_refused(answer: Any, says: str) -> None:
    with serve(lambda _: (200, json.dumps(answer).encode())) as url:
        with pytest.raises(ServiceError, match=says):
            _ = Cluster(OpenSearchSettings(url=url)).version


@pytest.mark.parametrize(
    ("status", "content_type", "body"),
    [
        (404, "text/html", "<h1>Pas trouv\xe9e</h1>".encode("latin-1")),
        (404, "application/json", b'{"detail": "Not Found"}'),
        (404, "application/json", b"[1]"),
        (302, "text/html", b"<a href=elsewhere>moved</a>"),
        (200, "text/html", "<h1>\xe9</h1>".encode("latin-1")),
    ],
)
def test_the_answers_of_what_is_no_cluster_are_not_taken_for_an_index_that_is_gone(
    status: int, content_type: str, body: bytes
) -> None:
    with serve(lambda _: (status, body), content_type=content_type) as url:
        with pytest.raises(ServiceError) as caught:
            Cluster(OpenSearchSettings(url=url)).call("GET", "/_alias", doing="listing")
    # The library keeps no status of a body that is not UTF-8, or no JSON object.
    kept = 0 if b"\xe9" in body or body == b"[1]" else status
    assert str(caught.value) == (
        f"OpenSearch at {url} does not answer as OpenSearch does (status {kept}) (listing); "
        "check that opensearch.url is a cluster and not a web page."
    )


def test_tls_to_a_port_that_speaks_none_is_not_a_matter_of_certificates() -> None:
    says = r"can't be reached over TLS: .* \(looking\); check scheme, host and port"
    with serve(lambda _: (200, b"{}")) as url:
        cluster = Cluster(OpenSearchSettings(url=url.replace("http:", "https:")))
        with pytest.raises(ServiceError, match=says):
            cluster.call("GET", "/", doing="looking")


def test_a_cluster_that_is_down_is_said_at_once() -> None:
    began = time.monotonic()
    says = r"^OpenSearch at http://127.0.0.1:9 can't be reached \(.*\); check that it runs"
    with pytest.raises(ServiceError, match=says):
        Cluster(OpenSearchSettings(url="http://127.0.0.1:9")).call("GET", "/x", doing="looking")
    assert time.monotonic() - began < 2


def test_a_second_address_is_tried() -> None:
    with serve(lambda _: (200, json.dumps(info("3.8.0")).encode())) as url:
        cluster = Cluster(OpenSearchSettings(url=f"http://127.0.0.1:9, {url}"))
        for _ in range(3):
            assert cluster.call("GET", "/", doing="asking")["version"]["number"] == "3.8.0"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"url": None}, "opensearch.url is not set"),
        ({"url": "localhost:9200"}, "is not a URL; write it as https://host:9200"),
        ({"url": "https://user:secret@host:9200"}, "has credentials in it"),
        ({"url": "https://user:sec/secret@host:9200"}, "has an @ behind its host"),
        ({"url": "https://user:sec#secret@host:9200"}, "has an @ behind its host"),
        ({"url": "http://host", "username": "user"}, "go together"),
        ({"url": "http://host", "password": SecretStr("secret")}, "go together"),
        ({"url": "https://host", "ca_file": "/nowhere/ca.pem"}, "ca_file /nowhere/ca.pem can't be"),
        ({"url": "https://host", "ca_file": __file__}, "opensearch.ca_file .* give a PEM file"),
    ],
)
def test_settings_that_can_not_work_are_refused_before_anything_is_sent(
    settings: dict[str, Any], says: str
) -> None:
    with pytest.raises((SettingsError, ValidationError), match=says) as error:
        Cluster(OpenSearchSettings(**settings))
    assert "secret" not in str(error.value)


def test_blocks_stay_and_overloads_pass() -> None:
    block = "cluster_block_exception"
    assert Refusal(503, block, "blocked by: [state not recovered").is_transient
    assert not Refusal(429, block, "disk usage exceeded flood-stage watermark").is_transient
    assert not Refusal(0, "tls").is_transient
    assert not Refusal(401).is_transient


# Connections


def asked(settings: OpenSearchSettings, way: str) -> Any:
    """One request by the client of commands, or by that of the expander."""

    async def ask() -> Any:
        client = connect_async(settings)
        try:
            return await client.transport.perform_request("GET", "/_alias")
        finally:
            await client.close()

    if way == "async":
        return asyncio.run(ask())
    with closing(Cluster(settings)) as cluster:
        answer, refusal = cluster.try_once("GET", "/_alias", None)
        if refusal:
            raise service_error(refusal, cluster.url, "looking")
        return answer


WAYS = pytest.mark.parametrize("way", ["sync", "async"])


@WAYS
@pytest.mark.parametrize("status", [302, 307])
def test_a_request_is_not_taken_to_another_host(status: int, way: str) -> None:
    seen: list[Request] = []

    def other(request: Request) -> Answer:
        seen.append(request)
        return 200, b"{}"

    with serve(other) as place:
        moved = {"location": f"{place}/_alias"}
        with serve(lambda _: (status, b"{}"), headers=moved) as url:
            settings = {"url": url, "username": "shop", "password": "Velvet-sofa-42"}
            with pytest.raises((ServiceError, TransportError)):
                asked(OpenSearchSettings.model_validate(settings), way)
    assert seen == []


def certificate(folder: Path) -> tuple[Path, Path, Path]:
    """A certificate for this machine, signed by itself: alone, its key, and both in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "shop")])
    now = datetime.datetime.now(datetime.UTC)
    here = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([here]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8
    secret = key.private_bytes(Encoding.PEM, form, serialization.NoEncryption())
    public = made.public_bytes(Encoding.PEM)
    files = folder / "tls.crt", folder / "tls.key", folder / "both.pem"
    for file, content in zip(files, (public, secret, public + secret), strict=True):
        file.write_bytes(content)
    return files


@WAYS
def test_a_cluster_may_want_a_certificate_of_us(tmp_path: Path, way: str) -> None:
    public, key, both = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=public)
    context.load_cert_chain(public, key)
    context.verify_mode = ssl.CERT_REQUIRED
    with serve(lambda _: (200, b'{"a": 1}'), tls=context) as url:
        base = {"url": url, "ca_file": str(public)}
        for own in (
            {"client_cert": str(public), "client_key": str(key)},
            {"client_cert": str(both)},
        ):
            assert asked(OpenSearchSettings.model_validate({**base, **own}), way) == {"a": 1}
        with pytest.raises((ServiceError, TransportError)):
            asked(OpenSearchSettings.model_validate(base), way)
        for wrong in ({"client_cert": str(public)}, {"client_cert": str(tmp_path / "none.pem")}):
            with pytest.raises(SettingsError, match=r"opensearch\.client_cert"):
                asked(OpenSearchSettings.model_validate({**base, **wrong}), way)


@contextmanager
def tunnel() -> Iterator[tuple[str, list[bytes]]]:
    """A proxy for https: its address, and the heads of the requests that it got."""
    seen: list[bytes] = []

    def pump(one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)

    def handle(near: socket.socket) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += near.recv(65536)
        seen.append(head)
        host, _, port = head.split()[1].decode().rpartition(":")
        with socket.create_connection((host, int(port))) as far, near:
            near.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=pump, args=(far, near), daemon=True)
            back.start()
            pump(near, far)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=handle, args=(server.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}", seen


@WAYS
def test_https_goes_through_the_proxy_of_the_environment(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    public, key, _ = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(public, key)
    with serve(lambda _: (200, b"{}"), tls=context) as url, tunnel() as (proxy, seen):
        settings = OpenSearchSettings.model_validate({"url": url, "ca_file": str(public)})
        monkeypatch.setenv("HTTPS_PROXY", f"http://me:pw%40x@{proxy}")
        assert asked(settings, way) == {}
        (head,) = seen
        assert head.startswith(b"CONNECT 127.0.0.1:")
        basic = base64.b64encode(b"me:pw@x")
        assert b"proxy-authorization: basic " + basic.lower() in head.lower()
        monkeypatch.setenv("NO_PROXY", "localhost,127.0.0.1")
        assert asked(settings, way) == {}
        monkeypatch.setenv("NO_PROXY", "elsewhere.example")
        monkeypatch.delenv("HTTPS_PROXY")
        monkeypatch.setenv("HTTP_PROXY", f"http://{proxy}")
        assert asked(settings, way) == {}
    assert len(seen) == 1


# AWS


def test_requests_are_signed_for_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "example secret")
    seen: list[Request] = []

    def answer(request: Request) -> Answer:
        seen.append(request)
        return 200, b"{}"

    with serve(answer) as url:
        cluster = Cluster(OpenSearchSettings(url=url, aws_region="eu-central-1"))
        body = {"query": {"match": {"keywords": "沙发"}}}
        cluster.call("POST", "/a-b/_search", doing="x", body=body, params={"a": "b c"})
    (request,) = seen
    given = request.headers["authorization"]
    named = given.split("SignedHeaders=")[1].split(",")[0].split(";")
    assert {"host", "x-amz-date", "x-amz-content-sha256"} <= set(named)
    # What AWS computes from what arrived.
    headers = {name: request.headers[name] for name in named if name != "host"}
    again = AWSRequest(request.method, url + request.path, data=request.body, headers=headers)
    again.context["timestamp"] = request.headers["x-amz-date"]
    auth = SigV4Auth(Credentials("AKIDEXAMPLE", "example secret"), "es", "eu-central-1")
    signature = auth.signature(auth.string_to_sign(again, auth.canonical_request(again)), again)
    assert given.endswith(f"Signature={signature}")


def test_aws_without_its_extra_or_credentials_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    settings = OpenSearchSettings(url="https://host", aws_region="eu-central-1")
    with pytest.raises(SettingsError, match="AWS_PROFILE"):
        Cluster(settings)
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(MissingExtraError, match=r"cogr\[s3\]"):
        Cluster(settings)


# Bulk requests


@pytest.mark.parametrize(("limit", "most"), [("CHUNK_DOCUMENTS", 10), ("CHUNK_BYTES", 400)])
def test_a_slow_cluster_slows_the_reader_down(
    monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    """Nothing piles up: at any moment at most a few chunks have been read that were not written."""
    read = written = most_ahead = 0
    lock = threading.Lock()

    def documents() -> Iterator[tuple[str, dict[str, Any]]]:
        nonlocal read, most_ahead
        for number in range(400):
            with lock:
                read += 1
                most_ahead = max(most_ahead, read - written)
            yield str(number), {"text": "x"}

    def slow(request: Request) -> Answer:
        nonlocal written
        time.sleep(0.005)
        assert len(request.body) <= 400
        with lock:
            written += request.body.count(b'"create"')
        return 200, b'{"errors": false}'

    with serve(slow) as url:
        monkeypatch.setattr(push, limit, most)
        settings = OpenSearchSettings(url=url)
        assert push.write_documents(Cluster(settings), "x", documents()) == 400
    assert written == 400
    # Two chunks on their way, one waiting for a thread, one being filled, one handed over; of ten
    # or eleven documents.
    assert most_ahead <= 11 * (2 + 3)


def test_one_refused_document_ends_the_write(monkeypatch: pytest.MonkeyPatch) -> None:
    error = {"type": "strict_dynamic_mapping_exception", "reason": "mapping set to strict"}
    items = {
        "errors": True,
        "items": [{"create": {"status": 201}}, {"create": {"status": 400, "error": error}}],
    }
    with serve(lambda _: (200, json.dumps(items).encode())) as url:
        monkeypatch.setattr(push, "CHUNK_DOCUMENTS", 2)
        cluster = Cluster(OpenSearchSettings(url=url))
        documents = ((str(number), {"text": "x"}) for number in range(100))
        with pytest.raises(UserError, match="strict_dynamic_mapping_exception"):
            push.write_documents(cluster, "x", documents)
