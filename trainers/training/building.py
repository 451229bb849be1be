"""Keyword sets by the models of a run: prompts, index builds, and SFT targets by generators.

Prompts and keyword sets are equal to those of `indexers.rebuild`. Snapshots are written to the
store; nothing is published here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyroaring import BitMap

from cogr.keywords import over_budget, parse, self_keyword
from cogr.prompts import Prompt
from cogr.records import Advance, Entity, Side, self_text
from cogr.settings.indexing import GeneratorSettings
from cogr.snapshots import Snapshot
from indexers.generators import Answer, Completion, Request, make_generator
from indexers.generators.model_folders import encode
from indexers.rebuild.plan import Job, generate_missing, make_plan
from indexers.rebuild.run import generate_and_freeze, job_by
from indexers.telemetry.terminal import progress_bar
from indexers.workspace import Workspace, generator_options
from trainers.training import ranks
from trainers.training.inputs import Inputs, Wrote, counts_of

STATISTICAL = "statistical"


def prompts_of(workspace: Workspace, side: Side, entities: Sequence[Entity]) -> list[Prompt]:
    """The prompt of each entity, with search results where the prompt variant has them."""
    prompter, results = workspace.prompter(side), workspace.search_results(side, entities)
    return [prompter(entity, results(entity) if results else ()) for entity in entities]


def keywords_of(completion: str, own: str) -> tuple[str, ...]:
    """The keyword set of a completion without the entity's own text, before any budget."""
    return tuple(word for word in parse(completion) if word != own)


def own_keyword(entity: Entity) -> str:
    """The entity's own text as a keyword."""
    return self_keyword(self_text(entity))


def spell(keywords: Sequence[str]) -> str:
    """Keywords in the form that the prompt asks for."""
    return ", ".join(keywords)


def sft_example(
    prompt: Prompt, keywords: Sequence[str], tokenizer: Any, context: int
) -> Mapping[str, list[int]] | None:
    """Token ids of prompt and answer, and a mask that is 1 on the answer, end included.

    None when it is too long.
    """
    asked = encode(prompt, tokenizer)
    answer = tokenizer(spell(keywords), add_special_tokens=False)["input_ids"] + [
        tokenizer.eos_token_id
    ]
    if len(asked) + len(answer) > context:
        return None
    return {"input_ids": asked + answer, "completion_mask": [0] * len(asked) + [1] * len(answer)}


@dataclass(frozen=True)
class Build:
    """What to write: the keyword sets of a whole side.

    Attributes:
        model: a model folder in the store, or a model's name; None for generators without one.
        generator: its kind; "self" is the untrained model, by the engine of the rollouts.
        entities: the entities to write for, instead of the whole side.
        vocabulary: the item snapshot to whose keywords completions are constrained, where the
            prompts ask for it (`PromptSettings.constrains`).
        evidence: snapshot pairs (items, queries) that `statistical` uses beside its ranker.
    """

    side: Side
    round: int
    model: str | None
    generator: str
    parent: str | None = None
    entities: Sequence[Entity] | None = None
    vocabulary: str | None = None
    evidence: tuple[tuple[str, str], ...] = ()


def build_index(inputs: Inputs, side: Side) -> Wrote:
    """The keywords of a whole side by the model that was just trained; of the invented queries too,
    for the item side.
    """
    if (kept := _kept_items(inputs, side)) is not None:
        return Wrote(kept, counts_of(inputs.snapshot(kept)))
    barrier = inputs.run.folder("trainer")
    *practice, built = [
        build_snapshot(inputs.workspace, build, barrier) for build in _builds(inputs, side)
    ]
    notes = {"practice": practice[0].id} if practice else {}
    return Wrote(built.id, {**counts_of(built), **notes})


def index_share(inputs: Inputs, side: Side) -> None:
    """The part of `build_index` that every process but the first does: its share of the answers."""
    if _kept_items(inputs, side) is None:
        for build in _builds(inputs, side):
            write_share(inputs.workspace, build, inputs.run.folder("trainer"))


def _kept_items(inputs: Inputs, side: Side) -> str | None:
    """The item snapshot of the round, where no model writes it: the one from which the targets were
    made.
    """
    if side == "query" or inputs.settings.variant != "frozen-items":
        return None
    if inputs.round.number:
        return inputs.before.items
    return str(inputs.notes("targets")["snapshot"])


def _builds(inputs: Inputs, side: Side) -> list[Build]:
    """The builds of `build_index`: invented queries, where there are any, and the whole side."""
    round_, base = inputs.round, inputs.base
    vocabulary = None
    if side == "query":
        vocabulary = inputs.before.items if round_.number else round_.items
    whole = Build(
        side,
        round_.number,
        round_.model(side),
        inputs.settings.index_by,
        parent=None if base is None else (base.queries if side == "query" else base.items),
        vocabulary=vocabulary,
    )
    if side == "query" and round_.number and inputs.invented.queries:
        return [replace(whole, entities=inputs.practice), whole]
    return [whole]


def build_snapshot(workspace: Workspace, build: Build, barrier: Path | None = None) -> Snapshot:
    """Write the keyword sets of a whole side, and freeze them.

    Args:
        barrier: the folder by which the processes that share the work wait for one another; None
            where this process works alone.
    """
    with _job(workspace, build) as job:
        if barrier is not None and ranks.count() > 1:
            _write_share(job, build, barrier)
        plan = make_plan(job)
        with progress_bar(f"keywords, {build.side} side", len(plan.missing)) as advance:
            return generate_and_freeze(job, plan, advance).snapshot


def write_share(workspace: Workspace, build: Build, barrier: Path) -> None:
    """Write this process's share of the answers into the cache; the first one builds from it."""
    with _job(workspace, build) as job:
        _write_share(job, build, barrier)


def _write_share(job: Job, build: Build, barrier: Path) -> None:
    plan = make_plan(job)
    share = BitMap(ranks.share(plan.missing))
    with ExitStack() as shown:
        advance: Advance = lambda _: None  # noqa: E731 - Progress of the first one alone is shown.
        if ranks.is_first():
            what = f"keywords, {build.side} side, 1 of {ranks.count()} processes"
            advance = shown.enter_context(progress_bar(what, len(share)))
        generate_missing(job, replace(plan, missing=share), advance)
    said = repr((build.side, build.round, build.model, len(job.entities)))
    ranks.barrier(barrier, hashlib.sha256(said.encode()).hexdigest()[:16])


@contextmanager
def _job(workspace: Workspace, build: Build) -> Iterator[Job]:
    settings, side = workspace.settings, build.side
    chosen = list(workspace.dataset.entities(side) if build.entities is None else build.entities)
    own = _settings(workspace, side, build.model, build.generator)
    options = generator_options(
        own, build.vocabulary if settings.prompts.constrains else None, settings.keywords.k_max
    )
    options |= {"evidence": build.evidence} if build.evidence else {}
    with make_generator(options, side, workspace.dataset, workspace.store) as writer:
        yield job_by(writer, workspace, side, chosen, parent=build.parent, round_=build.round)


def _settings(
    workspace: Workspace, side: Side, model: str | None, generator: str
) -> GeneratorSettings:
    own = workspace.settings.generator.of(side)
    if model is None:
        return own.model_copy(update={"name": generator})
    folder = workspace.store.local(model)
    kind = workspace.settings.training.index_by if generator == "self" else generator
    return own.model_copy(update={"name": kind, "model": str(folder) if folder.is_dir() else model})


def draw_sets(
    workspace: Workspace, side: Side, model: str, kind: str, times: int, seed: int
) -> dict[str, list[tuple[str, ...]]]:
    """More keyword sets of every entity, drawn at temperature 1: entity id -> distinct sets within
    the budget.
    """
    entities = list(workspace.dataset.entities(side))
    requests = [
        Request(e.id, e, prompt)
        for e, prompt in zip(entities, prompts_of(workspace, side, entities), strict=True)
    ]
    own = {entity.id: own_keyword(entity) for entity in entities}
    found: dict[str, dict[tuple[str, ...], None]] = {entity.id: {} for entity in entities}
    base = _settings(workspace, side, model, kind)
    free = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}
    with progress_bar(f"more keyword sets, {side} side", times * len(requests)) as advance:
        for time in range(times):
            drawn = base.model_copy(update={"sampling": base.sampling.model_copy(update=free)})
            options = generator_options(drawn) | {"seed": seed + time}
            with make_generator(options, side, workspace.dataset, workspace.store) as writer:
                for answer in writer.generate(requests):
                    advance(1)
                    if words := _usable(answer, own, workspace.settings.keywords.k_max):
                        found[answer.id][words] = None
    return {id_: list(sets) for id_, sets in found.items()}


def _usable(answer: Answer, own: Mapping[str, str], k_max: int) -> tuple[str, ...]:
    """The keywords of a completion that ended by itself, within the budget; none of any other."""
    if not isinstance(answer, Completion) or answer.truncated:
        return ()
    words = keywords_of(answer.text, own[answer.id])
    return () if over_budget(words, k_max) else words
