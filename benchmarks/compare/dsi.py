"""Generative retrieval: a sequence model writes the identifier of an item.

`dsi` (Tay et al. 2022) learns text -> identifier and training query -> identifier; `dsi-qg` (Zhuang
et al. 2022) replaces the item's text by queries that a generator writes for it, so that training
and serving read the same kind of text. Identifiers are paths in a tree of k-means clusters, and
decoding follows a trie of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.compare import Fitted, Params, Task
from benchmarks.compare.keyword import fitted_generator, item_keywords
from benchmarks.compare.trained import Trained, arguments, clean, loading, rates, run
from cogr.datasets.items import in_id_order
from cogr.records import Item, Query

USUAL = "google/mt5-base"
BRANCHES = 10
"""Number of clusters at each level, and most items of a leaf, so that each step of an identifier is
one digit.
"""
READ = 64
"""Most tokens of a text that are read: the first words of an item, as in DSI."""
BEAMS = 100
"""Beams of the search, and so the length of rankings; more are too slow."""
_DIMENSIONS = 64
_QUERIES_AN_ITEM = 10
_STEPS = 1000

Identifier = tuple[int, ...]


# Identifiers


def identifiers(items: Sequence[Item], texts: Sequence[str], seed: int) -> dict[str, Identifier]:
    """Item id -> digits, by hierarchical k-means over latent semantic analysis of the texts.

    Similar items share a prefix of their identifiers (Tay et al. 2022, section 3.2). No identifier
    is a prefix of another.
    """
    paths = _paths(_points(texts, seed), seed)
    return {item.id: path for item, path in zip(items, paths, strict=True)}


def _points(texts: Sequence[str], seed: int) -> NDArray[np.float32]:
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.preprocessing import normalize

    words = TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\S+").fit_transform(
        [text or "-" for text in texts]
    )
    size = min(_DIMENSIONS, min(words.shape) - 1)
    if size < 1:
        return np.ones((len(texts), 1), np.float32)
    return np.asarray(normalize(TruncatedSVD(size, random_state=seed).fit_transform(words)))


def _paths(points: NDArray[np.float32], seed: int) -> list[Identifier]:
    from sklearn.cluster import KMeans

    many = len(points)
    if many <= BRANCHES:
        return [(digit,) for digit in range(many)]
    labels = np.arange(many) * BRANCHES // many
    if len(np.unique(points, axis=0)) >= BRANCHES:
        found = KMeans(BRANCHES, n_init=1, random_state=seed).fit_predict(points)
        labels = found if len(np.unique(found)) > 1 else labels
    paths: list[Identifier] = [()] * many
    for digit, label in enumerate(np.unique(labels).tolist()):
        among = np.flatnonzero(labels == label)
        for at, rest in zip(among.tolist(), _paths(points[among], seed), strict=True):
            paths[at] = (digit, *rest)
    return paths


class Trie:
    """The identifiers as tokens: the tokens that may follow a prefix. `digits` has the token of
    each digit.
    """

    def __init__(self, paths: Mapping[str, Identifier], digits: Sequence[int], end: int) -> None:
        self.end = end
        self.tokens = {id_: (*(digits[d] for d in path), end) for id_, path in paths.items()}
        self.item = {tokens: id_ for id_, tokens in self.tokens.items()}
        self._next: dict[tuple[int, ...], set[int]] = {}
        for tokens in self.tokens.values():
            for at, token in enumerate(tokens):
                self._next.setdefault(tokens[:at], set()).add(token)

    def after(self, written: tuple[int, ...]) -> list[int]:
        """Tokens that may follow; the end token after a whole identifier."""
        return sorted(self._next.get(written, {self.end}))


# The model


def open_writer(folder: Path) -> tuple[Any, Any]:
    """A T5 of any kind and its tokenizer. Raises GeneratorError for another folder."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    with loading("sequence model", folder, f"another, such as {USUAL}"):
        model = AutoModelForSeq2SeqLM.from_pretrained(str(folder), use_safetensors=True)
        return model, AutoTokenizer.from_pretrained(str(folder))


class Writer(Trained):
    """What writers of identifiers have in common: a T5 of any kind."""

    family = "generative"
    usual = USUAL
    architecture = "mt5"


class DSI(Writer):
    """Texts of items and training queries -> identifiers."""

    grid = rates(5e-4, 1e-3, batch=32)
    fresh = rates(2e-3, 5e-3, batch=32)

    def readings(self, task: Task, items: Sequence[Item]) -> list[list[str]]:
        """For each item the texts by which it is learned."""
        return [[task.text(item)] for item in items]

    def _trained(self, task: Task, params: Params, folder: Path) -> Fitted:
        from transformers import set_seed

        set_seed(task.seed)
        items, (model, tokenizer) = in_id_order(task.dataset.items), open_writer(folder)
        paths = identifiers(items, [task.text(item) for item in items], task.seed)
        read = tokenizer([*map(str, range(BRANCHES))], add_special_tokens=False)
        trie = Trie(paths, [ids[-1] for ids in read.input_ids], tokenizer.eos_token_id)
        rows = _rows(pairs_of(task, items, self.readings(task, items)), tokenizer, trie)
        _train(task, model, tokenizer, rows, params)

        search = partial(written, model.eval(), tokenizer, trie)
        # The index is the model; an identifier is kept beside it.
        return Fitted(search, float(np.mean([len(tokens) - 1 for tokens in trie.item])))


class DSIQG(DSI):
    """The same with generated queries in place of the item's text."""

    def readings(self, task: Task, items: Sequence[Item]) -> list[list[str]]:
        """Keywords of our item generator are the queries; the title where it has none."""
        keywords = item_keywords(fitted_generator(task), task.dataset.items)
        return [keywords[task.number[item.id]][:_QUERIES_AN_ITEM] or [item.title] for item in items]


def pairs_of(
    task: Task, items: Sequence[Item], readings: Sequence[Sequence[str]]
) -> list[tuple[str, str]]:
    """Text -> item id: indexing and retrieval, learned together."""
    each = zip(items, readings, strict=True)
    found = [(text, item.id) for item, texts in each for text in texts]
    for query in task.train:
        found += [(query.text, id_) for id_ in sorted(task.dataset.relevant[query.id])]
    return found


def written(
    model: Any, tokenizer: Any, trie: Trie, query: Query, depth: int
) -> list[tuple[str, float]]:
    """Items by the log-probability of the identifier, in a beam search along the trie."""
    import torch

    many = min(depth, BEAMS, len(trie.tokens))
    read = tokenizer(clean([query.text]), truncation=True, max_length=READ, return_tensors="pt")
    with torch.no_grad():
        out = model.generate(
            input_ids=read["input_ids"].to(model.device),
            attention_mask=read["attention_mask"].to(model.device),
            num_beams=max(2, many),
            num_return_sequences=many,
            max_new_tokens=max(map(len, trie.item)),
            length_penalty=0.0,
            prefix_allowed_tokens_fn=lambda _, row: trie.after(tuple(row[1:].tolist())),
            output_scores=True,
            return_dict_in_generate=True,
            do_sample=False,
        )
    found: dict[str, float] = {}
    for row, score in zip(out.sequences.tolist(), out.sequences_scores.tolist(), strict=True):
        tokens = tuple(row[1:])
        tokens = tokens[: tokens.index(trie.end) + 1] if trie.end in tokens else tokens
        if tokens in trie.item and np.isfinite(score):
            found.setdefault(trie.item[tokens], score)
    return sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))


def _rows(pairs: Sequence[tuple[str, str]], tokenizer: Any, trie: Trie) -> Any:
    from datasets import Dataset

    texts = tokenizer(clean([text for text, _ in pairs]), truncation=True, max_length=READ)
    labels = [list(trie.tokens[id_]) for _, id_ in pairs]
    columns = {name: texts[name] for name in ("input_ids", "attention_mask")}
    return Dataset.from_dict({**columns, "labels": labels})


def _train(task: Task, model: Any, tokenizer: Any, rows: Any, params: Params) -> None:
    from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

    args = Seq2SeqTrainingArguments(
        **arguments(task, params, task.steps or _STEPS),
        per_device_train_batch_size=int(params["batch"]),
    )
    collator = DataCollatorForSeq2Seq(tokenizer, model=model)
    trainer = Seq2SeqTrainer(model=model, args=args, train_dataset=rows, data_collator=collator)
    run(trainer, task)
