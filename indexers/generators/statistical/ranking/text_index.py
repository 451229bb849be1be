"""Items and queries as sparse matrices over one vocabulary: BM25, tf-idf, titles and character
4-grams.

No relevance label is read here (see `training_queries`). What follows from the saved matrices is
computed again on opening.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from cogr.errors import GeneratorError
from cogr.keywords import folded, normalise
from cogr.mapped import Spool
from cogr.records import Dataset, Item
from indexers.generators import batched
from indexers.generators.statistical.ranking.encoder import Encoder
from indexers.generators.statistical.ranking.matrices import (
    Csr,
    Floats,
    Ints,
    binary,
    column_counts,
    counts_of,
    filled,
    points,
    row_blocks,
    row_of,
    row_scales,
    row_sums,
    scale_columns,
    scale_rows,
    term_points,
    top_dense,
    top_rows,
    unit_rows,
    with_data,
)
from indexers.text import K1, Analyser, B

GRAM = 4
GRAM_BITS = 18
GRAM_CHARS = 400

SPELLED = 100_000
"""Most items whose titles are compared with a query by 4-grams: more take too long for a new query.
"""

_TEXTS = 4096
"""Texts whose 4-grams are found at once."""

MANY, COARSE = 30_000, 64
"""Beyond so many items, the encoder's nearest ones are found along so many directions: 3 ms of a
core in place of 14 for a query and 100,000 items.
"""


def item_text(item: Item) -> str:
    """The text of an item: title and text; a title with which the text begins is not repeated."""
    return item.text if item.text.startswith(item.title) else f"{item.title} {item.text}"


@dataclass(frozen=True)
class PairSignals:
    """Numbers of (query, item) pairs, such as clicks, by the normalised texts of queries.

    Attributes:
        columns: log1p of the numbers, (rows, items) for each column of them.
    """

    rows: Mapping[str, int] = field(default_factory=dict)
    columns: Sequence[Csr] = ()

    @classmethod
    def read(cls, dataset: Dataset, names: Sequence[str]) -> PairSignals:
        """The columns of these names. Where several queries have the same text, the highest number
        counts.

        Raises GeneratorError when no pair has a number under a name.
        """
        texts = {query.id: folded(query.text) for query in dataset.entities("query")}
        numbers = {item.id: number for number, item in enumerate(dataset.items)}
        rows, columns = dict[str, int](), list[dict[tuple[int, int], float]]()
        for name in names:
            by_pair = dict[tuple[int, int], float]()
            columns.append(by_pair)
            for query, pairs in dataset.pair_signals.get(name, {}).items():
                for item, value in pairs.items():
                    if query in texts and item in numbers:
                        at = rows.setdefault(texts[query], len(rows)), numbers[item]
                        by_pair[at] = max(value, by_pair.get(at, 0.0))
            if not by_pair:
                raise GeneratorError(
                    f"generator.statistical.pair_signals names {name!r}, but no pair of a known "
                    "query and item has a number above 0 under it; add it to labels.* or pairs.* "
                    "of the data set (jsonl, csv, parquet), or leave it out."
                )
        shape = (len(rows), len(numbers))
        values = [np.log1p([*by_pair.values()]).astype(np.float32) for by_pair in columns]
        places = [tuple(np.array([*by_pair]).T) for by_pair in columns]
        placed = zip(values, places, strict=True)
        return cls(rows, [sp.csr_matrix(one, shape=shape) for one in placed])

    def of(self, texts: Sequence[str]) -> list[Csr]:
        """The rows of these texts, (texts, items) for each column; empty rows for unknown texts."""
        rows = np.array([self.rows.get(text, -1) for text in texts], dtype=np.int64)
        known = (rows >= 0).astype(np.float32)
        return [scale_rows(column[np.maximum(rows, 0)], known) for column in self.columns]

    def without(self, texts: Collection[str]) -> PairSignals:
        """The numbers without those of these texts."""
        return replace(self, rows={t: row for t, row in self.rows.items() if t not in texts})


@dataclass(frozen=True)
class QueryBatch:
    """Queries as matrices. Rows are queries.

    Attributes:
        terms: 0/1 by term, (b, vocabulary).
        grams: 0/1 by character 4-gram bucket, (b, 2 ** GRAM_BITS).
        own: row of the query among the training queries, -1 for others; that row's labels are
            hidden from it, (b,).
        encode: gives `encoded`, when it is asked for.
        pair_signals: log1p of the numbers of pairs, (b, items) for each column of them.
    """

    terms: Csr
    grams: Csr
    own: Ints
    encode: Callable[[], Floats]
    pair_signals: Sequence[Csr] = ()

    @cached_property
    def encoded(self) -> Floats:
        """Points by the encoder, (b, its dimensions); no columns without one."""
        return self.encode()

    @property
    def size(self) -> int:
        return int(self.own.size)

    def rows(self, rows: Ints) -> QueryBatch:
        return QueryBatch(
            self.terms[rows],
            self.grams[rows],
            self.own[rows],
            lambda: self.encoded[rows],
            [column[rows] for column in self.pair_signals],
        )


@dataclass
class TextIndex:
    """The matrices of the items. Once made they do not change.

    Attributes:
        vocabulary: term -> column.
        counts: term counts of items, (n, vocabulary).
        titles: 0/1 terms of titles, (n, vocabulary).
        grams: 0/1 character 4-grams of items, (n, 2 ** GRAM_BITS).
        title_grams: the same of their titles, stop words and all.
        term_points: `matrices.term_points` of the items, (vocabulary, dimensions).
        encoded: points by the encoder, (n, its dimensions); no columns without one.
    """

    analyser: Analyser
    vocabulary: dict[str, int]
    counts: Csr
    titles: Csr
    grams: Csr
    title_grams: Csr
    term_points: Floats
    encoded: Floats
    encoder: Encoder | None = None
    pair_signals: PairSignals = field(default_factory=PairSignals)

    def seeing(self, pair_signals: PairSignals) -> TextIndex:
        """A copy with these numbers of pairs. What has been computed already is kept."""
        twin = copy(self)
        twin.pair_signals = pair_signals
        return twin

    @classmethod
    def fit(
        cls,
        analyser: Analyser,
        items: Sequence[Item],
        queries: Sequence[str],
        encoder: Encoder | None = None,
    ) -> TextIndex:
        """Index items. The vocabulary is that of items and queries."""
        vocabulary: dict[str, int] = {}
        counts = counts_of(
            [vocabulary.setdefault(term, len(vocabulary)) for term in analyser.terms(text)]
            for text in map(item_text, items)
        )
        for query in queries:
            for term in analyser.terms(query):
                vocabulary.setdefault(term, len(vocabulary))
        width = max(len(vocabulary), 1)
        counts.resize(len(items), width)
        titles = (
            [vocabulary[t] for t in analyser.terms(item.title) if t in vocabulary] for item in items
        )
        index = cls(
            analyser,
            vocabulary,
            counts,
            binary(counts_of(titles, width)),
            item_grams(map(item_text, items)),
            item_grams(item.title for item in items),
            np.zeros((width, 0), dtype=np.float32),
            _encoded(encoder, items),
            encoder,
        )
        return index._in_own_space()

    def _in_own_space(self) -> TextIndex:
        """The index with the latent space of its items."""
        return replace(self, term_points=term_points(self.tfidf, self.df))

    def _counts(self, texts: Iterable[str]) -> Csr:
        known = self.vocabulary
        terms = map(self.analyser.terms, texts)
        rows = ([known[term] for term in one if term in known] for one in terms)
        return counts_of(rows, self.counts.shape[1])

    def nearest_encoded(self, points: Floats, k: int) -> Csr:
        """Cosines of the k nearest items by the encoder, (b, n); of many items, those that are near
        along the `COARSE` directions in which they differ most.
        """
        if len(self.encoded) <= MANY:
            return top_dense(points @ self.encoded.T, k)
        directions, coarse = self._coarse
        along: Floats = points @ directions
        near = top_dense(along @ coarse.T, 16 * k)
        pairs = points[row_of(near)], self.encoded[near.indices]
        return top_rows(with_data(near, np.einsum("ij,ij->i", *pairs).clip(0)), k)

    def nearest_titles(self, grams: Csr, k: int) -> Csr:
        """How near the titles of the k nearest items are by character 4-grams, (b, n): the idf that
        they share over the root of the title's. None of more than `SPELLED` items.
        """
        if self.n_items > SPELLED:
            return sp.csr_matrix((grams.shape[0], self.n_items), dtype=np.float32)
        shared = scale_columns(grams, self.title_gram_idf) @ self._titles_by_gram
        scale = (1 / np.sqrt(self.title_gram_masses)).astype(np.float32)
        return top_rows(scale_columns(shared.tocsr(), scale), k)

    @cached_property
    def _titles_by_gram(self) -> Csr:
        return self.title_grams.T.tocsr()

    @cached_property
    def _coarse(self) -> tuple[Floats, Floats]:
        """Principal directions of the encoder's points, (dimensions, COARSE), and the items' points
        along them, (n, COARSE).
        """
        some = self.encoded[:: len(self.encoded) // MANY]
        directions = np.linalg.eigh(some.T @ some)[1][:, -COARSE:]
        return directions, self.encoded @ directions

    def joined(self, items: Sequence[Item], order: Ints) -> TextIndex:
        """The index with other items. The vocabulary stays. The latent space is computed anew,
        since items that are folded into the old one look closer to queries than they are.

        Args:
            order: rows of the old items followed by those of `items`, as they shall stand.
        """
        titles = [item.title for item in items]
        added = {
            "counts": self._counts(map(item_text, items)),
            "titles": binary(self._counts(titles)),
            "grams": item_grams(map(item_text, items)),
            "title_grams": item_grams(titles),
        }
        both = {
            name: sp.vstack((getattr(self, name), one), format="csr")[order]
            for name, one in added.items()
        }
        both["encoded"] = np.concatenate([self.encoded, _encoded(self.encoder, items)])[order]
        signals = [
            sp.csr_matrix((one.data, one.indices, one.indptr), shape=(one.shape[0], order.size))
            for one in self.pair_signals.columns
        ]
        pair_signals = replace(self.pair_signals, columns=signals)
        return replace(self, **both, pair_signals=pair_signals)._in_own_space()

    def batch(self, texts: Sequence[str], own: Sequence[int] = ()) -> QueryBatch:
        """Queries as matrices; `own` are their rows among the training queries, when they are
        training queries.
        """
        ids = np.array([*own] or [-1] * len(texts), dtype=np.int64)

        def encode() -> Floats:
            if self.encoder and texts:
                return self.encoder.points(texts, keep=bool((ids >= 0).all()))
            return np.zeros((len(texts), self.encoded.shape[1]), dtype=np.float32)

        terms = binary(self._counts(texts))
        numbers_of_pairs = self.pair_signals.of(texts)
        return QueryBatch(terms, char_grams(texts), ids, encode, numbers_of_pairs)

    @property
    def n_items(self) -> int:
        return int(self.counts.shape[0])

    @cached_property
    def lengths(self) -> Floats:
        """How many terms each item has, (items,)."""
        return row_sums(self.counts)

    @cached_property
    def df(self) -> Ints:
        """How many items have each term, (vocabulary,)."""
        return column_counts(self.counts)

    @cached_property
    def idf(self) -> Floats:
        """ln(1 + (n - df + .5) / (df + .5)), the idf of Lucene's BM25, (vocabulary,)."""
        return np.log1p((self.n_items - self.df + 0.5) / (self.df + 0.5)).astype(np.float32)

    @cached_property
    def numbers(self) -> Floats:
        """1 for each term with a digit, else 0, (vocabulary,)."""
        numbers = np.zeros(self.counts.shape[1], np.float32)
        numbers[: len(self.vocabulary)] = [any(map(str.isdigit, term)) for term in self.vocabulary]
        return numbers

    @cached_property
    def gram_idf(self) -> Floats:
        return _gram_idf(self.grams)

    @cached_property
    def bm25(self) -> Csr:
        """BM25 weights (Robertson and Zaragoza 2009), (vocabulary, n): a query's scores are the sum
        of its terms' rows.
        """
        tf = self.counts.data
        norm = K1 * (1 - B + B * self.lengths / max(float(self.lengths.mean()), 1e-9))
        saturated = tf * (K1 + 1) / (tf + np.repeat(norm, np.diff(self.counts.indptr)))
        return scale_columns(with_data(self.counts, saturated), self.idf).T.tocsr()

    @cached_property
    def tfidf(self) -> Csr:
        """(1 + ln tf) idf, rows of length 1, (n, vocabulary)."""
        return unit_rows(
            scale_columns(with_data(self.counts, 1 + np.log(self.counts.data)), self.idf)
        )

    @cached_property
    def tfidf_by_term(self) -> Csr:
        return self.tfidf.T.tocsr()

    @cached_property
    def title_masses(self) -> Floats:
        """Sum of idf of each title's terms, (n,)."""
        return _masses(self.titles, self.idf)

    @cached_property
    def title_gram_idf(self) -> Floats:
        return _gram_idf(self.title_grams)

    @cached_property
    def title_gram_masses(self) -> Floats:
        """Sum of idf of each title's 4-grams, (n,)."""
        return _masses(self.title_grams, self.title_gram_idf)

    @cached_property
    def points(self) -> Floats:
        """Items as points of length 1, (n, dimensions)."""
        return points(self.tfidf, self.term_points)

    @cached_property
    def title_scales(self) -> Floats:
        """What brings each title's idf vector to length 1, (n,)."""
        return row_scales(scale_columns(self.titles, self.idf))

    @cached_property
    def gram_scales(self) -> Floats:
        """The same for the 4-grams of items, (n,)."""
        parts = (self.grams[rows] for rows in row_blocks(self.grams))
        scales = [row_scales(scale_columns(part, self.gram_idf)) for part in parts]
        return np.concatenate([np.zeros(0), *scales])

    def points_of(self, batch: QueryBatch) -> Floats:
        """Queries as points of length 1, (b, dimensions)."""
        return points(scale_columns(batch.terms, self.idf), self.term_points)


def _gram_idf(grams: Csr) -> Floats:
    idf: Floats = np.log1p(grams.shape[0] / (column_counts(grams) + 0.5)).astype(np.float32)
    return idf


def _masses(matrix: Csr, idf: Floats) -> Floats:
    masses: Floats = np.maximum(matrix @ idf, 1e-9)
    return masses


def item_grams(texts: Iterable[str]) -> Csr:
    """`char_grams` of many texts, as int8 in mapped temporary files."""
    columns, sizes = Spool(), [np.zeros(1, dtype=np.int64)]
    for batch in batched(texts, _TEXTS):
        part = char_grams(batch)
        columns.append(part.indices)
        sizes.append(np.diff(part.indptr))
    starts = np.cumsum(np.concatenate(sizes)).astype(np.int32)
    shape = (starts.size - 1, 1 << GRAM_BITS)
    data = filled(int(starts[-1]), np.int8)
    return sp.csr_matrix((data, columns.array(np.int32), starts), shape=shape)


def _encoded(encoder: Encoder | None, items: Sequence[Item]) -> Floats:
    if encoder is None:
        return np.zeros((len(items), 0), dtype=np.float32)
    return encoder.points([item_text(item) for item in items])


def char_grams(texts: Sequence[str]) -> Csr:
    """0/1 hashed character 4-grams of the first 400 characters of every text, normalised and
    between spaces.
    """
    codes = [
        np.frombuffer(f" {normalise(text[:GRAM_CHARS])} ".encode("utf-32-le"), dtype=np.uint32)
        for text in texts
    ]
    hashes = [_gram_buckets(code.astype(np.uint64)) for code in codes]
    starts = np.concatenate([[0], np.cumsum([part.size for part in hashes])]).astype(np.int32)
    buckets = np.concatenate(hashes) if hashes else np.zeros(0, dtype=np.int32)
    shape = (len(texts), 1 << GRAM_BITS)
    matrix = sp.csr_matrix((np.ones(buckets.size, dtype=np.float32), buckets, starts), shape=shape)
    matrix.sum_duplicates()
    return binary(matrix)


def _gram_buckets(codes: np.ndarray) -> np.ndarray:
    # An FNV-like mix, spread by Fibonacci hashing. Wraps on purpose.
    if codes.size < GRAM:
        return np.zeros(0, dtype=np.int32)
    span = codes.size - GRAM + 1
    mixed = codes[:span]
    for offset in range(1, GRAM):
        mixed = mixed * np.uint64(0x100000001B3) + codes[offset : offset + span]
    return ((mixed * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - GRAM_BITS)).astype(np.int32)
