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
from trainers.rivals import Fitted, Params, Task
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

    family = "dense"
    seeded = False
    usual = "Qwen/Qwen3-Embedding-4B"

    def train(self, folder: Path, task: Task, model: Any, params: Params) -> None:
        """Train the model in place; this one is not trained."""

    def _make(self, folder: Path, task: Task, params: Params, start: Start) -> None:
        model = open_encoder(start.folder)
        self.train(folder, task, model, params)
        if self.seeded:
            model.save_pretrained(str(folder / "model"), create_model_card=False)
        texts = [task.text(item) for item in in_order(task.dataset.items)]
        np.save(folder / "vectors.npy", encode(model, texts, "document"))

    def _opened(self, folder: Path, task: Task, start: Start) -> Fitted:
        vectors = np.load(folder / "vectors.npy")
        ids = [item.id for item in in_order(task.dataset.items)]
        model = open_encoder(folder / "model" if self.seeded else start.folder)

        def read(queries: Sequence[Query]) -> list[Vectors]:
            return list(encode(model, [query.text for query in queries], "query"))

        def search(vector: Vectors, depth: int) -> list[tuple[str, float]]:
            return best(ids, vectors @ vector, depth)

        return Fitted.by(read, search, 4.0 * vectors.shape[1])


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
        contrast(folder / "steps", task, model, labels, negatives, params, task.steps or self.steps)


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
            within = folder / f"loop-{loop}"
            contrast(within, task, model, labels, negatives, params, max(1, steps))


def contrast(
    folder: Path,
    task: Task,
    model: Any,
    labels: Labels,
    negatives: Sequence[Sequence[int]],
    params: Params,
    steps: int,
) -> None:
    """InfoNCE over a batch and its hard negatives, by cosine and a temperature of 0.05; gradients
    are cached (Gao et al. 2021).
    """
    from sentence_transformers.sentence_transformer.losses import (
        CachedMultipleNegativesRankingLoss,
    )

    loss = CachedMultipleNegativesRankingLoss(model, mini_batch_size=_AT_ONCE)
    rows = examples(labels, negatives, task.seed)
    train_pairs(folder, task, model, loss, rows, params, steps)


def add_adapter(model: Any) -> None:
    """Give a model a LoRA adapter, the only part that is then trained."""
    need_training("peft")
    from peft import LoraConfig

    model.add_adapter(
        LoraConfig(task_type="FEATURE_EXTRACTION", r=16, lora_alpha=32, target_modules="all-linear")
    )
