"""Toxiproxy between two parties: latency, resets, little bandwidth, a cut. The program is built by
Go, once.

It is looked for on the PATH (toxiproxy-server), then in the servers' folder, where `go install`
puts the pinned version.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from ops.servers.instances import free_port, servers_folder

MODULE = "github.com/Shopify/toxiproxy/v2/cmd/server@v2.12.0"


def program() -> Path:
    """toxiproxy-server. Skips the test where it is not there and Go can't build it."""
    if found := shutil.which("toxiproxy-server"):
        return Path(found)
    folder = servers_folder() / "toxiproxy-2.12.0"
    built = folder / "bin" / "server"
    if built.exists():
        return built
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        pytest.skip(
            "NO TOXIPROXY: put toxiproxy-server on the PATH, or install Go, which builds it"
        )
    environment = {**os.environ, "GOPATH": str(folder), "GOFLAGS": "-modcacherw"}
    done = subprocess.run(
        [go, "install", MODULE], env=environment, capture_output=True, text=True, check=False
    )
    shutil.rmtree(folder / "pkg", ignore_errors=True)
    if done.returncode:
        pytest.skip(f"NO TOXIPROXY: go install {MODULE}: {done.stderr[-300:]}")
    return built


@dataclass
class Link:
    """A proxied connection between two parties.

    Attributes:
        url: what the one party is given instead of the other's URL.
    """

    control: str
    name: str
    url: str

    @contextmanager
    def poisoned(self, *toxics: Mapping[str, Any]) -> Iterator[None]:
        """Toxics in both directions for the time of the block."""
        names = []
        for toxic in toxics:
            for stream in ("upstream", "downstream"):
                names.append(f"{toxic['type']}-{stream}")
                body = {"toxicity": 1.0, **toxic, "name": names[-1], "stream": stream}
                _call(self.control, "POST", f"/proxies/{self.name}/toxics", body)
        try:
            yield
        finally:
            for name in names:
                _call(self.control, "DELETE", f"/proxies/{self.name}/toxics/{name}")

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Nothing comes through, connections that are open end, and new ones are refused."""
        _call(self.control, "POST", f"/proxies/{self.name}", {"enabled": False})
        try:
            yield
        finally:
            _call(self.control, "POST", f"/proxies/{self.name}", {"enabled": True})


def latency(seconds: float) -> dict[str, Any]:
    """Half of it in each direction."""
    return {"type": "latency", "attributes": {"latency": int(seconds * 500), "jitter": 0}}


def resets() -> dict[str, Any]:
    """Every connection is reset after a quarter of a second."""
    return {"type": "reset_peer", "attributes": {"timeout": 250}}


def bandwidth(kilobytes: int) -> dict[str, Any]:
    """So many KB a second in each direction."""
    return {"type": "bandwidth", "attributes": {"rate": kilobytes}}


def silence() -> dict[str, Any]:
    """Connections stay open and nothing comes through: what a pulled cable looks like."""
    return {"type": "timeout", "attributes": {"timeout": 0}}


class Toxiproxy:
    """A running server; use `link` for each pair."""

    def __init__(self, control: str) -> None:
        self._control = control
        self._number = 0

    def link(self, url: str) -> Link:
        """A proxy in front of a URL."""
        self._number += 1
        parts = urlsplit(url)
        upstream = f"{parts.hostname}:{parts.port}"
        body = {
            "name": f"link{self._number}",
            "listen": "127.0.0.1:0",
            "upstream": upstream,
            "enabled": True,
        }
        made = _call(self._control, "POST", "/proxies", body)
        return Link(self._control, made["name"], urlunsplit(parts._replace(netloc=made["listen"])))


@contextmanager
def toxiproxy(log: Path) -> Iterator[Toxiproxy]:
    """A server of this test's own."""
    port = free_port()
    with log.open("w") as file:
        command = [str(program()), "-host", "127.0.0.1", "-port", str(port)]
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
    try:
        control = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 60
        while True:
            try:
                _call(control, "GET", "/version")
                break
            except OSError:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.05)
        yield Toxiproxy(control)
    finally:
        process.kill()
        process.wait(30)


def _call(control: str, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        control + path, data, {"content-type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        said = answer.read()
    return json.loads(said) if said else None
