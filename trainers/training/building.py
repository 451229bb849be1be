"""Index builds inside a run: `indexers.build.plan` with the round's model, beside whatever serves.

Nothing is published here.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from cogr.keywords import over_budget, parse
from cogr.prompts import Prompt
from cogr.records import Entity, Query, Side
from cogr.settings import GeneratorSettings
from cogr.snapshots import Snapshot
from indexers.build.plan import make_plan
from indexers.build.proposals import proposals
from indexers.build.run import job_by, rebuild
from indexers.cli.reports import progress_bar
from indexers.generators.protocol import Answer, Completion, Request
from indexers.generators.registry import make_generator
from indexers.workspace import Workspace, generator_options
from trainers.training.prompting import keywords_of, own_keyword, prompts_of


def build_snapshot(
    workspace: Workspace,
    side: Side,
    *,
    round_: int,
    model: str | None,
    generator: str,
    parent: str | None = None,
    entities: Sequence[Entity] | None = None,
    vocabulary: str | None = None,
) -> Snapshot:
    """The keyword sets of a whole side, frozen.

    Args:
        workspace: settings, data, store.
        side: whose keywords.
        round_: number of the round that the snapshot belongs to.
        model: a model folder in the store, or a model's name; None for generators without one.
        generator: its kind; "self" is `training.index_by` on the untrained model.
        parent: the snapshot that it follows.
        entities: others than the whole side.
        vocabulary: the item snapshot whose keywords alone may be written, where
            `generator.constrained` is set.
    """
    settings = workspace.settings
    chosen = list(workspace.dataset.entities(side) if entities is None else entities)
    own = _settings(workspace, side, model, generator)
    options = generator_options(
        own, vocabulary if own.constrained else None, settings.keywords.k_max
    )
    with make_generator(options, side, workspace.dataset, workspace.store) as writer:
        job = job_by(writer, workspace, side, chosen, parent=parent, round_=round_)
        plan = make_plan(job)
        with progress_bar(f"keywords, {side} side", len(plan.missing)) as advance:
            return rebuild(job, plan, advance).snapshot


def _settings(
    workspace: Workspace, side: Side, model: str | None, generator: str
) -> GeneratorSettings:
    own = workspace.settings.generator.of(side)
    if model is None:
        return own.model_copy(update={"name": generator})
    folder = workspace.store.local(model)
    kind = workspace.settings.training.index_by if generator == "self" else generator
    return own.model_copy(
        update={"name": kind, "model": str(folder) if folder.is_dir() else model, "adapter": None}
    )


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
    """The keywords that `statistical` writes for each query, out of fold for training queries: what
    is reachable for an unseen one.

    Queries for which it writes none are left out.
    """
    prompt = Prompt("", "")
    with workspace.generator("query", "statistical") as writer:
        answers = [
            a
            for a in writer.generate(Request(q.id, q, prompt) for q in queries)
            if isinstance(a, Completion)
        ]
    found = {answer.id: parse(answer.text)[:budget] for answer in answers}
    return {id_: tuple(words) for id_, words in found.items() if words}


def proposal_targets(
    workspace: Workspace, queries: Sequence[Query], budget: int
) -> dict[str, tuple[str, ...]]:
    """Of the candidates that each query's prompt shows a random half, one at least, in the prompt's
    order.

    A model that has learned this copies well and chooses blindly, each set about as likely as any
    other: what GRPO explores from. Queries without candidates are left out. The draw depends on
        `training.seed` and on the query's id.
    """
    shown, found = proposals(workspace, queries), {}
    for query in queries:
        words = [word for word, _ in shown[query.id]]
        if words:
            draw = random.Random(f"{workspace.settings.training.seed} {query.id}")
            found[query.id] = tuple(
                [word for word in words if draw.random() < 0.5][:budget] or [draw.choice(words)]
            )
    return found
