"""What serves after a run: the dev queries, the rivals, the choice among all pairs, and what is
said of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from cogr.datasets.builder import DEV_SHARE
from cogr.errors import CheckFailedError, TrainingError
from cogr.snapshots import open_snapshot
from indexers.workspace import Workspace
from tests.shops import read_jsonl, write_jsonl, write_sample_part
from tests.trainers.conftest import Command
from tests.trainers.report_worlds import Told
from trainers.training.contest import Contender, Rivals, choose, contenders, known_rivals
from trainers.training.driver import Driver
from trainers.training.rounds import LEAST, judged_by, with_dev
from trainers.training.stage import Launcher

GATED = ("training.rules=own", "dataset.dev_share=0")


def contender(name: str, f1: float | None, se: float = 0.02) -> Contender:
    return Contender(
        name, "item", "query", {} if f1 is None else {"dev": {"f1": f1, "f1_se": se, "queries": 32}}
    )


def test_the_simplest_pair_within_one_standard_error_of_the_best_is_chosen() -> None:
    found = choose(
        [contender("statistical", 0.59), contender("sft", 0.3), contender("round 1", 0.60)]
    )
    assert (found.chosen.name, found.highest.name) == ("statistical", "round 1")
    assert (
        "round 1 has 0.600, which is not more than the standard error of 0.020 above"
        in found.reason()
    )
    clear = choose(
        [contender("statistical", 0.5), contender("sft", 0.3), contender("round 1", 0.60)]
    )
    assert clear.chosen.name == "round 1"
    assert clear.reason() == "F1 0.600 on 32 dev queries"


def test_pairs_are_compared_query_by_query_where_that_is_known() -> None:
    def beside(*gains: float) -> Contender:
        found = contender("distilled", 0.54, 0.14)
        own = [f1 + gain for f1, gain in zip(f1s, gains, strict=True)]
        return replace(found, figures={"dev": {**found.figures["dev"], "f1s": own}})

    f1s = [0.1, 0.9, 0.5, 0.3, 0.7]
    first = contender("statistical", 0.5, 0.14)
    first = replace(first, figures={"dev": {**first.figures["dev"], "f1s": f1s}})
    found = choose([first, beside(0.05, 0.04, 0.03, 0.04, 0.04)])
    assert found.chosen.name == "distilled", "better by a little, and on every query"
    found = choose([first, beside(0.6, -0.1, -0.1, -0.1, -0.1)])
    assert found.chosen.name == "statistical"
    assert "not more than the standard error of 0.140 above" in found.reason()


def test_without_dev_queries_nothing_is_chosen() -> None:
    assert choose([contender("sft", None)]) is None
    assert choose([]) is None


def without_dev(folder: Path) -> Path:
    """A shop whose data name no dev queries."""
    config = write_sample_part(folder)
    file = folder / "data" / "queries.jsonl"
    rows = read_jsonl(file)
    write_jsonl(file, [row | {"split": "train"} if row["split"] == "dev" else row for row in rows])
    return config


def test_a_share_of_the_training_queries_is_dev_where_the_data_have_none(tmp_path: Path) -> None:
    workspace = Workspace.open(without_dev(tmp_path), GATED)
    found = with_dev(workspace)
    train, dev = found.dataset.queries["train"], found.dataset.queries["dev"]
    everything = workspace.dataset.queries["train"]
    assert len(dev) == len(everything) // 5
    assert {query.id for query in (*train, *dev)} == {query.id for query in everything}
    assert found.dataset.queries["test"] == workspace.dataset.queries["test"]
    assert found.dataset.dataset_hash != workspace.dataset.dataset_hash
    assert with_dev(found) is found
    assert (
        with_dev(Workspace.open(tmp_path / "cogr.toml", GATED)).dataset.dataset_hash
        == found.dataset.dataset_hash
    )
    assert judged_by(found).startswith(f"Judged by {len(dev)} training queries, chosen by the hash")


@pytest.mark.parametrize(
    ("override", "share", "sentence"),
    [
        ("training.rules=paper", DEV_SHARE, "every round is built upon"),
        ("training.rules=own", 0.05, f"is below {LEAST}; every round is built upon"),
        ("dataset.dev_share=0.2", DEV_SHARE, "dev queries of the data"),
    ],
)
def test_nothing_is_set_apart_where_it_is_not_asked_for_or_there_is_a_dev_split(
    tmp_path: Path, override: str, share: float, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainers.training.rounds.DEV_SHARE", share)
    workspace = Workspace.open(without_dev(tmp_path), (*GATED, override))
    assert with_dev(workspace) is workspace
    assert sentence in judged_by(workspace)


class Run:
    """A finished run of a shop without dev queries of its own, made without training."""

    def __init__(self, folder: Path) -> None:
        without_dev(folder)
        self.told = Told(folder, *GATED)
        for number in (0, 1):
            self.told.add(number)
        self.said: list[str] = []
        launcher = Launcher(self.told.config, GATED)
        self.driver = Driver(self.told.workspace, self.told.run, launcher, self.said.append)

    def serving(self) -> Mapping[str, str | None]:
        return dict(self.driver.workspace.backend.serving())


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_the_best_pair_on_dev_serves_whichever_generator_wrote_it(run: Run) -> None:
    choice = run.driver.choice()
    assert choice is not None
    beside = known_rivals(run.told.run)
    assert set(beside.bm25) == {"dev", "test"}
    assert beside.statistical is not None
    learned = (beside.statistical, beside.distilled)
    assert choice.chosen in learned
    assert all(
        one.dev_f1 < choice.chosen.dev_f1
        for one in contenders(run.told.state, beside)
        if one not in learned
    ), "words of titles do worse than keywords that are learned"
    served = run.driver.publish(None, gate=True)
    check_distilled(run, beside)
    # The choice was made without the labels of the dev queries; what serves is learned from all of
    # them.
    assert run.serving() == {"item": served.items, "query": served.queries}
    whole = Workspace(run.driver.workspace.settings)
    manifest = run.driver.workspace.serving("item").manifest
    assert (manifest.generator["kind"], manifest.dataset_hash) == (
        "statistical",
        whole.dataset.dataset_hash,
    )
    assert served.items != beside.statistical.items
    # What knows the dev labels is judged by what it did without them.
    with pytest.raises(
        CheckFailedError,
        match=r"keeps .* from serving: F1 on dev would go from 0\.\d+ to 0\.\d+",
    ):
        run.driver.publish("1", gate=True)
    assert run.serving() == {"item": served.items, "query": served.queries}
    forced = run.driver.publish("1", gate=False)
    assert run.serving() == {"item": forced.items, "query": forced.queries}
    with pytest.raises(TrainingError, match="has no pair '7'; it has sft, 1"):
        run.driver.publish("7", gate=True)
    # So is the distilled pair, whose evidence stays what it was.
    heard = run.driver.publish("distilled", gate=True)
    queries = run.driver.workspace.serving("query").manifest
    assert run.serving() == {"item": served.items, "query": heard.queries}
    assert queries.generator["evidence"] == evidence(run)
    assert queries.dataset_hash == whole.dataset.dataset_hash


def evidence(run: Run) -> list[list[str]]:
    """The pairs that the distilled one hears: of the last rounds, not of SFT."""
    return [[done.items, done.queries] for done in run.told.state.rounds if done.number]


def check_distilled(run: Run, beside: Rivals) -> None:
    """It has the items of `statistical`, and names what it hears."""
    assert beside.distilled.items == beside.statistical.items
    queries = open_snapshot(run.told.workspace.store, beside.distilled.queries).manifest
    assert queries.generator["evidence"] == evidence(run)
    assert "stacking" in queries.generator
    assert set(beside.distilled.figures) == {"dev", "test"}
    assert beside.rows().keys() == {"bm25", "statistical", "distilled"}
    assert "measuring distilled: statistical with round 1 as evidence" in run.said
    run.told.add(2, "rejected")
    run.driver.choice()
    again = known_rivals(run.told.run)
    assert again.distilled is not None
    assert again.evidence == evidence(run)
    assert len(again.evidence) == 2
    assert run.said[-1] == "measuring distilled: statistical with round 1 and round 2 as evidence"


def test_rivals_are_measured_once_and_again_where_their_snapshots_are_gone(run: Run) -> None:
    run.driver.choice()
    run.driver.choice()
    assert run.said.count("measuring bm25 and statistical beside the rounds") == 1
    beside = known_rivals(run.told.run)
    run.told.workspace.store.remove(f"snapshots/{beside.statistical.items}")
    run.driver.choice()
    after = known_rivals(run.told.run)
    assert after.statistical.items == beside.statistical.items
    assert run.told.workspace.store.exists(f"snapshots/{beside.statistical.items}/manifest.json")


def test_without_the_extra_the_rounds_are_compared_alone(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "bm25s", None)
    choice = run.driver.choice()
    assert choice.chosen.name in ("sft", "round 1")
    assert any(
        "bm25 and statistical: not measured. " in sentence and "statistical" in sentence
        for sentence in run.said
    )


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(600)
def test_a_run_needs_no_init_and_says_how_far_it_is_what_is_best_and_what_serves(
    tmp_path: Path, cogr_train: Command
) -> None:
    config = without_dev(tmp_path)
    asked = ("-c", config, *(part for setting in GATED for part in ("--set", setting)))
    ended = cogr_train("round", *asked)
    assert ended.status == 0, ended.err
    assert "Judged by " in ended.err.splitlines()[0]
    for line in (
        "training, item side: 4 in ",
        "training, query side: 2 in ",
        "keywords, item side: 60 in ",
    ):
        assert line in ended.err
    # Bars of transformers.
    assert "Loading weights" not in ended.err
    assert "Writing model shards" not in ended.err
    assert "Best on dev: statistical, F1 0." in ended.out
    assert "Serves now: nothing." in ended.out
    assert "best on dev" in ended.out
    assert "bm25" in ended.out
    assert f"Next: cogr-train publish -c {config}" in ended.err
    ended = cogr_train("run", "--rounds", "1", "--publish", *asked)
    assert "Serves now: statistical." in ended.out
    assert "serves" in ended.out
    assert "Next: cogr-train publish" not in ended.err
    note = "has learned from the labels of these dev queries"
    assert note in cogr_train("evaluate", *asked, "--split", "dev").err
    assert cogr_train("publish", "sft", "--no-gate", *asked, "--json").json["serves"] == "sft"
    assert note not in cogr_train("evaluate", *asked, "--split", "dev").err
    assert cogr_train("status", *asked, "--json").json["best_on_dev"] == "statistical"
    more = cogr_train("run", "--rounds", "1", *asked)
    assert "Serves now: sft." in more.out
    assert f"Next: cogr-train publish -c {config}" in more.err
