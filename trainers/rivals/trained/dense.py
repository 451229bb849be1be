"""Dense retrieval: texts are vectors, and the nearest items are found by exact search.

`embeddings` is an encoder without training on these data. `dpr` trains one on the labels with BM25
negatives (Karpukhin et al. 2020), `ance` goes on with negatives from its own index, found again in
every loop (Xiong et al. 2021). One encoder reads both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cogr.records import Query
from indexers.generators.model_folders import in_bfloat16
from trainers.rivals import Family, Fitted, Params, Task
from trainers.rivals.trained import (
    READ_TOKENS,
    Start,
    Trained,
    best,
    clean,
    in_order,
    loading,
    need_training,
    rates,
)
from trainers.rivals.trained.pairs import (
    Labels,
    bm25_negatives,
    examples,
    mined_negatives,
    train_pairs,
)

Vectors = NDArray[np.float32]
Hits = list[tuple[str, float]]
_AT_ONCE = 32
_LLMS = ("qwen3", "qwen2", "llama", "mistral", "gemma", "gemma2", "gemma3_text")


def open_encoder(folder: Path) -> Any:
    """An encoder of sentence-transformers, from its own folder or from a plain model's.

    Raises GeneratorError for a folder that it can't load.
    """
    from sentence_transformers import SentenceTransformer

    with loading("encoder", folder, "a folder of sentence-transformers"):
        model = SentenceTransformer(str(folder), model_kwargs={"use_safetensors": True})
    model.max_seq_length = min(model.max_seq_length or READ_TOKENS, READ_TOKENS)
    return model


def encode(model: Any, texts: Sequence[str], side: str) -> Vectors:
    """Vectors of length 1, (texts, dimensions). `side` is "query" or "document"."""
    options = {"batch_size": _AT_ONCE, "normalize_embeddings": True, "show_progress_bar": False}
    with in_bfloat16(model.device.type):
        found = getattr(model, f"encode_{side}")(clean(texts), **options)
    return np.asarray(found, np.float32)


class Embeddings(Trained):
    """An encoder without training on these data, and the base of those with: Qwen3-Embedding,
    MiniLM or any other of sentence-transformers.
    """

    family: Family = "dense"
    seeded = False
    usual = "Qwen/Qwen3-Embedding-4B"
    open = staticmethod(open_encoder)
    encode = staticmethod(encode)

    def train(self, folder: Path, task: Task, model: Any, params: Params) -> None:
        """Train the model in place; this one is not trained."""

    def search(self, ids: Sequence[str], matrix: Any, row: Any, depth: int) -> Hits:
        """The best items by the product with a query's row."""
        return best(ids, matrix @ row, depth)

    def bytes_an_item(self, matrix: Any) -> float:
        """Of float32, all of them."""
        return 4.0 * int(matrix.shape[1])

    def _make(self, folder: Path, task: Task, params: Params, start: Start) -> None:
        if self.seeded:
            model = self.open(start.folder)
            self.train(folder, task, model, params)
            model.save_pretrained(str(folder / "model"), create_model_card=False)

    def _opened(self, folder: Path, task: Task, start: Start) -> Fitted:
        items = in_order(task.dataset.items)
        ids, model = (
            [i.id for i in items],
            self.open(folder / "model" if self.seeded else start.folder),
        )
        matrix = self.encode(model, [task.text(item) for item in items], "document")

        def read(queries: Sequence[Query]) -> list[Any]:
            return list(self.encode(model, [query.text for query in queries], "query"))

        def search(row: Any, depth: int) -> Hits:
            return self.search(ids, matrix, row, depth)

        return Fitted.by(read, search, self.bytes_an_item(matrix))


class DPR(Embeddings):
    """Contrastive training with BM25 negatives."""

    seeded = True
    usual = "google-bert/bert-base-multilingual-uncased"
    steps = 300
    grid = rates(5e-5, 2e-4, batch=32, negatives=1)
    fresh = rates(1e-3, 3e-3, batch=32, negatives=1)

    def train(self, folder: Path, task: Task, model: Any, params: Params) -> None:
        """One training."""
        labels = Labels.of(task)
        negatives = bm25_negatives(task, labels, params["negatives"])
        rows, steps = examples(labels, negatives, task.seed), task.steps or self.steps
        train_pairs(folder / "steps", task, model, self.loss(model, params), rows, params, steps)

    def loss(self, model: Any, params: Params) -> Any:  # noqa: ARG002
        """InfoNCE over a batch and its hard negatives, by cosine and a temperature of 0.05;
        gradients are cached (Gao et al. 2021).
        """
        from sentence_transformers.sentence_transformer import losses

        return losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=_AT_ONCE)


class ANCE(DPR):
    """DPR, and then loops with negatives from the index of the previous loop; each has the same
    number of steps. A large language model is trained by an adapter.
    """

    usual = "FacebookAI/roberta-base"
    loops = 2

    def train(self, folder: Path, task: Task, model: Any, params: Params) -> None:
        """The start with BM25 negatives, and the loops."""
        if model.transformers_model.config.model_type in _LLMS:
            add_adapter(model)
        labels, steps = Labels.of(task), (task.steps or self.steps) // (self.loops + 1)
        negatives = bm25_negatives(task, labels, params["negatives"])
        for loop in range(self.loops + 1):
            if loop:
                negatives = mined_negatives(model, labels, params["negatives"])
            rows = examples(labels, negatives, task.seed)
            within, loss = folder / f"loop-{loop}", self.loss(model, params)
            train_pairs(within, task, model, loss, rows, params, max(1, steps))


def add_adapter(model: Any) -> None:
    """Give a model a LoRA adapter, the only part that is then trained."""
    need_training("peft")
    from peft import LoraConfig

    model.add_adapter(
        LoraConfig(task_type="FEATURE_EXTRACTION", r=16, lora_alpha=32, target_modules="all-linear")
    )
