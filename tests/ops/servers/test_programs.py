"""Where Java and OpenSearch are found: a folder, then Maven. No server runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cogr.errors import SettingsError, UserError
from ops import servers
from ops.servers import OpenSearchSpec, find_java, find_opensearch


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
    monkeypatch.setattr(servers, "glob", lambda _: map(str, (tmp_path / "jvm").glob("*")))
    return tmp_path / "jvm"


def test_java_is_found_in_order_and_by_version(
    javas: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = java_home(tmp_path / "home", "17.0.15")
    java_home(javas / "eight", "1.8.0_402")
    new = java_home(javas / "new", "25.0.1")
    monkeypatch.setenv("JAVA_HOME", str(old))
    assert find_java("3.8.0") == new
    assert find_java("2.19.5") == old
    (old / "release").unlink()
    with pytest.raises(UserError, match="Java 11 to 23"):
        find_java("2.19.5")


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
    with pytest.raises(SettingsError, match="OpenSearch"):
        OpenSearchSpec().prepare(tmp_path, 1, print)
    home = distribution(tmp_path / "home", "2.19.5")
    monkeypatch.setenv("COGR_OPENSEARCH_HOME", str(home))
    assert find_opensearch("3.8.0", print) == home
    with pytest.raises(SettingsError, match=r"2\.19\.5.*3\.8\.0"):
        OpenSearchSpec(version="3.8.0").prepare(tmp_path, 1, print)


def test_what_maven_fetched_is_kept(
    nothing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{nothing}{os.pathsep}/usr/bin:/bin")
    into = 'for arg; do case $arg in -DoutputDirectory=*) out="${arg#*=}";; esac; done'
    program(nothing / "mvn", f'{into}; mkdir -p "$out/opensearch-3.8.0/lib"')
    said: list[str] = []
    home = find_opensearch("3.8.0", said.append)
    assert home == tmp_path / "cache/servers/distributions/opensearch-3.8.0"
    assert said == ["Fetching OpenSearch 3.8.0 with Maven ..."]
    (nothing / "mvn").unlink()
    assert find_opensearch("3.8.0", said.append) == home
    assert len(said) == 1


def test_without_both_of_them_the_sentence_says_what_helps(nothing: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"Maven \(mvn\).*COGR_OPENSEARCH_HOME.*COGR_OPENSEARCH__URL"
    ):
        find_opensearch("3.8.0", print)
    assert not (tmp_path / "cache").exists()
