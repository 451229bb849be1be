"""Keyword sets by the models of a run: prompts, index builds, SFT targets by generators, and which
new item sets of a round are accepted.

Prompts and keyword sets are equal to those of `indexers.rebuild`. Snapshots are written to the
store; nothing is published here.

Every item's marginal reward (paper, section 2.3) is measured against the same reference. When all
items move at once, the gains overlap and are not realised in full. So new sets are taken one after
another, the most promising first, where F1 does not fall, with the counts updated as it goes. The
paper takes all of them: `training.rules = "paper"`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from pyroaring import BitMap

from cogr.keywords import parse
from cogr.prompts import Prompt
from cogr.records import Side
from cogr.rewards import Reference, World
from cogr.snapshots import Snapshot, read_set_aside, write_set_aside
from cogr.snapshots.writing import write_snapshot
from indexers.generators import make_generator
from indexers.generators.model_folders import encode
from indexers.rebuild.assembly import freeze
from indexers.rebuild.plan import Job, generate_missing, make_plan
from indexers.telemetry.terminal import progress_bar
from indexers.workspace import Workspace, generator_options
from trainers.training import ranks
from trainers.training.checkpoints import saved_folder
from trainers.training.inputs import Inputs, Wrote, snapshot_counts

_PASSES = 3
_Sets = Mapping[str, Sequence[str]]
"""Entity id -> its keyword set."""


def keywords_of(completion: str, own: str) -> tuple[str, ...]:
    """The keyword set of a completion without the entity's own text, before any budget."""
    return tuple(word for word in parse(completion) if word != own)


def sft_example(
    prompt: Prompt, keywords: Sequence[str], tokenizer: Any, context: int
) -> Mapping[str, list[int]] | None:
    """Token ids of prompt and answer, and a mask that is 1 on the answer, end included.

    None when it is too long.
    """
    asked = encode(prompt, tokenizer)
    spelled = tokenizer(", ".join(keywords), add_special_tokens=False)["input_ids"]
    answer = [*spelled, tokenizer.eos_token_id]
    if len(asked) + len(answer) > context:
        return None
    return {"input_ids": asked + answer, "completion_mask": [0] * len(asked) + [1] * len(answer)}


@dataclass(frozen=True)
class Build:
    """What to write: the keyword sets of a whole side.

    Attributes:
        model: a model folder in the store, or a model's name; None for generators without one.
        generator: its kind; "self" is the untrained model, by the engine of the rollouts.
        evidence: snapshot pairs (items, queries) that `statistical` uses beside its ranker.
    """

    side: Side
    round: int
    model: str | None
    generator: str
    parent: str | None = None
    evidence: tuple[tuple[str, str], ...] = ()


def build_index(inputs: Inputs, side: Side) -> Wrote:
    """The keywords of a whole side by the model that was just trained. Every process but the first
    does its share of the answers alone.
    """
    round_, base, barrier = inputs.round, inputs.base, inputs.run.folder("trainer")
    parent = None if base is None else (base.queries if side == "query" else base.items)
    model, generator = round_.model(side), inputs.settings.index_by
    build = Build(side, round_.number, model, generator, parent)
    if not ranks.is_first():
        write_share(inputs.workspace, build, barrier)
        return Wrote("", {})
    built = build_snapshot(inputs.workspace, build, barrier)
    return Wrote(built.id, snapshot_counts(built))


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
            return freeze(job, plan, generate_missing(job, plan, advance)).snapshot


def write_share(workspace: Workspace, build: Build, barrier: Path) -> None:
    """Write this process's share of the answers into the cache; the first one builds from it."""
    with _job(workspace, build) as job:
        _write_share(job, build, barrier)


def _write_share(job: Job, build: Build, barrier: Path) -> None:
    plan = make_plan(job)
    share = BitMap(ranks.share(plan.missing))
    what = f"keywords, {build.side} side, 1 of {ranks.count()} processes"
    bar = progress_bar(what, len(share)) if ranks.is_first() else nullcontext(lambda _: None)
    with bar as advance:
        generate_missing(job, replace(plan, missing=share), advance)
    said = repr((build.side, build.round, build.model, len(job.entities)))
    ranks.barrier(barrier, hashlib.sha256(said.encode()).hexdigest()[:16])


@contextmanager
def _job(workspace: Workspace, build: Build) -> Iterator[Job]:
    settings, side = workspace.settings, build.side
    chosen = list(workspace.dataset.entities(side))
    kind = settings.training.index_by if build.generator == "self" else build.generator
    update: dict[str, Any] = {"name": kind}
    if build.model is not None:
        update["model"] = str(saved_folder(workspace.store, build.model) or build.model)
    own = settings.generator.of(side).model_copy(update=update)
    options = generator_options(own)
    options |= {"evidence": build.evidence} if build.evidence else {}
    with make_generator(options, side, workspace.dataset, workspace.store) as writer:
        prompter = workspace.prompter(side)
        yield Job(workspace, side, chosen, writer, prompter, build.parent, build.round)


# Acceptance


class Acceptance(NamedTuple):
    """The accepted item sets by id; the objective with all old sets, and its change. Both are sums
    of F over the training queries, by the weights of the queries.
    """

    accepted: _Sets
    before: float
    realised: float


def accept(train: World, new: _Sets, *, everything: bool = False) -> Acceptance:
    """Choose among new item sets, given a world whose item mirror has the old sets.

    At its turn an item takes its new set where that does not lower training F1; the most promising
    ones come first. A set that changes nothing is taken: it uses the vocabulary that the query side
    has moved to. Passes are repeated until one takes nothing, three at most, because another item's
    change may let a set gain.

    Args:
        train: the old item sets, the frozen queries, the training labels.
        new: item id -> the model's keyword set, within the budget, without its own text.
        everything: take all of them.
    """
    growing = Reference(train)
    before = growing.objective
    gains = {id_: growing.marginal(growing.item(id_), words) for id_, words in new.items()}
    left = sorted(new, key=lambda id_: (-gains[id_], id_))
    for _ in range(_PASSES):
        refused = []
        for id_ in left:
            if everything or growing.marginal(growing.item(id_), new[id_]) >= 0:
                growing.update(id_, new[id_])
            else:
                refused.append(id_)
        if len(refused) == len(left):
            break
        left = refused
    accepted = {id_: words for id_, words in new.items() if id_ not in set(left)}
    return Acceptance(accepted, before, growing.objective - before)


def accept_items(inputs: Inputs) -> Wrote:
    """The round's item snapshot: accepted new sets, and the old sets of all other items. Set aside
    are those that are without keywords then.
    """
    store = inputs.workspace.store
    old = inputs.snapshot(inputs.before.items)
    new = inputs.snapshot(inputs.round.output("index-item"))
    train = inputs.world(inputs.mirror(old.id), inputs.mirror(inputs.round.queries))
    kept = old.by_id
    moved = {row.id: row.keywords for row in new.rows() if row.keywords != kept[row.id].keywords}
    chosen = accept(train, moved, everything=inputs.settings.rules == "paper")
    sets = {**{id_: row.keywords for id_, row in kept.items()}, **chosen.accepted}
    reasons = read_set_aside(store, old.id) | read_set_aside(store, new.id)
    set_aside = {id_: reason for id_, reason in reasons.items() if not sets[id_]}
    queries = sum(train.query_weights.values())
    notes = {
        "moved": len(moved),
        "accepted": len(chosen.accepted),
        "train_f_before": round(chosen.before / queries, 6),
        "realised": round(chosen.realised / queries, 6),
    }
    rows = (replace(row, keywords=tuple(sets[row.id])) for row in new.rows())
    lineage = {key: value for key, value in new.manifest.notes.items() if key == "lineage"}
    provenance = new.manifest.provenance(
        parent=old.id,
        set_aside=len(set_aside),
        notes={"generated": new.id, **lineage, **notes},
    )
    written = write_snapshot(store, "item", rows, provenance, new.manifest.fields)
    if set_aside:
        write_set_aside(store, written.id, set_aside)
    return Wrote(written.id, {**notes, **snapshot_counts(written)})
