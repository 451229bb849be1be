"""The report: what it tells of a run, that it is one closed file, and that text of items stays
text.
"""

from __future__ import annotations

import json
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cogr.errors import MissingExtraError, TrainingError
from indexers.workspace import Workspace
from tests.commands import ran
from tests.trainers.report_worlds import Told, whole_run
from trainers.report import Facts, write_report
from trainers.training.contest import known_baselines, measured_baselines
from trainers.training.rounds import Round, Run, State


class Page(HTMLParser):
    """Tags, attributes and text of a report."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        texts: list[str] = []
        self.handle_data = texts.append  # type: ignore[method-assign]
        self.html = html
        self.feed(html)
        self.text = " ".join(" ".join(texts).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]


def page_of(workspace: Workspace, run: Run) -> Page:
    write_report(workspace, run, run.folder() / "report.html")
    return Page((run.folder() / "report.html").read_text("utf-8"))


World = tuple[Workspace, Run]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    workspace, run = whole_run(tmp_path_factory.mktemp("run"))
    measured_baselines(workspace, run, lambda _: None)
    return workspace, run


@pytest.fixture(scope="module")
def told(world: World) -> Page:
    """By the command, which loads no torch."""
    workspace, run = world
    code = (
        "import sys; from trainers.cli import app; app(sys.argv[1:], standalone_mode=False); "
        "assert 'torch' not in sys.modules"
    )
    config = Path(workspace.settings.store).parent / "cogr.toml"
    answer = json.loads(ran(sys.executable, "-c", code, "report", "-c", config, "--json"))
    file = run.folder() / "report.html"
    assert (Path(answer["report"]), answer["bytes"]) == (file, file.stat().st_size)
    assert answer["rounds"] == 3
    return Page(file.read_text("utf-8"))


def test_it_tells_what_the_run_has_done(told: Page) -> None:
    for words in (
        "Reward of the query side",
        "Reward of the item side",
        "F1 over rounds",
        "rejected: dev F1 0.5000 -> 0.4000",
        "round 2, step 6, item side reward item wrote 0.250 item-1 sofa 0.000 item-0 oak, teal",
    ):
        assert words in told.text
    assert told.attributes.count(("role", "img")) == 3
    assert ("aria-label", "F1 over rounds") in told.attributes


def test_it_opens_with_bm25_and_statistical_beside_the_trained_pairs(
    world: World, told: Page
) -> None:
    facts = Facts(*world)
    opening = told.text[: told.text.index("Retrieval F1 over rounds")]
    beside = known_baselines(facts.run)
    for name, figures in (("bm25", beside.bm25), ("statistical", beside.statistical.figures)):
        shown = " ".join(f"{figures['test'][key]:.3f}" for key in ("p", "r", "f1", "f1_se"))
        assert f"{name} {shown}" in opening
    assert f"Best on dev: {facts.choice.chosen.name}, F1 0." in opening
    # Test first, baselines before rounds, train folded away, what serves and what to do about it.
    places = [opening.index(one) for one in ("Test", "baselines bm25", "rounds sft", "Dev")]
    assert places == sorted(places)
    assert opening.index("Figures on train") > places[-1]
    assert "cogr-train publish" in opening
    assert told.tags.count("details") == 3


def test_the_file_needs_nothing_and_runs_nothing(told: Page) -> None:
    assert "script" not in told.tags
    links = [
        value for name, value in told.attributes if name in ("src", "href", "xlink:href", "action")
    ]
    ids = [value for name, value in told.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert "data:," in links
    assert {link for link in links if link != "data:,"} <= {f"#{id_}" for id_ in ids}
    assert not [name for name, _ in told.attributes if name.startswith("on")]
    policies = [value for _, value in told.attributes if "default-src" in value]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_hostile_text_is_text(tmp_path: Path) -> None:
    page = page_of(*whole_run(tmp_path, hostile=True))
    assert not {"script", "img"} & set(page.tags)
    assert page.tags.count("style") == page.tags.count("link") == 1
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "{{ 7 * 7 }}" in page.text
    assert not {"\x00", "\x1b", "\u202e"} & set(page.html)
    assert "x" * 301 not in page.html


def test_it_tells_of_sft_alone_and_of_a_round_under_way(tmp_path: Path) -> None:
    told = Told(tmp_path)
    first = told.add(0)
    assert "0 rounds after SFT" in page_of(told.workspace, told.run).text
    told.add(1)
    training = told.state.rounds[1].stages[:1]
    told.run.save(State(rounds=(first, Round(number=1, stages=training))))
    facts = Facts(told.workspace, told.run)
    assert facts.under_way == "round 1 is under way, next is index-query"
    assert [(log.round, log.side) for log in facts.logs if log.round] == [(1, "query")]


def test_a_run_without_a_round_is_one_sentence(tmp_path: Path) -> None:
    told = Told(tmp_path)
    with pytest.raises(TrainingError, match="cogr-train run"):
        write_report(told.workspace, told.run, tmp_path / "report.html")


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_a_missing_package_is_one_sentence(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match="'report'"):
        write_report(*world, tmp_path / "report.html")
