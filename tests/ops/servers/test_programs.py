"""Where Java and OpenSearch are found: a folder, Maven, Docker, in this order. No server runs."""

from __future__ import annotations

import os
import stat
import zipfile
from pathlib import Path

import pytest

from cogr.errors import ServiceError, SettingsError, UserError
from ops.servers import opensearch
from ops.servers.opensearch import (
    ANY_JAVA,
    OpenSearchSpec,
    find_java,
    find_opensearch,
    maven_reason,
    unpack,
)


def java_home(folder: Path, version: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").touch(mode=0o755)
    (folder / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return folder


@pytest.fixture
def javas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of Java homes, and no other Java."""
    for name in ("JAVA_HOME", "OPENSEARCH_JAVA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(opensearch, "JVM_FOLDERS", (tmp_path / "jvm",))
    return tmp_path / "jvm"


def test_java_is_found_in_order_and_by_version(
    javas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = java_home(tmp_path / "home", "17.0.15")
    java_home(javas / "eight", "1.8.0_402")
    new = java_home(javas / "new", "25.0.1")
    monkeypatch.setenv("JAVA_HOME", str(old))
    assert find_java("it", range(21, ANY_JAVA)).home == new
    assert find_java("it", range(11, 24)).home == old
    assert find_java("it", range(8, 9)).major == 8


def test_no_fitting_java_is_one_sentence_that_names_what_was_found(
    javas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="^OpenSearch 2 needs Java 11 to 12, and none was found"):
        find_java("OpenSearch 2", range(11, 13))
    java_home(javas / "new", "25.0.1")
    monkeypatch.setenv("OPENSEARCH_JAVA_HOME", str(java_home(tmp_path / "home", "17.0.15")))
    with pytest.raises(UserError, match=r"only Java 17 in .* \(OPENSEARCH_JAVA_HOME=.*home\)"):
        find_java("OpenSearch", range(21, ANY_JAVA))


@pytest.fixture
def nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with nothing in it, and a PATH that is empty: the folder that it names."""
    monkeypatch.delenv("COGR_OPENSEARCH_HOME", raising=False)
    monkeypatch.setenv("COGR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def distribution(home: Path, version: str) -> Path:
    (home / "lib").mkdir(parents=True)
    (home / "lib" / "opensearch-core-9.9.9.jar").touch()
    (home / "lib" / f"opensearch-{version}.jar").touch()
    return home


def test_a_folder_that_is_named_comes_first_and_must_hold_the_version(
    nothing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COGR_OPENSEARCH_HOME", str(tmp_path))
    with pytest.raises(SettingsError, match="holds no OpenSearch"):
        find_opensearch(None, "3.8.0", print)
    home = distribution(tmp_path / "home", "2.19.5")
    monkeypatch.setenv("COGR_OPENSEARCH_HOME", str(home))
    assert find_opensearch(None, "3.8.0", print) == home
    with pytest.raises(SettingsError, match=r"is OpenSearch 2\.19\.5, but version 3\.8\.0 was"):
        find_opensearch("3.8.0", "3.8.0", print)


def test_maven_comes_before_docker_and_what_it_fetched_is_kept(
    nothing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "archive.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("opensearch-3.8.0/lib/opensearch-3.8.0.jar", "")
    monkeypatch.setenv("PATH", f"{nothing}{os.pathsep}/usr/bin:/bin")
    into = 'for arg; do case $arg in -DoutputDirectory=*) out="${arg#*=}";; esac; done'
    program(nothing / "mvn", f'{into}; cp {archive} "$out/opensearch-3.8.0.zip"')
    program(nothing / "docker", "exit 9")
    said: list[str] = []
    home = find_opensearch(None, "3.8.0", said.append)
    assert home == tmp_path / "cache/servers/distributions/opensearch-3.8.0"
    assert said == ["Fetching OpenSearch 3.8.0 with Maven ..."]
    (nothing / "mvn").unlink()
    assert find_opensearch("3.8.0", "3.8.0", said.append) == home
    assert len(said) == 1


def test_docker_comes_last_and_gets_port_volume_and_heap(nothing: Path, tmp_path: Path) -> None:
    program(nothing / "docker", "exit 0")
    found = OpenSearchSpec(version="3.1.0", heap="1g").prepare(tmp_path / "mine", 9207, print)
    line = " ".join(found.command)
    assert line.startswith("docker run --rm --name cogr-mine -p 127.0.0.1:9207:9200 ")
    assert "-v cogr-mine:/usr/share/opensearch/data" in line
    assert "OPENSEARCH_JAVA_OPTS=-Xms1g -Xmx1g" in line
    assert line.endswith(" opensearchproject/opensearch:3.1.0")
    assert found.version == "3.1.0"


def test_without_any_of_them_the_sentence_says_what_helps(nothing: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"Maven \(mvn\).*Docker.*COGR_OPENSEARCH_HOME.*COGR_OPENSEARCH_URL"
    ):
        find_opensearch(None, "3.8.0", print)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        (
            "\x1b[0m\x1b[0m[ERROR] No plugin found for prefix 'dependency' in the repositories "
            "[central (https://repo.example/x) -> [Help 1]\n[ERROR] Re-run Maven with -e",
            "No plugin found for prefix 'dependency' in the repositories [central.",
        ),
        ("\x1b[0m\x1b[0m\n", "it ended with status 7 and said nothing."),
    ],
)
def test_the_reason_why_maven_failed_is_never_empty(output: str, reason: str) -> None:
    assert maven_reason(output, 7) == reason


def test_unpacking_keeps_what_was_executable_and_a_broken_archive_is_one_sentence(
    tmp_path: Path,
) -> None:
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        run = zipfile.ZipInfo("top/bin/run")
        run.external_attr = 0o100755 << 16
        packed.writestr(run, "#!/bin/sh\n")
        packed.writestr("top/plain.txt", "text")
    unpack(archive, tmp_path / "out")
    assert (tmp_path / "out/top/bin/run").stat().st_mode & stat.S_IXUSR
    assert not (tmp_path / "out/top/plain.txt").stat().st_mode & stat.S_IXUSR
    archive.write_bytes(b"PK\3\4 no archive")
    with pytest.raises(ServiceError, match=r"a\.zip is broken"):
        unpack(archive, tmp_path / "out")
