"""The model `tiny`: a Llama of some hundred thousand parameters with a tokenizer trained on the
catalogue.

It knows nothing but what SFT and the rounds teach it: for demos, tests and rehearsals of a whole
run on a CPU.

What the labels say about words: which words of items matter, and which query words they answer
to. No language model.

It stands in for the word knowledge that a pretrained model has: the first keywords and the invented
queries that a model starting from nothing is fine-tuned on. Three plain counts, none of them in the
paper:

- a word of items matters when relevant items of one query share it more often than any two items
  do;
- a query word is translated into such words by expectation maximisation over the training queries
  (Brown et al. 1993, model 1);
- an invented query is two words of different training queries, and its items are those that have a
  translation of both.
"""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from pathlib import Path
from typing import Any

from cogr.records import Dataset, Query
from cogr.settings.training import TinySettings
from indexers.generators.model_folders import without_bars
from indexers.text import Analyser, join_words

PAD, END, WRITE = "<|pad|>", "<|end|>", "<|keywords|>"
HEADS = 4
"""Attention heads: two would see too little, eight are too narrow at this width."""
CONTEXT = 512
"""Tokens of prompt and completion together: a description and its keywords."""
SPREAD = 0.1
"""Standard deviation of the first weights; the usual 0.02 does not learn to copy at this size."""
MOST_TOKENS = 8000
"""Of the tokenizer, bytes included: all words that occur twice, up to here. The output layer is
most of such a model's work, and with four times as many the words are too rare to be learned.
"""
_LONGEST_WORD = 64
# The user's message alone, then a mark of its own: the boundary between prompt and answer is one
# token, never a merge.
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ message['content'] }}{% "
    "endif %}{% endfor %}"
    "{% if add_generation_prompt %}" + WRITE + "{% endif %}"
)


def tiny_model(folder: Path, texts: Iterable[str], settings: TinySettings, seed: int) -> None:
    """Write the untrained model and its tokenizer into a folder; equal arguments give an equal
    model.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tiny_tokenizer(texts)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden,
        intermediate_size=2 * settings.hidden,
        num_hidden_layers=settings.layers,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=SPREAD,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    without_bars()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def tiny_tokenizer(texts: Iterable[str], most: int = MOST_TOKENS) -> Any:
    """Bytes and the catalogue's frequent words, lower-cased: a word is one token, what is rare is
    spelled by the longest that fit.

    Whole words without the merges that lead to them: half the vocabulary of byte-pair encoding for
    the same texts, and the output layer is most of such a small model's work.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    # Looking for the longest piece takes time quadratic in a word's length, so that endless words
    # are cut.
    cut = pre_tokenizers.Split(Regex(f".{{1,{_LONGEST_WORD}}}"), "isolated")
    splitter = pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(add_prefix_space=True), cut])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    words = Counter(
        word
        for text in texts
        for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text))
        if len(word) > 1
    )
    known = [PAD, END, WRITE, *sorted(alphabet)]
    frequent = sorted((-count, word) for word, count in words.items() if count > 1)
    known += [word for _, word in frequent[: max(0, most - len(known))]]
    vocabulary = {token: number for number, token in enumerate(known)}
    tokenizer = Tokenizer(
        models.WordPiece(
            vocabulary,
            unk_token=PAD,
            continuing_subword_prefix="",
            max_input_chars_per_word=_LONGEST_WORD,
        )
    )
    tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.decoder = (
        normalizer,
        splitter,
        decoders.ByteLevel(),
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[WRITE],
        padding_side="left",
        model_max_length=CONTEXT,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def texts_of(dataset: Dataset) -> Iterator[str]:
    """What the tokenizer learns from: every item, and the training queries.

    A word of a test query is not seen.
    """
    for item in dataset.items:
        yield f"{item.title}\n{item.text}"
    for query in dataset.queries.get("train", ()):
        yield query.text


Weights = Mapping[str, float]

_SMOOTHING = 5.0
_LEAST_WEIGHT = 0.25
_EM_STEPS = 15
_CLOSE = 0.3
_FEWEST_ITEMS = 3
_SIBLING_SHARE = 0.6
_SIBLING_CLOSE = 0.08
_TRIES = 40


@dataclass(frozen=True)
class Invented:
    """Invented queries with the items that are taken to be relevant to them."""

    queries: Sequence[Query]
    relevant: Mapping[str, frozenset[str]]


class WordModel:
    """Weights and translations of words, from a data set's training labels.

    Args:
        dataset: items, training queries, labels.
        language: of stop words, by its Snowball name.
    """

    def __init__(self, dataset: Dataset, language: str = "english") -> None:
        self._analyser = Analyser(language)
        self._items = {item.id: self._words(f"{item.title}\n{item.text}") for item in dataset.items}
        train = [query for query in dataset.require("train") if dataset.relevant.get(query.id)]
        self._queries = {query.id: self._words(query.text) for query in train}
        self._relevant = {query.id: dataset.relevant[query.id] for query in train}
        self._df = Counter(word for words in self._items.values() for word in words)
        self.weights = self._weigh()

    def _words(self, text: str) -> list[str]:
        return list(dict.fromkeys(self._analyser.words(text)))

    def _weigh(self) -> dict[str, float]:
        """ln((pairs of co-relevant items that share the word + 5) / (pairs expected by chance +
        5)); above 0.25 it matters.
        """
        shared: Counter[str] = Counter()
        pairs = 0.0
        for ids in self._relevant.values():
            pairs += math.comb(len(ids), 2)
            counts = Counter(word for id_ in ids for word in self._items[id_])
            shared.update({word: math.comb(count, 2) for word, count in counts.items()})
        by_chance = pairs / max(1, math.comb(len(self._items), 2))
        found = {
            word: math.log(
                (shared[word] + _SMOOTHING) / (by_chance * math.comb(df, 2) + _SMOOTHING)
            )
            for word, df in self._df.items()
        }
        return {word: weight for word, weight in found.items() if weight > _LEAST_WEIGHT}

    def keywords(self, item_id: str, budget: int, seed: int = 0) -> tuple[str, ...]:
        """Pairs of an item's words that matter, the heaviest first, spelled with the heavier word
        last: "nordic settee".

        Many a pair is followed by the same said by siblings, so that a model that learns from these
        sets also tries words that an item's own text lacks; which of them are worth keeping is for
        the rewards to say.
        """
        draw = random.Random(f"{seed} {item_id}")
        known = [word for word in self._items[item_id] if word in self.weights]
        said: list[str] = []
        for pair in sorted(
            combinations(known, 2), key=lambda pair: -self.weights[pair[0]] - self.weights[pair[1]]
        ):
            said.append(self._spell(pair))
            if draw.random() < _SIBLING_SHARE:
                said.append(self._spell(self._sibling(word, draw) for word in pair))
        return tuple(dict.fromkeys(said))[:budget]

    def _sibling(self, word: str, draw: random.Random) -> str:
        """One of the words that stand for the same as this one, which may be itself."""
        siblings = self._siblings.get(word)
        return draw.choices(list(siblings), list(siblings.values()))[0] if siblings else word

    @cached_property
    def _siblings(self) -> Mapping[str, Weights]:
        """Word of items -> words that the same query words stand for, at least half as often as for
        itself; with how often.
        """
        found: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for row in self.translations.values():
            best = max(row.values(), default=1.0)
            close = {to: share for to, share in row.items() if share >= _SIBLING_CLOSE * best}
            for one, other in product(close, repeat=2):
                found[one][other] += close[one] * close[other]
        return {
            word: {to: s for to, s in row.items() if 2 * s >= row[word]}
            for word, row in found.items()
        }

    def _spell(self, words: Iterable[str]) -> str:
        return join_words(sorted(words, key=lambda word: (self.weights[word], word)))

    @cached_property
    def translations(self) -> Mapping[str, Weights]:
        """Query word -> word of items -> probability."""
        targets = {query: self._excess(ids) for query, ids in self._relevant.items()}
        words = sorted({word for words in self._queries.values() for word in words})
        table: dict[str, dict[str, float]] = {word: defaultdict(lambda: 1.0) for word in words}
        for _ in range(_EM_STEPS):
            gained: dict[str, dict[str, float]] = {word: defaultdict(float) for word in words}
            for query, target in targets.items():
                for to, mass in target.items():
                    total = sum(table[word][to] for word in self._queries[query]) or 1.0
                    for word in self._queries[query]:
                        gained[word][to] += mass * table[word][to] / total
            table = {word: _shares(found) for word, found in gained.items()}
        return table

    def _excess(self, ids: Iterable[str]) -> dict[str, float]:
        """How much more often the words that matter occur in these items than in all."""
        chosen = sorted(ids)  # The order of a set differs from process to process.
        counts = Counter(
            word for id_ in chosen for word in self._items[id_] if word in self.weights
        )
        shares = {
            word: count / len(chosen) - self._df[word] / len(self._items)
            for word, count in counts.items()
        }
        return {word: share for word, share in shares.items() if share > 0}

    def items_of(self, words: Iterable[str]) -> frozenset[str]:
        """Items that have a close translation of each query word: product of probabilities,
        relative to the best, of 0.3 or more.
        """
        scores: dict[str, float] | None = None
        for word in words:
            own = self._close_items.get(word, {})
            scores = (
                own
                if scores is None
                else {id_: scores[id_] * own[id_] for id_ in scores.keys() & own.keys()}
            )
        return frozenset(id_ for id_, score in (scores or {}).items() if score >= _CLOSE)

    @cached_property
    def _close_items(self) -> Mapping[str, dict[str, float]]:
        having: dict[str, list[str]] = defaultdict(list)
        for id_, words in self._items.items():
            for word in words:
                if word in self.weights:
                    having[word].append(id_)
        close: dict[str, dict[str, float]] = {}
        for word, row in self.translations.items():
            best = max(row.values(), default=1.0)
            scores: dict[str, float] = defaultdict(float)
            for to, share in row.items():
                if share >= _CLOSE * best:
                    for id_ in having[to]:
                        scores[id_] = max(scores[id_], share / best)
            close[word] = dict(scores)
        return close

    def invent(self, count: int, seed: int, weight: float = 1.0) -> Invented:
        """Queries of two words that training queries have not together, with as many items as
        training queries have.

        Fewer than `count` where the words don't give so many.
        """
        draw = random.Random(seed)
        words = sorted(self.translations)
        most = max(len(ids) for ids in self._relevant.values())
        asked = {frozenset(words) for words in self._queries.values()}
        relevant: dict[str, frozenset[str]] = {}
        queries: list[Query] = []
        for _ in range(_TRIES * count if len(words) > 1 else 0):
            pair = draw.sample(words, 2)
            items = self.items_of(pair)
            if (
                len(queries) == count
                or frozenset(pair) in asked
                or not _FEWEST_ITEMS <= len(items) <= most
            ):
                continue
            asked.add(frozenset(pair))
            query = Query(f"invented-{len(queries):05}", " ".join(pair), weight)
            queries.append(query)
            relevant[query.id] = items
        return Invented(queries, relevant)


def _shares(values: Mapping[str, float]) -> dict[str, float]:
    total = sum(values.values()) or 1.0
    # Rare leftovers only cost time.
    return defaultdict(
        float, {key: value / total for key, value in values.items() if value / total > 1e-4}
    )
