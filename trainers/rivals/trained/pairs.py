"""Learning from pairs with negatives, as DPR, ANCE and SPLADE do, by sentence-transformers.

A batch holds queries, one relevant item each, and hard negatives; every other item of the batch is
a negative too. No text is in a batch twice.
"""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cogr.records import Query
from trainers.rivals import Params, Task
from trainers.rivals.trained import arguments, clean, run

TRAIN_TOKENS = 128
"""Most tokens of an item that training reads; half as many tokens allow twice as many pairs."""
_LETTERS = 8 * TRAIN_TOKENS
_PAIRS_A_QUERY = 32
_NEGATIVES_FROM = 100


@dataclass(frozen=True)
class Labels:
    """The training labels: the items' texts, cut to what training reads, and for each query the
    numbers of its relevant items.
    """

    queries: Sequence[Query]
    texts: Sequence[str]
    relevant: Sequence[frozenset[int]]

    @classmethod
    def of(cls, task: Task) -> Labels:
        """Of the training split."""
        number = {item.id: at for at, item in enumerate(task.dataset.items)}
        train, relevant = task.dataset.require("train"), task.dataset.relevant
        texts = clean([task.text(item)[:_LETTERS] for item in task.dataset.items])
        wanted = [frozenset(number[id_] for id_ in relevant[query.id]) for query in train]
        return cls(train, texts, wanted)


def bm25_negatives(task: Task, labels: Labels, most: int) -> list[list[int]]:
    """For each query `most` items that BM25 finds and that are not relevant, drawn from its first
    hundred; random ones where it finds too few (DPR, Karpukhin et al. 2020).
    """
    from indexers.text import Lexical

    draw, lexical = random.Random(task.seed), Lexical(task.dataset.items)
    number = {item.id: at for at, item in enumerate(task.dataset.items)}
    found = []
    for query, relevant in zip(labels.queries, labels.relevant, strict=True):
        ranked = [number[item.id] for item, _ in lexical.rank(query.text, _NEGATIVES_FROM)]
        wrong = [at for at in ranked if at not in relevant]
        others = [at for at in range(len(labels.texts)) if at not in relevant]
        pool = wrong if len(wrong) >= most else others
        found.append(draw.sample(pool, min(most, len(pool))))
    return found


def mined_negatives(model: Any, labels: Labels, most: int) -> list[list[int]]:
    """For each query the nearest items of the model's present index that are not relevant."""
    from datasets import Dataset
    from sentence_transformers.util import mine_hard_negatives

    number = {text: at for at, text in enumerate(labels.texts)}
    asked = {query.text: at for at, query in enumerate(labels.queries)}
    pairs = [
        {"query": query.text, "positive": labels.texts[item]}
        for query, relevant in zip(labels.queries, labels.relevant, strict=True)
        for item in sorted(relevant)
    ]
    with contextlib.redirect_stderr(io.StringIO()):  # Its progress can't be switched off.
        mined = mine_hard_negatives(
            Dataset.from_list(pairs),
            model,
            corpus=list(labels.texts),
            num_negatives=most,
            query_prompt_name="query" if "query" in model.prompts else None,
            output_format="n-tuple",
            verbose=False,
        )
    found: list[list[int]] = [[] for _ in labels.queries]
    for row in mined:
        wrong = [number[text] for name, text in row.items() if name.startswith("negative")]
        found[asked[row["query"]]] = wrong
    return found


def examples(labels: Labels, negatives: Sequence[Sequence[int]], seed: int) -> Any:
    """The data set of a trainer: query, positive, negatives.

    At most 32 relevant items of a query are drawn; a query with fewer negatives than another one is
    left out.
    """
    from datasets import Dataset

    draw, width = random.Random(seed), max(map(len, negatives), default=0)
    rows = []
    for query, relevant, wrong in zip(labels.queries, labels.relevant, negatives, strict=True):
        if len(wrong) < width:
            continue
        texts = {f"negative_{n}": labels.texts[at] for n, at in enumerate(wrong)}
        for item in draw.sample(sorted(relevant), min(_PAIRS_A_QUERY, len(relevant))):
            rows.append({"query": query.text, "positive": labels.texts[item], **texts})
    return Dataset.from_list(rows)


def train_pairs(
    folder: Path, task: Task, model: Any, loss: Any, rows: Any, params: Params, steps: int
) -> None:
    """Train a SparseEncoder or a SentenceTransformer on examples."""
    import sentence_transformers as st
    from transformers import set_seed

    kind = "SparseEncoder" if isinstance(model, st.SparseEncoder) else "SentenceTransformer"
    set_seed(task.seed)
    query, model.model_card_data.generate_widget_examples = model.prompts.get("query"), False
    args = getattr(st, f"{kind}TrainingArguments")(
        **arguments(folder, task, params, steps),
        per_device_train_batch_size=min(int(params["batch"]), len(rows)),
        batch_sampler="no_duplicates",
        prompts={"query": query} if query else None,
    )
    reads, model.max_seq_length = model.max_seq_length, min(TRAIN_TOKENS, model.max_seq_length)
    trainer = getattr(st, f"{kind}Trainer")(model=model, args=args, train_dataset=rows, loss=loss)
    run(trainer, task.say, f"{folder.parent.name}, {folder.name}")
    model.max_seq_length = reads
