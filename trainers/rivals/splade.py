"""Learned sparse retrieval: an encoder weighs the words of its vocabulary, for items and queries.

`splade` is SPLADE v2 (Formal et al. 2021): the largest logarithm of a masked language model's
logits a word, trained with in-batch and BM25 negatives under a penalty on the words used (FLOPS).
`neural-sparse` puts the same weights into a field of OpenSearch and has the server rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cogr.errors import GeneratorError
from cogr.records import Query
from indexers.generators.model_folders import first_line, read_json
from trainers.rivals.contrastive import (
    TRAIN_TOKENS,
    Labels,
    bm25_negatives,
    examples,
    splade_loss,
    train_pairs,
)
from trainers.rivals.learned import (
    READ_TOKENS,
    TINY,
    Clock,
    FitFolder,
    Run,
    Start,
    clean,
    in_bfloat16,
    in_order,
    items_take,
    measured,
    need,
    quiet,
    ranked,
    start_of,
)
from trainers.rivals.protocol import Cost, Family, Task

_USUAL = "naver/splade_v2_max"
_AT_ONCE = 8
"""Texts at once: a row of logits has a number for each token and each word of the vocabulary."""


def open_splade(folder: Path) -> Any:
    """A SparseEncoder from its own folder or from a masked language model's.

    Raises GeneratorError for another kind of model.
    """
    from sentence_transformers import SparseEncoder

    quiet()
    config = read_json(folder / "config.json", f"The model folder {folder}")
    if not any(name.endswith("ForMaskedLM") for name in config.get("architectures") or []):
        raise GeneratorError(
            f"{folder} is no masked language model, which SPLADE needs; name one such as {_USUAL}."
        )
    try:
        model = SparseEncoder(str(folder), model_kwargs={"use_safetensors": True})
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise GeneratorError(
            f"The sparse encoder in {folder} can't be loaded ({first_line(error)}); name another."
        ) from error
    model.max_seq_length = min(model.max_seq_length or READ_TOKENS, READ_TOKENS)
    return model


def weigh(model: Any, texts: Sequence[str], side: str) -> Any:
    """Weights of words, a sparse matrix of float32 (texts, vocabulary). `side` is "query" or
    "document".
    """
    from scipy import sparse

    with in_bfloat16(model.device.type):
        found = getattr(model, f"encode_{side}")(
            clean(texts),
            batch_size=_AT_ONCE,
            show_progress_bar=False,
            convert_to_sparse_tensor=True,
        )
    found = found.float().cpu().coalesce()
    rows, columns = found.indices().numpy()
    return sparse.csr_matrix((found.values().numpy(), (rows, columns)), shape=found.shape)


@dataclass
class Sparse:
    """An encoder and the weights of all items.

    Attributes:
        ids: of the items, in order of id.
        weights: theirs, a sparse matrix (items, vocabulary).
    """

    folder: Path
    ids: Sequence[str]
    weights: Any
    spent: Cost
    said: str
    _model: Any = None

    def of(self, queries: Sequence[Query]) -> Any:
        """Weights of queries, (queries, vocabulary)."""
        self._model = self._model or open_splade(self.folder)
        return weigh(self._model, [query.text for query in queries], "query")

    def rank(self, queries: Sequence[Query], depth: int) -> Run:
        """By the sum of products of weights; items without a common word are not found."""
        scores = np.asarray((self.of(queries) @ self.weights.T).todense(), np.float32)
        found = ranked(queries, self.ids, scores, depth)
        return {query: [pair for pair in row if pair[1] > 0] for query, row in found.items()}

    def sets(self, queries: Sequence[Query]) -> None:
        """None: a cutoff makes the sets."""

    def cost(self) -> Cost:
        """A posting has a number and a weight, 8 bytes."""
        return self.spent


class Splade:
    """SPLADE v2, trained on the labels."""

    name = "splade"
    family: Family = "sparse"

    def trials(self, task: Task) -> Sequence[Mapping[str, Any]]:
        """Learning rates, each with half of the time; a model of random weights needs larger
        ones.
        """
        fresh = task.settings.compare.models.get(self.name) == TINY
        rates = (1e-3, 3e-3) if fresh else (2e-5, 1e-4)
        flops = {"document": 3e-5, "query": 5e-5}
        shape = {"batch": 32, "negatives": 1, "epochs": 3, "share": 0.5}
        return [{"learning_rate": rate, **flops, **shape} for rate in rates]

    def fit(self, task: Task, params: Mapping[str, Any]) -> Sparse:
        """Train, and weigh all items.

        Raises NotRunError without the extra or the weights, GeneratorError for a wrong folder.
        """
        from scipy import sparse

        need(("sentence_transformers", "datasets", "accelerate"))
        start = start_of(task, self.name, _USUAL, "bert")
        kept = FitFolder.of(task, self.name, params, start)
        items, saved = in_order(task.dataset.items), kept.folder / "weights.npz"
        if kept.done() is None:
            clock = kept.clock(task.seconds * params.get("share", 1.0))
            with measured(kept, clock, lambda: 8.0 * sparse.load_npz(saved).nnz / len(items)):
                model = self._trained(kept, task, start, params, clock)
                weights = weigh(model, [task.text(item) for item in items], "document")
                sparse.save_npz(saved, weights)
        cost = kept.done()
        assert cost is not None
        ids = [item.id for item in items]
        return Sparse(kept.model, ids, sparse.load_npz(saved), cost, start.said)

    def _trained(
        self, kept: FitFolder, task: Task, start: Start, params: Mapping[str, Any], clock: Clock
    ) -> Any:
        if kept.model.is_dir():
            return open_splade(kept.model)
        model = open_splade(start.folder)
        until = clock.seconds - items_take(task, lambda texts: weigh(model, texts, "document"))
        labels = Labels.of(task)
        negatives = bm25_negatives(task, labels, params["negatives"], task.seed)
        rows = examples(labels, negatives, task.seed)
        loss = splade_loss(model, labels, params["document"], params["query"], _AT_ONCE)
        reads, model.max_seq_length = model.max_seq_length, min(TRAIN_TOKENS, model.max_seq_length)
        steps = train_pairs(kept, task, model, loss, rows, params, clock, until)
        model.max_seq_length = reads
        task.say(f"{self.name}: {steps} steps on {len(rows):,} pairs, {clock.elapsed:.0f} s")
        kept.save(model.save_pretrained)
        return model
