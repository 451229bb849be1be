"""Language models that learn to rewrite queries for an unchanged search: BM25 over the items'
texts.

`deepretrieval` (Jiang et al. 2025) adds words to the query; its reward is the nDCG of BM25's
results. `quester` (Satouf et al. 2025) writes the whole query as keywords; its reward is a smooth
nDCG of BM25's scores, which also distinguishes rewrites with equal rankings. Both are trained by
TRL's GRPO with the prompts of CoGR's query side; there is no item side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cogr.keywords import over_budget, parse
from cogr.prompts import chat
from cogr.records import Query
from indexers.text import Lexical
from indexers.workspace import Workspace
from trainers.rivals import Fitted, Params, Task
from trainers.rivals.trained import TINY, Start, Trained, arguments, rates, run

_SEEN = 100
"""Results that a reward uses."""
_SOFT = 1.0
"""Temperature of the smooth reward, in points of BM25: items with a smaller difference count as
nearly tied.
"""
_TOKENS, _TINY_TOKENS = 256, 24
_STEPS = 100


# Rewards


@dataclass(frozen=True)
class TextWorld:
    """What rewards of rewrites are computed against, in place of `cogr.rewards.World`."""

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


# The methods


class DeepRetrieval(Trained):
    """Words are added to the query; the reward is nDCG."""

    family = "generative"
    usual = "Qwen/Qwen3-4B-Instruct-2507"
    architecture = "qwen3"
    packages = ("trl",)
    grid = rates(1e-6, 5e-6, prompts=32, generations=8)
    fresh = rates(1e-3, 3e-4, prompts=16, generations=4)
    reward: Callable[[TextWorld, str, Sequence[str]], float] = staticmethod(ndcg_reward)
    alone = False

    def _trained(self, task: Task, params: Params, start: Start) -> Fitted:
        from datasets import Dataset
        from transformers import AutoTokenizer
        from trl import GRPOConfig, GRPOTrainer

        from trainers.training.grpo import text_of
        from trainers.training.trainer_config import set_up

        set_up(task.seed)
        tokenizer = AutoTokenizer.from_pretrained(start.folder)
        train = task.dataset.require("train")
        asked = {query.id: query.text for query in train}
        k_max = task.settings.keywords.k_max
        lexical = Lexical(task.dataset.items, texts=[*map(task.text, task.dataset.items)])
        world = TextWorld(lexical, task.dataset.relevant, asked, k_max)

        def scored(completions: Sequence[Any], entity: Sequence[str], **_: Any) -> list[float]:
            each = zip(completions, entity, strict=True)
            return [self.reward(world, id_, parse(text_of(one))) for one, id_ in each]

        prompts = [chat(prompt, tokenizer) for prompt in _prompts(task, train)]
        rows = [{"prompt": p, "entity": q.id} for p, q in zip(prompts, train, strict=True)]
        many = params["generations"]
        config = GRPOConfig(
            **arguments(task, params, task.steps or _STEPS),
            per_device_train_batch_size=min(params["prompts"], len(rows)) * many,
            num_generations=many,
            max_completion_length=_tokens(start),
            beta=0.0,
            chat_template_kwargs={"enable_thinking": False},
        )
        data = Dataset.from_list(rows)
        named = {"model": str(start.folder), "processing_class": tokenizer}
        trainer = GRPOTrainer(reward_funcs=scored, args=config, train_dataset=data, **named)
        run(trainer, task)
        folder = task.work / "fit" / "model"
        trainer.save_model(str(folder))
        written = _writer(folder, task, _tokens(start))

        def search(asked: tuple[str, tuple[str, ...]], depth: int) -> list[tuple[str, float]]:
            text, words = asked
            found = lexical.rank(joined("" if self.alone and words else text, words), depth)
            return [(item.id, score) for item, score in found]

        return Fitted.by(written, search, lexical.size_bytes / len(task.dataset.items))


class Quester(DeepRetrieval):
    """The query is keywords alone, or its own text where none are written; the reward is a smooth
    nDCG.
    """

    reward = staticmethod(smooth_reward)
    alone = True


def _tokens(start: Start) -> int:
    return _TINY_TOKENS if start.name == TINY else _TOKENS


def _prompts(task: Task, queries: Sequence[Query]) -> Sequence[Any]:
    from trainers.training.building import prompts_of

    return prompts_of(Workspace(task.settings).with_dataset(task.dataset), "query", queries)


def _writer(folder: Path, task: Task, tokens: int) -> Callable[[Sequence[Query]], Any]:
    """From queries to their texts and the keywords that a trained model writes, greedily."""
    from cogr.settings.indexing import Sampling
    from indexers.generators import Completion, Request
    from indexers.generators.transformers_lm import TransformersGenerator, TransformersOptions

    sampling = Sampling(temperature=0.0, max_tokens=tokens)
    options = TransformersOptions(model=str(folder), sampling=sampling)
    generator = TransformersGenerator(options, None)

    def written(queries: Sequence[Query]) -> list[tuple[str, tuple[str, ...]]]:
        each = zip(queries, _prompts(task, queries), strict=True)
        asked = [Request(query.id, query, prompt) for query, prompt in each]
        answers = generator.generate(asked)
        found = {one.id: parse(one.text) for one in answers if isinstance(one, Completion)}
        return [(query.text, found.get(query.id, ())) for query in queries]

    return written
