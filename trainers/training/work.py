"""What each stage does: reads files and snapshots of the run, writes a file or a snapshot, says
what it wrote.

One function a stage. Which stage comes when is `state`; the process around it is `stage`. Nothing
is kept in memory between stages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ValidationError

from cogr.errors import DataError, SettingsError, TrainingError
from cogr.records import Entity, Side
from cogr.rewards import World
from cogr.settings.training import ItemsFrom, TrainingSettings
from cogr.snapshots import Provenance, Snapshot, write_snapshot
from trainers.training.building import (
    build_snapshot,
    draw_sets,
    proposal_targets,
    statistical_targets,
)
from trainers.training.runs import Run
from trainers.training.scene import Scene
from trainers.training.state import StageName
from trainers.training.words import WordModel

if TYPE_CHECKING:
    from trainers.training.grpo import GrpoJob


@dataclass(frozen=True)
class Wrote:
    """What a stage wrote: its output (model folder or snapshot id; "" for neither) and notes."""

    output: str
    notes: Mapping[str, Any]


class _Target(BaseModel):
    """A line of the targets."""

    id: str
    keywords: list[str]


# SFT


def items_from(settings: TrainingSettings) -> ItemsFrom:
    """Who writes the first item keywords."""
    if settings.sft.items_from != "auto":
        if settings.sft.items_from == "self" and settings.model == "tiny":
            raise SettingsError(
                'training.sft.items_from is "self", but the model tiny can\'t write keywords '
                "before it is trained; "
                'set it to "labels", "extractive" or "statistical".'
            )
        found = settings.sft.items_from
    else:
        found = "labels" if settings.model == "tiny" else "self"
    if found == "labels" and settings.sft.first_items == "source":
        raise SettingsError(
            'training.sft.first_items is "source", but labels are no generator that could index '
            "all items; "
            'set training.sft.items_from to "extractive" or "statistical".'
        )
    return found


def write_targets(scene: Scene) -> Wrote:
    """The untrained model, the first item keywords, and algorithm 1's targets as two
    jsonl files.
    """
    from trainers.training.targets import item_targets, query_targets

    sft, base, source = scene.settings.sft, base_model(scene), items_from(scene.settings)
    sets, snapshot = _first_sets(scene, source, base)
    items = item_targets(sets, sft.item_keywords)
    queries: Mapping[str, Sequence[str]]
    if sft.queries_from == "statistical":
        queries = statistical_targets(scene.workspace, scene.practice, sft.query_keywords)
    elif sft.queries_from == "proposals":
        queries = proposal_targets(scene.workspace, scene.practice, sft.query_keywords)
    else:
        queries = query_targets(
            items, {**scene.relevant, **scene.invented.relevant}, sft.query_keywords
        )
    if not queries.keys() & scene.relevant.keys():
        raise DataError(
            f"The first item keywords ({source}) give no training query a target; look at its "
            "relevant items' texts, "
            "or set training.sft.items_from or training.sft.queries_from."
        )
    for side, targets in (("item", items), ("query", queries)):
        rows = ({"id": id_, "keywords": found} for id_, found in targets.items())
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        scene.workspace.store.write(f"{scene.run.path}/sft/{side}.jsonl", lines.encode())
    notes = {
        "items_from": source,
        "queries_from": sft.queries_from,
        "items": len(items),
        "queries": len(queries),
    }
    return Wrote(base, {**notes, "snapshot": snapshot})


def _first_sets(
    scene: Scene, source: ItemsFrom, base: str
) -> tuple[Mapping[str, Sequence[str]], str]:
    """S_i of algorithm 1, line 2, and the snapshot that holds them; "" for `labels`, which has
    none.
    """
    dataset, budget = scene.workspace.dataset, scene.settings.sft.item_keywords
    if source == "labels":
        words = WordModel(dataset)
        return {
            item.id: words.keywords(item.id, budget, scene.settings.seed) for item in dataset.items
        }, ""
    built = build_snapshot(
        scene.workspace,
        "item",
        round_=0,
        model=base if source == "self" else None,
        generator=source,
    )
    return {row.id: row.keywords for row in built.rows()}, built.id


def base_model(scene: Scene) -> str:
    """The model that both sides start from: made, for tiny; else its name, found and checked."""
    from indexers.generators.model_folders import resolve_model
    from trainers.training.tiny import texts_of, tiny_model
    from trainers.training.weights import save_model, trainable_tokenizer

    settings = scene.settings
    if settings.model != "tiny":
        trainable_tokenizer(resolve_model(settings.model), settings)
        return settings.model
    dataset = scene.workspace.dataset
    return save_model(
        scene.run,
        "base",
        lambda folder: tiny_model(folder, texts_of(dataset), settings.tiny, settings.seed),
        {"dataset": dataset.dataset_hash, "trained": "no"},
    )


def train_sft(scene: Scene, side: Side) -> Wrote:
    """One side fine-tuned on its targets."""
    from trainers.training.prompting import prompts_of
    from trainers.training.sft import SftJob, run_sft
    from trainers.training.weights import base_folder

    sft, targets = scene.settings.sft, read_targets(scene.run, side)
    entities = [entity for entity in _trained_entities(scene, side) if entity.id in targets]
    job = SftJob(
        base=base_folder(scene.run, scene.round.output("targets")),
        prompts=prompts_of(scene.workspace, side, entities),
        targets=[targets[entity.id] for entity in entities],
        epochs=sft.item_epochs if side == "item" else sft.query_epochs,
        log=scene.log(side),
        halvings=scene.halvings,
        settings=scene.settings,
    )
    return _save(scene, side, run_sft(job))


def read_targets(run: Run, side: Side) -> dict[str, list[str]]:
    """Entity id -> its target, as `write_targets` left them.

    Raises TrainingError when the file is missing or broken.
    """
    path = f"{run.path}/sft/{side}.jsonl"
    try:
        rows = [_Target.model_validate_json(line) for line in run.store.read(path).splitlines()]
    except (OSError, ValidationError) as error:
        raise TrainingError(
            f"The targets {path} in {run.store.url} are missing or broken."
        ) from error
    return {row.id: row.keywords for row in rows}


def _trained_entities(scene: Scene, side: Side) -> Sequence[Entity]:
    return scene.workspace.dataset.items if side == "item" else scene.practice


# Rounds


def train_grpo(scene: Scene, side: Side) -> Wrote:
    """One side trained against the frozen snapshot of the other."""
    from trainers.training.grpo import run_grpo

    return _save(scene, side, run_grpo(grpo_job(scene, side), scene.say))


def grpo_job(scene: Scene, side: Side) -> GrpoJob:
    """What a side is trained on in the round under way."""
    from trainers.training.grpo import GrpoJob
    from trainers.training.prompting import own_keyword, prompts_of
    from trainers.training.weights import base_folder

    entities = scene.workspace.dataset.items if side == "item" else scene.prompts
    items = scene.mirror(scene.before.items)
    queries = scene.mirror(scene.round.practice) if side == "item" else None
    known = scene.snapshot(scene.before.queries if side == "query" else scene.before.items)
    return GrpoJob(
        base=base_folder(scene.run, scene.before.model(side)),
        prompts=prompts_of(scene.workspace, side, entities),
        ids=[entity.id for entity in entities],
        own={entity.id: own_keyword(entity) for entity in entities},
        world=scene.world(items, queries, practice=True),
        known={word for row in known.rows() for word in row.keywords},
        side=scene.settings.query if side == "query" else scene.settings.item,
        settings=scene.settings,
        halvings=scene.halvings,
        log=scene.log(side),
        seed=scene.settings.seed + scene.round.number,
    )


def _save(scene: Scene, side: Side, trained: Any) -> Wrote:
    from trainers.training.weights import save_model

    against = (
        ""
        if not scene.round.number
        else scene.before.items
        if side == "query"
        else scene.round.queries
    )
    card = {
        "side": side,
        "round": scene.round.number,
        "run": scene.run.name,
        "data set": scene.workspace.dataset.dataset_hash,
        "prompt": scene.workspace.settings.prompts.template(side).hash,
        "trained against": against or "targets of algorithm 1",
        "figures": trained.notes,
        "settings": scene.settings.model_dump(mode="json"),
    }
    path = save_model(scene.run, f"r{scene.round.number:03d}-{side}", trained.write, card)
    return Wrote(path, trained.notes)


def index(scene: Scene, side: Side) -> Wrote:
    """The keywords of a whole side by the model that was just trained; of the invented queries too,
    for the item side.
    """
    if side == "item" and not scene.round.number and scene.settings.sft.first_items == "source":
        first = scene.snapshot(_notes(scene, "targets")["snapshot"])
        return Wrote(first.id, _counts(first))
    vocabulary = (
        None if side == "item" else scene.before.items if scene.round.number else scene.round.items
    )
    parent = (
        None
        if scene.base is None
        else (scene.base.queries if side == "query" else scene.base.items)
    )

    def build(entities: Sequence[Entity] | None = None) -> Snapshot:
        return build_snapshot(
            scene.workspace,
            side,
            round_=scene.round.number,
            model=scene.round.model(side),
            generator=scene.settings.index_by,
            parent=parent,
            entities=entities,
            vocabulary=vocabulary,
        )

    practice = (
        build(scene.practice)
        if side == "query" and scene.round.number and scene.invented.queries
        else None
    )
    built = build()
    notes = _counts(built)
    return Wrote(built.id, {**notes, "practice": practice.id} if practice else notes)


def _notes(scene: Scene, stage: StageName) -> Mapping[str, Any]:
    record = scene.round.stage(stage)
    assert record is not None
    return record.notes


def accept_items(scene: Scene) -> Wrote:
    """The round's item snapshot: new sets where they still pay, the others as they were."""
    from trainers.training.acceptance import accept

    old, new = scene.snapshot(scene.before.items), scene.snapshot(scene.round.output("index-item"))
    items = scene.mirror(old.id)
    train = scene.world(items, scene.mirror(scene.round.queries), practice=False)
    practice = (
        scene.world(items, scene.mirror(scene.round.practice), practice=True)
        if scene.invented.queries
        else None
    )
    candidates = _candidates(scene, old, new)
    chosen = accept(train, candidates, practice)
    everything = scene.settings.accept == "all"
    taken = {id_: sets[0] for id_, sets in candidates.items()} if everything else chosen.accepted
    notes = {
        "moved": len(candidates),
        "accepted": len(taken),
        "train_f_before": _mean(chosen.before, train),
        "promised": _mean(chosen.promised, train),
        "all_at_once": _mean(chosen.at_once, train),
        "realised": _mean(chosen.at_once if everything else chosen.realised, train),
    }
    kept = old.by_id
    rows = (
        replace(row, keywords=tuple(taken.get(row.id, kept[row.id].keywords))) for row in new.rows()
    )
    provenance = _accepted_provenance(old, new, notes)
    written = write_snapshot(scene.workspace.store, "item", rows, provenance, new.manifest.fields)
    return Wrote(written.id, {**notes, **_counts(written)})


def _candidates(scene: Scene, old: Snapshot, new: Snapshot) -> dict[str, list[Sequence[str]]]:
    """The new sets of each item that differ from its old one: the index build's first, then the
    drawn ones.
    """
    sets: dict[str, list[Sequence[str]]] = {row.id: [row.keywords] for row in new.rows()}
    if scene.settings.candidates and scene.settings.accept == "pays":
        model, seed = scene.round.model("item"), scene.settings.seed + scene.round.number
        drawn = draw_sets(
            scene.workspace, "item", model, scene.settings.index_by, scene.settings.candidates, seed
        )
        for id_, more in drawn.items():
            sets[id_] += more
    kept = old.by_id
    different = {
        id_: [words for words in found if words != kept[id_].keywords]
        for id_, found in sets.items()
    }
    return {id_: found for id_, found in different.items() if found}


def _accepted_provenance(old: Snapshot, new: Snapshot, notes: Mapping[str, Any]) -> Provenance:
    manifest = new.manifest
    return Provenance(
        round=manifest.round,
        k_max=manifest.k_max,
        prompt_hash=manifest.prompt_hash,
        generator=manifest.generator,
        dataset_hash=manifest.dataset_hash,
        parent=old.id,
        cut_to_budget=manifest.cut_to_budget,
        set_aside=manifest.set_aside,
        notes={"generated": new.id, **notes},
    )


def _mean(total: float, world: World) -> float:
    return round(total / sum(world.query_weights.values()), 6)


def _counts(snapshot: Snapshot) -> dict[str, Any]:
    manifest = snapshot.manifest
    return {
        "keywords_an_entity": round(manifest.keywords / max(1, manifest.entities), 2),
        "vocabulary": manifest.vocabulary,
        "empty": manifest.empty,
        "cut_to_budget": manifest.cut_to_budget,
        "set_aside": manifest.set_aside,
    }


def evaluate_round(scene: Scene) -> Wrote:
    """P, R and F1 of the round's pair on every split that has queries."""
    from cogr.records import SPLITS
    from indexers.backends.memory import MemoryBackend
    from trainers.evaluation import evaluate

    store, dataset = scene.workspace.store, scene.workspace.dataset
    items, queries = scene.snapshot(scene.round.items), scene.snapshot(scene.round.queries)
    backend = MemoryBackend(store)
    backend.push(items)
    splits = [split for split in SPLITS if dataset.queries.get(split)]
    return Wrote(
        "", {split: evaluate(backend, dataset, items, queries, split).as_dict() for split in splits}
    )


WORK: Mapping[StageName, Callable[[Scene], Wrote]] = {
    "targets": write_targets,
    "train-item": lambda scene: (
        train_grpo(scene, "item") if scene.round.number else train_sft(scene, "item")
    ),
    "train-query": lambda scene: (
        train_grpo(scene, "query") if scene.round.number else train_sft(scene, "query")
    ),
    "index-item": lambda scene: index(scene, "item"),
    "index-query": lambda scene: index(scene, "query"),
    "accept-items": accept_items,
    "evaluate": evaluate_round,
}
