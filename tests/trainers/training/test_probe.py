"""F1 inside a training phase: it is that of the model in training, and changes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cogr.snapshots import open_snapshot
from indexers.backends.memory import MemoryBackend
from tests.trainers.shop import Shop
from trainers.evaluation import evaluate
from trainers.training.inputs import Inputs
from trainers.training.probe import Probe
from trainers.training.rounds import Round
from trainers.training.run_folder import branch

pytestmark = [pytest.mark.slow, pytest.mark.model]

STILL = ("training.query.learning_rate=1e-12", "training.item.learning_rate=1e-12")
EACH = "training.evaluate_steps=1"


def second_round(shop: Shop, name: str, *overrides: str) -> tuple[Round, Path]:
    """Another round of the shop's run, with other settings."""
    run = branch(shop.workspace(*overrides), "main", name)
    return shop.driver_of(run, *overrides).round(), run.folder("logs")


def test_a_model_that_does_not_move_has_the_f1_of_its_snapshots(copied: Shop) -> None:
    done, logs = second_round(copied, "still", *STILL, EACH)
    workspace = copied.workspace()
    store, before = workspace.store, copied.driver("main").run.state().finished[1]
    written = open_snapshot(store, done.output("index-item"))
    pairs = {
        "query": (open_snapshot(store, before.items), open_snapshot(store, before.queries)),
        "item": (written, open_snapshot(store, done.queries)),
    }
    backend = MemoryBackend(store)
    for side, (items, queries) in pairs.items():
        lines = [
            json.loads(line) for line in (logs / f"r002-{side}.f1.jsonl").read_text().splitlines()
        ]
        assert [line["step"] for line in lines] == [1], "the last step is the round's"
        backend.push(items)
        for split in ("dev", "test"):
            found = evaluate(backend, workspace.dataset, items, queries, split)  # type: ignore[arg-type]
            assert lines[0][split] == pytest.approx(found.figures["f1"], abs=1e-6)


def test_what_is_learned_is_the_same_with_and_without(copied: Shop) -> None:
    rounds = [second_round(copied, name, *own)[0] for name, own in (("a", ()), ("b", (EACH,)))]
    names = [[Path(done.model(side)).name for side in ("query", "item")] for done in rounds]
    assert names[0] == names[1], "a model folder's name holds a digest of its weights"
    assert rounds[0].items == rounds[1].items


def test_a_stage_that_goes_on_forgets_what_came_after_its_checkpoint(
    copied: Shop, tmp_path: Path
) -> None:
    workspace = copied.workspace(EACH)
    run = copied.driver("main").run
    inputs = Inputs(workspace, run, Round(number=2), run.state().base, lambda _: None)
    assert (
        Probe.of(Inputs(copied.workspace(), run, Round(number=2), None, print), "item", tmp_path)
        is None
    )
    probe = Probe.of(inputs, "item", tmp_path)
    assert probe is not None
    probe.file.write_text('{"step": 1, "test": 0.5}\n{"step": 2, "test": 0.6}\n{"step": 3, "te')
    probe.begins(1)
    assert probe.file.read_text() == '{"step": 1, "test": 0.5}\n'
    probe.begins(0)
    assert probe.file.read_text() == ""
