"""A judge is trained on the labels by the example, and gives evidence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from indexers.generators.judging import EVERY, PARTS, YES_OR_NO, QueryItem
from indexers.generators.statistical import judge_evidence
from indexers.workspace import Workspace
from tests.commands import Command, sets
from tests.documents import ROOT
from tests.shops import write_sample_part
from trainers.tiny import tiny_model


@pytest.mark.model
def test_a_judge_trained_on_labels_is_evidence(
    tmp_path: Path, cogr_index: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write_sample_part(tmp_path / "shop", items=30)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(judge_evidence, "MAX_PAIRS", 120)
    monkeypatch.setattr(judge_evidence, "MAX_FITTED", 60)
    dataset = Workspace.open(config, []).dataset
    queries = dataset.queries["train"]
    texts = [
        QueryItem(q, i).request(YES_OR_NO).prompt.text for q in queries for i in dataset.items[:9]
    ]
    tiny_model(tmp_path / "tiny", [*texts, "yes no yes no"], 0)
    model = f"training.model={tmp_path / 'tiny'}"
    few = sets(model, "training.sft.epochs=1", "training.sft.learning_rate=0.001")
    own = ["-c", str(config), *few]

    train = [sys.executable, str(ROOT / "examples/train_judge.py"), "judge", *own]
    subprocess.run(train, check=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    parts = json.loads(Path("judge", "judge.json").read_text())
    asked = {query.id for query in queries if dataset.relevant[query.id]}
    assert parts["queries"].keys() == asked
    assert {*parts["queries"].values(), *parts["items"].values()} == {*map(str, range(PARTS))}
    steps = {
        name: Path("judge", f"{name}.jsonl").read_text().count("\n") for name in ("0", "1", EVERY)
    }
    assert steps[EVERY] > max(steps["0"], steps["1"]) > 0

    judging = sets("generator.statistical.judge=transformers", "generator.model=judge")
    ended = cogr_index("rebuild", "--side", "query", "--no-publish", *own, *judging)
    assert ended.status == 0, ended.err
    assert "judge: " in ended.err
