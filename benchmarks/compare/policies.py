"""Language models that learn to rewrite queries for an unchanged search: BM25 over the items'
texts.

`deepretrieval` (Jiang et al. 2025) adds words to the query; its reward is the nDCG of BM25's
results. `quester` (Satouf et al. 2025) writes the whole query as keywords; its reward is a smooth
nDCG of BM25's scores, which also distinguishes rewrites with equal rankings. Both are trained by
TRL's GRPO with the prompts of CoGR's query side; there is no item side.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.compare import Fitted, Params, Task
from benchmarks.compare.trained import Trained, arguments, rates, run
from cogr.keywords import over_budget, parse
from cogr.prompts import chat
from cogr.records import Query
from indexers.text import Lexical
from indexers.workspace import Workspace

Hits = Sequence[tuple[str, float]]
Rewritten = tuple[str, Sequence[str]]
"""A query's text and its keywords."""
_SEEN = 100
"""Results that a reward uses."""
_SOFT = 1.0
"""Temperature of the smooth reward, in points of BM25: items with a smaller difference count as
nearly tied.
"""
_TOKENS, _TINY_TOKENS = 256, 24
_STEPS = 100


# Rewards


def ndcg(found: Hits, relevant: Collection[str]) -> float:
    """nDCG@100 of a ranking."""
    ranks = [at + 1.0 for at, (id_, _) in enumerate(found) if id_ in relevant]
    return _dcg(np.array(ranks)) / _ideal(len(relevant))


def smooth_ndcg(found: Hits, relevant: Collection[str]) -> float:
    """nDCG@100 of scores: an item's rank is 1 plus, for every other item, the probability that it
    is better: a logistic function of the difference of their scores (Qin, Liu and Li 2010).
    """
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


# The methods


class DeepRetrieval(Trained):
    """Words are added to the query; the reward is nDCG."""

    family = "generative"
    usual = "Qwen/Qwen3-4B-Instruct-2507"
    architecture = "qwen3"
    grid = rates(1e-6, 5e-6, prompts=32, generations=8)
    fresh = rates(1e-3, 3e-4, prompts=16, generations=4)
    reward: Callable[[Hits, Collection[str]], float] = staticmethod(ndcg)
    alone = False

    def search(self, lexical: Lexical, asked: Rewritten, depth: int) -> Hits:
        """BM25's items for a rewritten query, and their scores."""
        text, words = asked
        said = words if self.alone and words else (text, *words)
        return lexical.rank(" ".join(said), depth)

    def score(self, task: Task, lexical: Lexical, query: Query, words: Sequence[str]) -> float:
        """The reward of a training query's keywords; 0 over the budget."""
        if over_budget(words, task.settings.keywords.k_max) or (self.alone and not words):
            return 0.0
        found = self.search(lexical, (query.text, words), _SEEN)
        return self.reward(found, task.dataset.relevant[query.id])

    def _trained(self, task: Task, params: Params, folder: Path) -> Fitted:
        from datasets import Dataset
        from transformers import AutoTokenizer
        from trl import GRPOConfig, GRPOTrainer

        from trainers.training.grpo import text_of
        from trainers.training.trainer_config import set_up

        set_up(task.seed)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokens = _TINY_TOKENS if self.is_fresh(task) else _TOKENS
        train = task.train
        asked = {query.id: query for query in train}
        lexical = Lexical(task.dataset.items, texts=task.texts)

        def scored(completions: Sequence[Any], entity: Sequence[str], **_: Any) -> list[float]:
            each = zip(map(text_of, completions), entity, strict=True)
            return [self.score(task, lexical, asked[id_], parse(text)) for text, id_ in each]

        prompts = [chat(prompt, tokenizer) for prompt in _prompts(task, train)]
        rows = [{"prompt": p, "entity": q.id} for p, q in zip(prompts, train, strict=True)]
        many = params["generations"]
        config = GRPOConfig(
            **arguments(task, params, task.steps or _STEPS),
            per_device_train_batch_size=min(params["prompts"], len(rows)) * many,
            num_generations=many,
            max_completion_length=tokens,
            beta=0.0,
            chat_template_kwargs={"enable_thinking": False},
        )
        data = Dataset.from_list(rows)
        named = {"model": str(folder), "processing_class": tokenizer}
        trainer = GRPOTrainer(reward_funcs=scored, args=config, train_dataset=data, **named)
        run(trainer, task)
        learned = task.work / "fit" / "model"
        trainer.save_model(str(learned))
        written = _writer(learned, task, tokens)
        size = lexical.size_bytes / len(task.dataset.items)
        return Fitted(partial(self.search, lexical), size, written)


class Quester(DeepRetrieval):
    """The query is keywords alone, or its own text where none are written; the reward is a smooth
    nDCG.
    """

    reward = staticmethod(smooth_ndcg)
    alone = True


def _prompts(task: Task, queries: Sequence[Query]) -> Sequence[Any]:
    workspace = Workspace(task.settings).with_dataset(task.dataset)
    return [*map(workspace.prompter("query"), queries)]


def _writer(folder: Path, task: Task, tokens: int) -> Callable[[Sequence[Query]], Any]:
    """From queries to their texts and the keywords that a trained model writes, greedily."""
    from cogr.settings.indexing import Sampling
    from indexers.generators import Completion, Request
    from indexers.generators.model_folders import LocalModelOptions
    from indexers.generators.transformers_lm import TransformersGenerator

    sampling = Sampling(temperature=0.0, max_tokens=tokens)
    options = LocalModelOptions(model=str(folder), sampling=sampling)
    generator = TransformersGenerator(options)

    def written(queries: Sequence[Query]) -> list[Rewritten]:
        each = zip(queries, _prompts(task, queries), strict=True)
        asked = [Request(query.id, query, prompt) for query, prompt in each]
        answers = generator.generate(asked)
        found = {one.id: parse(one.text) for one in answers if isinstance(one, Completion)}
        return [(query.text, found.get(query.id, ())) for query in queries]

    return written
