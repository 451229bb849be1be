"""The words of a catalogue, in place of what a pretrained model knows: `WordModel` gives the first
keywords and the invented queries that the model `tiny` is fine-tuned on.

It has three counts over the labels, none of them in the paper:

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
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import combinations

from cogr.records import Dataset, Query
from indexers.text import Analyser, join_words

_Weights = Mapping[str, float]

_SMOOTHING = 5.0
_MIN_WEIGHT = 0.25
_EM_STEPS = 15
_CLOSE = 0.3
_FEWEST_ITEMS = 3
_TRIES = 40


class WordModel:
    """Weights and translations of words, from a data set's training labels."""

    def __init__(self, dataset: Dataset) -> None:
        self._analyser = Analyser("english")
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
        weights = {
            word: math.log(
                (shared[word] + _SMOOTHING) / (by_chance * math.comb(df, 2) + _SMOOTHING)
            )
            for word, df in self._df.items()
        }
        return {word: weight for word, weight in weights.items() if weight > _MIN_WEIGHT}

    def keywords(self, item_id: str, budget: int) -> tuple[str, ...]:
        """Pairs of an item's words that matter, the heaviest first, spelled with the heavier word
        last: "nordic settee".
        """
        known = [word for word in self._items[item_id] if word in self.weights]
        pairs = sorted(
            combinations(known, 2), key=lambda pair: -self.weights[pair[0]] - self.weights[pair[1]]
        )
        return tuple(dict.fromkeys(map(self._spell, pairs)))[:budget]

    def _spell(self, words: Iterable[str]) -> str:
        return join_words(sorted(words, key=lambda word: (self.weights[word], word)))

    @cached_property
    def translations(self) -> Mapping[str, _Weights]:
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
            table = {word: _shares(counts) for word, counts in gained.items()}
        return table

    def _excess(self, ids: Iterable[str]) -> dict[str, float]:
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
        rows = [self._close_items.get(word, {}) for word in words]
        shared = set.intersection(*map(set, rows))
        return frozenset(id_ for id_ in shared if math.prod(row[id_] for row in rows) >= _CLOSE)

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

    def invent(self, count: int, seed: int) -> dict[Query, frozenset[str]]:
        """Queries of two words that no training query has together, with the items that are taken
        to be relevant to them, about as many as training queries have.

        Fewer than `count` where there are not enough such pairs.
        """
        draw = random.Random(seed)
        words = sorted(self.translations)
        most = max(len(ids) for ids in self._relevant.values())
        asked = {frozenset(words) for words in self._queries.values()}
        invented: dict[Query, frozenset[str]] = {}
        for _ in range(_TRIES * count if len(words) > 1 else 0):
            if len(invented) == count:
                break
            pair = draw.sample(words, 2)
            items = self.items_of(pair)
            if frozenset(pair) not in asked and _FEWEST_ITEMS <= len(items) <= most:
                asked.add(frozenset(pair))
                invented[Query(f"invented-{len(invented):05}", " ".join(pair))] = items
        return invented


def _shares(values: Mapping[str, float]) -> dict[str, float]:
    total = sum(values.values()) or 1.0
    # Rare leftovers only cost time.
    return defaultdict(
        float, {key: value / total for key, value in values.items() if value / total > 1e-4}
    )
