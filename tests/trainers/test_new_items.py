"""Items that come after training: what is held out, who finds them, and by which figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cogr.errors import DataError
from cogr.records import Query
from cogr.snapshots import open_snapshot
from indexers.workspace import Workspace
from tests.commands import Command
from tests.shops import write_sample_part
from tests.trainers.shop import InThisProcess
from trainers.new_items import checked_new, figures, of_run
from trainers.training.driver import Driver
from trainers.training.rounds import hold_out, new_ids, with_dev
from trainers.training.run_folder import create, open_run

SHARE = "training.new_items=0.2"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shop with a run that has never seen a fifth of the items, and one that has seen all."""
    pytest.importorskip("trl")
    file = write_sample_part(tmp_path_factory.mktemp("shop"), items=60)
    for name, own in (("without", (SHARE,)), ("whole", ())):
        workspace = Workspace.open(file, own)
        Driver(workspace, create(workspace, name), InThisProcess(file, own), lambda _: None).sft()
    return file


def test_figures_by_hand() -> None:
    queries = [Query("a", "a"), Query("b", "b"), Query("c", "c")]
    relevant = {
        "a": frozenset({"old1", "new1", "new2"}),
        "b": frozenset({"old2"}),
        "c": frozenset({"new1"}),
    }
    retrieved = {
        "a": frozenset({"old1", "new1", "new3"}),
        "b": frozenset({"old2", "old1"}),
        "c": frozenset[str](),
    }
    new = frozenset({"new1", "new2", "new3"})
    found = figures("pair", queries, relevant, new, retrieved)
    means = {key: None if pair is None else round(pair[0], 6) for key, pair in found.means.items()}
    assert means == {
        "r_new": 0.25,  # 1 of 2, 0 of 1
        "p_new": 0.5,  # 1 of 2; the others found none
        "r_old": 1.0,
        "p": round((2 / 3 + 1 / 2 + 0) / 3, 6),
        "r": round((2 / 3 + 1 + 0) / 3, 6),
        "f1": round((4 / 6 + 2 / 3 + 0) / 3, 6),
    }
    assert found.with_new == 2
    assert found.as_dict()["r_new_se"] == pytest.approx(0.25)
    nothing = figures("pair", queries[1:2], relevant, new, {"b": frozenset()}).as_dict()
    assert nothing["r_new"] is nothing["p_new"] is nothing["p_new_se"] is None


def test_held_out_items_leave_no_trace_in_training(tmp_path: Path) -> None:
    workspace = Workspace.open(write_sample_part(tmp_path / "shop", items=60), (SHARE,))
    whole, new = workspace.dataset, new_ids(workspace.dataset, 0.2)
    assert len(new) == 12
    seen = with_dev(workspace)
    before = seen.dataset
    assert {item.id for item in before.items} == {item.id for item in whole.items} - new
    assert not any(new & ids for ids in before.relevant.values())
    assert not any(new & grades.keys() for grades in before.judged.values())
    assert all(before.relevant[query.id] for query in before.all_queries())
    assert {q.id for q in before.entities("query")} == {q.id for q in whole.entities("query")}
    assert before.dataset_hash != whole.dataset_hash
    assert with_dev(seen).dataset is before, "they are held out once"
    assert hold_out(whole, 0.2).dataset_hash == hold_out(whole, 0.2).dataset_hash


def test_a_share_of_nothing_says_so(tmp_path: Path) -> None:
    dataset = Workspace.open(write_sample_part(tmp_path / "shop", items=60), ()).dataset
    with pytest.raises(DataError, match=r"A share of 0\.01 of the 60 items is 0"):
        checked_new(dataset, 0.01)


@pytest.mark.slow
@pytest.mark.model
def test_a_run_gets_new_items_by_update_and_its_queries_stay(config: Path) -> None:
    workspace = Workspace.open(config, ())
    run = open_run(workspace, "without")
    done = run.state().finished[0]
    new = new_ids(workspace.dataset, 0.2)
    parent = open_snapshot(run.store, done.items).by_id
    assert not new & parent.keys()
    snapshots = set(run.store.list("snapshots"))
    found = of_run(workspace, run, 0.2, "test")
    (written,) = set(run.store.list("snapshots")) - snapshots
    updated = open_snapshot(run.store, written).by_id
    assert updated.keys() == parent.keys() | new
    assert all(updated[id_].keywords == row.keywords for id_, row in parent.items())
    assert found.name == "run without, new items by its model"
    assert found.means["r_new"] is not None


@pytest.mark.slow
@pytest.mark.model
def test_a_pair_that_lacks_items_is_not_published(config: Path, cogr_train: Command) -> None:
    own = ("-c", config, "--run", "without", "--set", SHARE)
    for command in (("publish", "sft"), ("round", "--publish")):
        ended = cogr_train(*command, *own)
        assert ended.status == 2, ended.err
        assert "lack 0.2 of the items (training.new_items)" in ended.sentence


@pytest.mark.slow
@pytest.mark.model
def test_the_command_has_a_row_for_each_pair(config: Path, cogr_train: Command) -> None:
    pytest.importorskip("lightgbm")
    asked = ("evaluate", "-c", config, "--new-items", 0.2)
    ended = cogr_train(*asked, "--run", "without", "--json")
    assert ended.status == 0, ended.err
    rows = {row["name"]: row for row in json.loads(ended.out)["rows"]}
    assert list(rows) == [
        "run without, new items by its model",
        "statistical, nothing refitted",
        "statistical, items refitted",
        "statistical, queries rebuilt too",
    ]
    for row in rows.values():
        assert row["queries"] >= row["with_new"] > 0
        assert all(0 <= row[key] <= 1 for key in ("r_new", "r_old", "p", "r", "f1"))
    assert rows["statistical, nothing refitted"]["r_old"] > 0.1

    ended = cogr_train(*asked)
    assert ended.status == 0, ended.err
    assert "recall, new" in ended.out
    assert "0.2 of the items came after training" in ended.out


@pytest.mark.slow
@pytest.mark.model
def test_a_run_that_has_seen_the_items_is_refused(config: Path, cogr_train: Command) -> None:
    for given, sentence in (
        (
            ("--new-items", 0.2, "--run", "whole"),
            "The run whole was not trained without these items; train one that was, by "
            "cogr-train run --run NAME --set training.new_items=0.2.",
        ),
        (("--new-items", 0.3, "--run", "without"), "--set training.new_items=0.3"),
        (("--new-items", 0.2, "--run", "none"), "There is no run none"),
        (("--run", "without"), "--run goes with --new-items"),
        (("--new-items", 0.2, "--baselines"), "go without it"),
    ):
        ended = cogr_train("evaluate", "-c", config, *given)
        assert ended.status == 2, ended.err
        assert sentence in ended.sentence
