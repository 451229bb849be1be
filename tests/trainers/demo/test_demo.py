"""The demo: through the real path, training included, in memory and against a real OpenSearch.

Here it trains by a few steps, through the same code: what it learns by all of them is the sample's
business (test_whole_runs).
"""

from __future__ import annotations

import io
import json
import re
import shutil
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from _shop import make_catalogue, write_catalogue

from cogr.errors import SettingsError, StorageError, UserError
from cogr.settings.serving import OpenSearchSettings
from indexers.workspace import Workspace
from tests.commands import Command, Ended, sets
from tests.documents import ROOT
from trainers.cli import main
from trainers.demo import CATALOGUE, SEARCHES, lay_out, train_sample
from trainers.training.driver import Driver
from trainers.training.rounds import create, open_run

NAMES = ["bm25", "extractive", "statistical", "sft", "round 1", "round 2", "distilled"]
"""Of all rows but the last, which is called by what serves."""
FEW_STEPS = (
    "training.sft.learning_rate=0.01",
    "training.sft.epochs=2",
    "training.invented_queries=50",
    "training.rollouts.max_tokens=8",
    "generator.sampling.max_tokens=8",
    "training.query.max_steps=2",
    "training.query.prompts_per_step=4",
    "training.item.max_steps=2",
    "training.item.prompts_per_step=4",
    "training.rules=paper",
    "rebuild.max_failure_share=1.0",
)


def demo(*arguments: object, cwd: Path) -> Ended:
    """The command in this process; its stages are in the processes that it forks."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(cwd)
        patch.setattr(sys, "argv", ["cogr-train", "demo", *sets(*FEW_STEPS), *map(str, arguments)])
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main()
    return Ended(int(ended.value.code or 0), out.getvalue(), err.getvalue())


def test_what_ships_is_what_the_maker_makes_and_seeds_make_different_shops(tmp_path: Path) -> None:
    write_catalogue(tmp_path, seed=0)
    for file in tmp_path.iterdir():
        assert file.read_bytes() == (CATALOGUE / file.name).read_bytes(), file.name
    assert make_catalogue(1).files() == make_catalogue(1).files() != make_catalogue(2).files()


def test_what_can_t_be_laid_out_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="key=value"):
        lay_out(tmp_path, "memory", ["training"])
    (tmp_path / "taken").write_text("")
    with pytest.raises(StorageError, match="folder"):
        lay_out(tmp_path / "taken", "memory")
    lay_out(tmp_path, "opensearch")
    (tmp_path / "cogr.toml").write_text('[dataset]\nloader = "beir"\n')
    with pytest.raises(UserError, match="another folder"):
        lay_out(tmp_path, "memory")


class Shown(NamedTuple):
    """A demo that has ended, in `.demo` of a folder; what it printed, and its summary."""

    folder: Path
    ended: Ended
    summary: dict[str, Any]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.summary["rows"]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    folder = tmp_path_factory.mktemp("demo")
    ended = demo(cwd=folder)
    assert ended.status == 0, ended.err
    return Shown(folder, ended, json.loads((folder / ".demo/summary.json").read_text()))


@pytest.mark.slow
@pytest.mark.model
def test_the_demo(shown: Shown) -> None:
    ended, rows = shown.ended, {row["name"]: row for row in shown.rows}
    *names, last = rows
    assert names == NAMES
    assert all(0 < row["f1"] <= 1 and row["seconds"] > 0 for row in shown.rows)
    assert not any(row["rejected"] for row in shown.rows)
    assert [row["keywords_per_item"] is None for row in shown.rows] == [True, *[False] * 7]
    assert 0.10 <= rows["bm25"]["f1"] <= 0.20
    assert rows["statistical"]["f1"] >= 1.5 * rows["bm25"]["f1"]
    # Models that have learned nothing take nothing away from the pair that hears them.
    serving = last.removeprefix("serves: ")
    assert serving in ("statistical", "distilled")
    assert rows[last]["f1"] == rows[serving]["f1"]
    assert rows[last]["f1"] >= max(row["f1"] for row in shown.rows) - 0.03
    told = f"{serving} serves, chosen on dev: F1 0."
    for text in (*SEARCHES, *NAMES, "matched", "an item", told):
        assert text in ended.out
    assert "Loading weights" not in ended.err
    assert "cogr-index search -c .demo/cogr.toml" in ended.err
    assert "2 rounds after SFT" in (shown.folder / ".demo/report.html").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.model
def test_the_readme_shows_what_the_demo_prints(shown: Shown) -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    printed = readme.split("<!-- demo-output -->")[1]
    rows = re.findall(r"^│ ([\w: ]+?) +│ ([\d.]+) │ ([\d.]+) │ ([\d.]+) │", printed, re.MULTILINE)
    assert [name for name, *_ in rows[:-1]] == [row["name"] for row in shown.rows[:-1]]
    assert rows[-1][0] == "serves: distilled"
    assert rows[-1][1:] == rows[-2][1:]
    # Those that train no model are as printed; boosted trees differ a little between processors.
    for (_, *figures), row in list(zip(rows, shown.rows, strict=True))[:3]:
        known = [row["p"], row["r"], row["f1"]]
        assert list(map(float, figures)) == pytest.approx(known, abs=0.03)


@pytest.mark.drill
@pytest.mark.model
def test_a_second_demo_trains_nothing_and_opensearch_gives_the_same_figures(
    shown: Shown,
    tmp_path: Path,
    opensearch: OpenSearchSettings,
    cogr_index: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "again"
    shutil.copytree(shown.folder, folder)
    monkeypatch.setenv("COGR_OPENSEARCH__URL", str(opensearch.url))
    ended = demo("--json", "--backend", "opensearch", cwd=folder)
    assert ended.status == 0, ended.err
    assert "train-" not in ended.err
    live = ended.json
    assert live["backend"] == "opensearch"
    for one, other in zip(shown.rows, live["rows"], strict=True):
        assert all(one[name] == other[name] for name in ("name", "p", "r", "f1"))
    config = folder / ".demo/cogr.toml"
    listed = cogr_index("list", "-c", config, "--json").json["snapshots"]
    pushed = {row["snapshot"] for row in listed if row["pushed"]}
    assert pushed == {live["rows"][-1]["items"], live["rows"][-1]["queries"]}
    # A third round would go on with it: the configuration in the folder is the run's.
    workspace = Workspace.open(config, [])
    open_run(workspace, "main").check(workspace)
    search = ("search", "--keywords-only", SEARCHES[0], "--json", "-c")
    by_alias = cogr_index(*search, config).json
    by_memory = cogr_index(*search, shown.folder / ".demo/cogr.toml").json
    assert by_alias["backend"] == "opensearch"
    same = ("keywords", "total", "hits", "snapshot")
    assert all(by_alias[name] == by_memory[name] for name in same)


def test_a_run_of_another_version_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class BegunError(Exception):
        pass

    def reach(_: Driver, rounds: int) -> None:
        raise BegunError

    config = lay_out(tmp_path, "memory")
    run = create(Workspace.open(config, ()))
    run.store.write_json(f"{run.path}/run.json", {**run.frozen(), "format": 0})
    monkeypatch.setattr(Driver, "reach", reach)
    with pytest.raises(BegunError):
        next(train_sample(config, print))
    run.check(Workspace.open(config, ()))
