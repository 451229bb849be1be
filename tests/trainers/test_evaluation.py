"""BM25's cutoff is chosen on training queries only, and its published figures come out; who finds
items that come after training, and by which figures.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from cogr.datasets import load_dataset
from cogr.errors import DataError
from cogr.metrics import full_set, measure, sets_of
from cogr.records import Dataset, Query
from indexers.text import Lexical
from indexers.workspace import Workspace
from tests.commands import Command
from tests.shops import sample_shop, write_sample_part
from trainers.evaluation import bm25, checked_new, figures_of_new


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    return sample_shop()


def f1(dataset: Dataset, sets: Mapping[str, Sequence[str]]) -> float:
    return full_set(sets_of(sets), {query: dataset.relevant[query] for query in sets}).means["f1"]


def test_the_cutoff_is_the_best_one_for_the_training_queries(dataset: Dataset) -> None:
    found, lexical = bm25(dataset, "test"), Lexical(dataset.items)
    train = {
        query.id: [item.id for item, _ in lexical.rank(query.text, 400)]
        for query in dataset.queries["train"]
    }
    by_cutoff = {k: f1(dataset, {id_: ids[:k] for id_, ids in train.items()}) for k in range(1, 60)}
    assert found.cutoff == max(by_cutoff, key=lambda k: by_cutoff[k])
    assert found.runs.keys() == {query.id for query in dataset.queries["test"]}


def test_rank_metrics_see_bm25s_whole_rankings_and_sets_its_best_items(dataset: Dataset) -> None:
    found, queries = bm25(dataset, "test"), dataset.queries["test"]
    assert {id_: ids[: found.cutoff] for id_, ids in found.rankings.items()} == found.runs
    row = found.row(dataset, "test")
    whole, cut = (measure(dataset, queries, some).means for some in (found.rankings, found.runs))
    assert all(row[name] == whole[name] for name in ("r@100", "ndcg@100", "mrr@100"))
    assert all(row[name] == cut[name] for name in ("p", "r", "f1"))
    assert row["r@100"] > cut["r@100"]
    assert row["sets"].startswith(f"the best {found.cutoff} items of each ranking")


def test_an_empty_split_is_refused(dataset: Dataset) -> None:
    with pytest.raises(DataError, match="dev"):
        bm25(replace(dataset, queries={**dataset.queries, "dev": ()}), "dev")


@pytest.mark.slow
def test_reference_figures() -> None:
    root = Path(os.environ.get("COGR_DATA_DIR", "nowhere"))
    if not (root / "nfcorpus").is_dir():
        pytest.skip("COGR_DATA_DIR has no nfcorpus")
    dataset = load_dataset("nfcorpus")
    found = bm25(dataset, "test")
    assert abs(found.cutoff - 17) <= 2
    assert f1(dataset, found.runs) == pytest.approx(0.1532, abs=0.002)


# Items that come after training


def test_figures_of_new_items_by_hand() -> None:
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
    with pytest.raises(DataError, match=r"0\.01 .*60 items"):
        checked_new(dataset, 0.01)


@pytest.mark.slow
def test_the_command_has_a_row_for_each_pair(tmp_path: Path, cogr_train: Command) -> None:
    pytest.importorskip("lightgbm")
    asked = ("evaluate", "-c", write_sample_part(tmp_path / "shop", items=60), "--new-items", 0.2)
    # In memory, also where the keywords serve in an index that is away.
    sets = ("opensearch.url=http://127.0.0.1:9", "serving.into.index=products")
    ended = cogr_train(*asked, "--json", *(flag for one in sets for flag in ("--set", one)))
    assert ended.status == 0, ended.err
    rows = {row["name"]: row for row in ended.json["rows"]}
    assert list(rows) == ["updated", "written again"]
    for row in rows.values():
        assert row["queries"] >= row["with_new"] > 0
        assert all(0 <= row[key] <= 1 for key in ("r_new", "r_old", "p", "r", "f1"))
    assert rows["updated"]["r_old"] > 0.1

    ended = cogr_train(*asked)
    assert ended.status == 0, ended.err
    assert "R of new" in ended.out
    assert "0.2 of the items came later" in ended.out
    ended = cogr_train(*asked, "--baselines")
    assert ended.status == 2
    assert "combined with --item, --query and --baselines" in ended.sentence
