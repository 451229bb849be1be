"""Learned sparse retrieval: an encoder weighs the words of its vocabulary, for items and queries.

`splade` is SPLADE v2 (Formal et al. 2021): the largest logarithm of a masked language model's
logits a word, trained with in-batch and BM25 negatives under a penalty on the words used (FLOPS).
`neural-sparse` puts the same weights into a field of OpenSearch and has the server rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cogr.errors import GeneratorError, ServiceError
from cogr.records import Query
from indexers.generators.model_folders import first_line, in_bfloat16, read_json
from trainers.rivals import Cost, Family, NotRunError, Search, Task
from trainers.rivals.measuring import Scored
from trainers.rivals.server import SERVER, Index, search_body
from trainers.rivals.trained import (
    READ_TOKENS,
    TINY,
    Clock,
    FitFolder,
    Start,
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
    splade_loss,
    train_pairs,
)

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

    def rank(self, queries: Sequence[Query], depth: int) -> Scored:
        """By the sum of products of weights; items without a common word are not found."""
        return self._found(queries, self.of(queries), depth)

    def _found(self, queries: Sequence[Query], weights: Any, depth: int) -> Scored:
        scores = np.asarray((weights @ self.weights.T).todense(), np.float32)
        found = ranked(queries, self.ids, scores, depth)
        return {query: [pair for pair in row if pair[1] > 0] for query, row in found.items()}

    def prepared(self, queries: Sequence[Query], depth: int) -> Search:
        """A search by weights that are at hand."""
        known = {query.id: row for query, row in zip(queries, self.of(queries), strict=True)}
        return lambda query: self._found([query], known[query.id], depth)[query.id]

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

        need_training("sentence_transformers")
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


# On the real server

_MOST_CLAUSES = 1000
_BODY = {
    "settings": {"number_of_shards": 1, "number_of_replicas": 0},
    "mappings": {"properties": {"id": {"type": "keyword"}, "text": {"type": "rank_features"}}},
}


class Features(Index):
    """Weights in a field `rank_features`; the server adds up the products."""

    @property
    def count(self) -> int:
        """Items that the server has taken."""
        return int(self._call("GET", "/_count", "counting")["count"])

    def of(self, weights: Any, queries: Sequence[Query], depth: int) -> dict[str, Any]:
        """Rankings by the weights of queries, (queries, vocabulary)."""
        found: dict[str, Any] = {}
        for query, row in zip(queries, weights, strict=True):
            answer = self._call(
                "POST", "/_search", "searching", search_body(clause_of(named(row)), depth)
            )
            found[query.id] = [
                (hit["fields"]["id"][0], float(hit["_score"])) for hit in answer["hits"]["hits"]
            ]
        return found


def named(row: Any) -> dict[str, float]:
    """One row of weights by the names that the field has them under: no word has a dot there."""
    return {f"w{at}": float(weight) for at, weight in zip(row.indices, row.data, strict=True)}


def clause_of(features: Mapping[str, float]) -> dict[str, Any]:
    """The sum of products, of the heaviest words within what a server takes in one query."""
    chosen = sorted(features, key=lambda name: -features[name])[:_MOST_CLAUSES]
    clauses = [
        {"rank_feature": {"field": f"text.{name}", "boost": features[name], "linear": {}}}
        for name in chosen
    ]
    return {"bool": {"should": clauses}} if clauses else {"match_none": {}}


@dataclass(frozen=True)
class OnServer:
    """The weights of `splade` on the server; queries are still weighed by the model."""

    index: Features
    sparse: Sparse

    @property
    def said(self) -> str:
        """What the weights started from."""
        return self.sparse.said

    def rank(self, queries: Sequence[Query], depth: int) -> Scored:
        """As the server ranks."""
        return self.index.of(self.sparse.of(queries), queries, depth)

    def prepared(self, queries: Sequence[Query], depth: int) -> Search:
        """A search on the server by weights that are at hand."""
        weights = self.sparse.of(queries)
        known = {query.id: row for query, row in zip(queries, weights, strict=True)}
        return lambda query: self.index.of(known[query.id], [query], depth)[query.id]

    def sets(self, queries: Sequence[Query]) -> None:
        """None: a cutoff makes the sets."""

    def cost(self) -> Cost:
        """What the server keeps on its disk."""
        return replace(
            self.sparse.cost(), index_bytes_per_item=self.index.bytes / len(self.sparse.ids)
        )


class NeuralSparse:
    """OpenSearch's neural sparse search: the weights that `splade` has learned, served."""

    name = "neural-sparse"
    family: Family = "sparse"

    def trials(self, task: Task) -> Sequence[Mapping[str, Any]]:
        """Those of `splade`, whose fits are taken."""
        return Splade().trials(task)

    def fit(self, task: Task, params: Mapping[str, Any]) -> OnServer:
        """Take the fit of `splade`, or make it, and index it.

        Raises NotRunError also without a server, ServiceError where it takes some items only.
        """
        if task.settings.opensearch.url is None:
            raise NotRunError("an OpenSearch", SERVER)
        work = task.work.parents[1] / Splade.name / task.work.name
        work.mkdir(parents=True, exist_ok=True)
        sparse = Splade().fit(replace(task, work=work), params)
        texts = ((id_, named(row)) for id_, row in zip(sparse.ids, sparse.weights, strict=True))
        index = Features(task.settings.opensearch, _BODY, texts)
        if index.count != len(sparse.ids):
            raise ServiceError(
                f"OpenSearch has taken {index.count:,} of {len(sparse.ids):,} items of "
                f"{self.name}; look at its log."
            )
        return OnServer(index, sparse)
