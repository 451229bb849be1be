"""Generative retrieval: a sequence model writes the identifier of an item.

`dsi` (Tay et al. 2022) learns text -> identifier and training query -> identifier; `dsi-qg` (Zhuang
et al. 2022) replaces the item's text by queries that a generator writes for it, so that training
and serving read the same kind of text. Identifiers are paths in a tree of k-means clusters, and
decoding follows a trie of them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cogr.errors import GeneratorError
from cogr.records import Item, Query
from indexers.generators.model_folders import first_line, has_bfloat16
from trainers.rivals import Cost, Family, NotRunError, Task
from trainers.rivals.keyword import fitted_generator, item_keywords
from trainers.rivals.measuring import Scored
from trainers.rivals.trained import (
    ON_ITS_OWN,
    TINY,
    Clock,
    FitFolder,
    Start,
    as_callback,
    clean,
    decaying,
    in_order,
    measured,
    need_training,
    quiet,
    start_of,
)
from trainers.training.trainer_config import silence

_USUAL = "google/mt5-base"
_KINDS = ("t5", "mt5", "umt5")
BRANCHES = 10
"""Clusters of a cluster, and items of a leaf: each step of an identifier is one digit."""
_DIMENSIONS = 64
_READ = 64
"""Tokens of a text that are read: the first words of an item, as in DSI."""
_QUERIES_AN_ITEM = 10
_BEAMS = 100
"""Identifiers that a beam search keeps: more is too slow, so rankings are no longer."""

Identifier = tuple[int, ...]


# Identifiers


def identifiers(items: Sequence[Item], texts: Sequence[str], seed: int) -> dict[str, Identifier]:
    """Item id -> digits, by hierarchical k-means over latent semantic analysis of the texts.

    Neighbours share the beginning of their identifiers (Tay et al. 2022, section 3.2). No
    identifier is the beginning of another one.
    """
    found: dict[str, Identifier] = {}
    _cluster(_points(texts, seed), np.arange(len(items)), (), found, [i.id for i in items], seed)
    return found


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


def _cluster(
    points: NDArray[np.float32],
    among: NDArray[np.int64],
    path: Identifier,
    found: dict[str, Identifier],
    ids: Sequence[str],
    seed: int,
) -> None:
    if len(among) <= BRANCHES:
        found.update({ids[at]: (*path, digit) for digit, at in enumerate(among.tolist())})
        return
    groups = _parts(points[among], seed)
    for digit, group in enumerate(groups):
        _cluster(points, among[group], (*path, digit), found, ids, seed)


def _parts(points: NDArray[np.float32], seed: int) -> list[NDArray[np.int64]]:
    """The members of each cluster; equal parts where the points are not told apart."""
    from sklearn.cluster import KMeans

    if len(np.unique(points, axis=0)) >= BRANCHES:
        label = KMeans(BRANCHES, n_init=1, random_state=seed).fit_predict(points)
        groups = [np.flatnonzero(label == number) for number in range(BRANCHES)]
        if max(map(len, groups)) < len(points):
            return [group for group in groups if len(group)]
    return [part for part in np.array_split(np.arange(len(points)), BRANCHES) if len(part)]


class Trie:
    """The identifiers as tokens: what may follow a beginning.

    Args:
        paths: item id -> digits.
        digits: the token of each digit.
        end: the token that ends an identifier.
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
        """Tokens that may follow; the end where there is nothing to follow."""
        return sorted(self._next.get(written, {self.end}))


def digits_of(tokenizer: Any) -> list[int]:
    """The token of each digit. Raises GeneratorError where two digits share one."""
    found = [
        tokenizer(str(digit), add_special_tokens=False).input_ids[-1] for digit in range(BRANCHES)
    ]
    if len(set(found)) < BRANCHES:
        raise GeneratorError(
            f"The tokenizer of {tokenizer.name_or_path} has no token for each digit, which "
            "identifiers are written in; name another model in compare.models."
        )
    return found


# The model


def open_writer(folder: Path) -> tuple[Any, Any]:
    """A T5 of any kind and its tokenizer. Raises GeneratorError for another folder."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    quiet()
    try:
        model = AutoModelForSeq2SeqLM.from_pretrained(str(folder), use_safetensors=True)
        return model, AutoTokenizer.from_pretrained(str(folder))
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise GeneratorError(
            f"The sequence model in {folder} can't be loaded ({first_line(error)}); name another, "
            f"such as {_USUAL}."
        ) from error


@dataclass
class Writer:
    """A model that writes identifiers.

    Attributes:
        paths: item id -> digits.
        beams: identifiers that are followed at once, and the longest ranking.
    """

    folder: Path
    paths: Mapping[str, Identifier]
    spent: Cost
    said: str
    beams: int = _BEAMS
    _open: tuple[Any, Any, Trie] | None = None

    def rank(self, queries: Sequence[Query], depth: int) -> Scored:
        """By the log-probability of the identifier, in a beam search along the trie."""
        if self._open is None:
            model, tokenizer = open_writer(self.folder)
            trie = Trie(self.paths, digits_of(tokenizer), tokenizer.eos_token_id)
            self._open = model.eval(), tokenizer, trie
        return {query.id: self._ranked(query.text, depth) for query in queries}

    def _ranked(self, text: str, depth: int) -> list[tuple[str, float]]:
        import torch

        assert self._open is not None
        model, tokenizer, trie = self._open
        many = min(depth, self.beams, len(self.paths))
        inputs = tokenizer(
            clean([text]), truncation=True, max_length=_READ, return_tensors="pt"
        ).to(model.device)
        with torch.no_grad():
            out = model.generate(
                input_ids=inputs["input_ids"],
                attention_mask=inputs["attention_mask"],
                num_beams=max(2, many),
                num_return_sequences=many,
                max_new_tokens=1 + max(map(len, self.paths.values())),
                length_penalty=0.0,
                prefix_allowed_tokens_fn=lambda _, row: trie.after(tuple(row[1:].tolist())),
                output_scores=True,
                return_dict_in_generate=True,
                do_sample=False,
            )
        found: dict[str, float] = {}
        for row, score in zip(out.sequences.tolist(), out.sequences_scores.tolist(), strict=True):
            written = tuple(row[1:])
            written = written[: written.index(trie.end) + 1] if trie.end in written else written
            if written in trie.item and np.isfinite(score):
                found.setdefault(trie.item[written], score)
        return sorted(found.items(), key=lambda pair: (-pair[1], pair[0]))

    def sets(self, queries: Sequence[Query]) -> None:
        """None: a cutoff makes the sets."""

    def cost(self) -> Cost:
        """The index is the model; an identifier is kept beside it."""
        return self.spent


class DSI:
    """Texts of items and training queries -> identifiers."""

    name = "dsi"
    family: Family = "generative"

    def trials(self, task: Task) -> Sequence[Mapping[str, Any]]:
        """Learning rates, each with half of the time; a model of random weights needs larger
        ones.
        """
        fresh = task.settings.compare.models.get(self.name) == TINY
        rates = (2e-3, 5e-3) if fresh else (5e-4, 1e-3)
        return [
            {"learning_rate": rate, "batch": 32, "epochs": 1000, "share": 0.5} for rate in rates
        ]

    def readings(self, task: Task, items: Sequence[Item]) -> list[list[str]]:
        """For each item the texts by which it is learned."""
        return [[task.text(item)] for item in items]

    def fit(self, task: Task, params: Mapping[str, Any]) -> Writer:
        """Learn the identifiers.

        Raises NotRunError without the extra or the weights, GeneratorError for a wrong folder.
        """
        need_training("sklearn")
        start = start_of(task, self.name, _USUAL, "mt5", _KINDS)
        kept = FitFolder.of(task, self.name, params, start)
        items = in_order(task.dataset.items)
        paths = identifiers(items, [task.text(item) for item in items], task.seed)
        if kept.done() is None:
            clock = kept.clock(task.seconds * params.get("share", 1.0))
            size = float(np.mean([len(path) for path in paths.values()]))
            with measured(kept, clock, lambda: size):
                if not kept.model.is_dir():
                    self._train(kept, start, task, params, clock, items, paths)
        cost = kept.done()
        assert cost is not None
        return Writer(kept.model, paths, cost, start.said)

    def _train(
        self,
        kept: FitFolder,
        start: Start,
        task: Task,
        params: Mapping[str, Any],
        clock: Clock,
        items: Sequence[Item],
        paths: Mapping[str, Identifier],
    ) -> None:
        from transformers import set_seed

        set_seed(task.seed)
        model, tokenizer = open_writer(start.folder)
        trie = Trie(paths, digits_of(tokenizer), tokenizer.eos_token_id)
        pairs = self._pairs(task, items)
        rows = _rows(pairs, tokenizer, trie)
        steps = train_writer(kept, task, model, tokenizer, rows, params, clock)
        task.say(f"{self.name}: {steps} steps on {len(rows):,} pairs, {clock.elapsed:.0f} s")

        def write(folder: str) -> None:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)

        kept.save(write)

    def _pairs(self, task: Task, items: Sequence[Item]) -> list[tuple[str, str]]:
        """Text -> item id: indexing and retrieval, learned together."""
        found = [
            (text, item.id)
            for item, texts in zip(items, self.readings(task, items), strict=True)
            for text in texts
        ]
        for query in task.dataset.require("train"):
            found += [(query.text, id_) for id_ in sorted(task.dataset.relevant[query.id])]
        random.Random(task.seed).shuffle(found)
        return found


class DSIQG(DSI):
    """The same with generated queries in place of the item's text."""

    name = "dsi-qg"

    def readings(self, task: Task, items: Sequence[Item]) -> list[list[str]]:
        """Keywords of our item generator are the queries; the title where it has none."""
        generator, _ = fitted_generator(task)
        number = {item.id: at for at, item in enumerate(task.dataset.items)}
        keywords = item_keywords(generator, task.dataset.items)
        return [keywords[number[item.id]][:_QUERIES_AN_ITEM] or [item.title] for item in items]


def _rows(pairs: Sequence[tuple[str, str]], tokenizer: Any, trie: Trie) -> Any:
    from datasets import Dataset

    texts = tokenizer(clean([text for text, _ in pairs]), truncation=True, max_length=_READ)
    return Dataset.from_dict(
        {
            "input_ids": texts["input_ids"],
            "attention_mask": texts["attention_mask"],
            "labels": [list(trie.tokens[id_]) for _, id_ in pairs],
        }
    )


def train_writer(
    kept: FitFolder,
    task: Task,
    model: Any,
    tokenizer: Any,
    rows: Any,
    params: Mapping[str, Any],
    clock: Clock,
) -> int:
    """Cross entropy of identifiers, from the newest checkpoint; returns the steps done."""
    import torch
    from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

    args = Seq2SeqTrainingArguments(
        output_dir=str(kept.folder / "checkpoints"),
        per_device_train_batch_size=int(params["batch"]),
        num_train_epochs=params.get("epochs", 1000),
        max_steps=params.get("steps", -1),
        learning_rate=params["learning_rate"],
        use_cpu=not torch.cuda.is_available(),
        bf16=has_bfloat16("cuda" if torch.cuda.is_available() else "cpu"),
        seed=task.seed,
        **ON_ITS_OWN,
    )
    trainer = decaying(Seq2SeqTrainer, clock, clock.seconds)(
        model=model,
        args=args,
        train_dataset=rows,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        callbacks=[as_callback(kept, clock, clock.seconds)],
    )
    silence(trainer)
    found = kept.checkpoint()
    trainer.train(resume_from_checkpoint=str(found) if found else None)
    return int(trainer.state.global_step)


class Ripor:
    """RIPOR (Zeng et al. 2024): residual-quantised prefix identifiers, a prefix ranking loss."""

    name = "ripor"
    family: Family = "generative"

    def trials(self, task: Task) -> Sequence[Mapping[str, Any]]:  # noqa: ARG002
        """Nothing to choose."""
        return [{}]

    def fit(self, task: Task, params: Mapping[str, Any]) -> Writer:  # noqa: ARG002
        """Raises NotRunError, always."""
        raise NotRunError(
            "what this project has not built: dense pre-training of a T5, identifiers by residual "
            "quantisation of its vectors, and six stages of a prefix ranking loss",
            "run the authors' own code, HansiZeng/RIPOR, on the same split",
        )
