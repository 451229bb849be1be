"""Language models that learn to rewrite queries for an unchanged search: BM25 over the items'
texts.

`deepretrieval` (Jiang et al. 2025) adds words to the query; its reward is the nDCG of BM25's
results. `quester` (Satouf et al. 2025) writes the whole query as keywords; its reward is a smooth
nDCG of BM25's scores, which also distinguishes rewrites with equal rankings. Both are trained by
the GRPO of CoGR's query side, with its prompts; there is no item side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from cogr.keywords import over_budget, parse
from cogr.records import Query
from cogr.settings.training import QueryGrpoSettings, TrainingSettings
from indexers.text import Lexical
from indexers.workspace import Workspace
from trainers.rivals import Cost, Family, Search, Task
from trainers.rivals.measuring import Scored
from trainers.rivals.trained import (
    TINY,
    Clock,
    FitFolder,
    Start,
    as_callback,
    measured,
    need_training,
    start_of,
)

_USUAL = "Qwen/Qwen3-4B-Instruct-2507"
_SEEN = 100
"""Results that a reward uses."""
_SOFT = 1.0
"""Temperature of the smooth reward, in points of BM25: items with a smaller difference count as
nearly tied.
"""
_TINY_TOKENS, _TINY_RATE = 24, 3e-3
_SFT_QUERIES, _SFT_EXAMPLES = 2000, 3200


# Rewards


@dataclass(frozen=True)
class TextWorld:
    """The data that rewards of rewrites are computed against, in place of `cogr.rewards.World`.

    Attributes:
        lexical: BM25 over the items' texts.
        relevant: query id -> ids of its relevant items; only the training queries.
        asked: query id -> its text.
        k_max: most keywords of a rewrite.
    """

    lexical: Lexical
    relevant: Mapping[str, frozenset[str]]
    asked: Mapping[str, str]
    k_max: int

    def found(self, text: str) -> list[tuple[str, float]]:
        """The first items of BM25 and their scores."""
        return [(item.id, score) for item, score in self.lexical.rank(text, _SEEN)]


def ndcg_reward(world: TextWorld, query_id: str, keywords: Sequence[str]) -> float:
    """nDCG@100 of BM25 for the query with the keywords; 0 over the budget."""
    if over_budget(keywords, world.k_max):
        return 0.0
    found = world.found(joined(world.asked[query_id], keywords))
    relevant = world.relevant[query_id]
    ranks = [at + 1.0 for at, (id_, _) in enumerate(found) if id_ in relevant]
    return _dcg(np.array(ranks)) / _ideal(len(relevant))


def smooth_reward(world: TextWorld, query_id: str, keywords: Sequence[str]) -> float:
    """Smooth nDCG@100 of BM25 for the keywords alone; 0 over the budget.

    An item's rank is 1 plus, for every other item, the probability that it is better: a logistic
    function of the difference of their scores (Qin, Liu and Li 2010).
    """
    if over_budget(keywords, world.k_max) or not keywords:
        return 0.0
    found, relevant = world.found(joined("", keywords)), world.relevant[query_id]
    scores = np.array([score for _, score in found])
    good = np.array([id_ in relevant for id_, _ in found], bool)
    if not good.any():
        return 0.0
    better = 1 / (1 + np.exp((scores[good][:, None] - scores[None, :]) / _SOFT))
    # Each item is compared with itself too: one half.
    ranks = 0.5 + better.sum(axis=1)
    return min(1.0, _dcg(ranks) / _ideal(len(relevant)))


def _dcg(ranks: NDArray[np.float64]) -> float:
    return float((1 / np.log2(1 + ranks)).sum())


def _ideal(relevant: int) -> float:
    return _dcg(np.arange(1, min(relevant, _SEEN) + 1, dtype=np.float64))


def joined(asked: str, keywords: Sequence[str]) -> str:
    """The text of the BM25 search."""
    return " ".join((asked, *keywords)).strip()


# After the training


@dataclass
class Rewriter:
    """A model that rewrites queries, and BM25 behind it.

    Attributes:
        alone: the keywords are the whole query; else they are added to it.
        tokens: most tokens of a rewrite.
    """

    folder: Path
    workspace: Workspace
    lexical: Lexical
    alone: bool
    tokens: int
    spent: Cost
    said: str

    def rank(self, queries: Sequence[Query], depth: int) -> Scored:
        """By BM25 over the rewritten queries."""
        written = self.written(queries)
        return {query.id: self._found(query, written.get(query.id, ()), depth) for query in queries}

    def _found(self, query: Query, words: Sequence[str], depth: int) -> list[tuple[str, float]]:
        text = joined("" if self.alone else query.text, words)
        return [(item.id, score) for item, score in self.lexical.rank(text, depth)]

    def prepared(self, queries: Sequence[Query], depth: int) -> Search:
        """A search by prepared rewrites."""
        written = self.written(queries)
        return lambda query: self._found(query, written.get(query.id, ()), depth)

    def written(self, queries: Sequence[Query]) -> dict[str, tuple[str, ...]]:
        """Query id -> the keywords that the model writes, greedily."""
        from indexers.generators import Completion, Request
        from trainers.training.building import prompts_of

        asked = [
            Request(query.id, query, prompt)
            for query, prompt in zip(
                queries, prompts_of(self.workspace, "query", queries), strict=True
            )
        ]
        return {
            answer.id: parse(answer.text)
            for answer in self._generator.generate(asked)
            if isinstance(answer, Completion)
        }

    @cached_property
    def _generator(self) -> Any:
        from cogr.settings.generator import Sampling
        from indexers.generators.transformers_lm import TransformersGenerator, TransformersOptions

        sampling = Sampling(temperature=0.0, max_tokens=self.tokens)
        options = TransformersOptions(model=str(self.folder), sampling=sampling)
        return TransformersGenerator(options, None)

    def sets(self, queries: Sequence[Query]) -> None:
        """None: a cutoff makes the sets."""

    def cost(self) -> Cost:
        """The index is that of BM25."""
        return self.spent


# The methods


class DeepRetrieval:
    """Words are added to the query; the reward is nDCG."""

    name = "deepretrieval"
    family: Family = "generative"
    reward = "ndcg_reward"
    alone = False

    def trials(self, task: Task) -> Sequence[Mapping[str, Any]]:
        """Learning rates, each with half of the time."""
        fresh = task.settings.compare.models.get(self.name) == TINY
        rates = (1e-3, 3e-4) if fresh else (1e-6, 5e-6)
        step = {"prompts": 16, "generations": 4} if fresh else {"prompts": 32, "generations": 8}
        return [{"learning_rate": rate, **step, "epochs": 10.0, "share": 0.5} for rate in rates]

    def fit(self, task: Task, params: Mapping[str, Any]) -> Rewriter:
        """Train the model's rewrites; a model of random weights is fine-tuned first.

        Raises NotRunError without the extra or the weights, GeneratorError for a wrong folder.
        """
        need_training("trl")
        start = start_of(task, self.name, _USUAL, "qwen3")
        kept = FitFolder.of(task, self.name, params, start)
        workspace = Workspace(task.settings).with_dataset(task.dataset)
        lexical = Lexical(task.dataset.items, texts=[*map(task.text, task.dataset.items)])
        settings = self._settings(task, start, params)
        if kept.done() is None:
            clock = kept.clock(task.seconds * params.get("share", 1.0))
            size = lexical.size_bytes / len(task.dataset.items)
            with measured(kept, clock, lambda: size):
                if not kept.model.is_dir():
                    base = _fine_tuned(kept, task, workspace, start, settings, params)
                    self._reinforce(kept, task, workspace, lexical, base, settings, clock)
        cost = kept.done()
        assert cost is not None
        tokens = settings.rollouts.max_tokens
        return Rewriter(kept.model, workspace, lexical, self.alone, tokens, cost, start.said)

    def _settings(self, task: Task, start: Start, params: Mapping[str, Any]) -> TrainingSettings:
        own = task.settings.training
        rollouts, sft = {"generations": int(params["generations"])}, own.sft
        if start.name == TINY:
            rollouts["max_tokens"] = _TINY_TOKENS
            quick = {"learning_rate": _TINY_RATE, "batch_size": 8, "micro_batch": 8}
            sft = sft.model_copy(update=quick)
        query = QueryGrpoSettings(
            learning_rate=params["learning_rate"],
            epochs=params["epochs"],
            max_steps=params.get("steps"),
            prompts_per_step=int(params["prompts"]),
            micro_batch=int(params["prompts"] * params["generations"]),
            reward=f"{__name__}:{self.reward}",
        )
        changes = {
            "model": start.name, "seed": task.seed, "save_steps": 0, "processes": 1, "query": query,
            "sft": sft,
            "rollouts": own.rollouts.model_copy(update=rollouts),
        }  # fmt: skip
        return own.model_copy(update=changes)

    def _reinforce(
        self,
        kept: FitFolder,
        task: Task,
        workspace: Workspace,
        lexical: Lexical,
        base: Path,
        settings: TrainingSettings,
        clock: Clock,
    ) -> None:
        from trainers.training.building import own_keyword, prompts_of
        from trainers.training.checkpoints import Midway, Trained, train
        from trainers.training.grpo import GrpoJob, prepare_grpo

        train_queries = task.dataset.require("train")
        world = TextWorld(
            lexical,
            {query.id: task.dataset.relevant[query.id] for query in train_queries},
            {query.id: query.text for query in train_queries},
            task.settings.keywords.k_max,
        )
        job = GrpoJob(
            base=base,
            prompts=prompts_of(workspace, "query", train_queries),
            ids=[query.id for query in train_queries],
            own={query.id: own_keyword(query) for query in train_queries},
            world=cast(Any, world),
            known=(),
            side=settings.query,
            settings=settings,
            halvings=0,
            log=kept.folder / f"{self.name}-query.jsonl",
            seed=task.seed,
            midway=Midway(kept.folder / "checkpoints", {"fit": kept.folder.name}),
        )
        prepared = prepare_grpo(job, task.say)
        prepared.trainer.add_callback(as_callback(kept, clock, clock.seconds))
        with prepared.log:
            train(prepared.trainer, job.midway)
        steps = prepared.trainer.state.global_step
        task.say(f"{self.name}: {steps} steps of GRPO, {clock.elapsed:.0f} s")
        kept.save(lambda folder: Trained(prepared.trainer, {}).write(Path(folder)))


class Quester(DeepRetrieval):
    """The query is keywords alone; the reward is a smooth nDCG."""

    name = "quester"
    reward = "smooth_reward"
    alone = True


def _fine_tuned(
    kept: FitFolder,
    task: Task,
    workspace: Workspace,
    start: Start,
    settings: TrainingSettings,
    params: Mapping[str, Any],
) -> Path:
    """The model that GRPO starts from: a pretrained one unchanged; one with random weights after
    SFT on the most frequent and distinctive words of each training query's relevant items.
    """
    if start.name != TINY:
        return start.folder
    if (kept.folder / "sft").is_dir():
        return kept.folder / "sft"
    from trainers.training.building import prompts_of
    from trainers.training.checkpoints import Midway
    from trainers.training.sft import SftJob, query_targets, run_sft
    from trainers.word_model import WordModel

    words, sft = WordModel(task.dataset), settings.sft
    items = {
        item.id: words.keywords(item.id, sft.item_keywords, task.seed)
        for item in task.dataset.items
    }
    train_queries = task.dataset.require("train")[:_SFT_QUERIES]
    relevant = {query.id: task.dataset.relevant[query.id] for query in train_queries}
    targets = query_targets(items, relevant, min(sft.query_keywords, 4))
    learned = [query for query in train_queries if query.id in targets]
    job = SftJob(
        base=start.folder,
        prompts=prompts_of(workspace, "query", learned),
        targets=[targets[query.id] for query in learned],
        epochs=min(params.get("sft_epochs", 20), _SFT_EXAMPLES / len(learned)),
        log=kept.folder / "sft-query.jsonl",
        halvings=0,
        settings=settings,
        midway=Midway(kept.folder / "checkpoints-sft", {"fit": kept.folder.name}),
    )
    kept.save(lambda folder: run_sft(job).write(Path(folder)), "sft")
    return kept.folder / "sft"
