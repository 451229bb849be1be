"""The maker of the sample shop: 400 items, 182 queries and exact labels from a seed, in pure
Python.

A small marketplace of furniture whose sellers write English, German or Chinese. Every item has one
value of each attribute; a query names two values by shoppers' words; relevant are exactly the items
with both values, whatever the language. No combination of two values is in two splits, and every
word of a dev or test query occurs in training.

`make_catalogue(0)` is the catalogue that ships with the demo. `_shop_vocabulary` has the words and
sentences.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from _shop_vocabulary import (
    ATTRIBUTES,
    COLOURS,
    MAKERS,
    MODELS,
    QUERIES,
    SENTENCES,
    TITLES,
    UNLIKELY,
    VALUES,
    Attribute,
    Language,
)

from cogr.records import Item, Query, Split

T = TypeVar("T")
Family = tuple[Attribute, Attribute]
Pair = tuple[str, str]
Values = Mapping[Attribute, str]

ITEMS_A_TYPE = 50
FOREIGN_ITEMS_A_TYPE = 3
"""Items of each type in German, and as many in Chinese: 12 % of all together."""
RELEVANT = range(8, 16)
"""The numbers of relevant items that a query may have."""
QUOTAS: Mapping[Family, Mapping[Split, int]] = {
    ("style", "type"): {"train": 20, "test": 10, "dev": 10},
    ("room", "type"): {"train": 22, "test": 11, "dev": 12},
    ("material", "type"): {"train": 25, "test": 12, "dev": 1},
    ("need", "type"): {"train": 25, "test": 12, "dev": 3},
    ("style", "room"): {"train": 8, "test": 5, "dev": 6},
}
"""Number of queries of each kind by split; dev has the rest."""
SHOPPERS_WORD = 0.12
"""Chance that a seller uses a shopper's word, which only then matches by plain words."""
HOUSE_WORD = 0.95
"""Chance that an item keeps to its own choice among the sellers' words."""


class _Draw:
    """Random choices from `random()`, the only method that Python promises never to change."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed).random

    def chance(self, share: float) -> bool:
        return self._random() < share

    def pick(self, options: Sequence[T]) -> T:
        return options[int(self._random() * len(options))]

    def common(self, options: Sequence[T]) -> T:
        """One of the options, mostly the first."""
        return options[0] if self.chance(0.7) else self.pick(options)

    def shuffled(self, options: Iterable[T]) -> list[T]:
        keyed = [(self._random(), position, option) for position, option in enumerate(options)]
        return [option for *_, option in sorted(keyed, key=lambda entry: entry[:2])]


@dataclass(frozen=True)
class Catalogue:
    """A made catalogue.

    Attributes:
        items: the whole universe.
        values: item id -> attribute -> value, the source of the labels; not shipped.
        queries: queries by split.
        asked: query id -> the two values that it names, by attribute; not shipped.
        relevant: query id -> ids of its relevant items.
    """

    items: Sequence[Item]
    values: Mapping[str, Values]
    queries: Mapping[Split, Sequence[Query]]
    asked: Mapping[str, Values]
    relevant: Mapping[str, Sequence[str]]

    def files(self) -> dict[str, bytes]:
        """The catalogue in the layout of the loader `jsonl`: file name -> content."""
        queries = [(split, query) for split in self.queries for query in self.queries[split]]
        return {
            "items.jsonl": _jsonl(
                {"id": item.id, "title": item.title, "text": item.text} for item in self.items
            ),
            "queries.jsonl": _jsonl(
                {"id": query.id, "text": query.text, "split": split} for split, query in queries
            ),
            "labels.jsonl": _jsonl(
                {"query": query.id, "item": item, "grade": 1}
                for _, query in queries
                for item in self.relevant[query.id]
            ),
        }


def _jsonl(records: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


def make_catalogue(seed: int = 0) -> Catalogue:
    """The catalogue of one seed; equal seeds give equal bytes on every Python."""
    draw = _Draw(seed)
    items, values = _make_items(draw)
    asking = _Asking(draw, values.values())
    asked = draw.shuffled(asking.ask())
    queries: dict[Split, list[Query]] = {"train": [], "dev": [], "test": []}
    wanted: dict[str, Values] = {}
    for number, query in enumerate([*asked, *draw.shuffled(asking.ask_dev())], start=1):
        id_ = f"query-{number:03}"
        queries[query.split].append(Query(id_, query.text))
        wanted[id_] = query.values
    relevant = {
        id_: [item.id for item in items if _has(values[item.id], both)]
        for id_, both in wanted.items()
    }
    return Catalogue(items, values, queries, wanted, relevant)


def write_catalogue(folder: str | Path, seed: int = 0) -> None:
    """Write the three files of one seed's catalogue into a folder."""
    for name, content in make_catalogue(seed).files().items():
        target = Path(folder) / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _has(item: Values, wanted: Values) -> bool:
    return all(item[attribute] == value for attribute, value in wanted.items())


# Items


def _make_items(draw: _Draw) -> tuple[list[Item], dict[str, Values]]:
    drawn = [spec for type_ in VALUES["type"] for spec in _specs_of_type(draw, type_)]
    items, values, titles = [], {}, set[str]()
    for number, (language, spec) in enumerate(draw.shuffled(drawn), start=1):
        item = _write_item(draw, f"item-{number:03}", language, spec)
        while item.title in titles:
            item = _write_item(draw, item.id, language, spec)
        titles.add(item.title)
        items.append(item)
        values[item.id] = spec
    return items, values


def _specs_of_type(draw: _Draw, type_: str) -> list[tuple[Language, Values]]:
    """Language and values of one type's items: within a type, every value of an attribute is
    equally frequent.
    """
    columns: dict[Attribute, list[str]] = {"type": [type_] * ITEMS_A_TYPE}
    for attribute in ATTRIBUTES[1:]:
        options = draw.shuffled(
            value for value in VALUES[attribute] if (type_, value) not in UNLIKELY
        )
        columns[attribute] = draw.shuffled(options[i % len(options)] for i in range(ITEMS_A_TYPE))
    sizes: Mapping[Language, int] = {"de": FOREIGN_ITEMS_A_TYPE, "zh": FOREIGN_ITEMS_A_TYPE}
    languages = [language for language, size in sizes.items() for _ in range(size)]
    languages += ["en"] * (ITEMS_A_TYPE - len(languages))
    rows = zip(*columns.values(), strict=True)
    return [
        (language, dict(zip(columns, row, strict=True)))
        for language, row in zip(languages, rows, strict=True)
    ]


def _write_item(draw: _Draw, id_: str, language: Language, values: Values) -> Item:
    seller = _Seller(draw, language, values)
    template = draw.pick(TITLES[language])
    unstated = [attribute for attribute in ATTRIBUTES[1:] if f"{{{attribute}}}" not in template]
    stated = [attribute for attribute in ATTRIBUTES[1:] if attribute not in unstated]
    # Two to four sentences: what the title leaves out, perhaps one thing again, perhaps small talk.
    topics: list[str] = [*unstated]
    if draw.chance(0.5):
        topics.append(draw.pick(stated))
    if len(topics) < 4 and draw.chance(0.5):
        topics.append("more")
    # Small talk stays at the end.
    topics = draw.shuffled(topic for topic in topics if topic != "more") + ["more"] * (
        "more" in topics
    )
    sentences = [seller.fill(draw.pick(SENTENCES[language][topic])) for topic in topics]
    return Item(id_, seller.fill(template), ("" if language == "zh" else " ").join(sentences))


class _Seller:
    """Fills templates for one item, with a vocabulary of its own."""

    def __init__(self, draw: _Draw, language: Language, values: Values) -> None:
        self._draw, self._language, self._values = draw, language, values
        self._house = {attribute: draw.common(self._words(attribute)) for attribute in ATTRIBUTES}
        self._noise = {
            "colour": draw.pick(COLOURS[language]),
            "maker": draw.pick(MAKERS),
            "model": draw.pick(MODELS),
        }

    def fill(self, template: str) -> str:
        text = re.sub(r"\{(\w+)\}", lambda match: self._word(match[1]), template)
        text = (
            re.sub(r"\b([Aa]) (?=[aeiouAEIOU])", r"\1n ", text) if self._language == "en" else text
        )
        return text[0].upper() + text[1:]

    def _words(self, attribute: Attribute) -> Sequence[str]:
        return VALUES[attribute][self._values[attribute]][self._language].sellers

    def _word(self, placeholder: str) -> str:
        if placeholder in self._noise:
            return self._noise[placeholder]
        if placeholder == "other":
            other = self._draw.pick(
                [value for value in VALUES["type"] if value != self._values["type"]]
            )
            return self._draw.pick(VALUES["type"][other][self._language].shoppers)
        attribute: Attribute = next(name for name in ATTRIBUTES if name == placeholder)
        if self._draw.chance(SHOPPERS_WORD):
            return self._draw.pick(
                VALUES[attribute][self._values[attribute]][self._language].shoppers
            )
        return (
            self._house[attribute]
            if self._draw.chance(HOUSE_WORD)
            else self._draw.pick(self._words(attribute))
        )


# Queries


@dataclass(frozen=True)
class _Query:
    split: Split
    text: str
    values: Values


class _Asking:
    """Chooses which pairs of values are asked for, in which split, language and words."""

    def __init__(self, draw: _Draw, items: Iterable[Values]) -> None:
        self._draw = draw
        specs = list(items)
        self._free: dict[Family, list[Pair]] = {}
        for family in QUOTAS:
            counts = Counter((spec[family[0]], spec[family[1]]) for spec in specs)
            self._free[family] = draw.shuffled(
                sorted(pair for pair, count in counts.items() if count in RELEVANT)
            )
        # How often a split has asked for a value so far, and by which word.
        self._values: Counter[tuple[Split, str]] = Counter()
        self._words: Counter[tuple[Split, str]] = Counter()
        self._known: set[str] = set()

    def ask(self) -> list[_Query]:
        """Training and test queries, training first, so that test queries can keep to the words of
        training.
        """
        chosen: list[tuple[Split, Language, Family, Pair]] = []
        foreign: tuple[Language, Language] = ("de", "zh")
        for language in foreign:
            chosen += self._foreign(language)
        for family, quota in QUOTAS.items():
            for split in ("test", "train"):
                have = sum(entry[0] == split and entry[2] == family for entry in chosen)
                chosen += [
                    (split, "en", family, self._take(split, family))
                    for _ in range(quota[split] - have)
                ]
        return [
            self._written(*entry) for entry in sorted(chosen, key=lambda entry: entry[0] != "train")
        ]

    def ask_dev(self) -> list[_Query]:
        """Dev queries, in English, of pairs that the others have left; after `ask`."""
        chosen = [
            (family, self._take("dev", family))
            for family, quota in QUOTAS.items()
            for _ in range(quota["dev"])
        ]
        return [self._written("dev", "en", family, pair) for family, pair in chosen]

    def _written(self, split: Split, language: Language, family: Family, pair: Pair) -> _Query:
        text = self._text(split, language, family, pair)
        while split != "train" and not self._known.issuperset(text.split()):
            text = self._text(split, language, family, pair)
        self._known.update(text.split())
        return _Query(split, text, dict(zip(family, pair, strict=True)))

    def _foreign(self, language: Language) -> list[tuple[Split, Language, Family, Pair]]:
        """Nine queries of one language: three types by three other values, a diagonal of them for
        the test.

        So each of their few words is asked for twice in training.
        """
        while True:
            families = self._draw.shuffled(QUERIES[language])[:3]
            types = self._draw.shuffled(VALUES["type"])[:3]
            others = [self._draw.pick(list(VALUES[a])) for a, _ in families]
            cells = [
                (f, (others[i], t), (i + j) % 3)
                for i, f in enumerate(families)
                for j, t in enumerate(types)
            ]
            if all(pair in self._free[family] for family, pair, _ in cells):
                break
        taken: list[tuple[Split, Language, Family, Pair]] = []
        for family, pair, diagonal in cells:
            split: Split = "test" if diagonal == 0 else "train"
            self._use(split, family, pair)
            taken.append((split, language, family, pair))
        return taken

    def _take(self, split: Split, family: Family) -> Pair:
        """The free pair whose values this split has asked for least, so that every value gets its
        share.
        """
        pair = min(
            self._free[family], key=lambda pair: sum(self._values[split, value] for value in pair)
        )
        self._use(split, family, pair)
        return pair

    def _use(self, split: Split, family: Family, pair: Pair) -> None:
        self._free[family].remove(pair)
        self._values.update((split, value) for value in pair)

    def _text(self, split: Split, language: Language, family: Family, pair: Pair) -> str:
        words = [
            self._shoppers_word(split, VALUES[attribute][value][language].shoppers)
            for attribute, value in zip(family, pair, strict=True)
        ]
        return self._draw.pick(QUERIES[language][family]).format(a=words[0], b=words[1])

    def _shoppers_word(self, split: Split, words: Sequence[str]) -> str:
        """The word that this split has used least, among those that training uses twice."""
        allowed = [
            word for word in words if split == "train" or self._words["train", word] >= 2
        ] or words
        word = min(allowed, key=lambda word: self._words[split, word])
        self._words[split, word] += 1
        return word
