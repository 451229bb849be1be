"""A part of the sample shop with a configuration that trains a very small model in seconds."""

from __future__ import annotations

import json
from pathlib import Path

from trainers.demo.catalogue import make_catalogue

CONFIG = """
store = "store"
[dataset]
loader = "jsonl"
path = "data"
dev_share = 0.2
[keywords]
k_max = 10
[prompts]
item_system = ""
item_user = "{item}\\n{description}"
query_system = ""
query_user = "{query}"
[generator]
dtype = "float32"
batch_size = 64
[generator.sampling]
temperature = 0
max_tokens = 16
[rebuild]
max_failure_share = 1.0
[training]
candidates = 2
invented_queries = 5
[training.gate]
on = false
[training.tiny]
hidden = 32
layers = 1
heads = 2
vocabulary = 600
[training.sft]
item_keywords = 3
query_keywords = 3
item_epochs = 2
query_epochs = 2
learning_rate = 3e-3
[training.rollouts]
generations = 4
max_tokens = 12
[training.query]
max_steps = 2
prompts_per_step = 4
micro_batch = 16
learning_rate = 1e-4
[training.item]
max_steps = 2
prompts_per_step = 4
micro_batch = 16
learning_rate = 1e-4
"""


def write_shop(folder: Path, items: int = 60) -> Path:
    """A part of the sample shop: the first items, and the queries that keep a relevant one."""
    data = folder / "data"
    data.mkdir(parents=True)
    files = {
        name: [json.loads(line) for line in text.decode().splitlines()]
        for name, text in make_catalogue(0).files().items()
    }
    files["items.jsonl"] = files["items.jsonl"][:items]
    known = {item["id"] for item in files["items.jsonl"]}
    files["labels.jsonl"] = [label for label in files["labels.jsonl"] if label["item"] in known]
    asked = {label["query"] for label in files["labels.jsonl"]}
    files["queries.jsonl"] = [query for query in files["queries.jsonl"] if query["id"] in asked]
    for name, rows in files.items():
        (data / name).write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    (folder / "cogr.toml").write_text(CONFIG)
    return folder / "cogr.toml"


def failing_reward(world: object, id_: str, keywords: object) -> float:
    """A reward that can't score anything."""
    raise KeyError("no margin known")
