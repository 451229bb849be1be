"""Getting an OpenSearch distribution: one on disk, else Maven Central's, fetched and unpacked once.
Starts no server.

A distribution is never changed after it was unpacked; a variant (without a module, with a plugin)
is a folder of its own whose files are hard links.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cogr.errors import ServiceError, SettingsError, UserError
from cogr.progress import Say
from ops.servers.folders import locked, require_free

HOME_VARIABLE = "COGR_OPENSEARCH_HOME"
SECURITY_PLUGIN = "opensearch-security"
UNPACKED_BYTES = 700_000_000
"""Room for the archive in Maven's repository, the archive itself and the unpacked files."""


"""Takes a line for the reader."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """An unpacked OpenSearch.

    Attributes:
        home: its folder.
        version: such as 3.8.0.
        label: what variants of it are named after.
    """

    home: Path
    version: str
    label: str

    def has_plugin(self, name: str) -> bool:
        return (self.home / "plugins" / name).is_dir()


def find_distribution(version: str | None, default: str, servers: Path, say: Say) -> Distribution:
    """A distribution of a version: COGR_OPENSEARCH_HOME, the servers' folder, or Maven, in this
    order.

    Args:
        version: the version that was asked for; None takes what COGR_OPENSEARCH_HOME has, else
            `default`.

    Raises:
        SettingsError: COGR_OPENSEARCH_HOME names no distribution, or one of another version.
        UserError: it is not on disk and there is no Maven.
        ServiceError: Maven could not fetch it.
    """
    home = os.environ.get(HOME_VARIABLE)
    if home:
        return _from_home(Path(home).absolute(), version)
    version = version or default
    folder = servers / "distributions" / f"opensearch-{version}"
    with locked(
        folder, lambda: say(f"Waiting for another process that unpacks OpenSearch {version} ...")
    ):
        if not folder.exists():
            _fetch_distribution(version, folder, say)
    return Distribution(folder, version, folder.name)


def _from_home(home: Path, version: str | None) -> Distribution:
    try:
        names = os.listdir(home / "lib")  # noqa: PTH208 (it raises where it may not look, and glob does not say whether it does)
    except OSError:
        names = []
    jars = [re.fullmatch(r"opensearch-(\d+\.\d+\.\d+)\.jar", name) for name in sorted(names)]
    found = next((match[1] for match in jars if match), None)
    if found is None:
        raise SettingsError(
            f"{HOME_VARIABLE}={home} holds no OpenSearch (no lib/opensearch-X.Y.Z.jar); unset or "
            "mend it."
        )
    if version is not None and version != found:
        raise SettingsError(
            f"{HOME_VARIABLE}={home} is OpenSearch {found}, but version {version} was asked for; "
            "unset it or leave --version out."
        )
    return Distribution(
        home, found, f"opensearch-{found}-{hashlib.sha256(bytes(home)).hexdigest()[:8]}"
    )


def _fetch_distribution(version: str, folder: Path, say: Say) -> None:
    require_free(folder.parent, UNPACKED_BYTES, f"Fetching and unpacking OpenSearch {version}")
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".tmp-") as scratch:
        artifact = f"org.opensearch.distribution.integ-test-zip:opensearch:{version}:zip"
        archive = fetch_with_maven(artifact, Path(scratch), f"OpenSearch {version}", say)
        say(f"Unpacking OpenSearch {version} to {folder} ...")
        unpack(archive, Path(scratch) / "unpacked")
        (top,) = (Path(scratch) / "unpacked").iterdir()
        top.rename(folder)


def fetch_with_maven(artifact: str, into: Path, what: str, say: Say) -> Path:
    """Fetch one artifact (group:name:version[:type]) into a folder; the file's path.

    Raises:
        UserError: there is no mvn.
        ServiceError: Maven failed.
    """
    maven = shutil.which("mvn")
    if maven is None:
        raise UserError(
            f"{what} is not on this disk and Maven (mvn), which fetches it, is not installed: "
            "install maven (apt install "
            f"maven, brew install maven), set {HOME_VARIABLE} to an unpacked distribution, or "
            "run one elsewhere (for example "
            "with Docker) and set COGR_OPENSEARCH_URL to it."
        )
    say(f"Fetching {what} with Maven ...")
    before = set(into.iterdir())
    command = [maven, "-q", "-B", "-C", "-Dstyle.color=never", *_local_repository(into)]
    command += ["dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={into}"]
    done = subprocess.run(
        command, cwd=into, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    fetched = [path for path in set(into.iterdir()) - before if path.is_file()]
    if done.returncode != 0 or len(fetched) != 1:
        raise ServiceError(
            f"Maven could not fetch {what}: "
            f"{maven_reason(done.stdout + done.stderr, done.returncode)}"
        )
    return fetched[0]


def _local_repository(into: Path) -> list[str]:
    """Maven keeps what it fetches below the home folder; where that can't be written, below the
    scratch folder.
    """
    home = Path(os.path.expanduser("~"))  # noqa: PTH111 (Path.home() raises without a home)
    repository = home / ".m2" / "repository"
    nearest = next((path for path in (repository, repository.parent, home) if path.exists()), home)
    return (
        [] if os.access(nearest, os.W_OK) else [f"-Dmaven.repo.local={into / 'm2' / 'repository'}"]
    )


def maven_reason(output: str, status: int) -> str:
    """Why Maven failed: its first error line that says something, else its last line, else its exit
    status. No addresses.
    """
    # Maven colours its output by empty escape sequences even where it is told not to.
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line).strip() for line in output.splitlines()]
    errors = [line for line in lines if line.startswith("[ERROR]")]
    for line in (*errors, *reversed(lines)):
        reason = (
            re.sub(r"\(?https?://\S+|-> \[Help \d+\]", "", line.removeprefix("[ERROR]"))
            .rstrip(". ")
            .strip()
        )
        if reason:
            return f"{reason[:400]}."
    return f"it ended with status {status} and said nothing."


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip; everybody may read it, and what was executable still is.

    Raises:
        ServiceError: the archive is broken.
    """
    try:
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(folder)
            for entry in packed.infolist():
                executable = entry.is_dir() or (entry.external_attr >> 16) & 0o111
                (folder / entry.filename).chmod(0o755 if executable else 0o644)
    except (zipfile.BadZipFile, EOFError) as error:
        raise ServiceError(f"The archive {archive.name} is broken ({error}); try again.") from error
    for path in [folder, *(path for path in folder.rglob("*") if path.is_dir())]:
        path.chmod(0o755)


def variant(
    base: Distribution, change_name: str, change: Callable[[Path], None], servers: Path
) -> Distribution:
    """A changed copy of a distribution, made once: <servers>/distributions/<label>-<change_name>.

    Args:
        change: changes the copy; it may add, replace and remove files, but must not write into one
            that is there (files are hard links to the original's).
    """
    folder = servers / "distributions" / f"{base.label}-{change_name}"
    with locked(folder):
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".tmp-") as scratch:
                copy = Path(scratch) / "copy"
                link_tree(base.home, copy)
                change(copy)
                copy.rename(folder)
    return Distribution(folder, base.version, folder.name)


def link_tree(source: Path, target: Path) -> None:
    """A copy of a folder whose files are hard links, or copies where the system allows no links."""
    shutil.copytree(source, target, copy_function=_link_or_copy, symlinks=True)


def _link_or_copy(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def without_modules(*names: str) -> Callable[[Path], None]:
    """A change for `variant` that leaves modules out."""

    def change(home: Path) -> None:
        for name in names:
            shutil.rmtree(home / "modules" / name, ignore_errors=True)

    return change
