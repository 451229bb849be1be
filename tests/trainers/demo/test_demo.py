"""The demo: through the real path, training included, in memory and against a real OpenSearch.

Here it trains by a few steps, through the same code: what it learns by all of them is the sample's
business (test_whole_runs).
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cogr.errors import ServiceError, SettingsError, StorageError, UserError
from cogr.settings import OpenSearchSettings, load_settings
from cogr.settings.training import TrainingSettings
from indexers.backends import Hit
from indexers.exchange.search import Answered
from indexers.workspace import Workspace
from tests.trainers.report_worlds import Told
from trainers.demo import CATALOGUE
from trainers.demo.demo import SEARCHES, search_server
from trainers.demo.folder import as_toml, lay_out, sample_overrides
from trainers.demo.rows import Row
from trainers.demo.shop import make_catalogue
from trainers.demo.show import (
    Ended,
    Stage,
    followed,
    how_far,
    results,
    safe,
    stage_under_way,
    table,
    under_way,
)
from trainers.report.facts import Changed
from trainers.training.contest import Choice, Contender
from trainers.training.rounds import Round, StageRecord, State
from trainers.training.run_folder import open_run

NAMES = ["bm25", "extractive", "statistical", "sft", "round 1", "round 2", "distilled"]
"""Of all rows but the last, which is called by what serves."""
CHOICE = Choice(
    *[Contender("statistical", "i", "q", {"dev": {"f1": 0.7, "f1_se": 0.04, "queries": 32}})] * 2
)
FEW_STEPS = (
    "training.tiny.hidden=64",
    "training.tiny.layers=1",
    "training.sft.learning_rate=0.01",
    "training.sft.item_epochs=3",
    "training.sft.query_epochs=6",
    "training.invented_queries=50",
    "training.candidates=1",
    "training.rollouts.max_tokens=20",
    "generator.sampling.max_tokens=20",
    "training.query.max_steps=2",
    "training.query.prompts_per_step=4",
    "training.query.micro_batch=32",
    "training.item.max_steps=2",
    "training.item.prompts_per_step=4",
    "training.item.micro_batch=32",
    "training.gate.on=false",
    "rebuild.max_failure_share=1.0",
)


def printed(thing: object) -> str:
    out = Console(file=io.StringIO(), width=200, markup=False, emoji=False, highlight=False)
    out.print(thing)
    return out.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def demo(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    few = [part for setting in FEW_STEPS for part in ("--set", setting)]
    command = [sys.executable, "-m", "trainers.cli", "demo", *few, *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_the_folder_is_a_workspace_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COGR_DATASET__LOADER", "beir")
    monkeypatch.setenv("COGR_STORE", "elsewhere")
    folder = lay_out(tmp_path / "de mo", "memory")
    settings = folder.settings()
    assert settings.dataset.loader == "jsonl"
    assert settings.store == str(tmp_path / "de mo" / "store")
    for file in CATALOGUE.glob("*.jsonl"):
        assert (tmp_path / "de mo" / "shop" / file.name).read_bytes() == file.read_bytes()
    monkeypatch.undo()
    assert load_settings(folder.config).backend_name == "memory"


def test_the_configuration_says_what_the_demo_trains_by(tmp_path: Path) -> None:
    folder = lay_out(
        tmp_path,
        "memory",
        ["training.query.max_steps=3", "training.model=some folder", "opensearch.prefix=x"],
    )
    written = load_settings(folder.config)
    assert written == folder.settings()
    assert written.training.query.max_steps == 3
    assert (written.training.model, written.opensearch.prefix) == ("some folder", "x")
    plain = load_settings(lay_out(tmp_path, "memory").config)
    assert plain.training == load_settings(folder.config, sample_overrides()).training
    with pytest.raises(SettingsError, match="not of the form key=value"):
        lay_out(tmp_path, "memory", ["training"])


def test_dotted_keys_become_tables() -> None:
    values = {"b.c.d": "1", "store": '"x"', "a.b": '"{item}\\n"', "b.e": "[1, 2]"}
    assert tomllib.loads(as_toml(values)) == {
        "store": "x",
        "a": {"b": "{item}\n"},
        "b": {"c": {"d": 1}, "e": [1, 2]},
    }


def test_it_may_be_laid_out_again_but_not_over_somebody_elses_configuration(tmp_path: Path) -> None:
    lay_out(tmp_path, "memory")
    lay_out(tmp_path, "opensearch")
    assert 'backend = "opensearch"' in (tmp_path / "cogr.toml").read_text()
    (tmp_path / "cogr.toml").write_text('[dataset]\nloader = "beir"\n')
    with pytest.raises(
        UserError, match="was not written by the demo; name another folder with --out"
    ):
        lay_out(tmp_path, "memory")


def test_a_file_in_the_folders_place_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    with pytest.raises(StorageError, match="not a folder"):
        lay_out(tmp_path / "taken", "memory")


def test_searches_are_test_queries() -> None:
    assert set(SEARCHES) <= {query.text for query in make_catalogue(0).queries["test"]}
    assert len(SEARCHES) == 5


def answered(text: str, keywords: list[str], hit: Hit) -> Answered:
    boosts = dict.fromkeys(keywords, 1.0)
    return Answered(text, boosts, "index", None, "keywords", "", "item-r000-0", "memory", 1, [hit])


def test_item_text_is_never_markup_nor_control() -> None:
    hit = Hit("a", 1.0, "[red]Sofa[/red] \x1b[31m :smile: [link=http://x]", {"[b]sofa": 1.0})
    found = answered("[u]sofa", ["[u]sofa", "[b]sofa"], hit)
    out = Console(file=io.StringIO(), width=200, markup=False, emoji=False, highlight=False)
    changed = Changed("item", "i", "[i]Title \x1b", ["[red]new"], ["old\x1b"], [])
    results(out, Ended([], CHOICE, [changed], [(found, {"a"})]))
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert r"[red]Sofa[/red] \x1b[31m :smile: [link=http://x]" in text
    assert '"[u]sofa" finds 1 items' in text
    assert "[b]sofa" in text
    assert "item [i]Title \\x1b\n  + [red]new\n  - old\\x1b\n" in text
    assert "extractive -> statistical" in text
    assert "statistical serves, chosen on dev: F1 0.700 on 32 dev queries." in text
    assert "\x1b" not in text
    assert len(safe("x" * 1000)) == 100


def test_titles_among_keywords_are_counted_and_not_spelled() -> None:
    parts = {"steel bookcase nordic": 1.0, "oak shelf": 0.5}
    hit = Hit("a", 1.7, "Steel Bookcase, Nordic", parts, words=0.2)
    found = answered("shelf", ["shelf", "oak shelf", "steel bookcase nordic", "ivo lamp"], hit)
    out = Console(file=io.StringIO(), width=200, markup=False, emoji=False, highlight=False)
    results(
        out,
        Ended([], CHOICE, [], [(found, {"a"})], frozenset({"steel bookcase nordic", "ivo lamp"})),
    )
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert "keywords: oak shelf and the titles of 2 items\n" in text
    assert "its title, oak shelf, words of its title" in text


def test_the_table_grows() -> None:
    rows = [
        Row("bm25", 0.1, 0.2, 0.15, 0.3, 0.4, 1.0),
        Row("extractive", 0.3, 0.4, 0.35, 0.45, 0.5, 2.0, keywords_per_item=8.0),
    ]
    lines = printed(under_way(rows[:1], "extractive: items")).splitlines()
    assert lines[-1] == "extractive: items"
    assert not any("extractive" in line for line in lines[:-1])
    assert "0.350" in printed(table(rows))
    assert "0.450" in printed(table(rows))
    assert "8.0" in printed(table(rows))


def test_names_of_rows_are_whole_on_a_narrow_terminal() -> None:
    names = ("bm25", "statistical", "serves: statistical")
    out = Console(file=io.StringIO(), width=80)
    out.print(table([Row(name, 0.1, 0.2, 0.15, 0.3, 0.4, 1.0, 10.1) for name in names]))
    assert out.file.getvalue().count("statistical") == 2  # type: ignore[attr-defined]


def test_a_round_that_is_not_built_upon_is_said() -> None:
    out = Console(file=io.StringIO(), width=200)
    results(
        out,
        Ended(
            [Row("round 2", 0.1, 0.1, 0.1, 0.1, 0.1, 1.0, rejected="dev F1 fell")], CHOICE, [], []
        ),
    )
    assert "round 2 is not built upon: dev F1 fell." in out.file.getvalue()  # type: ignore[attr-defined]


def test_how_far_a_stage_is() -> None:
    stage = Stage("sft: training the item side", Path("log"), 90)
    assert how_far(stage, 1) == "sft: training the item side, step 1 of 90"
    assert (
        how_far(stage, 15, 2.5)
        == "sft: training the item side, step 15 of 90, 2.5 steps/s, 30.0 s left"
    )
    assert (
        how_far(Stage("round 1: training", None, None), 3, 0.25)
        == "round 1: training, step 3, 4.0 s a step"
    )


def test_the_steps_of_a_stage_are_known_from_settings_and_targets(tmp_path: Path) -> None:
    told = Told(tmp_path)
    settings = TrainingSettings.model_validate(
        {"query": {"max_steps": 40}, "sft": {"batch_size": 32, "item_epochs": 12}}
    )
    targets = StageRecord(
        name="targets", output="", seconds=1, notes={"items": 361, "queries": 580}
    )
    told.run.save(State(rounds=(Round(number=0, stages=(targets,)),)))
    stage = stage_under_way(told.run, settings)
    assert stage is not None
    assert (stage.name, stage.steps) == ("sft: training the item side", 144)
    assert stage.log == told.run.folder("logs") / "r000-item.jsonl"
    first = told.add(0)
    assert stage_under_way(told.run, settings) is None
    told.run.save(State(rounds=(first, Round(number=1))))
    stage = stage_under_way(told.run, settings)
    assert stage is not None
    assert (stage.name, stage.steps) == ("round 1: training the query side", 40)


def test_a_stage_is_followed_by_its_log(tmp_path: Path) -> None:
    log, said = tmp_path / "log", []
    log.write_text("{}\n{}\n{}\n")
    os.utime(log, (1, 1))
    with followed(said.append) as follow:
        follow(Stage("training", log, 10))
        until(lambda: True, 0.7)
        assert said == [], "an earlier attempt's log"
        log.write_text("{}\n")
        until(lambda: "training, step 1 of 10" in said)
        with log.open("a") as file:
            file.write("{}\n{}\n")
        until(
            lambda: said[-1].startswith("training, step 3 of 10, ") and said[-1].endswith(" left")
        )


def until(what: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)
        if seconds >= 10 and what():
            return
    assert what()


def test_what_stages_print_goes_to_a_file_and_comes_back_with_an_error(tmp_path: Path) -> None:
    code = r"""
import subprocess, sys
from pathlib import Path
from trainers.demo.folder import stages_write_to
child = [sys.executable, "-c", "import sys; print('10%\\r50%\\rfrom the child', file=sys.stderr)"]
with stages_write_to(Path("one.log")):
    subprocess.run(child)
    print("ours", file=sys.stderr)
print("after", file=sys.stderr)
try:
    with stages_write_to(Path("two.log")):
        subprocess.run(child)
        raise ValueError
except ValueError:
    print("end", file=sys.stderr)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ended.stderr.splitlines() == ["ours", "after", "from the child", "end"]
    assert "from the child" in (tmp_path / "one.log").read_text()


def test_a_server_that_is_set_is_used_as_it_is() -> None:
    with search_server("http://localhost:1") as server:
        assert (server.url, server.ours) == ("http://localhost:1", False)


@pytest.mark.slow
def test_opensearch_that_is_down_is_status_3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COGR_OPENSEARCH_URL", "http://127.0.0.1:9")
    ended = demo("--backend", "opensearch", "--out", tmp_path / "demo", cwd=tmp_path)
    assert ended.returncode == ServiceError.exit_status, ended.stderr
    assert "127.0.0.1:9" in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


@pytest.fixture(scope="module")
def shown(
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A demo that has ended, in `.demo` of a folder, and what it printed."""
    folder = tmp_path_factory.mktemp("demo")
    ended = demo(cwd=folder)
    assert ended.returncode == 0, ended.stderr
    return folder, ended


Shown = tuple[Path, subprocess.CompletedProcess[str]]


@pytest.mark.slow
@pytest.mark.model
def test_the_demo(shown: Shown) -> None:
    folder, ended = shown
    rows = check_summary(folder / ".demo" / "summary.json")
    assert 0.10 <= rows["bm25"]["f1"] <= 0.20
    assert rows["statistical"]["f1"] >= 1.5 * rows["bm25"]["f1"]
    for text in (
        *SEARCHES,
        *NAMES,
        "matched keyword",
        "an item",
    ):
        assert text in ended.stdout
    # Models that have learned nothing take nothing away from the pair that hears them.
    *_, last = rows
    serving = last.removeprefix("serves: ")
    assert serving in ("statistical", "distilled")
    assert rows[last]["f1"] == rows[serving]["f1"]
    assert rows[last]["f1"] >= max(row["f1"] for row in rows.values()) - 0.03
    assert f"extractive -> {serving}" in ended.stdout
    assert f"{serving} serves, chosen on dev: F1 0." in ended.stdout
    assert sum(line.startswith(("item ", "query ")) for line in ended.stdout.splitlines()) == 5
    assert "round 2: training the item side" in ended.stderr
    assert "Loading weights" not in ended.stderr
    assert "cogr-index search -c .demo/cogr.toml" in ended.stderr
    report = (folder / ".demo" / "report.html").read_text("utf-8")
    assert "2 rounds after SFT" in report
    assert report.count("<article>") == 5
    assert "What it is compared with" in report


@pytest.mark.slow
@pytest.mark.model
def test_the_readme_shows_what_the_demo_prints(shown: Shown) -> None:
    readme = (
        (Path(__file__).parents[3] / "README.md")
        .read_text("utf-8")
        .split("<!-- demo-output -->")[1]
    )
    rows = re.findall(r"^│ ([\w: ]+?) +│ ([\d.]+) │ ([\d.]+) │ ([\d.]+) │", readme, re.MULTILINE)
    found = json.loads((shown[0] / ".demo" / "summary.json").read_text("utf-8"))["rows"]
    assert [name for name, *_ in rows[:-1]] == [row["name"] for row in found[:-1]]
    assert rows[-1][0] == "serves: distilled"
    assert rows[-1][1:] == rows[-2][1:]
    # Those that train no model are as printed; boosted trees differ a little between processors.
    for (_, *figures), row in list(zip(rows, found, strict=True))[:3]:
        assert [float(figure) for figure in figures] == pytest.approx(
            [row["p"], row["r"], row["f1"]], abs=0.03
        )


@pytest.mark.slow
@pytest.mark.model
def test_a_second_demo_trains_nothing_again_and_its_folder_is_a_workspace(shown: Shown) -> None:
    folder, _ = shown
    before = json.loads((folder / ".demo" / "summary.json").read_text("utf-8"))
    again = demo("--json", cwd=folder)
    assert again.returncode == 0, again.stderr
    assert "training the" not in again.stderr
    answer = json.loads(again.stdout)
    assert [row["f1"] for row in answer["rows"]] == [row["f1"] for row in before["rows"]]
    assert [row["cached"] for row in answer["rows"]] == [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0]
    assert answer["serving"] == before["serving"]
    assert all(search["keywords"] for search in answer["searches"])
    assert {search["snapshot"] for search in answer["searches"]} == {answer["rows"][-1]["items"]}
    assert any(search["hits"] for search in answer["searches"])
    found = command(
        folder, "indexers.cli", "search", "-c", ".demo/cogr.toml", "--json", SEARCHES[0]
    )
    assert found["hits"][: len(answer["searches"][0]["hits"])] == answer["searches"][0]["hits"]
    # A third round would go on with it: the configuration in the folder is the run's.
    workspace = Workspace.open(folder / ".demo" / "cogr.toml", [])
    open_run(workspace, "main").check(workspace)


@pytest.mark.slow
@pytest.mark.model
def test_a_run_of_another_version_is_begun_anew(shown: Shown, tmp_path: Path) -> None:
    shutil.copytree(shown[0] / ".demo", tmp_path / ".demo")
    frozen = tmp_path / ".demo" / "store" / "runs" / "main" / "run.json"
    frozen.write_text(json.dumps({**json.loads(frozen.read_text()), "format": 0}))
    code = """
import sys
from pathlib import Path
from indexers.workspace import Workspace
from trainers.demo.folder import lay_out
from trainers.demo.show import Progress
from trainers.demo.demo import trained_rows
if __name__ == "__main__":
    folder = lay_out(Path(".demo"), "memory", sys.argv[1:])
    row = next(trained_rows(Workspace(folder.settings()), folder, Progress()))
    print(row.name, row.cached)
"""
    (tmp_path / "first_row.py").write_text(code)
    ended = subprocess.run(
        [sys.executable, "first_row.py", *FEW_STEPS, "publish.gate=false"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "sft 0.0\n"
    assert len(json.loads((frozen.parent / "state.json").read_text())["rounds"]) == 1


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.model
def test_opensearch_serves_each_round_with_the_same_figures(
    shown: Shown, tmp_path: Path, opensearch: OpenSearchSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(shown[0] / ".demo", tmp_path / "cluster")
    memory = json.loads(demo("--json", cwd=shown[0]).stdout)
    monkeypatch.setenv("COGR_OPENSEARCH_URL", str(opensearch.url))
    ended = demo("--json", "--backend", "opensearch", "--out", "cluster", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    live = json.loads(ended.stdout)
    assert live["backend"] == "opensearch"
    for one, other in zip(memory["rows"], live["rows"], strict=True):
        assert [one[name] for name in ("name", "p", "r", "f1")] == [
            other[name] for name in ("name", "p", "r", "f1")
        ]
    for one, other in zip(memory["searches"], live["searches"], strict=True):
        same = ("keywords", "weights", "confidence", "mode")
        assert {name: one[name] for name in same} == {name: other[name] for name in same}
    listed = command(tmp_path, "indexers.cli", "list", "-c", "cluster/cogr.toml", "--json")[
        "snapshots"
    ]
    rounds = open_run(Workspace.open(shown[0] / ".demo" / "cogr.toml", []), "main").state().rounds
    assert {id_ for done in rounds for id_ in (done.items, done.queries)} <= {
        row["snapshot"] for row in listed if row["pushed"]
    }
    for text in SEARCHES:
        by_alias = command(
            tmp_path,
            "indexers.cli",
            "search",
            "-c",
            "cluster/cogr.toml",
            "--json",
            "--keywords-only",
            text,
        )
        by_memory = command(
            shown[0],
            "indexers.cli",
            "search",
            "-c",
            ".demo/cogr.toml",
            "--json",
            "--keywords-only",
            text,
        )
        assert by_alias["backend"] == "opensearch"
        same = ("keywords", "total", "hits", "snapshot")
        assert {name: by_alias[name] for name in same} == {name: by_memory[name] for name in same}


def command(folder: Path, module: str, *arguments: str) -> dict[str, Any]:
    """What a command of the toolkit answers with --json."""
    ended = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


def check_summary(file: Path) -> dict[str, dict[str, float]]:
    rows = json.loads(file.read_text("utf-8"))["rows"]
    *names, last = (row["name"] for row in rows)
    assert names == NAMES
    assert last in ("serves: statistical", "serves: distilled")
    for row in rows:
        assert 0 <= row["p"] <= 1
        assert 0 <= row["r"] <= 1
        assert 0 < row["f1"] <= 1
        assert row["seconds"] > 0
        assert row["rejected"] == ""
    assert [row["keywords_per_item"] is None for row in rows] == [True, *[False] * 7]
    return {row["name"]: row for row in rows}
