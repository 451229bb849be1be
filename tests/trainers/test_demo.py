"""The demo: through the real path, in memory and against a real OpenSearch."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from cogr.errors import ServiceError, StorageError, UserError
from cogr.settings import OpenSearchSettings, load_settings
from indexers.backends.base import Hit
from indexers.searching import Answered
from trainers.demo import CATALOGUE
from trainers.demo.catalogue import make_catalogue
from trainers.demo.rows import Row
from trainers.demo.run import SEARCHES, demo_settings, lay_out
from trainers.demo.server import search_server
from trainers.demo.show import results, safe, table

NAMES = ["bm25", "extractive", "statistical"]


def printed(thing: object) -> str:
    out = Console(file=io.StringIO(), width=200, markup=False, emoji=False, highlight=False)
    out.print(thing)
    return out.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def demo(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trainers.cli", "demo", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_the_folder_is_a_workspace_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COGR_DATASET__LOADER", "beir")
    monkeypatch.setenv("COGR_STORE", "elsewhere")
    config = lay_out(tmp_path / "de mo", "memory")
    settings = demo_settings(config, "memory")
    assert settings.dataset.loader == "jsonl"
    assert settings.store == str(tmp_path / "de mo" / "store")
    for file in CATALOGUE.glob("*.jsonl"):
        assert (tmp_path / "de mo" / "shop" / file.name).read_bytes() == file.read_bytes()
    monkeypatch.undo()
    assert load_settings(config).backend_name == "memory"


def test_it_may_be_laid_out_again_but_not_over_somebody_elses_configuration(tmp_path: Path) -> None:
    lay_out(tmp_path, "memory")
    lay_out(tmp_path, "opensearch")
    assert 'backend = "opensearch"' in (tmp_path / "cogr.toml").read_text()
    (tmp_path / "cogr.toml").write_text('[dataset]\nloader = "beir"\n')
    with pytest.raises(UserError, match="was not written by the demo; name another folder with --out"):
        lay_out(tmp_path, "memory")


def test_a_file_in_the_folders_place_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(StorageError, match="not a folder"):
        lay_out(tmp_path / "taken", "memory")


def test_searches_are_test_queries() -> None:
    assert set(SEARCHES) <= {query.text for query in make_catalogue(0).queries["test"]}
    assert len(SEARCHES) == 5


def test_item_text_is_never_markup_nor_control() -> None:
    hit = Hit("a", 1.0, "[red]Sofa[/red] \x1b[31m :smile: [link=http://x]", {"[b]sofa": 1.0})
    found = Answered("[u]sofa", ["[u]sofa", "[b]sofa"], "index", "item-r000-0", "memory", 1, [hit])
    out = Console(file=io.StringIO(), width=200, markup=False, emoji=False, highlight=False)
    results(out, [], [(found, {"a"})])
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert "[red]Sofa[/red]  [31m :smile: [link=http://x]" in text
    assert '"[u]sofa" finds 1 items' in text
    assert "[b]sofa" in text
    assert "\x1b" not in text
    assert len(safe("x" * 1000)) == 100


def test_the_table_grows() -> None:
    rows = [Row("bm25", 0.1, 0.2, 0.15, 1.0), Row("extractive", 0.3, 0.4, 0.35, 2.0, keywords_per_item=8.0)]
    assert "extractive" not in printed(table(rows[:1], "extractive: items")).replace("extractive: items", "")
    assert "0.350" in printed(table(rows))
    assert "8.0" in printed(table(rows))


def test_a_server_that_is_set_is_used_as_it_is() -> None:
    with search_server("http://localhost:1") as server:
        assert (server.url, server.ours) == ("http://localhost:1", False)


@pytest.mark.slow
def test_opensearch_that_is_down_is_status_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COGR_OPENSEARCH_URL", "http://127.0.0.1:9")
    ended = demo("--backend", "opensearch", "--out", tmp_path / "demo", cwd=tmp_path)
    assert ended.returncode == ServiceError.exit_status, ended.stderr
    assert "127.0.0.1:9" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_the_demo(tmp_path: Path) -> None:
    ended = demo(cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    rows = check_summary(tmp_path / ".demo" / "summary.json")
    assert 0.10 <= rows["bm25"]["f1"] <= 0.20
    assert rows["statistical"]["f1"] >= 1.5 * rows["bm25"]["f1"]
    for text in (*SEARCHES, *NAMES, "matched keyword", "keywords an item"):
        assert text in ended.stdout
    assert "Next: cogr-index search -c .demo/cogr.toml" in ended.stderr
    again = demo("--json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    answer = json.loads(again.stdout)
    assert [row["f1"] for row in answer["rows"]] == [rows[name]["f1"] for name in NAMES]
    assert answer["rows"][2]["cached"] == 1.0
    assert all(search["keywords"] and search["snapshot"].startswith("item-") for search in answer["searches"])
    search = [sys.executable, "-m", "indexers.cli", "search", "-c", ".demo/cogr.toml", "--json", SEARCHES[0]]
    found = subprocess.run(search, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(found.stdout)["hits"][: len(answer["searches"][0]["hits"])] == answer["searches"][0]["hits"]


@pytest.mark.slow
@pytest.mark.server
def test_opensearch_gives_the_same_figures(
    tmp_path: Path, opensearch: OpenSearchSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = json.loads(demo("--json", "--out", "memory", cwd=tmp_path).stdout)
    monkeypatch.setenv("COGR_OPENSEARCH_URL", str(opensearch.url))
    ended = demo("--json", "--backend", "opensearch", "--out", "cluster", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    live = json.loads(ended.stdout)
    assert live["backend"] == "opensearch"
    for one, other in zip(memory["rows"], live["rows"], strict=True):
        assert {name: one[name] for name in ("name", "p", "r", "f1")} == {
            name: other[name] for name in ("name", "p", "r", "f1")
        }
    assert [found["hits"] for found in memory["searches"]] == [found["hits"] for found in live["searches"]]


def check_summary(file: Path) -> dict[str, dict[str, float]]:
    rows = json.loads(file.read_text("utf-8"))["rows"]
    assert [row["name"] for row in rows] == NAMES
    for row in rows:
        assert 0 <= row["p"] <= 1
        assert 0 <= row["r"] <= 1
        assert 0 < row["f1"] <= 1
        assert row["seconds"] > 0
    assert [row["keywords_per_item"] is None for row in rows] == [True, False, False]
    return {row["name"]: row for row in rows}
