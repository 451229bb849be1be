"""`cogr-ops doctor`: what of the stack is there, what is missing, how to get it.

Looks only; installs, starts and fetches nothing.
"""

from __future__ import annotations

import platform
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from rich.console import Console

from cogr import __version__
from cogr.errors import CheckFailedError, CogrError, UserError, masked
from cogr.settings import load_settings
from indexers.cli.console import Call, common_options
from ops.servers import HOME_VARIABLE, find_java, find_valkey, known

State = Literal["ok", "missing", "broken"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    state: State
    name: str
    detail: str


@common_options()
def doctor(call: Call) -> None:
    """Check the installation: what is there, what is missing, how to get it.

    Exit status 1 if the package itself, the configuration, or a cluster or broker that it names is
    broken.
    """
    findings = list(examine(call.config))

    def show(out: Console) -> None:
        for one in findings:
            out.print(f"{one.state:8} {one.name:14} {one.detail}", soft_wrap=True)

    call.emit({"findings": list(map(asdict, findings))}, show)
    if broken := [one.name for one in findings if one.state == "broken"]:
        raise CheckFailedError(f"Broken here: {', '.join(broken)}; see above.")


def examine(config: Path | None = None) -> Iterator[Finding]:
    """Examine everything; the package itself first."""
    absent = missing_packages()
    python = f"{__version__}, Python {platform.python_version()}"
    fix = f"without {', '.join(absent)}; pip install --force-reinstall cogr"
    yield Finding("broken", "cogr", fix) if absent else Finding("ok", "cogr", python)
    for extra in metadata.metadata("cogr").get_all("Provides-Extra") or []:
        if extra not in ("dev", "vllm-cpu"):
            absent = missing_packages(extra)
            fix = f"without {', '.join(absent)}; pip install 'cogr[{extra}]'"
            yield Finding("missing", extra, fix) if absent else Finding("ok", extra, "installed")
    yield _tried("java", find_java)
    yield _tried("maven", _fetcher)
    yield _tried("valkey", find_valkey)
    yield from _configured(config)


def _tried(name: str, look: Callable[[], object], bad: State = "missing") -> Finding:
    try:
        return Finding("ok", name, str(look()))
    except CogrError as error:
        return Finding(bad, name, str(error))


def _fetcher() -> str:
    if found := shutil.which("mvn") or shutil.which("docker"):
        return found
    raise UserError(f"install Maven or Docker, or set {HOME_VARIABLE} to an unpacked OpenSearch")


def missing_packages(extra: str = "") -> list[str]:
    """What an extra of this distribution requires and is not installed; what the package itself
    requires for "".
    """
    absent = []
    for requirement in metadata.requires("cogr") or []:
        needs, _, marker = requirement.partition(";")
        of = re.search(r"extra == ['\"](.+?)['\"]", marker)
        if (of[1] if of else "") != extra:
            continue
        name, _, more = re.split(r"[<>=!~ ]", needs, maxsplit=1)[0].partition("[")
        if name == "cogr":
            absent += [one for inner in more[:-1].split(",") for one in missing_packages(inner)]
        else:
            try:
                metadata.version(name)
            except metadata.PackageNotFoundError:
                absent.append(name)
    return absent


def _configured(config: Path | None) -> Iterator[Finding]:
    from indexers.backends.opensearch.client import Cluster
    from indexers.fleet.broker import server_version

    try:
        settings = load_settings(config, otherwise={"dataset": {"loader": "jsonl"}})
    except CogrError as error:
        yield Finding("broken", "configuration", str(error))
        return

    def cluster_version() -> str:
        with closing(Cluster(settings.opensearch)) as cluster:
            return cluster.version.text

    yield Finding("ok", "store", masked(settings.store))
    yield _server("opensearch", "opensearch", settings.opensearch.url, cluster_version)
    yield _server("redis", "valkey", settings.redis.url, lambda: server_version(settings.redis))


def _server(name: str, kind: str, url: str | None, version: Callable[[], str]) -> Finding:
    if url:
        return _tried(name, lambda: f"{masked(url)}, {version()}", "broken")
    if local := ", ".join(f"{one.url} (local)" for one in known(kind) if one.running):
        return Finding("ok", name, local)
    return Finding("missing", name, f"not configured; cogr-ops {name} start runs one")
