"""Made-up worlds of realistic shape: keywords by Zipf's law, titles all different."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cogr.matching.mirror import Mirror
from cogr.snapshots import Manifest, Snapshot
from cogr.snapshots.writing import SCHEMA
from cogr.store import Store

KEYWORDS_EACH = 15
_BATCH = 16_384


@dataclass(frozen=True)
class Vocabulary:
    """Words whose frequencies follow Zipf's law: share ~ (rank + shift)^-exponent.

    A shift cuts the most frequent ones off.
    """

    size: int
    shift: int = 0
    exponent: float = 0.8

    def word(self, number: int) -> str:
        return f"keyword {number:x} of {self.shift}"

    @cached_property
    def _cumulative(self) -> NDArray[np.float64]:
        ranks = np.arange(1, self.size + 1) + self.shift
        return np.asarray(np.cumsum(ranks**-self.exponent))

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Numbers of words, with repeats."""
        drawn = rng.random(count) * self._cumulative[-1]
        return np.searchsorted(self._cumulative, drawn).astype(np.int64)

    def query(self, rng: np.random.Generator) -> list[str]:
        """The distinct ones of fifteen drawn keywords."""
        return [
            self.word(number) for number in dict.fromkeys(self.draw(rng, KEYWORDS_EACH).tolist())
        ]

    def queries_near(self, mirror: Mirror, retrieved: int, count: int) -> list[list[str]]:
        """Of 1,000 queries, those whose retrieved sets come nearest to a size."""
        rng = np.random.default_rng(1)
        queries = [self.query(rng) for _ in range(1000)]

        def distance(query: list[str]) -> int:
            return abs(len(mirror.retrieved(query)) - retrieved)

        return sorted(queries, key=distance)[:count]


COMMON, LEARNED = Vocabulary(60_000), Vocabulary(90_000, exponent=0.3)
"""Keywords as common as words, and as rare as those of a pair that was learned."""


def world_in(folder: Path, entities: int, vocabulary: Vocabulary) -> Snapshot:
    """The snapshot that `write_world` wrote into a folder."""
    return Snapshot(_manifest(entities, vocabulary), Store(folder))


def write_world(folder: Path, entities: int, vocabulary: Vocabulary) -> Snapshot:
    """A snapshot of items with 15 Zipf keywords each and a title of its own, written without a
    Python loop over keywords.
    """
    snapshot = world_in(folder, entities, vocabulary)
    path = snapshot.store.local(snapshot.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    words = pa.array([vocabulary.word(number) for number in range(vocabulary.size)])
    rng = np.random.default_rng(0)
    with pq.ParquetWriter(path, SCHEMA, compression="zstd") as writer:
        for start in range(0, entities, _BATCH):
            writer.write_table(
                _rows(range(start, min(start + _BATCH, entities)), words, vocabulary, rng)
            )
    return snapshot


def _rows(
    numbers: range, words: pa.Array, vocabulary: Vocabulary, rng: np.random.Generator
) -> pa.Table:
    codes = vocabulary.draw(rng, len(numbers) * KEYWORDS_EACH)
    offsets = np.arange(0, len(codes) + 1, KEYWORDS_EACH, dtype=np.int32)
    titles = [f"the title of item {number * 7919 % 9_999_991}" for number in numbers]
    columns = [
        pa.array([f"item{number:08}" for number in numbers]),
        pa.array(titles),
        pa.array(titles),
        pa.ListArray.from_arrays(pa.array(offsets), words.take(pa.array(codes))),
    ]
    return pa.Table.from_arrays(
        [column.cast(type_) for column, type_ in zip(columns, SCHEMA.types, strict=True)],
        schema=SCHEMA,
    )


def _manifest(entities: int, vocabulary: Vocabulary) -> Manifest:
    return Manifest(
        id=f"item-r000-{entities}",
        side="item",
        round=0,
        content_hash=f"made up: {entities} entities",
        file_sha256="",
        entities=entities,
        keywords=entities * KEYWORDS_EACH,
        vocabulary=vocabulary.size,
        empty=0,
        k_max=30,
        created="",
    )


def write_shop(folder: Path, items: int, queries: int) -> None:
    """A data set in the layout `jsonl`: families of ten items that share three words, in titles of
    six words and texts of 24 words from a Zipf vocabulary of 60,000. A query is two words of a
    family, and its items are relevant.
    """
    rng = np.random.default_rng(0)
    families = -(-items // 10)
    own = COMMON.draw(rng, 3 * families).reshape(families, 3)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "items.jsonl").open("w") as file:
        for start in range(0, items, _BATCH):
            numbers = range(start, min(start + _BATCH, items))
            drawn = COMMON.draw(rng, len(numbers) * 21).reshape(-1, 21)
            for number, rest in zip(numbers, drawn, strict=True):
                words = [_spelled(word) for word in (*own[number // 10], *rest)]
                title = " ".join([*words[:5], f"{number:x}"])
                record = {"id": f"item{number:08}", "title": title, "text": " ".join(words[5:])}
                file.write(json.dumps(record) + "\n")
    asked = rng.permutation(families)[:queries]
    with (folder / "queries.jsonl").open("w") as file, (folder / "labels.jsonl").open("w") as to:
        for number, family in enumerate(asked.tolist()):
            text = " ".join(_spelled(word) for word in own[family][rng.permutation(3)[:2]])
            split = "test" if number % 11 == 10 else "train"
            file.write(json.dumps({"id": f"q{number}", "text": text, "split": split}) + "\n")
            for item in range(10 * family, min(10 * family + 10, items)):
                to.write(
                    json.dumps({"query": f"q{number}", "item": f"item{item:08}", "grade": 1}) + "\n"
                )


_SYLLABLES = [first + vowel for first in "bdfgklmnprstvz" for vowel in "aeiou"]


def _spelled(word: int) -> str:
    """A pronounceable word for each number, so that texts share 4-grams as real ones do."""
    text = ""
    while word >= 0:
        word, syllable = divmod(word, len(_SYLLABLES))
        text += _SYLLABLES[syllable]
        word -= 1
    return text + "n" if len(text) < 3 else text
