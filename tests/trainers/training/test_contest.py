"""What serves after a run: the dev queries, the baselines, the choice among all pairs, and what is
said of it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

import pytest

from cogr.datasets.builder import DEV_SHARE
from cogr.errors import CheckFailedError, TrainingError
from cogr.snapshots import open_snapshot
from indexers.workspace import Workspace
from tests.commands import Command, sets
from tests.shops import read_jsonl, write_jsonl, write_sample_part
from tests.trainers.report_worlds import Told
from trainers.training.contest import Contender, choose, contenders, known_baselines
from trainers.training.driver import Driver
from trainers.training.rounds import MIN_SET_APART, judged_by, with_dev
from trainers.training.stage import Launcher

GATED = ("training.rules=own", "dataset.dev_share=0")


def contender(name: str, f1s: Sequence[float]) -> Contender:
    dev = {"f1": mean(f1s), "queries": len(f1s), "f1s": f1s} if f1s else None
    return Contender(name, "item", "query", {"dev": dev} if dev else {})


F1S = (0.1, 0.9, 0.5, 0.3, 0.7)


@pytest.mark.parametrize(
    ("gains", "chosen", "reason"),
    [
        ((0.05, 0.04, 0.03, 0.04, 0.04), "round 1", "F1 0.540 on 5 dev queries"),
        (
            (0.6, -0.1, -0.1, -0.1, -0.1),
            "statistical",
            "F1 0.500 on 5 dev queries; round 1 has 0.540, which is not more than the standard "
            "error of 0.140 above, and the simpler pair is taken",
        ),
    ],
    ids=["a little, but on every query", "much, but on one query"],
)
def test_the_simplest_pair_within_one_standard_error_of_the_best_is_chosen(
    gains: Sequence[float], chosen: str, reason: str
) -> None:
    better = [f1 + gain for f1, gain in zip(F1S, gains, strict=True)]
    sft = contender("sft", [0.0] * len(F1S))
    found = choose([contender("statistical", F1S), sft, contender("round 1", better)])
    assert (found.chosen.name, found.highest.name, found.reason()) == (chosen, "round 1", reason)
    assert choose([contender("sft", ())]) is choose([]) is None, "there are no dev queries"


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
    again = with_dev(Workspace.open(tmp_path / "cogr.toml", GATED)).dataset
    assert again.dataset_hash == found.dataset.dataset_hash != workspace.dataset.dataset_hash
    assert with_dev(found) is found
    assert judged_by(found).startswith(f"Judged by {len(dev)} training queries, chosen by the hash")


@pytest.mark.parametrize(
    ("override", "share", "sentence"),
    [
        ("training.rules=paper", DEV_SHARE, "every round is built upon"),
        ("training.rules=own", 0.05, f"is below {MIN_SET_APART}; every round is built upon"),
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

    def published(self, name: str | None, *, gate: bool = True) -> Contender:
        """The pair of that name, which serves now."""
        pair = self.driver.publish(name, gate=gate)
        assert self.serving() == {"item": pair.items, "query": pair.queries}
        return pair

    def serving(self) -> Mapping[str, str | None]:
        return dict(self.driver.workspace.backend.serving())

    def evidence(self) -> list[list[str]]:
        """The pairs that the distilled one hears: of the last rounds, not of SFT."""
        return [[done.items, done.queries] for done in self.told.state.rounds if done.number]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


@pytest.mark.slow
def test_the_best_pair_on_dev_serves_whichever_generator_wrote_it(run: Run) -> None:
    choice, beside = run.driver.choice(), known_baselines(run.told.run)
    assert set(beside.bm25) == {"dev", "test"}
    learned = (beside.statistical, beside.distilled)
    assert choice.chosen in learned
    assert all(
        one.dev_f1 < choice.chosen.dev_f1
        for one in contenders(run.told.state, beside)
        if one not in learned
    ), "words of titles do worse than keywords that are learned"
    served = run.published(None)
    # The choice was made without the labels of the dev queries; what serves is learned from all of
    # them.
    whole = Workspace(run.driver.workspace.settings).dataset.dataset_hash
    manifest = run.driver.workspace.serving("item").manifest
    assert (manifest.generator["kind"], manifest.dataset_hash) == ("statistical", whole)
    assert served.items != beside.statistical.items
    # What knows the dev labels is judged by what it did without them.
    refused = r"keeps .* from serving: F1 on dev would go from 0\.\d+ to 0\.\d+"
    with pytest.raises(CheckFailedError, match=refused):
        run.driver.publish("1", gate=True)
    assert run.serving() == {"item": served.items, "query": served.queries}
    run.published("1", gate=False)
    with pytest.raises(TrainingError, match="'7'.* sft, 1"):
        run.driver.publish("7", gate=True)
    # So is the distilled pair, whose evidence stays what it was.
    heard = run.published("distilled")
    queries = run.driver.workspace.serving("query").manifest
    assert (heard.items, queries.dataset_hash) == (served.items, whole)
    assert queries.generator["evidence"] == run.evidence()


@pytest.mark.slow
def test_distilled_has_the_items_of_statistical_and_names_what_it_hears(run: Run) -> None:
    for number, rounds in ((1, "round 1"), (2, "round 1 and round 2")):
        if number == 2:
            run.told.add(number, "rejected")
        run.driver.choice()
        assert run.said[-1] == f"measuring distilled: statistical with {rounds} as evidence"
        beside = known_baselines(run.told.run)
        assert beside.evidence == run.evidence()
        assert beside.distilled.items == beside.statistical.items
        queries = open_snapshot(run.told.workspace.store, beside.distilled.queries).manifest
        assert queries.generator["evidence"] == run.evidence()
        assert "stacking" in queries.generator
        assert set(beside.distilled.figures) == {"dev", "test"}
        assert beside.rows().keys() == {"bm25", "statistical", "distilled"}

    # Measured once, and again where snapshots are gone.
    assert run.said.count("measuring bm25 and statistical beside the rounds") == 1
    beside = known_baselines(run.told.run)
    run.told.workspace.store.remove(f"snapshots/{beside.statistical.items}")
    run.driver.choice()
    after = known_baselines(run.told.run)
    assert after.statistical.items == beside.statistical.items
    assert run.told.workspace.store.exists(f"snapshots/{beside.statistical.items}/manifest.json")


def test_without_the_extra_the_rounds_are_compared_alone(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    assert run.driver.choice().chosen.name in ("sft", "round 1")
    assert any("statistical: not measured. " in sentence for sentence in run.said)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.timeout(600)
def test_a_run_needs_no_init_and_says_how_far_it_is_what_is_best_and_what_serves(
    tmp_path: Path, cogr_train: Command
) -> None:
    config = without_dev(tmp_path)
    asked = ("-c", config, *sets(*GATED))
    ended = cogr_train("round", *asked)
    assert ended.status == 0, ended.err
    assert "Judged by " in ended.err.splitlines()[0]
    for bar in ("training, item side: 4", "training, query side: 2", "keywords, item side: 60"):
        assert f"{bar} in " in ended.err
    # Bars of transformers.
    assert not any(bar in ended.err for bar in ("Loading weights", "Writing model shards"))
    for line in ("Best on dev: statistical, F1 0.", "Serves now: nothing.", "best on dev", "bm25"):
        assert line in ended.out
    assert f"Next: cogr-train publish -c {config}" in ended.err
    ended = cogr_train("run", "--rounds", "1", "--publish", *asked)
    assert "Serves now: statistical." in ended.out
    assert "serves" in ended.out
    assert "Next: cogr-train publish" not in ended.err
    note = "was trained on the labels of these dev queries"
    assert note in cogr_train("evaluate", *asked, "--split", "dev").err
    assert cogr_train("publish", "sft", "--no-gate", *asked, "--json").json["serves"] == "sft"
    assert note not in cogr_train("evaluate", *asked, "--split", "dev").err
    assert cogr_train("status", *asked, "--json").json["best_on_dev"] == "statistical"
    more = cogr_train("run", "--rounds", "1", *asked)
    assert "Serves now: sft." in more.out
    assert f"Next: cogr-train publish -c {config}" in more.err
