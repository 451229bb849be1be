"""Numbers that a team has of queries and items: clicks, purchases, seconds on the page."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import scipy.sparse as sp

from cogr.errors import GeneratorError
from cogr.keywords import self_keyword
from cogr.records import Dataset
from indexers.generators.statistical.ranking.matrices import Csr


@dataclass(frozen=True)
class PairSignals:
    """The numbers, by the normalised texts of queries.

    Attributes:
        rows: text -> row.
        columns: log1p of the numbers, (rows, items) for each column of them.
    """

    rows: Mapping[str, int] = field(default_factory=dict)
    columns: Sequence[Csr] = ()

    @classmethod
    def read(cls, dataset: Dataset, names: Sequence[str]) -> PairSignals:
        """The columns of these names. Of queries with one text the highest number stays.

        Raises GeneratorError when no pair has a number under a name.
        """
        if not names:
            return cls()
        texts = {query.id: self_keyword(query.text) for query in dataset.entities("query")}
        numbers = {item.id: number for number, item in enumerate(dataset.items)}
        found = [_by_text(dataset, name, texts, numbers) for name in names]
        asked = dict.fromkeys(text for pairs in found for text in pairs)
        rows = {text: row for row, text in enumerate(asked)}
        return cls(rows, [_matrix(pairs, rows, len(numbers)) for pairs in found])

    def of(self, texts: Sequence[str]) -> list[Csr]:
        """The rows of these texts, (texts, items) for each column; empty rows for unknown texts."""
        if not self.columns:
            return []
        rows = np.array([self.rows.get(text, -1) for text in texts], dtype=np.int64)
        known = np.flatnonzero(rows >= 0)
        chosen = sp.csr_matrix(
            (np.ones(known.size, np.float32), (known, rows[known])),
            shape=(rows.size, self.columns[0].shape[0]),
        )
        return [(chosen @ column).tocsr() for column in self.columns]

    def without(self, texts: Collection[str]) -> PairSignals:
        """Only those of other texts."""
        return replace(self, rows={t: row for t, row in self.rows.items() if t not in texts})

    @property
    def digest(self) -> str:
        """Names the numbers."""
        sha = hashlib.sha256(json.dumps([*self.rows]).encode())
        for column in self.columns:
            for part in (column.indptr, column.indices, column.data):
                sha.update(part.tobytes())
        return sha.hexdigest()[:16]


def _by_text(
    dataset: Dataset, name: str, texts: Mapping[str, str], numbers: Mapping[str, int]
) -> dict[str, dict[int, float]]:
    """Text -> item -> number. Items may be held out of a data set, and their numbers with them."""
    found: dict[str, dict[int, float]] = {}
    for query, pairs in dataset.pair_signals.get(name, {}).items():
        for item, value in pairs.items():
            if query in texts and item in numbers:
                known, at = found.setdefault(texts[query], {}), numbers[item]
                known[at] = max(value, known.get(at, 0.0))
    if not found:
        raise GeneratorError(
            f"generator.statistical.pair_signals names {name!r}, but no pair of a known query and "
            "item has a number above 0 under it; write it into labels.* or pairs.* of the data set "
            "(jsonl, csv, parquet), or leave it out."
        )
    return found


def _matrix(pairs: Mapping[str, Mapping[int, float]], rows: Mapping[str, int], n_items: int) -> Csr:
    places = [(rows[text], *pair) for text, values in pairs.items() for pair in values.items()]
    row, item, value = (np.array(part) for part in zip(*places, strict=True))
    shape = (len(rows), n_items)
    matrix = sp.csr_matrix((np.log1p(value).astype(np.float32), (row, item)), shape=shape)
    matrix.sort_indices()
    return matrix
