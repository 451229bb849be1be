"""Retrieval by vectors: the nearest items are found by exact search.

`embeddings` is an encoder without training on these data. `dpr` trains one on the labels with BM25
negatives (Karpukhin et al. 2020), `ance` goes on with negatives from its own index, found again in
every loop (Xiong et al. 2021). One encoder reads both sides. A batch holds queries, one relevant
item each, and hard negatives; every other item of the batch is a negative too, and no text is in a
batch twice.

`splade` (SPLADE v2, Formal et al. 2021) has sparse vectors: a masked language model weighs the
words of its vocabulary by the largest logarithm of its logits. It is trained in the same way, under
a penalty on the words used (FLOPS).
"""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.compare import Family, Fitted, Params, Task, best
from benchmarks.compare.trained import READ_TOKENS, Trained, arguments, clean, loading, rates, run
from cogr.datasets.items import in_id_order
from cogr.errors import GeneratorError
from cogr.records import Query
from indexers.generators.model_folders import has_bfloat16, read_json
from indexers.text import Lexical

Vectors = NDArray[np.float32]
Hits = list[tuple[str, float]]
TRAIN_TOKENS = 128
"""Most tokens of an item that training reads; half as many tokens allow twice as many pairs."""
_AT_ONCE = 32
_LOGITS_AT_ONCE = 8
"""Texts that SPLADE computes at once: the logits have a number for each token and each word."""
_PAIRS_A_QUERY = 32
_NEGATIVES_FROM = 100


def _opened(kind: str, folder: Path, what: str, other: str) -> Any:
    import sentence_transformers

    with loading(what, folder, other):
        made = getattr(sentence_transformers, kind)
        model = made(str(folder), model_kwargs={"use_safetensors": True})
    model.max_seq_length = min(model.max_seq_length or READ_TOKENS, READ_TOKENS)
    return model


def open_encoder(folder: Path) -> Any:
    """An encoder of sentence-transformers, from its own folder or from a plain model's.

    Raises GeneratorError for a folder that it can't load.
    """
    return _opened("SentenceTransformer", folder, "encoder", "a folder of sentence-transformers")


def _in_bfloat16(device: str) -> Any:
    """A context that computes in bfloat16 where that is fast, else changes nothing; it halves the
    time of an encoder or better. Weights must not change inside: they are converted once.
    """
    import torch

    kind = device.partition(":")[0]
    return (
        torch.autocast(kind, torch.bfloat16) if has_bfloat16(device) else contextlib.nullcontext()
    )


def _encoded(model: Any, texts: Sequence[str], side: str, **options: Any) -> Any:
    with _in_bfloat16(model.device.type):
        encode = getattr(model, f"encode_{side}")
        return encode(clean(texts), show_progress_bar=False, **options)


def encode(model: Any, texts: Sequence[str], side: str) -> Vectors:
    """Vectors of length 1, (texts, dimensions). `side` is "query" or "document"."""
    options = {"batch_size": _AT_ONCE, "normalize_embeddings": True}
    return np.asarray(_encoded(model, texts, side, **options), np.float32)


class Embeddings(Trained):
    """An encoder without training on these data, and the base of those with: Qwen3-Embedding,
    MiniLM or any other of sentence-transformers.
    """

    family: Family = "dense"
    seeded = False
    usual = "Qwen/Qwen3-Embedding-4B"
    open = staticmethod(open_encoder)
    encode = staticmethod(encode)

    def train(self, task: Task, model: Any, params: Params) -> None:
        """Train the model in place; this one is not trained."""

    def search(self, ids: Sequence[str], matrix: Any, row: Any, depth: int) -> Hits:
        """The best items by the product with a query's row."""
        return best(ids, matrix @ row, depth)

    def bytes_an_item(self, matrix: Any) -> float:
        """Of float32, all of them."""
        return 4.0 * int(matrix.shape[1])

    def _trained(self, task: Task, params: Params, folder: Path) -> Fitted:
        items, model = in_id_order(task.dataset.items), self.open(folder)
        ids = [item.id for item in items]
        self.train(task, model, params)
        matrix = self.encode(model, [task.text(item) for item in items], "document")

        def read(queries: Sequence[Query]) -> list[Any]:
            return list(self.encode(model, [query.text for query in queries], "query"))

        return Fitted(partial(self.search, ids, matrix), self.bytes_an_item(matrix), read)


class DPR(Embeddings):
    """Contrastive training with BM25 negatives."""

    seeded = True
    usual = "google-bert/bert-base-multilingual-uncased"
    steps = 300
    loops = 0
    grid = rates(5e-5, 2e-4, batch=32, negatives=1)
    fresh = rates(1e-3, 3e-3, batch=32, negatives=1)

    def train(self, task: Task, model: Any, params: Params) -> None:
        """Train with BM25 negatives, and then in loops with those of the previous index."""
        steps = max(1, (task.steps or self.steps) // (self.loops + 1))
        negatives = bm25_negatives(task, params["negatives"])
        for loop in range(self.loops + 1):
            if loop:
                negatives = mined_negatives(model, task, params["negatives"])
            rows = examples(task, negatives)
            train_pairs(task, model, self.loss(model, params), rows, params, steps)

    def loss(self, model: Any, params: Params) -> Any:  # noqa: ARG002
        """InfoNCE over a batch and its hard negatives, by cosine and a temperature of 0.05;
        gradients are cached (Gao et al. 2021).
        """
        from sentence_transformers.sentence_transformer import losses

        return losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=_AT_ONCE)


class ANCE(DPR):
    """DPR, and then loops with negatives from the index of the previous loop; each has the same
    number of steps.
    """

    usual = "FacebookAI/roberta-base"
    loops = 2


class Splade(DPR):
    """SPLADE v2, trained on the labels."""

    family: Family = "sparse"
    usual = "naver/splade_v2_max"
    grid = rates(2e-5, 1e-4, document=3e-5, query=5e-5, batch=32, negatives=1)
    fresh = rates(1e-3, 3e-3, document=3e-5, query=5e-5, batch=32, negatives=1)

    @staticmethod
    def open(folder: Path) -> Any:
        """A SparseEncoder from its own folder or from a masked language model's.

        Raises GeneratorError for another kind of model.
        """
        config = read_json(folder / "config.json", f"The model folder {folder}")
        if not any(name.endswith("ForMaskedLM") for name in config.get("architectures") or []):
            raise GeneratorError(
                f"{folder} is not a masked language model, which SPLADE needs; name one such as "
                f"{Splade.usual}."
            )
        return _opened("SparseEncoder", folder, "sparse encoder", "another")

    @staticmethod
    def encode(model: Any, texts: Sequence[str], side: str) -> Any:
        """Weights of words, a sparse matrix of float32 (texts, vocabulary). `side` is "query" or
        "document".
        """
        from scipy import sparse

        options = {"batch_size": _LOGITS_AT_ONCE, "convert_to_sparse_tensor": True}
        found = _encoded(model, texts, side, **options).float().cpu().coalesce()
        rows, columns = found.indices().numpy()
        return sparse.csr_matrix((found.values().numpy(), (rows, columns)), shape=found.shape)

    def loss(self, model: Any, params: Params) -> Any:
        """In-batch negatives and the penalty; gradients are cached."""
        from sentence_transformers.sparse_encoder import losses

        return losses.CachedSpladeLoss(
            model,
            losses.SparseMultipleNegativesRankingLoss(model),
            document_regularizer_weight=params["document"],
            query_regularizer_weight=params["query"],
            mini_batch_size=_LOGITS_AT_ONCE,
        )

    def search(self, ids: Sequence[str], matrix: Any, row: Any, depth: int) -> Hits:
        """The best items that share a word with the query."""
        scores = np.asarray((matrix @ row.T).todense(), np.float32).ravel()
        return [pair for pair in best(ids, scores, depth) if pair[1] > 0]

    def bytes_an_item(self, matrix: Any) -> float:
        """A posting has a number and a weight."""
        return 8.0 * int(matrix.nnz) / int(matrix.shape[0])


# Pairs and negatives


def cut_texts(task: Task) -> list[str]:
    """The items' texts, cut to what training reads."""
    return clean([text[: 8 * TRAIN_TOKENS] for text in task.texts])


def bm25_negatives(task: Task, most: int) -> list[list[int]]:
    """For each query `most` items that BM25 finds and that are not relevant, drawn from its first
    hundred; random ones where it finds too few (DPR, Karpukhin et al. 2020).
    """
    draw, lexical, found = random.Random(task.seed), Lexical(task.dataset.items), []
    for query, relevant in zip(task.train, task.relevant, strict=True):
        ranked = [task.number[id_] for id_, _ in lexical.rank(query.text, _NEGATIVES_FROM)]
        wrong = [at for at in ranked if at not in relevant]
        others = [at for at in range(len(task.texts)) if at not in relevant]
        pool = wrong if len(wrong) >= most else others
        found.append(draw.sample(pool, min(most, len(pool))))
    return found


def mined_negatives(model: Any, task: Task, most: int) -> list[list[int]]:
    """For each query the nearest items of the model's present index that are not relevant."""
    from datasets import Dataset
    from sentence_transformers.util import mine_hard_negatives

    texts = cut_texts(task)
    number = {text: at for at, text in enumerate(texts)}
    asked = {query.text: at for at, query in enumerate(task.train)}
    pairs = [
        {"query": query.text, "positive": texts[item]}
        for query, relevant in zip(task.train, task.relevant, strict=True)
        for item in sorted(relevant)
    ]
    with contextlib.redirect_stderr(io.StringIO()):  # Its progress can't be switched off.
        mined = mine_hard_negatives(
            Dataset.from_list(pairs),
            model,
            corpus=texts,
            num_negatives=most,
            query_prompt_name="query" if "query" in model.prompts else None,
            output_format="n-tuple",
            verbose=False,
        )
    found: list[list[int]] = [[] for _ in task.train]
    for row in mined:
        wrong = [number[text] for name, text in row.items() if name.startswith("negative")]
        found[asked[row["query"]]] = wrong
    return found


def examples(task: Task, negatives: Sequence[Sequence[int]]) -> Any:
    """The data set of a trainer: query, positive, negatives.

    At most 32 relevant items of a query are drawn; a query with fewer negatives than another one is
    left out.
    """
    from datasets import Dataset

    draw, width = random.Random(task.seed), max(map(len, negatives), default=0)
    rows, items = [], cut_texts(task)
    for query, relevant, wrong in zip(task.train, task.relevant, negatives, strict=True):
        if len(wrong) < width:
            continue
        texts = {f"negative_{n}": items[at] for n, at in enumerate(wrong)}
        for item in draw.sample(sorted(relevant), min(_PAIRS_A_QUERY, len(relevant))):
            rows.append({"query": query.text, "positive": items[item], **texts})
    return Dataset.from_list(rows)


def train_pairs(task: Task, model: Any, loss: Any, rows: Any, params: Params, steps: int) -> None:
    """Train a SparseEncoder or a SentenceTransformer on examples."""
    import sentence_transformers as st
    from transformers import set_seed

    kind = "SparseEncoder" if isinstance(model, st.SparseEncoder) else "SentenceTransformer"
    set_seed(task.seed)
    query, model.model_card_data.generate_widget_examples = model.prompts.get("query"), False
    args = getattr(st, f"{kind}TrainingArguments")(
        **arguments(task, params, steps),
        per_device_train_batch_size=min(int(params["batch"]), len(rows)),
        batch_sampler="no_duplicates",
        prompts={"query": query} if query else None,
    )
    reads, model.max_seq_length = model.max_seq_length, min(TRAIN_TOKENS, model.max_seq_length)
    trainer = getattr(st, f"{kind}Trainer")(model=model, args=args, train_dataset=rows, loss=loss)
    run(trainer, task)
    model.max_seq_length = reads
