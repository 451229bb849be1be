"""What OpenSearch runs from: a distribution, on disk or fetched from Maven Central, and a Java
runtime. Nothing is started here.

A distribution is never changed after it was unpacked. A variant of it, such as one with a plugin,
is a folder of its own whose files are hard links.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from glob import glob
from pathlib import Path

from cogr.errors import ServiceError, SettingsError, UserError
from cogr.records import Say
from ops.servers.machine import Account, made_once, open_to_others, require_free

HOME_VARIABLE = "COGR_OPENSEARCH_HOME"
JAVA_VARIABLE = "OPENSEARCH_JAVA_HOME"
UNPACKED_BYTES = 700_000_000
"""Room for the archive in Maven's repository, the archive itself and the unpacked files."""
ANY_JAVA = 1000
JVM_FOLDERS = (Path("/usr/lib/jvm"), Path("/Library/Java/JavaVirtualMachines"), Path("/opt/java"))
"""Where systems keep their Java runtimes, one folder each."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """An unpacked OpenSearch: its folder and its version, such as 3.8.0."""

    home: Path
    version: str


def find_distribution(version: str | None, default: str, servers: Path, say: Say) -> Distribution:
    """A distribution: that of COGR_OPENSEARCH_HOME, else one in the servers' folder, else Maven's.

    Args:
        version: None takes what COGR_OPENSEARCH_HOME has, else `default`.

    Raises:
        SettingsError: COGR_OPENSEARCH_HOME names no distribution, or one of another version.
        UserError: it is not on disk and there is no Maven.
        ServiceError: Maven could not fetch it.
    """
    if home := os.environ.get(HOME_VARIABLE):
        return from_home(Path(home).absolute(), version)
    version = version or default
    folder = servers / "distributions" / f"opensearch-{version}"
    waiting = f"Waiting for another process that unpacks OpenSearch {version} ..."

    def fetched(scratch: Path) -> Path:
        require_free(scratch, f"Fetching and unpacking OpenSearch {version}", UNPACKED_BYTES)
        artifact = f"org.opensearch.distribution.integ-test-zip:opensearch:{version}:zip"
        archive = fetch_with_maven(artifact, scratch, f"OpenSearch {version}", say)
        say(f"Unpacking OpenSearch {version} to {folder} ...")
        unpack(archive, scratch / "unpacked")
        (top,) = (scratch / "unpacked").iterdir()
        return top

    return Distribution(made_once(folder, fetched, lambda: say(waiting)), version)


def from_home(home: Path, version: str | None) -> Distribution:
    """The distribution in a folder. Raises SettingsError where that is none, or another version."""
    name = re.compile(r"opensearch-(\d+\.\d+\.\d+)\.jar")
    # pathlib's glob raises for a closed folder.
    jars = map(name.fullmatch, glob("*.jar", root_dir=home / "lib"))  # noqa: PTH207
    found = next((jar[1] for jar in jars if jar), None)
    if found is None:
        raise SettingsError(
            f"{HOME_VARIABLE}={home} holds no OpenSearch (no lib/opensearch-X.Y.Z.jar); unset or "
            "mend it."
        )
    if version not in (None, found):
        raise SettingsError(
            f"{HOME_VARIABLE}={home} is OpenSearch {found}, but version {version} was asked for; "
            "unset it or leave --version out."
        )
    return Distribution(home, found)


def fetch_with_maven(artifact: str, into: Path, what: str, say: Say) -> Path:
    """Fetch one artifact (group:name:version[:type]) into a folder, its checksum compared; the
    file's path.

    Raises:
        UserError: there is no mvn.
        ServiceError: Maven failed.
    """
    maven = shutil.which("mvn")
    if maven is None:
        raise UserError(
            f"{what} is not on this disk and Maven (mvn), which fetches it, is not installed: "
            "install maven (apt install maven, brew install maven), set "
            f"{HOME_VARIABLE} to an unpacked distribution, or run one elsewhere (for example with "
            "Docker) and set COGR_OPENSEARCH_URL to it."
        )
    say(f"Fetching {what} with Maven ...")
    _, name, number, *kind = artifact.split(":")
    fetched = into / f"{name}-{number}.{kind[0] if kind else 'jar'}"
    command = [maven, "-q", "-B", "-C", "-Dstyle.color=never", "dependency:copy"]
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
    """Unpack a zip; everybody may read it, and what was executable still is.

    Raises:
        ServiceError: the archive is broken.
    """
    try:
        with open_to_others(), zipfile.ZipFile(archive) as packed:
            for entry in packed.infolist():
                path = Path(packed.extract(entry, folder))
                if (entry.external_attr >> 16) & 0o111:
                    path.chmod(0o755)
    except (zipfile.BadZipFile, EOFError) as error:
        raise ServiceError(f"The archive {archive.name} is broken ({error}); try again.") from error


def variant(
    base: Distribution, name: str, change: Callable[[Path], None], servers: Path
) -> Distribution:
    """A changed copy of a distribution, made once for its version:
    <servers>/distributions/opensearch-<version>-<name>.

    Args:
        change: changes the copy; it may add, replace and remove files, but must not write into one
            that is there (files are hard links to the original's).
    """

    def changed(scratch: Path) -> Path:
        link_tree(base.home, scratch / "copy")
        change(scratch / "copy")
        return scratch / "copy"

    folder = servers / "distributions" / f"opensearch-{base.version}-{name}"
    return Distribution(made_once(folder, changed), base.version)


def link_tree(source: Path, target: Path) -> None:
    """A copy of a folder whose files are hard links, or copies where the system allows no links."""

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)

    shutil.copytree(source, target, copy_function=link, symlinks=True)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java runtime: its folder and its major version."""

    home: Path
    major: int


def find_java(server: str, versions: range, account: Account) -> Java:
    """The first of `runtimes` that fits and that the account can run.

    Args:
        server: who needs it.
        versions: which major versions fit; up to ANY_JAVA for no upper end.

    Raises:
        UserError: none fits.
    """
    found = [java for java in runtimes() if account.may("x", java.home / "bin" / "java")]
    for java in found:
        if java.major in versions:
            return java
    most = f"to {versions.stop - 1}" if versions.stop < ANY_JAVA else "or newer"
    others = ", ".join(dict.fromkeys(f"Java {java.major} in {java.home}" for java in found))
    which = f"only {others} was found" if others else "none was found"
    looked, hint = "JAVA_HOME, PATH, /usr/lib/jvm", "install one"
    if chosen := os.environ.get(JAVA_VARIABLE):
        looked, hint = f"{JAVA_VARIABLE}={chosen}", "unset it, or let it name such a runtime"
    raise UserError(f"{server} needs Java {versions.start} {most}, and {which} ({looked}): {hint}.")


def runtimes() -> Iterator[Java]:
    """The runtime of OPENSEARCH_JAVA_HOME if that is set, else those of JAVA_HOME, PATH and
    JVM_FOLDERS, best first; the major version is what the file `release` says.
    """
    for home in _java_homes():
        # A folder may be closed to this user, or hold no runtime.
        with suppress(OSError):
            release = (home / "release").read_text("utf-8", "replace")
            version = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', release, re.MULTILINE)
            if version is not None and (home / "bin" / "java").exists():
                yield Java(home, int(version[1]))


def _java_homes() -> Iterator[Path]:
    if chosen := os.environ.get(JAVA_VARIABLE):
        yield Path(chosen)
        return
    if named := os.environ.get("JAVA_HOME"):
        yield Path(named)
    if (on_path := shutil.which("java")) is not None:
        yield Path(on_path).resolve().parent.parent
    for pattern in [
        f"{folder}/{end}" for folder in JVM_FOLDERS for end in ("*", "*/Contents/Home")
    ]:
        # pathlib's glob raises for a closed folder.
        yield from map(Path, sorted(glob(pattern), reverse=True))  # noqa: PTH207
