"""`cogr.Project`: what the commands do, from Python."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pandas
import pytest

import cogr
from cogr import Project
from cogr.errors import DataError, SettingsError, SnapshotError, UserError
from indexers.inspection import examine
from tests.commands import Command
from tests.documents import DOCS
from tests.shops import thing_records
from tests.trainers.shop import Shop, timeless

THINGS, QUERIES, LABELS = thing_records(40)
ITEMS = [{**item, "title": f"{item['title']} < {n}"} for n, item in enumerate(THINGS, 1)]
EXTRACTIVE = {"generator": {"name": "extractive"}}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Of frames; both sides serve."""
    frames = [pandas.DataFrame(records) for records in (ITEMS, QUERIES, LABELS)]
    made = Project.create(tmp_path_factory.mktemp("shop"), *frames, EXTRACTIVE, say=lambda _: None)
    for side in ("item", "query"):
        assert made.rebuild(side).found.published
    return made


def test_import_is_light_and_the_class_comes_when_it_is_asked_for() -> None:
    program = (
        "import sys, cogr; assert 'trainers' not in sys.modules; "
        "assert cogr.Project.__module__ == 'trainers.project'; print(sorted(cogr.__all__))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.stdout, ended.stderr) == ("['Project', '__version__']\n", "")
    with pytest.raises(AttributeError, match="Projekt"):
        _ = cogr.Projekt  # type: ignore[attr-defined]


def test_figures_are_those_of_the_command(project: Project, cogr_train: Command) -> None:
    found = project.evaluate("test", baselines=True)
    config = Path(project.workspace.settings.store).parent / "cogr.toml"
    ended = cogr_train("evaluate", "-c", config, "--baselines", "--json")
    assert timeless(found.as_dict()) == timeless(ended.json)
    assert list(found.to_pandas().name) == ["keywords", "what serves", "bm25"]
    keywords, serves = found.rows[:2]
    assert serves["r@100"] >= keywords["r@100"]
    assert serves["r"] >= keywords["r"]


def test_data_keywords_and_searches_are_shown(project: Project) -> None:
    inspected = project.inspect()
    assert inspected.as_dict() == asdict(examine(project.workspace))
    assert f"What to do: {inspected.as_dict()['verdict']}" in repr(inspected).splitlines()[0]
    assert {"what": "items", "value": inspected.as_dict()["items"]} in inspected.rows
    again = project.rebuild("item")
    assert (again.as_dict()["generated"], len(again.rows)) == (0, 20)
    assert again.rows[0]["keywords"]
    found = project.search("word3", size=3)
    assert [row["id"] for row in found.rows] == [row["id"] for row in found.as_dict()["hits"]]
    shown = found._repr_html_()
    assert "<bdi>thing 3 &lt; 4</bdi></td>" in shown
    assert "thing 3 < 4" in repr(found)


def test_a_pair_is_released(project: Project) -> None:
    beside = project.rebuild("item", limit=39, publish=False)
    assert not beside.found.published
    serving = project.workspace.backend.serving()
    found = project.release(*serving.values(), gate=False)
    assert {row["serves"] for row in found.rows} == {*serving.values()}
    with pytest.raises(SnapshotError):
        project.release("item-r001-0")


@pytest.mark.slow
@pytest.mark.model
def test_a_run_is_trained_and_shown(copied: Shop, cogr_train: Command) -> None:
    trained = Project.open(copied.config, say=lambda _: None).train(1)
    ended = cogr_train("run", "-c", copied.config, "--rounds", 1, "--json")
    assert trained.as_dict() == ended.json
    assert {"sft", "round 1"} <= {row["round"] for row in trained.rows}
    assert trained.snapshots["item"].startswith("item-")


def test_what_pandas_has_for_nothing_is_nothing_and_other_data_may_follow(tmp_path: Path) -> None:
    items = pandas.DataFrame(
        {
            "id": [1, 2],
            "title": ["lamp", "nan"],
            "text": [None, float("nan")],
            "updated": [pandas.Timestamp("2026-01-31"), pandas.NaT],
        }
    )
    first, second = Project.create(tmp_path, items).dataset.items
    assert (first.id, first.title, first.text) == ("1", "lamp", "")
    assert (second.id, second.title, second.text) == ("2", "nan", "")
    written = (tmp_path / "data/items.jsonl").read_text().splitlines()
    assert [json.loads(line)["updated"] for line in written] == ["2026-01-31T00:00:00.000", None]
    assert [item.title for item in Project.create(tmp_path, items[:1]).dataset.items] == ["lamp"]


def test_what_is_wrong_is_one_sentence(tmp_path: Path) -> None:
    for record in ({"id": "a", "title": object()}, "lamp"):
        with pytest.raises(DataError, match="Record 1 of items"):
            Project.create(tmp_path, [record])
    with pytest.raises(SettingsError, match="generatr"):
        Project.create(tmp_path, ITEMS, settings={"generatr": {"name": "extractive"}})
    # A wrong column shows at once, and leaves nothing that would refuse the right one.
    named = [{"id": "a", "name": "lamp"}]
    with pytest.raises(DataError, match="title.* id, name"):
        Project.create(tmp_path, named)
    with pytest.raises(SettingsError, match=r"columns\.title .*'nam', .*'name'"):
        Project.create(tmp_path, named, settings={"dataset": {"columns": {"title": "nam"}}})
    right = Project.create(tmp_path, named, settings={"dataset": {"columns": {"title": "name"}}})
    assert right.dataset.items[0].title == "lamp"
    (tmp_path / "cogr.toml").unlink()
    made = Project.create(tmp_path, ITEMS, settings=EXTRACTIVE)
    with pytest.raises(DataError, match="other settings"):
        Project.create(tmp_path, ITEMS)
    with pytest.raises(UserError, match="empty"):
        made.search(" ")
    for asked in (made.evaluate, lambda: made.search("lamp")):
        with pytest.raises(SnapshotError, match="item snapshot"):
            asked()


def test_the_page_names_every_method_and_its_arguments() -> None:
    page = (DOCS / "python.md").read_text("utf-8")
    for name, method in vars(Project).items():
        if callable(method) and not name.startswith("_"):
            (call,) = re.findall(rf"\| `{name}\(([^`]*)\)`", page)
            known = [one for one in inspect.signature(method).parameters if one != "self"]
            assert re.findall(r"\*?(\w+)(?=[=,]|$)", re.sub(r"=[^,]*", "=", call)) == known, name
