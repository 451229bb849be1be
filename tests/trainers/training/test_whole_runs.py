"""Whole runs of a very small model: every stage in its own process, killed and continued, refused
and repaired.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from pyarrow import parquet

from cogr.errors import CheckFailedError, LockedError, TrainingError
from cogr.snapshots import open_snapshot
from tests.commands import Command
from tests.shops import read_jsonl
from tests.trainers.shop import Shop, whole
from trainers.training import stage
from trainers.training.inputs import Inputs, Wrote
from trainers.training.rounds import Round, State, create, open_run
from trainers.training.step_log import SHARES, StepLog

pytestmark = [pytest.mark.slow, pytest.mark.model]


def test_sft_and_a_round_leave_models_snapshots_logs_and_figures(trained: Shop) -> None:
    sft, first = whole(trained)
    store = trained.workspace().store
    folder = store.local(first.model("item"))
    assert {"model.safetensors", "tokenizer.json"} <= {file.name for file in folder.iterdir()}
    assert not list(folder.glob("*.bin"))
    steps = read_jsonl(store.local("runs/main/logs/r001-query.jsonl"))
    assert [step["step"] for step in steps] == [1, 2]
    names = {"reward", "reward_std", "equal_groups", "over_budget", "keywords", "seconds"}
    assert names <= steps[0].keys()
    kept = parquet.read_table(store.local("runs/main/logs/r001-query.parquet")).to_pylist()
    assert {row["step"] for row in kept} == {2}
    assert {row["entity"] for row in kept} <= trained.workspace().dataset.relevant.keys()
    assert all(0 <= row["retrieval"] <= 1 for row in kept)
    assert all(set(done.figures) == {"train", "dev", "test"} for done in (sft, first))
    assert first.stage("accept-items").notes["realised"] >= 0
    items = open_snapshot(store, first.items)
    assert items.manifest.parent == sft.items
    # What is published after a round has the items' fields, too.
    assert items.manifest.fields == {"price": "double"}
    fields = {item.id: item.fields for item in trained.workspace().dataset.items}
    assert {row.id: row.fields for row in items.rows()} == fields


def test_a_trained_model_rebuilds_an_index_as_it_is(
    trained: Shop, tmp_path: Path, cogr_index: Command
) -> None:
    workspace, first = trained.workspace(), whole(trained)[1]
    model = workspace.store.local(first.model("query"))
    ended = cogr_index(
        "rebuild", "--side", "query", "--generator", "transformers", "--json", "--no-push",
        "-c", trained.config, "--set", f"store={tmp_path}", "--set", f"generator.model={model}",
    )  # fmt: skip
    assert ended.status == 0, ended.err
    assert ended.json["snapshot"].rpartition("-")[2] == first.queries.rpartition("-")[2]


def test_the_same_round_is_refused_while_another_command_does_it(trained: Shop) -> None:
    driver = trained.driver()
    with (
        driver.run.store.lock("run-main", "cogr-train run"),
        pytest.raises(LockedError, match="cogr-train run"),
    ):
        driver.reach(2)


def test_no_round_begins_from_a_pretrained_pair_that_finds_no_more_than_text(
    copied: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = copied.workspace().store.local(whole(copied)[0].model("query"))
    asked = ("training.rules=own", f"training.model={model}")
    run = create(copied.workspace(*asked), "pretrained")
    run.save(State(rounds=whole(copied)[:1]))
    with pytest.raises(CheckFailedError, match=r"BM25's 0\.\d{3}"):
        copied.driver_of(run, *asked).reach(None)
    assert run.state().rounds_done == 0


def test_out_of_memory_is_tried_again_with_less_at_once(
    copied: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def crowded(inputs: Inputs) -> Wrote:
        asked.append(inputs.retries)
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setitem(stage.WORK, "index-query", crowded)  # type: ignore[arg-type]
    with pytest.raises(TrainingError, match="index-query.* memory"):
        copied.driver().reach(2)
    monkeypatch.setitem(stage.WORK, "train-item", crowded)  # type: ignore[arg-type]
    run = open_run(copied.workspace(), "main")
    sft, first, _ = run.state().rounds
    before = first.stages[: first.plan.index("train-item")]
    run.save(State(rounds=(sft, Round(number=1, stages=before))))
    with pytest.raises(TrainingError, match="train-item.* memory.* eighth"):
        copied.driver().reach(2)
    assert asked == [0, 0, 1, 2, 3, 4]
    assert copied.said[-2] == "train-item ran out of memory: trying again with less at once"
    assert not copied.driver().run.state().rounds[1].finished


@pytest.mark.parametrize("logs", [{"loss": float("nan")}, {"loss": 0.1, "grad_norm": float("inf")}])
def test_a_loss_that_is_no_number_stops_the_stage(tmp_path: Path, logs: dict[str, float]) -> None:
    with pytest.raises(TrainingError, match=r"step 7 is (nan|inf)"):
        StepLog(tmp_path / "log.jsonl").logged(7, logs)


def test_a_stage_ends_where_its_reward_rises_no_more(tmp_path: Path) -> None:
    def run(rewards: Sequence[float], *, whole: bool = False, steps: int = 50) -> int | None:
        said: list[str] = []
        log = StepLog(tmp_path / "log.jsonl", said.append, scored=True, whole=whole)
        log.begins(steps)
        with log:
            for step, reward in enumerate(rewards, 1):
                shares = dict.fromkeys((*SHARES, "rewards/retrieval/std"), 0.0)
                shares |= {"rewards/retrieval/mean": reward, "frac_reward_zero_std": 0.5}
                if log.logged(step, {"loss": 0.1, **shares}):
                    assert said == [
                        f"step {step}: the reward has not risen for 10 steps, so the stage "
                        "ends here"
                    ]
                    return step
        return None

    assert run([0.1] * 30) == 20
    assert run([0.1] * 30, whole=True) is None
    assert run([0.1] * 30, steps=100) is None, "a fifth of the steps are 20"
    assert run([step / 100 for step in range(30)]) is None
    assert run([*(step / 100 for step in range(20)), *[0.2] * 30]) == 40
