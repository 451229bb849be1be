"""A local single-node OpenSearch for development and tests, never for production; and
where OpenSearch and Java are found: a folder on disk, Maven Central, Docker, in this order.

The distribution is shared and read-only; all that a node writes lies in its own folder.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any, ClassVar

from filelock import FileLock

from cogr.errors import ServiceError, SettingsError, UserError
from cogr.records import Say
from cogr.settings.serving import OpenSearchSettings
from ops.servers.instances import Program, ServerSpec, ServerState, hand_over, servers_folder

HOME_VARIABLE = "COGR_OPENSEARCH_HOME"
JAVA_VARIABLE = "OPENSEARCH_JAVA_HOME"
ANY_JAVA = 1000
JVM_FOLDERS = ("/usr/lib/jvm", "/Library/Java/JavaVirtualMachines", "/opt/java")
"""Where systems keep their Java runtimes, one folder each."""


def find_opensearch(version: str | None, default: str, say: Say) -> Path | None:
    """The folder of a distribution: that of COGR_OPENSEARCH_HOME, else one that was unpacked
    before, else Maven's, which is kept. None where only Docker has it. Raises SettingsError,
    UserError and ServiceError.
    """
    if named := os.environ.get(HOME_VARIABLE):
        home = Path(named).absolute()
        found = version_of(home)
        if version not in (None, found):
            raise SettingsError(
                f"{HOME_VARIABLE}={home} is OpenSearch {found}, but version {version} was asked "
                "for; unset it or leave --version out."
            )
        return home
    version = version or default
    what = f"OpenSearch {version}"
    folder = servers_folder() / "distributions" / f"opensearch-{version}"
    if not folder.exists() and shutil.which("mvn") is None:
        if shutil.which("docker") is not None:
            return None
        raise UserError(
            f"{what} is not on this disk, and neither Maven (mvn) nor Docker is here to fetch it: "
            "install one of them (apt install maven, brew install maven), set "
            f"{HOME_VARIABLE} to an unpacked distribution, or set COGR_OPENSEARCH_URL to a server."
        )

    def fetched(scratch: Path) -> Path:
        artifact = f"org.opensearch.distribution.integ-test-zip:opensearch:{version}:zip"
        unpack(fetch_with_maven(artifact, scratch, what, say), scratch / "unpacked")
        (top,) = (scratch / "unpacked").iterdir()
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


def made_once(path: Path, make: Callable[[Path], Path]) -> Path:
    """A file or folder that the first one who needs it makes: `make` writes it below the folder
    that it is given, and returns where.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        with FileLock(path.with_name(f".{path.name}.lock")):
            if not path.exists():
                with tempfile.TemporaryDirectory(dir=path.parent, prefix=".tmp-") as scratch:
                    make(Path(scratch)).rename(path)
    return path


def fetch_with_maven(artifact: str, into: Path, what: str, say: Say) -> Path:
    """Fetch one artifact (group:name:version[:type]) into a folder, its checksum compared; the
    file's path. Raises ServiceError where Maven fails.
    """
    say(f"Fetching {what} with Maven ...")
    _, name, number, *kind = artifact.split(":")
    fetched = into / f"{name}-{number}.{kind[0] if kind else 'jar'}"
    command = ["mvn", "-q", "-B", "-C", "-Dstyle.color=never", "dependency:copy"]
    command += [f"-Dartifact={artifact}", f"-DoutputDirectory={into}"]
    done = subprocess.run(
        command, cwd=into, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    if done.returncode != 0 or not fetched.is_file():
        reason = maven_reason(done.stdout + done.stderr, done.returncode)
        raise ServiceError(f"Maven could not fetch {what}: {reason}")
    return fetched


def maven_reason(output: str, status: int) -> str:
    """Why Maven failed: the first line that says something (a quiet Maven prints only errors), else
    its exit status. No addresses.
    """
    # Maven colours its output by empty escape sequences even where it is told not to.
    noise = r"\x1b\[[0-9;]*m|\(?https?://\S+|-> \[Help \d+\]|\[ERROR\]"
    lines = (re.sub(noise, "", line).strip(" .") for line in output.splitlines())
    reason = next(filter(None, lines), f"it ended with status {status} and said nothing")
    return f"{reason[:400]}."


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip; what was executable still is. Raises ServiceError where it is broken."""
    try:
        with zipfile.ZipFile(archive) as packed:
            for entry in packed.infolist():
                path = Path(packed.extract(entry, folder))
                if (entry.external_attr >> 16) & 0o111:
                    path.chmod(0o755)
    except (zipfile.BadZipFile, EOFError) as error:
        raise ServiceError(f"The archive {archive.name} is broken ({error}); try again.") from error


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: its folder and its major version."""

    home: Path
    major: int


def find_java(server: str, versions: range) -> Java:
    """The first of `runtimes` that fits. Raises UserError."""
    found = runtimes()
    for java in found:
        if java.major in versions:
            return java
    most = f"to {versions.stop - 1}" if versions.stop < ANY_JAVA else "or newer"
    others = ", ".join(f"Java {java.major} in {java.home}" for java in found)
    which = f"only {others} was found" if others else "none was found"
    looked, hint = "JAVA_HOME, PATH, /usr/lib/jvm", "install one"
    if chosen := os.environ.get(JAVA_VARIABLE):
        looked, hint = f"{JAVA_VARIABLE}={chosen}", "unset it, or let it name such a runtime"
    raise UserError(f"{server} needs Java {versions.start} {most}, and {which} ({looked}): {hint}.")


def runtimes() -> list[Java]:
    """The runtime of OPENSEARCH_JAVA_HOME if that is set, else those of JAVA_HOME, PATH and
    JVM_FOLDERS, best first; the major version is what the file `release` says.
    """
    if chosen := os.environ.get(JAVA_VARIABLE):
        homes = [chosen]
    else:
        homes = [os.environ.get("JAVA_HOME") or ""]
        if on_path := shutil.which("java"):
            homes.append(str(Path(on_path).resolve().parent.parent))
        for folder in JVM_FOLDERS:
            for end in ("*", "*/Contents/Home"):
                homes += sorted(glob(f"{folder}/{end}"), reverse=True)  # noqa: PTH207
    found: dict[Path, Java] = {}
    for home in map(Path, filter(None, homes)):
        try:
            release = (home / "release").read_text("utf-8", "replace")
        except OSError:
            continue  # A folder may be closed to this user, or hold no runtime.
        version = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release, re.MULTILINE)
        if version and os.access(home / "bin" / "java", os.X_OK):
            found.setdefault(home.resolve(), Java(home, int(version[1])))
    return list(found.values())


DEFAULT_VERSION = "3.8.0"
LEAST_JAVA = 21
"""What OpenSearch 3.x is compiled for."""


@dataclass(frozen=True, kw_only=True)
class OpenSearchSpec(ServerSpec):
    """A node to start. Without a name it is opensearch-<version>."""

    kind: ClassVar[str] = "opensearch"
    usual_port: ClassVar[int] = 9200
    start_seconds: ClassVar[float] = 300.0
    address: ClassVar[str] = "http://127.0.0.1:{}"
    version: str | None = None
    home: Path | None = None
    heap: str = "512m"
    brief: bool = False

    def __post_init__(self) -> None:
        if self.version is not None and not re.fullmatch(r"\d+\.\d+\.\d+", self.version):
            raise UserError(
                f"{self.version!r} is not an OpenSearch version; give one like {DEFAULT_VERSION}."
            )
        if not re.fullmatch(r"[1-9]\d*[mg]", self.heap):
            raise UserError(f"{self.heap!r} is not a heap size; give one like 512m or 2g.")

    @property
    def server_name(self) -> str:
        return self.name or f"{self.kind}-{self.version or DEFAULT_VERSION}"

    def prepare(self, folder: Path, port: int, say: Say, /) -> Program:
        home = self.home or find_opensearch(self.version, DEFAULT_VERSION, say)
        # Java's options come after those of jvm.options, and count.
        options = f"-Xms{self.heap} -Xmx{self.heap}"
        options += " -XX:TieredStopAtLevel=1" if self.brief else ""
        if home is None:
            return self._container(folder.name, port, options, say)
        version = version_of(home)
        # 2.x needs the security manager, which Java 24 removed.
        fits = range(11, 24) if version.startswith("2.") else range(LEAST_JAVA, ANY_JAVA)
        java = find_java(f"OpenSearch {version}", fits)
        _configure(folder, home, port)
        say(f"Starting OpenSearch {version} with Java {java.major} ...")
        crashes = f"-XX:HeapDumpPath={folder}/tmp -XX:ErrorFile={folder}/logs/hs_err_%p.log"
        # Nothing else of the caller's environment reaches the node.
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": f"{folder}/tmp",
            "LANG": "C.UTF-8",
            "OPENSEARCH_JAVA_HOME": str(java.home),
            "OPENSEARCH_JAVA_OPTS": f"{options} {crashes}",
            "OPENSEARCH_PATH_CONF": f"{folder}/config",
            "OPENSEARCH_TMPDIR": f"{folder}/tmp",
        }
        return Program([str(home / "bin/opensearch")], environment, version)

    def _container(self, name: str, port: int, options: str, say: Say) -> Program:
        version, name = self.version or DEFAULT_VERSION, f"cogr-{name}"
        say(f"Starting OpenSearch {version} with Docker ...")
        command = ["docker", "run", "--rm", "--name", name, "-p", f"127.0.0.1:{port}:9200"]
        command += ["-v", f"{name}:/usr/share/opensearch/data"]
        command += ["-e", "discovery.type=single-node", "-e", "DISABLE_SECURITY_PLUGIN=true"]
        command += ["-e", f"OPENSEARCH_JAVA_OPTS={options}"]
        return Program([*command, f"opensearchproject/opensearch:{version}"], os.environ, version)

    def check(self, _: Path, url: str, /) -> None:
        """Raise ServiceError unless the node is healthy and an index can be created."""
        from indexers.backends.opensearch.client import Cluster  # late: imports break Ctrl-C

        index, doing = f"/cogr-ready-{os.getpid()}", "trying an index"
        body = {"settings": {"number_of_shards": 1, "number_of_replicas": 0}}
        health = {"wait_for_status": "yellow"}
        with closing(Cluster(OpenSearchSettings(url=url))) as cluster:
            cluster.call("GET", "/_cluster/health", doing="waiting for it", params=health)
            cluster.call("PUT", index, doing=doing, body=body, exists_ok=True)
            cluster.call("DELETE", index, doing=doing, missing_ok=True)


def _configure(folder: Path, home: Path, port: int) -> None:
    for name in ("logs", "tmp", "backups"):
        hand_over(folder / name)
    # Always a new folder: root must not write through links that the node's user could have
    # put there.
    config = folder / "config"
    shutil.rmtree(config, ignore_errors=True)
    shutil.copytree(home / "config", config)
    kept = config / "opensearch.yml"
    text = kept.read_text("utf-8") if kept.exists() else ""
    settings: dict[str, Any] = {
        "path.data": str(folder / "data"),
        "path.logs": str(folder / "logs"),
        # Where snapshot repositories of the type fs may lie.
        "path.repo": [str(folder / "backups")],
        "network.host": "127.0.0.1",
        "http.port": port,
        "transport.port": 0,
        "discovery.type": "single-node",
        # A developer's disk is often nearly full; the node would refuse to place an index.
        "cluster.routing.allocation.disk.threshold_enabled": False,
    }
    if (home / "plugins/opensearch-security").is_dir() and "plugins.security" not in text:
        settings["plugins.security.disabled"] = True
    # JSON values are YAML values.
    lines = [f"{key}: {json.dumps(value)}\n" for key, value in settings.items()]
    kept.write_text(text + "\n" + "".join(lines), "utf-8")
    # Less a log of garbage collections in the distribution's folder.
    options = re.sub(r"(?m)^.*-Xlog:gc.*\n?", "", (config / "jvm.options").read_text("utf-8"))
    (config / "jvm.options").write_text(options, "utf-8")
    for path in [*config.rglob("*"), config]:
        path.chmod(0o700 if path.is_dir() else 0o600)
        hand_over(path)


def connection(state: ServerState, **more: Any) -> OpenSearchSettings:
    """Settings that reach a server."""
    return OpenSearchSettings.model_validate({"url": state.url, **more})
