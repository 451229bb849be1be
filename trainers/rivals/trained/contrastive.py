"""Learning from pairs with negatives, as DPR, ANCE and SPLADE do, by sentence-transformers.

A batch holds queries, one relevant item each, and hard negatives. Every other item of the batch is
a negative too, unless it is known to be relevant: with 200 relevant items a query such false
negatives are common, and their scores are masked.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from cogr.records import Query
from indexers.generators.model_folders import in_bfloat16
from trainers.rivals import Task
from trainers.rivals.trained import ON_ITS_OWN, Clock, FitFolder, as_callback, decaying, progress
from trainers.training.trainer_config import silence

TRAIN_TOKENS = 128
"""Tokens of an item that training reads: twice the pairs in the same time."""
_LETTERS = 8 * TRAIN_TOKENS
_PAIRS_A_QUERY = 32
_NEGATIVES_FROM = 100
MINI_BATCH = 32
"""Texts that are computed at once; the batch is larger, its gradients are cached (Gao et al.
2021).
"""


@dataclass(frozen=True)
class Labels:
    """The training labels by number: what every contrastive method learns from.

    Attributes:
        queries: the training queries.
        texts: of the items, in the order of the data set; cut to what training reads.
        relevant: for each query the numbers of its relevant items.
    """

    queries: Sequence[Query]
    texts: Sequence[str]
    relevant: Sequence[frozenset[int]]

    @classmethod
    def of(cls, task: Task) -> Labels:
        """Of the training split."""
        number = {item.id: at for at, item in enumerate(task.dataset.items)}
        train = task.dataset.require("train")
        return cls(
            train,
            [task.text(item)[:_LETTERS] for item in task.dataset.items],
            [frozenset(number[id_] for id_ in task.dataset.relevant[q.id]) for q in train],
        )


def bm25_negatives(task: Task, labels: Labels, most: int, seed: int) -> list[list[int]]:
    """For each query `most` items that BM25 finds and that are not relevant, drawn from its first
    hundred; random ones where it finds too few (DPR, Karpukhin et al. 2020).
    """
    from indexers.text import Lexical

    draw, lexical = random.Random(seed), Lexical(task.dataset.items)
    number = {item.id: at for at, item in enumerate(task.dataset.items)}
    found = []
    for query, relevant in zip(labels.queries, labels.relevant, strict=True):
        ranked = [number[item.id] for item, _ in lexical.rank(query.text, _NEGATIVES_FROM)]
        wrong = [at for at in ranked if at not in relevant]
        found.append(
            _filled(draw.sample(wrong, min(most, len(wrong))), relevant, labels, most, draw)
        )
    return found


def _filled(
    chosen: list[int], relevant: frozenset[int], labels: Labels, most: int, draw: random.Random
) -> list[int]:
    left = len(labels.texts) - len(relevant | set(chosen))
    while len(chosen) < most and left > 0:
        at = draw.randrange(len(labels.texts))
        if at not in relevant and at not in chosen:
            chosen, left = [*chosen, at], left - 1
    return chosen


def examples(labels: Labels, negatives: Sequence[Sequence[int]], seed: int) -> Any:
    """The data set of a trainer: query, positive, negatives, and as its label their numbers.

    At most 32 relevant items of a query are drawn; a query with fewer negatives than another one is
    left out.
    """
    from datasets import Dataset

    draw = random.Random(seed)
    width = max(map(len, negatives), default=0)
    rows = []
    for at, (relevant, wrong) in enumerate(zip(labels.relevant, negatives, strict=True)):
        if len(wrong) < width:
            continue
        for item in draw.sample(sorted(relevant), min(_PAIRS_A_QUERY, len(relevant))):
            texts = {f"negative_{n}": labels.texts[i] for n, i in enumerate(wrong)}
            rows.append(
                {
                    "query": labels.queries[at].text,
                    "positive": labels.texts[item],
                    **texts,
                    "label": [at, item, *wrong],
                }
            )
    return Dataset.from_list(rows)


@cache
def losses() -> Any:
    """The two losses of sentence-transformers, with known relevant items masked. Made when first
    used, since the package takes seconds to import.
    """
    import torch
    from sentence_transformers.sentence_transformer.losses import (
        CachedMultipleNegativesRankingLoss,
    )
    from sentence_transformers.sparse_encoder.losses import (
        CachedSpladeLoss,
        SparseMultipleNegativesRankingLoss,
    )

    class Masking:
        """A similarity that is minus infinity where an item is relevant but not the pair's own."""

        def __init__(self, similarity: Any, relevant: Sequence[frozenset[int]]) -> None:
            self.similarity, self.relevant = similarity, relevant
            self.hidden: Any = None

        def look_at(self, labels: Any) -> None:
            """Find what is hidden in a batch, from the numbers in its labels."""
            numbers = labels.tolist()
            items = [row[column] for column in range(1, len(numbers[0])) for row in numbers]
            self.hidden = torch.tensor(
                [
                    [at != own and item in self.relevant[row[0]] for at, item in enumerate(items)]
                    for own, row in enumerate(numbers)
                ],
                device=labels.device,
            )

        def __call__(self, queries: Any, items: Any) -> Any:
            scores = self.similarity(queries.float(), items.float())
            return scores.masked_fill(self.hidden, -torch.inf)

    class Half:
        """Embeds in bfloat16 where the device computes in it, in both passes of the cache."""

        def embed_minibatch(self, *args: Any, **kwargs: Any) -> Any:
            with in_bfloat16(self.model.device.type):  # type: ignore[attr-defined]
                return super().embed_minibatch(*args, **kwargs)  # type: ignore[misc]

    class Ranking(Half, CachedMultipleNegativesRankingLoss):
        def calculate_loss(
            self, reps: Any, labels: Any = None, *, with_backward: bool = False
        ) -> Any:
            self.similarity_fct.look_at(labels)  # type: ignore[attr-defined]
            loss = self.loss.compute_loss_from_embeddings([torch.cat(r) for r in reps], labels)
            if with_backward:
                loss.backward()
            return loss.detach() if with_backward else loss

    class SparseRanking(SparseMultipleNegativesRankingLoss):
        def compute_loss_from_embeddings(self, embeddings: Any, labels: Any) -> Any:
            self.similarity_fct.look_at(labels)  # type: ignore[attr-defined]
            return super().compute_loss_from_embeddings(embeddings, labels)

    class CachedSplade(Half, CachedSpladeLoss):
        pass

    class Found:
        masking, ranking, sparse_ranking = Masking, Ranking, SparseRanking
        cached_splade = CachedSplade

    return Found


def ranking_loss(model: Any, labels: Labels) -> Any:
    """InfoNCE over a batch and its hard negatives, by cosine and a temperature of 0.05."""
    from sentence_transformers.util import cos_sim

    masked = losses().masking(cos_sim, labels.relevant)
    return losses().ranking(model, similarity_fct=masked, mini_batch_size=MINI_BATCH)


def splade_loss(model: Any, labels: Labels, document: float, query: float, at_once: int) -> Any:
    """InfoNCE by dot product, and the FLOPS penalty (Paria et al. 2020) on the words that items and
    queries use. The penalty grows to its full weight over the first third of the training.

    Args:
        document: weight of the penalty on items.
        query: likewise on queries.
        at_once: texts that are computed at once.
    """
    from sentence_transformers.util import dot_score

    masked = losses().masking(dot_score, labels.relevant)
    return losses().cached_splade(
        model,
        losses().sparse_ranking(model, similarity_fct=masked),
        document_regularizer_weight=document,
        query_regularizer_weight=query,
        mini_batch_size=at_once,
    )


def train_pairs(
    kept: FitFolder,
    task: Task,
    model: Any,
    loss: Any,
    rows: Any,
    params: Mapping[str, Any],
    clock: Clock,
    until: float,
    within: str = "checkpoints",
) -> int:
    """Train an encoder on examples; goes on from the newest checkpoint. Returns the steps done.

    Args:
        model: of sentence-transformers; a SparseEncoder or a SentenceTransformer.
        params: learning_rate, batch, epochs, and steps (at most; -1 for none).
        until: seconds of the clock at which training ends.
        within: where checkpoints go, under the fit's folder.
    """
    import sentence_transformers as st
    from transformers import set_seed

    sparse = isinstance(model, st.SparseEncoder)
    kind = "SparseEncoder" if sparse else "SentenceTransformer"
    set_seed(task.seed)
    prompts = {"query": model.prompts.get("query", "")} if model.prompts.get("query") else None
    args = getattr(st, f"{kind}TrainingArguments")(
        output_dir=str(kept.folder / within),
        per_device_train_batch_size=min(int(params["batch"]), len(rows)),
        num_train_epochs=params.get("epochs", 3),
        max_steps=params.get("steps", -1),
        learning_rate=params["learning_rate"],
        batch_sampler="no_duplicates",
        prompts=prompts,
        use_cpu=model.device.type == "cpu",
        seed=task.seed,
        **ON_ITS_OWN,
    )
    trainer = decaying(getattr(st, f"{kind}Trainer"), clock, until)(
        model=model,
        args=args,
        train_dataset=rows,
        loss=loss,
        callbacks=[as_callback(kept, clock, until), *_ramp(loss, clock, until)],
    )
    silence(trainer)
    found = kept.checkpoint(within)
    trainer.train(resume_from_checkpoint=str(found) if found else None)
    return int(trainer.state.global_step)


def _ramp(loss: Any, clock: Clock, until: float) -> list[Any]:
    """For SPLADE: the callback under which the penalty grows to its full weight over the first
    third of the training, by steps or by time.
    """
    from sentence_transformers.sparse_encoder.callbacks.splade_callbacks import (
        SpladeRegularizerWeightSchedulerCallback,
    )
    from sentence_transformers.sparse_encoder.losses import SpladeLoss

    if not isinstance(loss, SpladeLoss):
        return []
    begun = clock.elapsed

    class Ramp(SpladeRegularizerWeightSchedulerCallback):
        def _calculate_weight_value(self, step: int, max_value: float) -> float:
            over = progress(step / max(1, self.total_steps or 1), clock, begun, until)
            return float(max_value * min(1.0, over / self.warmup_ratio) ** 2)

    return [Ramp(loss=loss)]
