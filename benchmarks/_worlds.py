"""Made-up worlds of realistic shape: keywords by Zipf's law, titles all different."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cogr.matching.mirror import Mirror
from cogr.snapshots import SCHEMA, Manifest, Snapshot
from cogr.store import Store

KEYWORDS_EACH = 15
_EXPONENT = 0.8
_BATCH = 16_384


@dataclass(frozen=True)
class Vocabulary:
    """Keywords whose frequencies follow Zipf's law: share ~ (rank + shift)^-0.8.

    A shift cuts the most frequent ones off.
    """

    size: int
    shift: int = 0

    def word(self, number: int) -> str:
        return f"keyword {number:x} of {self.shift}"

    def draw(self, rng: np.random.Generator, count: int) -> NDArray[np.int64]:
        """Numbers of keywords, with repeats."""
        cumulative = np.cumsum((np.arange(1, self.size + 1) + self.shift) ** -_EXPONENT)
        return np.searchsorted(cumulative, rng.random(count) * cumulative[-1])

    def query(self, rng: np.random.Generator) -> list[str]:
        """The distinct ones of fifteen drawn keywords."""
        return [
            self.word(number) for number in dict.fromkeys(self.draw(rng, KEYWORDS_EACH).tolist())
        ]

    def queries_near(self, mirror: Mirror, retrieved: int, count: int) -> list[list[str]]:
        """Of 1,000 queries, those whose retrieved sets come nearest to a size."""
        rng = np.random.default_rng(1)
        queries = [self.query(rng) for _ in range(1000)]
        return sorted(queries, key=lambda query: abs(mirror.count(query) - retrieved))[:count]


def write_world(folder: Path, entities: int, vocabulary: Vocabulary) -> Snapshot:
    """A snapshot of items with 15 Zipf keywords each and a title of its own, written without a
    Python loop over keywords.
    """
    store = Store(folder)
    snapshot = Snapshot(_manifest(entities, vocabulary), store)
    path = store.local(snapshot.path)
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
