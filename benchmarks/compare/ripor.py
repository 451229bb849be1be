"""RIPOR (Zeng et al. 2023): generative retrieval whose prefixes rank.

A dense encoder, that of the T5, is trained as `dpr` is. K-means of its item vectors, and then of
what each level leaves over, give an item its code at every level. The T5 decodes the codes: the
score of a prefix is the sum of h_i · E_i[code_i], h the decoder's states, E tables that begin as
the centroids. It learns text -> codes by cross entropy, and then, for a query, a relevant item and
a wrong one, the encoder's margin between them at every prefix (the paper's section 3.3). The paper
takes the margins from a cross-encoder, and has more and longer stages.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.compare import Fitted, Params, Task
from benchmarks.compare.dense import DPR, cut_texts, encode, mined_negatives, open_encoder
from benchmarks.compare.dsi import BEAMS, READ, Writer, open_writer, pairs_of
from benchmarks.compare.trained import arguments, clean, rates, run
from cogr.datasets.items import in_id_order
from cogr.records import Query

LEVELS, MAX_CODES = 4, 256
_BETA = 0.5
"""How fast the weight of a prefix grows with its length."""
_SCALE, _STEPS = 20.0, 300
"""The first makes margins of cosines margins of scores."""


def quantised(vectors: NDArray[np.float32], seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Codes of the items, (items, levels), and the centroids, (levels, codes, dimensions)."""
    from sklearn.cluster import KMeans

    many, codes, tables = max(2, min(MAX_CODES, len(vectors) // 8)), [], []
    for _ in range(LEVELS):
        found = KMeans(many, n_init=1, random_state=seed).fit(vectors)
        codes.append(found.labels_)
        tables.append(found.cluster_centers_)
        vectors = vectors - found.cluster_centers_[found.labels_]
    return np.stack(codes, 1).astype(np.int64), np.stack(tables).astype(np.float32)


def _states(model: Any, read: Any, codes: Any) -> Any:
    """The decoder's states after the start and each code, (texts, codes + 1, dimensions)."""
    import torch

    first = model.get_input_embeddings().weight[model.config.decoder_start_token_id]
    embedded = model.codes[torch.arange(codes.shape[1], device=codes.device), codes]
    inputs = torch.cat([first.expand(len(codes), 1, -1), embedded], 1)
    out = model(**read, decoder_inputs_embeds=inputs, output_hidden_states=True)
    return out.decoder_hidden_states[-1]


def _logits(model: Any, read: Any, codes: Any) -> Any:
    """Of every code at every level, (texts, levels, codes)."""
    import torch

    return torch.einsum("bld,lcd->blc", _states(model, read, codes[:, :-1]), model.codes)


def prefix_scores(model: Any, read: Any, codes: Any) -> Any:
    """The score of every prefix of codes (texts, levels), (texts, levels)."""
    return _logits(model, read, codes).gather(2, codes[:, :, None])[:, :, 0].cumsum(1)


def margin_loss(good: Any, wrong: Any, margin: Any) -> Any:
    """Mean squared error of the margins at every prefix, (texts, levels), to the teacher's, times
    (1 - β / i) / (1 - β / L) for a prefix of i of L levels.
    """
    import torch

    lengths = torch.arange(1, good.shape[1] + 1, device=good.device)
    weights = (1 - _BETA / lengths) / (1 - _BETA / good.shape[1])
    return ((good - wrong - margin[:, None] * weights) ** 2).mean()


class RIPOR(Writer):
    """Residual-quantised identifiers and a prefix-oriented ranking loss."""

    grid = rates(1e-4, 5e-4, batch=32, negatives=4)
    fresh = rates(1e-3, batch=32, negatives=4)

    def _trained(self, task: Task, params: Params, folder: Path) -> Fitted:
        import torch

        items = in_id_order(task.dataset.items)
        texts, teacher = [task.text(item) for item in items], open_encoder(folder)
        steps = task.steps or _STEPS
        DPR().train(task, teacher, {**params, "negatives": 1})
        codes, tables = quantised(encode(teacher, texts, "document"), task.seed)
        model, tokenizer = open_writer(folder)
        model.codes = torch.nn.Parameter(torch.tensor(tables))
        code = {item.id: row for item, row in zip(items, codes.tolist(), strict=True)}
        rows: list[Any] = [
            (text, code[id_]) for text, id_ in pairs_of(task, items, [[t] for t in texts])
        ]
        _train(task, (model, tokenizer), rows, params, steps)
        rows = _triples(task, teacher, params["negatives"], code)
        _train(task, (model, tokenizer), rows, params, steps)
        owners = defaultdict(list)
        for id_, path in code.items():
            owners[tuple(path)].append(id_)

        return Fitted(partial(decoded, model.eval(), tokenizer, owners), float(LEVELS))


def _triples(task: Task, teacher: Any, most: int, code: Any) -> list[Any]:
    """(query, codes of a relevant item, codes of a wrong one, the teacher's margin)."""
    ids = [item.id for item in task.dataset.items]
    asked = encode(teacher, [query.text for query in task.train], "query")
    scores = _SCALE * (asked @ encode(teacher, cut_texts(task), "document").T)
    mined = mined_negatives(teacher, task, most)
    return [
        (query.text, code[ids[one]], code[ids[other]], float(scores[at, one] - scores[at, other]))
        for at, query in enumerate(task.train)
        for one in sorted(task.relevant[at])
        for other in mined[at]
    ]


def _train(task: Task, writer: Any, rows: Sequence[Any], params: Params, steps: int) -> None:
    """By cross entropy for rows (text, codes), by margins for rows with two items."""
    import torch
    from transformers import Trainer, TrainingArguments, set_seed

    set_seed(task.seed)

    def collated(batch: Sequence[Any]) -> dict[str, Any]:
        texts, *columns = zip(*batch, strict=True)
        named = zip(("codes", "wrong", "margin"), columns, strict=False)
        more = {name: torch.tensor(column) for name, column in named}
        return {"read": _read(writer[1], texts), **more}

    class Learner(Trainer):  # type: ignore[misc]
        def compute_loss(self, model: Any, inputs: Any, **_: Any) -> Any:
            read, codes = inputs["read"], inputs["codes"]
            if "wrong" not in inputs:
                logits = _logits(model, read, codes)
                return torch.nn.functional.cross_entropy(logits.flatten(0, 1), codes.flatten())
            good, wrong = (prefix_scores(model, read, inputs[n]) for n in ("codes", "wrong"))
            return margin_loss(good, wrong, inputs["margin"])

    named = arguments(task, params, steps) | {"remove_unused_columns": False}
    args = TrainingArguments(**named, per_device_train_batch_size=int(params["batch"]))
    learner = Learner(model=writer[0], args=args, train_dataset=rows, data_collator=collated)
    run(learner, task)


def _read(tokenizer: Any, texts: Sequence[str]) -> dict[str, Any]:
    options = {"truncation": True, "max_length": READ, "padding": True, "return_tensors": "pt"}
    read = tokenizer(clean(texts), **options)
    return {name: read[name] for name in ("input_ids", "attention_mask")}


def decoded(
    model: Any, tokenizer: Any, owners: Any, query: Query, depth: int
) -> list[tuple[str, float]]:
    """Items by the score of their codes, in a beam search along the codes that items have."""
    import torch

    asked, beams = _read(tokenizer, [query.text]), {(): 0.0}
    with torch.no_grad():
        for level in range(LEVELS):
            paths = list(beams)
            codes = torch.tensor(paths, dtype=torch.long, device=model.device)
            read = {k: v.expand(len(paths), -1).to(model.device) for k, v in asked.items()}
            states = _states(model, read, codes.reshape(len(paths), level))[:, -1]
            scores = dict(zip(paths, (states @ model.codes[level].T).tolist(), strict=True))
            grown = {
                path[: level + 1]: beams[path[:level]] + scores[path[:level]][path[level]]
                for path in owners
                if path[:level] in beams
            }
            beams = dict(sorted(grown.items(), key=lambda one: (-one[1], one[0]))[:BEAMS])
    found = [(id_, score) for path, score in beams.items() for id_ in owners[path]]
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))[:depth]
