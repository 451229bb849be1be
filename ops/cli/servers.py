"""`cogr-ops opensearch` and `cogr-ops redis`: start and stop of local servers. What start does is
in `ops.servers`. And `cogr-ops doctor`: what of the stack is there, what is missing, how to get it;
it looks only, and installs, starts and fetches nothing.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console
from typer import Option

from cogr import __version__
from cogr.errors import CheckFailedError, CogrError
from cogr.redaction import masked
from cogr.settings import load_settings
from indexers.cli import console
from indexers.cli.console import Call, JsonOption, common_options
from indexers.tables import show_all
from ops import servers
from ops.servers import DEFAULT_VERSION, HOME_VARIABLE, OpenSearchSpec, ServerSpec, ValkeySpec


def _emit(as_json: bool, payload: dict[str, Any]) -> None:
    console.emit(as_json, payload, lambda out: show_all(out, "", payload))


def _start(wanted: ServerSpec, as_json: bool, next_: str, variable: str) -> None:
    if url := os.environ.get(variable):
        console.note("The environment names a server, so nothing is started.")
        _emit(as_json, {"url": masked(url)})
        return
    state = servers.start(wanted, console.note)
    _emit(as_json, {**state.model_dump(mode="json", exclude={"created"}), "log": str(state.log)})
    console.next_command(f"{next_}{state.url}")


def _commands(kind: str, help_: str) -> typer.Typer:
    app = typer.Typer(no_args_is_help=True, help=help_)

    @app.command()
    def stop(
        remove: Annotated[
            bool, Option("--remove", help="Delete data, logs and configuration too.")
        ] = False,
        as_json: JsonOption = False,
    ) -> None:
        """Stop the servers that you started. Their data is kept for the next start."""
        names = [one.name for one in servers.known(kind)]
        stopped = [one for one in names if servers.stop(kind, one, remove=remove)]
        _emit(as_json, {"stopped": stopped, "removed": names if remove else []})

    return app


opensearch_app = _commands(
    "opensearch", "A local single-node OpenSearch for development and tests."
)
redis_app = _commands(
    "valkey", "A local Valkey, the broker of rebuilds on workers, for development and tests."
)


@opensearch_app.command("start")
def start_opensearch(
    version: Annotated[
        str | None,
        Option(help=f"OpenSearch version, such as 2.19.5.  [default: {DEFAULT_VERSION}]"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Start a server and wait until it works.

    Does nothing when it runs already, or when COGR_OPENSEARCH__URL is set.
    """
    next_ = "cogr-index rebuild --side item --set opensearch.url="
    _start(OpenSearchSpec(version=version), as_json, next_, "COGR_OPENSEARCH__URL")


@redis_app.command("start")
def start_redis(as_json: JsonOption = False) -> None:
    """Start a server and wait until it answers.

    Does nothing when it runs already, or when COGR_REDIS__URL is set.
    """
    _start(ValkeySpec(), as_json, "cogr-ops worker --set redis.url=", "COGR_REDIS__URL")


FindingState = Literal["ok", "missing", "broken"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What `doctor` says of one part of the stack."""

    state: FindingState
    name: str
    detail: str


@common_options()
def doctor(call: Call) -> None:
    """Check what a stack needs: what is there, what is missing, how to get it.

    Exit status 1 if the configuration, or a cluster or broker that it names, is broken.
    """
    findings = list(examine_installation(call.config))

    def show(out: Console) -> None:
        for one in findings:
            out.print(f"{one.state:8} {one.name:14} {one.detail}", soft_wrap=True)

    call.emit({"findings": list(map(asdict, findings))}, show)
    if broken := [one.name for one in findings if one.state == "broken"]:
        raise CheckFailedError(f"Broken here: {', '.join(broken)}; see above.")


def examine_installation(config: Path | None = None) -> Iterator[Finding]:
    """What is installed here and what the configuration names: one finding for each part."""
    yield Finding("ok", "cogr", f"{__version__}, Python {platform.python_version()}")
    yield _tried("java", servers.find_java)
    maven = shutil.which("mvn")
    fix = f"install Maven, or set {HOME_VARIABLE} to an unpacked OpenSearch"
    yield Finding("ok", "maven", maven) if maven else Finding("missing", "maven", fix)
    yield _tried("valkey", servers.find_valkey)
    yield from _configured(config)


def _tried(name: str, look: Callable[[], object], bad: FindingState = "missing") -> Finding:
    try:
        return Finding("ok", name, str(look()))
    except CogrError as error:
        return Finding(bad, name, str(error))


def _configured(config: Path | None) -> Iterator[Finding]:
    from indexers.backends.opensearch.client import Cluster
    from indexers.rebuild.fleet.broker import server_version

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
    if local := ", ".join(f"{one.url} (local)" for one in servers.known(kind) if one.running):
        return Finding("ok", name, local)
    return Finding("missing", name, f"not configured; cogr-ops {name} start runs one")
