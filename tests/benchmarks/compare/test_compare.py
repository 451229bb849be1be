"""`python -m benchmarks.compare`: metrics and cutoffs, what it keeps and writes, bad input."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import reproduce
from benchmarks.compare import METHODS, Fitted, Method, NotRunError, Task
from benchmarks.compare.__main__ import main
from benchmarks.compare.measuring import paired_p
from benchmarks.compare.runner import with_dev_queries
from cogr.datasets import load_dataset
from cogr.errors import DataError
from cogr.records import Query
from tests.commands import Ended
from trainers.demo import CATALOGUE

# Significance


def test_the_randomisation_test_is_the_count_over_all_flips_of_sign() -> None:
    rng = np.random.default_rng(3)
    one, other = rng.random(9), rng.random(9) + 0.2
    differences = one - other
    flips = [np.dot(signs, differences) for signs in itertools.product((1, -1), repeat=9)]
    exact = np.mean(np.abs(flips) >= abs(differences.sum()) - 1e-12)
    assert paired_p(one, other) == pytest.approx(exact, abs=0.01)
    assert paired_p(one, one) == 1.0


# The data


def test_dev_queries_are_taken_from_train_where_there_are_none() -> None:
    dataset = load_dataset("jsonl", CATALOGUE)
    assert with_dev_queries(dataset) is dataset
    none = replace(dataset, queries={**dataset.queries, "dev": ()})
    found = with_dev_queries(none)
    train, dev = ({query.id for query in found.queries[split]} for split in ("train", "dev"))
    assert not train & dev
    assert train | dev == {query.id for query in dataset.queries["train"]}
    assert len(dev) == len(dataset.queries["train"]) // 5
    one = replace(none, queries={**none.queries, "train": dataset.queries["train"][:1]})
    with pytest.raises(DataError, match="two .*training queries"):
        with_dev_queries(one)
    with pytest.raises(DataError, match="The test split"):
        with_dev_queries(replace(dataset, queries={**dataset.queries, "test": ()}))


# The command, with methods of the test's own


class Fake(Method):
    """Ranks the relevant items of a query first, and so many others; counts its fits."""

    grid = ({"others": 3}, {"others": 0}, {"others": 1})

    def __init__(self, name: str, fits: list[tuple[int, Any]], rank: Callable[..., Any]) -> None:
        self.name, self.fits, self._rank = name, fits, rank

    def fit(self, task: Task, params: Mapping[str, Any]) -> Fitted:
        self.fits.append((task.seed, params["others"]))

        rank = partial(self._rank, task, params["others"])
        return Fitted(lambda query, depth: rank(query)[:depth], 12.0)


def good(task: Task, others: int, query: Query) -> list[tuple[str, float]]:
    wanted = sorted(task.dataset.relevant[query.id])
    some = (task.dataset.items[at].id for at in range(others + len(wanted)))
    wrong = [id_ for id_ in some if id_ not in wanted][:others]
    return [(id_, 100.0 - at) for at, id_ in enumerate([*wrong, *wanted])]


def raising(error: BaseException) -> Callable[..., Any]:
    def rank(*_: Any) -> Any:
        raise error

    return rank


def first(*scores: float) -> Callable[..., Any]:
    """The first item, with these scores."""
    return lambda task, *_: [(task.dataset.items[0].id, score) for score in scores]


Compare = Callable[..., Any]


def rows_in(folder: Path) -> dict[str, Any]:
    """The rows of the comparison that was run in this folder, by method."""
    found = json.loads((folder / "out/compare.json").read_text())
    return {row["method"]: row for row in found["rows"]}


@pytest.fixture
def compare(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Compare:
    """Run the command on the sample shop with two methods: `good`, and `bad` as it is told."""
    config = tmp_path / "cogr.toml"
    config.write_text(f'[dataset]\nloader = "jsonl"\npath = "{CATALOGUE}"\n')

    def run(*arguments: object, bad: Callable[..., Any] = good) -> Any:
        run.fits = []  # type: ignore[attr-defined]
        for name, rank in (("good", good), ("bad", bad)):
            method = Fake(name, run.fits, rank)  # type: ignore[attr-defined]
            monkeypatch.setitem(METHODS, name, lambda method=method: method)
        status = main([*map(str, ("-c", config, "--out", tmp_path / "out", *arguments))])
        return Ended(status, *capsys.readouterr())

    return run


def test_the_best_trial_on_dev_is_fitted_for_every_seed(compare: Compare, tmp_path: Path) -> None:
    ended = compare("--methods", "good", "--seeds", "3")
    assert ended.status == 0, ended.err
    assert compare.fits == [(0, 3), (0, 0), (0, 1), (1, 0), (2, 0)]  # type: ignore[attr-defined]
    (row,) = rows_in(tmp_path).values()
    assert row["params"] == {"others": 0}
    assert row["figures"]["ndcg@10"] == pytest.approx(1.0)
    assert row["seeds"] == 3
    assert row["spread"]["f1"] == 0.0
    one = (tmp_path / "out/runs/good.2.trec").read_text().splitlines()[0].split()
    assert one[1:4:2] == ["Q0", "1"]
    assert one[5] == "good.2"


@pytest.mark.parametrize(
    ("bad", "state", "said"),
    [
        (first(float("nan")), "failed", "the score nan; its rows are not kept"),
        (
            raising(ValueError("tensor of\na wrong shape")),
            "failed",
            "ValueError: tensor of a wrong shape (the traceback is in work/bad/error.txt)",
        ),
        (
            raising(NotRunError("the weights of x/y", "name --model bad=x/y")),
            "not run",
            "not run: needs the weights of x/y; name --model bad=x/y",
        ),
        (raising(ModuleNotFoundError(name="trl")), "not run", "not run: needs the package trl; "),
    ],
)
def test_a_method_that_fails_or_can_not_run_leaves_the_others_rows(
    compare: Compare, tmp_path: Path, bad: Callable[..., Any], state: str, said: str
) -> None:
    ended = compare("--methods", "bad,good", "--seeds", "1", bad=bad)
    assert ended.status == (2 if state == "failed" else 0)
    assert said in " ".join((ended.out + ended.err).split())
    assert ("1 of 2 methods failed, " in ended.err) == (state == "failed")
    assert "Traceback" not in ended.err
    rows = rows_in(tmp_path)
    assert {name: row["state"] for name, row in rows.items()} == {"bad": state, "good": "done"}
    assert [name for name, row in rows.items() if "figures" in row] == ["good"]
    assert said in (tmp_path / "out/compare.md").read_text()


def test_ctrl_c_keeps_finished_rows_and_resume_goes_on(compare: Compare, tmp_path: Path) -> None:
    ended = compare("--methods", "bad,good", "--seeds", "2", bad=raising(KeyboardInterrupt()))
    assert ended.status == 130
    assert "2 finished rows are kept" in ended.err
    assert "--resume goes on" in ended.err
    assert [*rows_in(tmp_path)] == ["good"]
    again = compare("--methods", "bad,good", "--seeds", "2", "--resume")
    assert again.status == 0
    assert compare.fits == [(0, 3), (0, 0), (0, 1), (1, 0)], "of bad"  # type: ignore[attr-defined]
    compare("--methods", "bad,good", "--seeds", "3", "--resume")
    assert compare.fits == [(2, 0), (2, 0)], "the third seed alone"  # type: ignore[attr-defined]
    compare("--methods", "good", "--seeds", "1", "--resume", "--trials", "1")
    assert compare.fits[0] == (0, 3), "another budget, other rows"  # type: ignore[attr-defined]


def test_a_folder_of_somebody_else_is_left_alone(compare: Compare, tmp_path: Path) -> None:
    (tmp_path / "out" / "work").mkdir(parents=True)
    (tmp_path / "out" / "work" / "thesis.txt").write_text("years")
    ended = compare("--methods", "good")
    assert ended.status == 2
    assert "has other files than a comparison's; name another one with --out" in ended.sentence
    assert (tmp_path / "out" / "work" / "thesis.txt").exists()


# Tables


def weaker(task: Task, _others: int, query: Query) -> list[tuple[str, float]]:
    return good(task, 5, query)


def test_tables_and_advice_say_the_same(compare: Compare, tmp_path: Path) -> None:
    methods, out = "bad,good,extractive,perfect-cutoff", tmp_path / "out"
    few = ("--trials", "2", "--model", "dpr=/folder/minilm")
    ended = compare("--methods", methods, "--seeds", "1", *few, bad=weaker)
    assert ended.status == 0, ended.err
    facts, rows = json.loads((out / "compare.json").read_text()), rows_in(tmp_path)
    f1 = f"{rows['good']['figures']['f1']:.4f}"
    assert facts["reference"] == "good"
    assert facts["models"] == {"dpr": "minilm"}, "without a folder of this machine"
    assert "Models: dpr from minilm." in (out / "compare.md").read_text()
    assert rows["good"]["p"] is None
    assert rows["bad"]["p"] < 0.01
    assert rows["perfect-cutoff"]["p"] is None, "it knows the labels"
    assert facts["advice"].startswith("Use good: F1 ")
    assert f1 in (out / "compare.md").read_text()
    assert f1 in ended.out
    assert " ".join(ended.out.split()).endswith(facts["advice"])


# Figures that are published


def test_expected_figures_are_those_of_the_kept_results() -> None:
    assert reproduce.EXPECTED.read_text("utf-8") == reproduce.expected()
    assert set(reproduce.METHODS) <= set(METHODS)
    for file in reproduce.RESULTS.glob("*.json"):
        told = json.loads(file.read_text("utf-8"))
        assert told["commit"], file
        assert "/" not in told["command"], file
