"""A judge trained on the labels, for `generator.statistical.judge`: LoRA adapters of
`training.model` that say whether an item answers a query. Epochs and learning rate are those of SFT
on queries. Run: python examples/train_judge.py -c cogr.toml [--set key=value ...] FOLDER

Training queries and items are dealt into parts. An adapter of each part learns nothing of its
queries and of its items, so that what the judge is worth is fitted on pairs like those that it will
be asked about; one more learns from all.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from cogr.keywords import self_keyword
from cogr.records import Query
from indexers.generators import YES_AND_NO
from indexers.generators.judging import EVERY, PARTS, TRAINED, YES_OR_NO, QueryItem
from indexers.generators.model_folders import resolve_model
from indexers.generators.statistical.artefact import Artefact
from indexers.generators.statistical.generator import Statistical
from indexers.workspace import Workspace
from trainers.training.sft import run_sft

RANK = 16
"""Of the adapters, where training.lora.rank is 0."""


def train_judge(workspace: Workspace, out: Path) -> None:
    """Write the adapters into an empty folder."""
    if out.exists() and any(out.iterdir()):
        raise SystemExit(f"The folder {out} is not empty; name another.")
    settings = workspace.settings.training
    adapters = settings.lora.model_copy(update={"rank": settings.lora.rank or RANK})
    settings = settings.model_copy(update={"lora": adapters, "processes": 1, "accelerate": None})
    with workspace.generator("query", "statistical") as generator:
        fitted = cast("Statistical", generator).looking(judge=None, evidence=()).artefact
    rng = np.random.default_rng(settings.seed)
    items = {item.id: item for item in workspace.dataset.items}
    examples = [(QueryItem(query, items[id_]), yes) for query, id_, yes in _examples(fitted, rng)]
    queries = _dealt(sorted({pair.query.id for pair, _ in examples}), rng)
    known = _dealt(sorted({pair.item.id for pair, _ in examples}), rng)
    base = resolve_model(settings.model)
    for part in (*map(str, range(PARTS)), EVERY):
        of_others = [
            (pair.request(YES_OR_NO).prompt, [YES_AND_NO[not yes]])
            for pair, yes in examples
            if part not in (queries[pair.query.id], known[pair.item.id])
        ]
        prompts, answers = zip(*of_others, strict=True)
        print(f"adapter {part}: {len(prompts)} pairs", flush=True)
        folder = out.resolve() / "trainer" / part / "checkpoints"
        how = (settings.sft.epochs, out / f"{part}.jsonl", settings, folder)
        run_sft(base, prompts, answers, *how).write(out / part)
        shutil.rmtree(out / "trainer", ignore_errors=True)
    (out / TRAINED).write_text(json.dumps({"queries": queries, "items": known}), "utf-8")


def _dealt(ids: Sequence[str], rng: np.random.Generator) -> dict[str, str]:
    return {id_: str(at % PARTS) for id_, at in zip(ids, rng.permutation(len(ids)), strict=True)}


def _examples(fitted: Artefact, rng: np.random.Generator) -> Iterator[tuple[Query, str, bool]]:
    """Training queries with relevant items; as many others that the ranker, which has not seen the
    query, takes for likeliest; and half as many at random.
    """
    known = ~fitted.ranker.new
    for row, (items, p) in enumerate(fitted.probabilities(fitted.queries)):
        query = Query(fitted.queries[row].id, self_keyword(fitted.queries[row].text))
        relevant = fitted.relevance[row].indices
        others = items[np.argsort(-p, kind="stable")]
        likely = others[~np.isin(others, relevant) & known[others]][: relevant.size]
        rest = np.setdiff1d(np.flatnonzero(known), [*relevant, *likely])
        some = rng.permutation(rest)[: relevant.size // 2]
        yield from ((query, fitted.item_ids[item], True) for item in relevant)
        yield from ((query, fitted.item_ids[item], False) for item in (*likely, *some))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("-c", "--config", type=Path)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    given = parser.parse_args()
    train_judge(Workspace.open(given.config, given.overrides), given.folder)
