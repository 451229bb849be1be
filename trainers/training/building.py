"""Keyword sets by the models of a run: prompts, index builds, and SFT targets by generators.

Prompts and keyword sets are equal to those of `indexers.rebuild`. Snapshots are written to the
store; nothing is published here.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyroaring import BitMap

from cogr.datasets.changes import Changes
from cogr.keywords import over_budget, parse, self_keyword
from cogr.prompts import Prompt
from cogr.records import Advance, Entity, Query, Side, self_text
from cogr.rewards import MOST_CHOICES, best_subset
from cogr.settings import GeneratorSettings
from cogr.snapshots import Provenance, Row, Snapshot, open_snapshot, write_snapshot
from indexers.generators import Answer, Completion, Request, batched, make_generator
from indexers.generators.model_folders import encode
from indexers.generators.statistical.generator import Statistical
from indexers.rebuild.plan import Job, generate_missing, make_plan
from indexers.rebuild.prompt_candidates import choices, proposals
from indexers.rebuild.run import generate_and_freeze, job_by
from indexers.rebuild.update import narrowed
from indexers.telemetry.terminal import progress_bar
from indexers.workspace import Workspace, generator_options
from trainers.training.devices import ranks
from trainers.training.inputs import Inputs, Wrote, counts_of

STATISTICAL = "statistical"
KEPT, ADDED = 0.85, 0.15
"""Probability that a perturbed set keeps a keyword, and that it adds a candidate."""
EDIT_PRICE = 0.005
"""Expected F1 that each edit of a best set must add."""


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
        side: whose keywords.
        round: number of the round that the snapshot belongs to.
        model: a model folder in the store, or a model's name; None for generators without one.
        generator: its kind; "self" is the untrained model, by the engine of the rollouts.
        parent: the snapshot that it follows.
        entities: the entities to write for, instead of the whole side.
        vocabulary: with `generator.constrained`, the item snapshot to whose keywords completions
            are constrained.
    """

    side: Side
    round: int
    model: str | None
    generator: str
    parent: str | None = None
    entities: Sequence[Entity] | None = None
    vocabulary: str | None = None


def build_index(inputs: Inputs, side: Side) -> Wrote:
    """The keywords of a whole side by the model that was just trained; of the invented queries too,
    for the item side.
    """
    if not inputs.round.number and inputs.edits:
        return _start(inputs, side)
    if (kept := _kept_items(inputs, side)) is not None:
        return Wrote(kept, counts_of(inputs.snapshot(kept)))
    barrier = inputs.run.folder("trainer")
    *practice, built = [
        build_snapshot(inputs.workspace, build, barrier) for build in _builds(inputs, side)
    ]
    notes = {"practice": practice[0].id} if practice else {}
    return Wrote(built.id, {**counts_of(built), **notes})


def _start(inputs: Inputs, side: Side) -> Wrote:
    """The snapshot that the run starts from (`training.start`)."""
    workspace, start = inputs.workspace, inputs.settings.start
    own = Build(side, 0, None, STATISTICAL)
    if start == STATISTICAL:
        first = build_snapshot(workspace, own)
    else:
        first = inputs.snapshot(workspace.known(start.split(",")[side == "query"].strip()))
    notes = counts_of(first)
    if side == "query":
        invented = build_snapshot(workspace, replace(own, entities=inputs.practice))
        rows = {**invented.by_id, **{query.id: first.by_id[query.id] for query in inputs.train}}
        notes["practice"] = practice_snapshot(inputs, invented, rows.values()).id
    return Wrote(first.id, notes)


def practice_snapshot(inputs: Inputs, like: Snapshot, rows: Iterable[Row]) -> Snapshot:
    """Training queries without their own text (`Inputs.own_text_ignored`), and invented queries
    with it.
    """
    kept = (
        replace(row, text="", weights=(), own=None) if row.id in inputs.own_text_ignored else row
        for row in sorted(rows, key=lambda row: row.id)
    )
    provenance = Provenance(
        round=inputs.round.number,
        k_max=like.manifest.k_max,
        generator=like.manifest.generator,
        dataset_hash=like.manifest.dataset_hash,
        notes={"practice": "training queries without their own text"},
    )
    return write_snapshot(inputs.workspace.store, "query", kept, provenance)


def index_share(inputs: Inputs, side: Side) -> None:
    """The part of `build_index` that every process but the first does: its share of the answers."""
    begins = not inputs.round.number and inputs.edits
    if not begins and _kept_items(inputs, side) is None:
        for build in _builds(inputs, side):
            write_share(inputs.workspace, build, inputs.run.folder("trainer"))


def _kept_items(inputs: Inputs, side: Side) -> str | None:
    """The item snapshot of the round, where no model writes it: the one from which the targets were
    made.
    """
    if side == "query" or not inputs.settings.given_items:
        return None
    if inputs.round.number:
        return inputs.before.items if inputs.settings.variant == "frozen-items" else None
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
    practises = bool(inputs.invented.queries) or inputs.edits
    if side == "query" and round_.number and practises:
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


def with_new_items(workspace: Workspace, build: Build, ids: Collection[str]) -> Snapshot:
    """The snapshot that `cogr-index update` would make from a build's parent: the parent's rows,
    and these new items by the build's model.

    Raises SnapshotError when the parent was written with other settings.
    """
    assert build.parent is not None, "an update has a parent"
    new = {item.id: item for item in workspace.dataset.items if item.id in ids}
    with _job(workspace, build) as whole:
        parent = open_snapshot(workspace.store, build.parent)
        job = narrowed(whole, parent, Changes("item", new, frozenset()))
        with progress_bar("keywords of new items", len(job.entities)) as advance:
            return generate_and_freeze(job, make_plan(job), advance).snapshot


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
        own, build.vocabulary if own.constrained else None, settings.keywords.k_max
    )
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
            sampling = base.sampling.model_copy(update={**free, "seed": seed + time})
            options = generator_options(base.model_copy(update={"sampling": sampling}))
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


def statistical_targets(
    workspace: Workspace, queries: Sequence[Query], budget: int
) -> dict[str, tuple[str, ...]]:
    """The keywords that `statistical` writes for each query, out of fold for training queries, so
    that a target is reachable for an unseen query.

    Queries for which it writes none are left out.
    """
    with workspace.generator("query", "statistical") as writer:
        assert isinstance(writer, Statistical)
        found = [
            (query.id, tuple(words[:budget]))
            for batch in batched(queries, 256)
            for query, words in zip(batch, writer.artefact.targets(batch), strict=True)
        ]
    return {id_: words for id_, words in found if words}


def proposal_targets(
    workspace: Workspace, queries: Sequence[Query], budget: int
) -> dict[str, tuple[str, ...]]:
    """A random half of the candidates that each query's prompt shows, one at least, in the prompt's
    order.

    A model that has learned this copies well and chooses at random, so GRPO can explore all sets.
    Queries without candidates are left out. The draw depends on `training.seed` and on the query's
    id.
    """
    shown, found = proposals(workspace, "query", queries), {}
    for query in queries:
        words = [word for word, _ in shown[query.id]]
        if words:
            draw = random.Random(f"{workspace.settings.training.seed} {query.id}")
            found[query.id] = tuple(
                [word for word in words if draw.random() < 0.5][:budget] or [draw.choice(words)]
            )
    return found


def perturbed_targets(workspace: Workspace, queries: Sequence[Query]) -> dict[str, tuple[str, ...]]:
    """The set that each query's prompt shows, each keyword kept with `KEPT` and each candidate
    added with `ADDED`, in the prompt's order.

    The likeliest answer of a model that has learned this is the set itself; its samples are
    variations of it. The draw depends on `training.seed` and on the query's id. Queries without any
    keyword or candidate are left out.
    """
    found = {}
    for id_, shown in choices(workspace, queries).items():
        draw = random.Random(f"{workspace.settings.training.seed} {id_}")
        kept = [move.word for move in shown.keywords if draw.random() < KEPT]
        added = [move.word for move in shown.candidates if draw.random() < ADDED]
        if words := [*kept, *added] or shown.words[:1]:
            found[id_] = tuple(words)
    return found


def best_targets(inputs: Inputs) -> dict[str, tuple[str, ...]]:
    """The best edit of the set that each query's prompt shows, by the practice reward, in the
    prompt's order; the set itself where no edit gains.

    Only the first `MOST_CHOICES` keywords of a prompt are tried. A set stays unchanged where it is
    longer than that, or where its best subset is empty.
    """
    practice = inputs.practice
    world = inputs.world(inputs.mirror(inputs.before.items), None, practice=True)
    found = {}
    for id_, shown in choices(inputs.workspace, practice).items():
        held = [move.word for move in shown.keywords]
        words = shown.words[:MOST_CHOICES]
        best: Sequence[str] = held
        if len(held) <= MOST_CHOICES:
            best = best_subset(world, id_, words, held, EDIT_PRICE) or held
        if best:
            found[id_] = tuple(best)
    return found
