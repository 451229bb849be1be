"""RIPOR (Zeng et al. 2023): generative retrieval whose prefixes rank.

1. A dense encoder, the encoder of the T5, is trained on the labels as `dpr` is.
2. Its vectors of the items are quantised level by level: k-means of what the levels before leave
   over. An item's identifier is its code at each level.
3. The T5 decodes identifiers. The score of a prefix is the sum of h_i · E_i[code_i] over its
   levels, h the decoder's states and E tables of codes that begin as the centroids. The tables and
   the T5 learn item text -> code by cross entropy.
4. Prefix-oriented ranking: for a query, a relevant item and one that the dense encoder takes for
   relevant, the margin of the two scores at every prefix is regressed on the dense encoder's
   margin, times a weight that grows with the prefix (the paper's section 3.3, MarginMSE).

The paper distils the margins from a cross-encoder, and has more and longer stages.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cogr.records import Query
from trainers.rivals import Fitted, Params, Ranked, Task
from trainers.rivals.trained import Start, arguments, clean, in_order, rates, run
from trainers.rivals.trained.dense import contrast, encode, open_encoder
from trainers.rivals.trained.dsi import BEAMS, READ, Writer, open_writer, pairs_of
from trainers.rivals.trained.pairs import Labels, bm25_negatives, mined_negatives

Codes = NDArray[np.int64]
LEVELS, MOST_CODES = 4, 256
_BETA = 0.5
"""How fast the weight of a prefix grows with its length."""
_SCALE = 20.0
"""Margins of cosines become margins of scores."""
_STEPS = 300


def quantised(vectors: NDArray[np.float32], seed: int) -> tuple[Codes, NDArray[np.float32]]:
    """Codes of the items, (items, levels), and the centroids, (levels, codes, dimensions)."""
    from sklearn.cluster import KMeans

    many = max(2, min(MOST_CODES, len(vectors) // 8))
    left, codes, tables = vectors.copy(), [], []
    for _ in range(LEVELS):
        found = KMeans(many, n_init=1, random_state=seed).fit(left)
        codes.append(found.labels_)
        tables.append(found.cluster_centers_)
        left = left - found.cluster_centers_[found.labels_]
    return np.stack(codes, 1).astype(np.int64), np.stack(tables).astype(np.float32)


def prefix_scores(model: Any, read: Any, codes: Any) -> Any:
    """The score of every prefix, (texts, levels): sums of h_i · E_i[code_i].

    Args:
        read: `input_ids` and `attention_mask` of the texts.
        codes: (texts, levels).
    """
    import torch

    levels = torch.arange(codes.shape[1], device=codes.device)
    embedded = model.codes[levels, codes]
    return (_states(model, read, embedded[:, :-1]) * embedded).sum(-1).cumsum(1)


def _states(model: Any, read: Any, embedded: Any) -> Any:
    """The decoder's states before each code: after the start and the codes so far."""
    import torch

    first = model.get_input_embeddings().weight[model.config.decoder_start_token_id]
    inputs = torch.cat([first.expand(len(embedded), 1, -1), embedded], 1)
    out = model(**read, decoder_inputs_embeds=inputs, output_hidden_states=True)
    return out.decoder_hidden_states[-1]


def indexing_loss(model: Any, read: Any, codes: Any) -> Any:
    """Cross entropy of an item's codes given a text of it."""
    import torch

    levels = torch.arange(codes.shape[1], device=codes.device)
    states = _states(model, read, model.codes[levels, codes][:, :-1])
    logits = torch.einsum("bld,lcd->blc", states, model.codes)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), codes.flatten())


def margin_loss(good: Any, wrong: Any, margin: Any) -> Any:
    """Mean squared error of the margins at every prefix, (texts, levels), to the teacher's margin,
    (texts,), times (1 - β / i) / (1 - β / L) for a prefix of i of L levels.
    """
    import torch

    lengths = torch.arange(1, good.shape[1] + 1, device=good.device)
    weights = (1 - _BETA / lengths) / (1 - _BETA / good.shape[1])
    return ((good - wrong - margin[:, None] * weights) ** 2).mean()


class RIPOR(Writer):
    """Residual-quantised identifiers and a prefix-oriented ranking loss."""

    packages = ("sentence_transformers", "sklearn")
    grid = rates(1e-4, 5e-4, batch=32, negatives=4)
    fresh = rates(1e-3, batch=32, negatives=4)

    def _make(self, folder: Path, task: Task, params: Params, start: Start) -> None:
        import torch

        items = in_order(task.dataset.items)
        texts, teacher = [task.text(item) for item in items], open_encoder(start.folder)
        labels, steps = Labels.of(task), task.steps or _STEPS
        negatives = bm25_negatives(task, labels, 1)
        contrast(folder / "dense", task, teacher, labels, negatives, params, steps)
        codes, tables = quantised(encode(teacher, texts, "document"), task.seed)
        model, tokenizer = open_writer(start.folder)
        model.codes = torch.nn.Parameter(torch.tensor(tables))
        code = {item.id: row for item, row in zip(items, codes.tolist(), strict=True)}
        rows = [(text, code[id_]) for text, id_ in pairs_of(task, items, [[t] for t in texts])]
        _train(folder / "index", task, (model, tokenizer), rows, params, steps)
        rows = _triples(task, teacher, labels, params["negatives"], code)
        _train(folder / "rank", task, (model, tokenizer), rows, params, steps)
        model.save_pretrained(folder / "model", state_dict=_without_codes(model))
        tokenizer.save_pretrained(folder / "model")
        np.savez(folder / "codes.npz", codes=codes, tables=model.codes.detach().numpy())

    def _opened(self, folder: Path, task: Task, start: Start) -> Fitted:  # noqa: ARG002
        import torch

        model, tokenizer = open_writer(folder / "model")
        kept, ids = np.load(folder / "codes.npz"), [i.id for i in in_order(task.dataset.items)]
        model.codes = torch.nn.Parameter(torch.tensor(kept["tables"]))
        after = defaultdict(set)
        owners = defaultdict(list)
        for id_, row in zip(ids, kept["codes"].tolist(), strict=True):
            owners[tuple(row)].append(id_)
            for at, code in enumerate(row):
                after[tuple(row[:at])].add(code)

        def rank(queries: Sequence[Query], depth: int) -> Ranked:
            return {q.id: decoded(model.eval(), tokenizer, q.text, after, owners, depth)
                    for q in queries}  # fmt: skip

        return Fitted(rank, float(LEVELS))


def _without_codes(model: Any) -> Any:
    return {name: value for name, value in model.state_dict().items() if name != "codes"}


def _triples(task: Task, teacher: Any, labels: Labels, most: int, code: Any) -> list[Any]:
    """(query, codes of a relevant item, codes of a wrong one, the teacher's margin)."""
    ids = [item.id for item in task.dataset.items]
    vectors = encode(teacher, labels.texts, "document")
    asked = encode(teacher, [query.text for query in labels.queries], "query")
    mined = mined_negatives(teacher, labels, most)
    rows = []
    for query, vector, good, wrong in zip(
        labels.queries, asked, labels.relevant, mined, strict=True
    ):
        scores = _SCALE * (vectors @ vector)
        rows += [
            (query.text, code[ids[one]], code[ids[other]], float(scores[one] - scores[other]))
            for one in sorted(good)
            for other in wrong
        ]
    random.Random(task.seed).shuffle(rows)
    return rows


def _train(
    folder: Path, task: Task, writer: Any, rows: Sequence[Any], params: Params, steps: int
) -> None:
    """By cross entropy for rows (text, codes), by margins for rows with two items."""
    import torch
    from transformers import Trainer, TrainingArguments, set_seed

    model, tokenizer = writer
    set_seed(task.seed)

    def collated(batch: Sequence[Any]) -> dict[str, Any]:
        texts, *columns = zip(*batch, strict=True)
        options = {"truncation": True, "max_length": READ, "padding": True, "return_tensors": "pt"}
        read = tokenizer(clean(texts), **options)
        named = zip(("codes", "wrong", "margin"), columns, strict=False)
        more = {name: torch.tensor(column) for name, column in named}
        return {"read": {k: read[k] for k in ("input_ids", "attention_mask")}, **more}

    class Learner(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, **_: Any) -> Any:
            read, codes = inputs["read"], inputs["codes"]
            if "wrong" not in inputs:
                return indexing_loss(model, read, codes)
            good, wrong = (prefix_scores(model, read, inputs[n]) for n in ("codes", "wrong"))
            return margin_loss(good, wrong, inputs["margin"])

    args = TrainingArguments(
        **arguments(folder, task, params, steps),
        per_device_train_batch_size=int(params["batch"]),
        remove_unused_columns=False,
    )
    learner = Learner(model=model, args=args, train_dataset=list(rows), data_collator=collated)
    run(learner, task.say, f"{folder.parent.name}, {folder.name}")


def decoded(
    model: Any, tokenizer: Any, text: str, after: Any, owners: Any, depth: int
) -> list[tuple[str, float]]:
    """Items by the score of their codes, in a beam search along the codes that items have."""
    import torch

    options = {"truncation": True, "max_length": READ, "return_tensors": "pt"}
    asked = {k: v.to(model.device) for k, v in tokenizer(clean([text]), **options).items()}
    beams: list[tuple[tuple[int, ...], float]] = [((), 0.0)]
    with torch.no_grad():
        for level in range(LEVELS):
            codes = torch.tensor([path for path, _ in beams], dtype=torch.long)
            embedded = model.codes[torch.arange(level), codes.reshape(len(beams), level)]
            read = {k: asked[k].expand(len(beams), -1) for k in ("input_ids", "attention_mask")}
            states = _states(model, read, embedded.to(model.device))[:, -1]
            scores = (states @ model.codes[level].T).tolist()
            grown = [
                ((*path, code), score + row[code])
                for (path, score), row in zip(beams, scores, strict=True)
                for code in after[path]
            ]
            beams = sorted(grown, key=lambda one: (-one[1], one[0]))[:BEAMS]
    found = [(id_, score) for path, score in beams for id_ in owners[path]]
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))[:depth]
