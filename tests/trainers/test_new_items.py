"""Items that come after training: what is held out, who finds them, and by which figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cogr.errors import DataError
from cogr.records import Query
from indexers.workspace import Workspace
from tests.commands import Command
from tests.shops import write_sample_part
from trainers.evaluation import checked_new, figures_of_new


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
    found = figures_of_new("pair", queries, relevant, new, retrieved)
    assert {key: found[key] for key in ("r_new", "p_new", "r_old", "p", "r", "f1")} == {
        "r_new": 0.25,  # 1 of 2, 0 of 1
        "p_new": 0.5,  # 1 of 2; the others found none
        "r_old": 1.0,
        "p": round((2 / 3 + 1 / 2 + 0) / 3, 6),
        "r": round((2 / 3 + 1 + 0) / 3, 6),
        "f1": round((4 / 6 + 2 / 3 + 0) / 3, 6),
    }
    assert found["with_new"] == 2
    assert found["r_new_se"] == pytest.approx(0.25)
    nothing = figures_of_new("pair", queries[1:2], relevant, new, {"b": frozenset()})
    assert nothing["r_new"] is nothing["p_new"] is nothing["p_new_se"] is None


def test_a_share_of_nothing_says_so(tmp_path: Path) -> None:
    dataset = Workspace.open(write_sample_part(tmp_path / "shop", items=60), ()).dataset
    with pytest.raises(DataError, match=r"A share of 0\.01 of the 60 items is 0"):
        checked_new(dataset, 0.01)


@pytest.mark.slow
def test_the_command_has_a_row_for_each_pair(tmp_path: Path, cogr_train: Command) -> None:
    pytest.importorskip("lightgbm")
    asked = ("evaluate", "-c", write_sample_part(tmp_path / "shop", items=60), "--new-items", 0.2)
    ended = cogr_train(*asked, "--json")
    assert ended.status == 0, ended.err
    rows = {row["name"]: row for row in json.loads(ended.out)["rows"]}
    assert list(rows) == ["updated", "written again"]
    for row in rows.values():
        assert row["queries"] >= row["with_new"] > 0
        assert all(0 <= row[key] <= 1 for key in ("r_new", "r_old", "p", "r", "f1"))
    assert rows["updated"]["r_old"] > 0.1

    ended = cogr_train(*asked)
    assert ended.status == 0, ended.err
    assert "recall, new" in ended.out
    assert "0.2 of the items came later" in ended.out
    ended = cogr_train(*asked, "--baselines")
    assert ended.status == 2
    assert "goes without --item, --query and --baselines" in ended.sentence
