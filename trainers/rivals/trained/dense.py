"""Dense retrieval: a text is a point, the nearest items are found by exact search.

`embeddings` is an encoder as it comes. `dpr` trains it on the labels with BM25 negatives (Karpukhin
et al. 2020), `ance` goes on with negatives from its own index, looked up anew in every loop (Xiong
et al. 2021). One encoder reads both sides, as sentence-transformers has it.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cogr.errors import GeneratorError
from cogr.records import Query
from indexers.generators.model_folders import first_line, in_bfloat16
from trainers.rivals import Cost, Family, Search, Task
from trainers.rivals.measuring import Scored
from trainers.rivals.trained import (
    READ_TOKENS,
    TINY,
    Clock,
    FitFolder,
    clean,
    in_order,
    items_take,
    measured,
    need_training,
    quiet,
    ranked,
    start_of,
)
from trainers.rivals.trained.contrastive import (
    TRAIN_TOKENS,
    Labels,
    bm25_negatives,
    examples,
    ranking_loss,
    train_pairs,
)

Points = NDArray[np.float32]
_USUAL = "Qwen/Qwen3-Embedding-4B"
_AT_ONCE = 32
_LLMS = ("qwen3", "qwen2", "llama", "mistral", "gemma", "gemma2", "gemma3_text")


def open_encoder(folder: Path) -> Any:
    """An encoder of sentence-transformers, from its own folder or from a plain model's.

    Raises GeneratorError for a folder that it can't load.
    """
    from sentence_transformers import SentenceTransformer

    quiet()
    try:
        model = SentenceTransformer(str(folder), model_kwargs={"use_safetensors": True})
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise GeneratorError(
            f"The encoder in {folder} can't be loaded ({first_line(error)}); name a folder of "
            "sentence-transformers."
        ) from error
    model.max_seq_length = min(model.max_seq_length or READ_TOKENS, READ_TOKENS)
    return model


def encode(model: Any, texts: Sequence[str], side: str) -> Points:
    """Points of length 1, (texts, dimensions). `side` is "query" or "document"."""
    with in_bfloat16(model.device.type):
        found = getattr(model, f"encode_{side}")(
            clean(texts),
            batch_size=_AT_ONCE,
            normalize_embeddings=True,
            show_progress_bar=False,
        )
    return np.asarray(found, np.float32)


@dataclass
class Dense:
    """An encoder and the points of all items.

    Attributes:
        ids: of the items, in order of id.
        points: theirs, (items, dimensions), of length 1.
    """

    folder: Path
    ids: Sequence[str]
    points: Points
    spent: Cost
    said: str
    _model: Any = None

    def rank(self, queries: Sequence[Query], depth: int) -> Scored:
        """By cosine, all items compared."""
        self._model = self._model or open_encoder(self.folder)
        points = encode(self._model, [query.text for query in queries], "query")
        return ranked(queries, self.ids, points @ self.points.T, depth)

    def prepared(self, queries: Sequence[Query], depth: int) -> Search:
        """A search by points that are at hand."""
        self._model = self._model or open_encoder(self.folder)
        points = encode(self._model, [query.text for query in queries], "query")
        known = {query.id: point for query, point in zip(queries, points, strict=True)}

        def search(query: Query) -> Sequence[tuple[str, float]]:
            scores = known[query.id][None] @ self.points.T
            return ranked([query], self.ids, scores, depth)[query.id]

        return search

    def sets(self, queries: Sequence[Query]) -> None:
        """None: a cutoff makes the sets."""

    def cost(self) -> Cost:
        """Points of float32 are what an index keeps."""
        return self.spent


class Encoders:
    """What the three methods share: a start, a training of their own, points of all items."""

    name: str
    usual = _USUAL
    family: Family = "dense"

    def trials(self, task: Task) -> Sequence[Mapping[str, Any]]:
        """Learning rates, each with half of the time; a model of random weights needs larger
        ones.
        """
        fresh = task.settings.compare.models.get(self.name) == TINY
        rates = (1e-3, 3e-3) if fresh else (5e-5, 2e-4)
        shape = {"batch": 32, "negatives": 1, "epochs": 3, "share": 0.5}
        return [{"learning_rate": rate, **shape} for rate in rates]

    def train(
        self, kept: FitFolder, task: Task, model: Any, params: Mapping[str, Any], clock: Clock
    ) -> None:
        """Better the model in place, within the clock less what reading all items takes."""
        raise NotImplementedError

    def fit(self, task: Task, params: Mapping[str, Any]) -> Dense:
        """Train, and encode all items.

        Raises NotRunError without the extra or the weights, GeneratorError for a wrong folder.
        """
        need_training("sentence_transformers")
        start = start_of(task, self.name, self.usual, "bert")
        kept = FitFolder.of(task, self.name, params, start)
        items, saved = in_order(task.dataset.items), kept.folder / "points.npy"
        if kept.done() is None:
            clock = kept.clock(task.seconds * params.get("share", 1.0))
            with measured(kept, clock, lambda: np.load(saved, "r").shape[1] * 4.0):
                trained = kept.model.is_dir()
                model = open_encoder(kept.model if trained else start.folder)
                if not trained:
                    self.train(kept, task, model, params, clock)
                _save(saved, encode(model, [task.text(item) for item in items], "document"))
        cost = kept.done()
        assert cost is not None
        folder = kept.model if kept.model.is_dir() else start.folder
        return Dense(folder, [item.id for item in items], np.load(saved), cost, start.said)


def _save(file: Path, points: Points) -> None:
    with file.open("wb") as opened:
        np.save(opened, points)


class ZeroShot(Encoders):
    """An encoder as it comes: Qwen3-Embedding, MiniLM or any other of sentence-transformers."""

    name, seeded = "embeddings", False

    def trials(self, task: Task) -> Sequence[Mapping[str, Any]]:  # noqa: ARG002
        """Nothing to choose."""
        return [{}]

    def train(
        self, kept: FitFolder, task: Task, model: Any, params: Mapping[str, Any], clock: Clock
    ) -> None:
        """It is not trained."""


class DPR(Encoders):
    """Contrastive training with BM25 negatives."""

    name = "dpr"
    usual = "google-bert/bert-base-multilingual-uncased"

    def train(
        self, kept: FitFolder, task: Task, model: Any, params: Mapping[str, Any], clock: Clock
    ) -> None:
        """One training."""
        until = clock.seconds - _items_take(task, model)
        labels = Labels.of(task)
        negatives = bm25_negatives(task, labels, params["negatives"], task.seed)
        contrast(kept, task, model, labels, negatives, params, clock, until)
        kept.save(model.save_pretrained)


class ANCE(Encoders):
    """DPR, and then loops with negatives from the index that the loop before left behind. An LLM is
    trained by adapters (PEFT), which are merged at the end.
    """

    name = "ance"
    usual = "FacebookAI/roberta-base"

    def trials(self, task: Task) -> Sequence[Mapping[str, Any]]:
        """As DPR, with two loops."""
        return [{**found, "loops": 2} for found in super().trials(task)]

    def train(
        self, kept: FitFolder, task: Task, model: Any, params: Mapping[str, Any], clock: Clock
    ) -> None:
        """The start with BM25 negatives and each loop have the same time."""
        adapted, takes = add_adapter(model), _items_take(task, model)
        labels, loops = Labels.of(task), int(params["loops"])
        negatives = bm25_negatives(task, labels, params["negatives"], task.seed)
        over = clock.seconds - takes
        share = max(0.0, over - loops * takes - clock.elapsed) / (loops + 1)
        for loop in range(loops + 1):
            if loop:
                if clock.elapsed + takes >= over:
                    task.say(f"{self.name}: {loop - 1} of {loops} loops within the time")
                    break
                negatives = mined_negatives(model, labels, params["negatives"])
            until = min(over, clock.elapsed + share)
            contrast(kept, task, model, labels, negatives, params, clock, until, f"loop-{loop}")
        if adapted:
            merge_adapter(model)
        kept.save(model.save_pretrained)


def _items_take(task: Task, model: Any) -> float:
    return items_take(task, lambda texts: encode(model, texts, "document"))


def contrast(
    kept: FitFolder,
    task: Task,
    model: Any,
    labels: Labels,
    negatives: Sequence[Sequence[int]],
    params: Mapping[str, Any],
    clock: Clock,
    until: float,
    within: str = "checkpoints",
) -> None:
    """One training with given negatives; items are read to `TRAIN_TOKENS` meanwhile."""
    reads, model.max_seq_length = model.max_seq_length, min(TRAIN_TOKENS, model.max_seq_length)
    rows = examples(labels, negatives, task.seed)
    loss = ranking_loss(model, labels)
    steps = train_pairs(kept, task, model, loss, rows, params, clock, until, within)
    task.say(f"{kept.folder.name}: {steps} steps on {len(rows):,} pairs, {clock.elapsed:.0f} s")
    model.max_seq_length = reads


def mined_negatives(model: Any, labels: Labels, most: int) -> list[list[int]]:
    """For each query the nearest items of the model's present index that are not relevant."""
    from datasets import Dataset
    from sentence_transformers.util import mine_hard_negatives

    texts = clean(labels.texts)
    number = {text: at for at, text in enumerate(texts)}
    asked = {query.text: at for at, query in enumerate(labels.queries)}
    pairs = [
        {"query": query.text, "positive": texts[item]}
        for query, relevant in zip(labels.queries, labels.relevant, strict=True)
        for item in sorted(relevant)
    ]
    with contextlib.redirect_stderr(io.StringIO()), in_bfloat16(model.device.type):
        mined = mine_hard_negatives(
            Dataset.from_list(pairs),
            model,
            corpus=texts,
            num_negatives=most,
            query_prompt_name="query" if "query" in model.prompts else None,
            output_format="n-tuple",
            batch_size=_AT_ONCE,
            verbose=False,
        )
    found: list[list[int]] = [[] for _ in labels.queries]
    for row in mined:
        found[asked[row["query"]]] = [
            number[text] for name, text in row.items() if name.startswith("negative")
        ]
    return found


def add_adapter(model: Any) -> bool:
    """Give a large language model a LoRA adapter, the only part that is then trained."""
    inner = model.transformers_model
    if inner is None or inner.config.model_type not in _LLMS:
        return False
    need_training("peft")
    from peft import LoraConfig

    model.add_adapter(
        LoraConfig(task_type="FEATURE_EXTRACTION", r=16, lora_alpha=32, target_modules="all-linear")
    )
    return True


def merge_adapter(model: Any) -> None:
    """Add the adapter to the weights, so that the folder loads anywhere."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in list(model.transformers_model.named_modules()):
        if isinstance(module, BaseTunerLayer):
            module.merge()
            parent, _, child = name.rpartition(".")
            owner = model.transformers_model.get_submodule(parent)
            setattr(owner, child, module.get_base_layer())
    model.transformers_model._hf_peft_config_loaded = False
