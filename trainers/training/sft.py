"""Supervised fine-tuning: round 0 of both sides on targets from labels (paper, section 2.2).

The stages `targets`, `train-item` and `train-query`. The targets are the paper's
algorithm 1. Training is by TRL's SFTTrainer, with loss on the answer only.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from cogr.errors import DataError, TrainingError
from cogr.prompts import Prompt
from cogr.records import SIDES, Entity, Side
from cogr.settings.training import ItemsFrom, TrainingSettings
from cogr.store import as_json
from indexers.generators.model_folders import context_length, digest, resolve_model
from trainers.tiny import catalogue_texts, tiny_model
from trainers.training import ranks
from trainers.training.building import Build, build_snapshot, sft_example, write_share
from trainers.training.checkpoints import (
    TrainedModel,
    as_callback,
    base_folder,
    based,
    load_model,
    lora_config,
    save_model,
    save_side,
    stage_folder,
    train,
    trainable_tokenizer,
)
from trainers.training.inputs import Inputs, Wrote
from trainers.training.rounds import Run, StageRecord
from trainers.training.step_log import StepLog
from trainers.training.trainer_config import (
    Batch,
    items_from,
    set_up,
    sft_config,
    sft_step,
    silence,
)
from trainers.word_model import WordModel

# Targets


def query_targets(
    items: Mapping[str, Sequence[str]], relevant: Mapping[str, Collection[str]], budget: int
) -> dict[str, tuple[str, ...]]:
    """S_q of algorithm 1: the N most frequent keywords of the multiset union of S_i over the
    query's relevant items.

    Equal counts: the keyword that fewer items of the whole universe have comes first (it brings
    fewer others along), then code-point order. Queries whose relevant items have no keywords are
    left out.
    """
    df = Counter(word for words in items.values() for word in set(words))
    targets: dict[str, tuple[str, ...]] = {}
    for query, ids in relevant.items():
        pooled = Counter(word for id_ in ids for word in items.get(id_, ()))
        best = sorted(pooled, key=lambda word: (-pooled[word], df[word], word))[:budget]
        if best:
            targets[query] = tuple(best)
    return targets


def write_targets(inputs: Inputs) -> Wrote:
    """The stage targets: the untrained model, the first item keywords, and the targets of algorithm
    1 as two files. Every process but the first does its share of the first item keywords alone,
    where the model writes them.
    """
    sft, source = inputs.settings.sft, items_from(inputs.settings)
    if not ranks.is_first():
        if source == "self":
            build = Build("item", 0, inputs.settings.model, "self")
            write_share(inputs.workspace, build, inputs.run.folder("trainer"))
        return Wrote("", {})
    base = base_model(inputs)
    outside = not base.startswith(inputs.run.path)
    digests = {"base": digest(based(resolve_model(base))[0])} if outside else {}
    sets = _first_sets(inputs, source, base)
    items = {id_: words[: sft.item_keywords] for id_, words in sets.items() if words}
    relevant = {**inputs.relevant, **{one.id: ids for one, ids in inputs.invented.items()}}
    queries = query_targets(items, relevant, sft.query_keywords)
    if not queries.keys() & inputs.relevant.keys():
        raise DataError(
            f"The first item keywords ({source}) give no training query a target; check the texts "
            "of its relevant items, or set training.sft.items_from."
        )
    for side, targets in zip(SIDES, (queries, items), strict=True):
        written = as_json(targets)
        inputs.run.store.write(_file(inputs.run, side), written)
        digests[f"{side}_targets"] = sha256(written).hexdigest()[:16]
    notes = {"items_from": source, "items": len(items), "queries": len(queries)}
    return Wrote(base, {**notes, **digests})


def _file(run: Run, side: Side) -> str:
    return f"{run.path}/sft/{side}.json"


def read_targets(run: Run, made: StageRecord | None, side: Side) -> Mapping[str, Sequence[str]]:
    """The targets of a side, id -> keywords. Raises TrainingError where they are not those that the
    stage `made` wrote.
    """
    path = _file(run, side)
    content = run.store.read(path) if run.store.exists(path) else b""
    if made is None or sha256(content).hexdigest()[:16] != made.notes[f"{side}_targets"]:
        raise TrainingError(
            f"The targets {path} in {run.store.url} are not what was saved there; restore the "
            "file, or begin another run with --run NAME."
        )
    targets: Mapping[str, Sequence[str]] = json.loads(content)
    return targets


def _first_sets(inputs: Inputs, source: ItemsFrom, base: str) -> Mapping[str, Sequence[str]]:
    """S_i of algorithm 1, line 2."""
    dataset, budget = inputs.workspace.dataset, inputs.settings.sft.item_keywords
    if source == "labels":
        words = WordModel(dataset)
        return {item.id: words.keywords(item.id, budget) for item in dataset.items}
    build = Build("item", 0, base if source == "self" else None, source)
    barrier = inputs.run.folder("trainer") if source == "self" else None
    built = build_snapshot(inputs.workspace, build, barrier)
    return {row.id: row.keywords for row in built.rows()}


def base_model(inputs: Inputs) -> str:
    """The model that both sides start from. `tiny` is made now; any other is looked up
    and checked.
    """
    settings = inputs.settings
    if settings.model != "tiny":
        trainable_tokenizer(resolve_model(settings.model))
        return settings.model
    texts = catalogue_texts(inputs.workspace.dataset)
    return save_model(inputs.run, "base", lambda folder: tiny_model(folder, texts, settings.seed))


# Training


def train_sft(inputs: Inputs, side: Side) -> Wrote:
    """Fine-tune one side on its targets."""
    wanted = read_targets(inputs.run, inputs.round.stage("targets"), side)
    every: Sequence[Entity] = inputs.workspace.dataset.items
    if side == "query":
        every = [*inputs.train, *inputs.invented]
    entities = [entity for entity in every if entity.id in wanted]
    prompts = [*map(inputs.workspace.prompter(side), entities)]
    targets = [wanted[entity.id] for entity in entities]
    trained = run_sft(
        base_folder(inputs.run, inputs.round.output("targets")),
        prompts,
        targets,
        inputs.settings.sft.epochs,
        inputs.log(side),
        inputs.settings,
        stage_folder(inputs, side, prompts, targets=targets),
        inputs.retries,
    )
    return save_side(inputs, side, trained)


def run_sft(
    base: Path,
    prompts: Sequence[Prompt],
    targets: Sequence[Sequence[str]],
    epochs: float,
    path: Path,
    settings: TrainingSettings,
    folder: Path,
    retries: int = 0,
) -> TrainedModel:
    """Train on prompts and their keyword sets, and return the model. Step figures go to `path`,
    checkpoints to `folder`. Raises TrainingError where the loss is no number or the batches don't
    divide, DataError where every example is longer than the model's context.
    """
    from datasets import Dataset
    from trl import SFTTrainer

    set_up(settings.seed)
    tokenizer, context = trainable_tokenizer(base), context_length(based(base)[0])
    made = [sft_example(*one, tokenizer, context) for one in zip(prompts, targets, strict=True)]
    examples = [example for example in made if example is not None]
    if not examples:
        raise DataError(
            f"No prompt and target fit into the {context:,} tokens of {base.name}; use another "
            "model."
        )
    batch = Batch.of(settings, sft_step(settings, len(examples)), retries)
    log = StepLog(path)
    trainer = SFTTrainer(
        model=load_model(base, settings),
        args=sft_config(settings, epochs, batch, len(examples), folder),
        train_dataset=Dataset.from_list(examples),
        processing_class=tokenizer,
        peft_config=lora_config(settings, base),
        callbacks=[as_callback(folder, log)],
    )
    silence(trainer)
    with log:
        train(trainer)
    notes = {"examples": len(examples), "too_long": len(made) - len(examples), **log.notes}
    return TrainedModel(trainer, notes)
