"""Where OpenSearch and Java are found: a folder on disk, Maven Central, Docker, in this order.

A distribution is never changed after it was unpacked.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from filelock import FileLock

from cogr.errors import ServiceError, SettingsError, UserError
from cogr.records import Say
from ops.servers.instances import servers_folder

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
