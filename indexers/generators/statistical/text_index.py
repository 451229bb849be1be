"""Items and queries as sparse matrices over one vocabulary: BM25, tf-idf, titles and character
4-grams.

Only text is read here; relevance labels are in `evidence`. All matrices follow from counts, so that
the counts and the vocabulary are all that an artefact saves of this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from cogr.keywords import normalise
from cogr.records import Item
from indexers.generators.statistical.latent import points, term_points
from indexers.generators.statistical.matrices import (
    Csr,
    Floats,
    Ints,
    binary,
    counts_of,
    row_sums,
    scale_columns,
    unit_rows,
    with_data,
)
from indexers.text import Analyser

K1, B = 1.5, 0.75
GRAM = 4
GRAM_BITS = 18
GRAM_CHARS = 400


def item_text(item: Item) -> str:
    """What is read of an item: title and text, without saying a title twice that the text begins
    with.
    """
    return item.text if item.text.startswith(item.title) else f"{item.title} {item.text}"


@dataclass(frozen=True)
class QueryBatch:
    """Queries as matrices. Rows are queries.

    Attributes:
        terms: 0/1 by term, (b, vocabulary).
        grams: 0/1 by character 4-gram bucket, (b, 2 ** GRAM_BITS).
        own: row of the query among the training queries, -1 for others: what a query must not learn
            from itself, (b,).
    """

    terms: Csr
    grams: Csr
    own: Ints

    @property
    def size(self) -> int:
        return int(self.own.size)

    def rows(self, rows: Ints) -> QueryBatch:
        return QueryBatch(self.terms[rows], self.grams[rows], self.own[rows])


@dataclass(frozen=True)
class TextIndex:
    """The matrices of the items.

    Attributes:
        analyser: how texts become terms.
        vocabulary: term -> column.
        counts: term counts of items, (n, vocabulary).
        titles: 0/1 terms of titles, (n, vocabulary).
        grams: 0/1 character 4-grams of items, (n, 2 ** GRAM_BITS).
        title_grams: the same of their titles, stop words and all.
        term_points: `latent.term_points` of the items, (vocabulary, dimensions).
    """

    analyser: Analyser
    vocabulary: dict[str, int]
    counts: Csr
    titles: Csr
    grams: Csr
    title_grams: Csr
    term_points: Floats

    @classmethod
    def fit(
        cls,
        analyser: Analyser,
        words: Sequence[Sequence[str]],
        items: Sequence[Item],
        queries: Sequence[str],
    ) -> TextIndex:
        """Index items, whose texts have these words (`analyser.words`).

        The vocabulary is theirs and the queries'.
        """
        vocabulary: dict[str, int] = {}
        rows = [
            [vocabulary.setdefault(term, len(vocabulary)) for term in analyser.terms_of(item)]
            for item in words
        ]
        for query in queries:
            for term in analyser.terms(query):
                vocabulary.setdefault(term, len(vocabulary))
        width = max(len(vocabulary), 1)
        titles = [
            [vocabulary[t] for t in analyser.terms(item.title) if t in vocabulary] for item in items
        ]
        texts = [item_text(item) for item in items]
        index = cls(
            analyser,
            vocabulary,
            counts_of(rows, width),
            binary(counts_of(titles, width)),
            char_grams(texts),
            char_grams([item.title for item in items]),
            np.zeros((width, 0), dtype=np.float32),
        )
        return replace(index, term_points=term_points(index.tfidf, index.df))

    def batch(self, texts: Sequence[str], own: Sequence[int] | None = None) -> QueryBatch:
        """Queries as matrices; `own` are their rows among the training queries, when they are
        training queries.
        """
        known = self.vocabulary
        rows = [
            [known[term] for term in self.analyser.terms(text) if term in known] for text in texts
        ]
        ids = (
            np.full(len(texts), -1, dtype=np.int64)
            if own is None
            else np.asarray(own, dtype=np.int64)
        )
        return QueryBatch(binary(counts_of(rows, self.counts.shape[1])), char_grams(texts), ids)

    @property
    def n_items(self) -> int:
        return int(self.counts.shape[0])

    @cached_property
    def lengths(self) -> Floats:
        """Terms of each item, (n,)."""
        return row_sums(self.counts)

    @cached_property
    def df(self) -> Ints:
        """Items with each term, (vocabulary,)."""
        return np.bincount(self.counts.indices, minlength=self.counts.shape[1])

    @cached_property
    def idf(self) -> Floats:
        """ln(1 + (n - df + .5) / (df + .5)), the idf of Lucene's BM25, (vocabulary,)."""
        return np.log1p((self.n_items - self.df + 0.5) / (self.df + 0.5)).astype(np.float32)

    @cached_property
    def gram_idf(self) -> Floats:
        df = np.bincount(self.grams.indices, minlength=self.grams.shape[1])
        return np.log1p(self.n_items / (df + 0.5)).astype(np.float32)

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
    def matched_idf(self) -> Csr:
        """idf wherever a term occurs, (vocabulary, n)."""
        return scale_columns(binary(self.counts), self.idf).T.tocsr()

    @cached_property
    def tfidf(self) -> Csr:
        """(1 + ln tf) idf, rows of length 1, (n, vocabulary)."""
        return unit_rows(
            scale_columns(with_data(self.counts, 1 + np.log(self.counts.data)), self.idf)
        )

    def vectors(self, items: Sequence[Item]) -> Csr:
        """Other items as rows of `tfidf`, (items, vocabulary)."""
        known = self.vocabulary
        rows = [
            [known[term] for term in self.analyser.terms(item_text(item)) if term in known]
            for item in items
        ]
        counts = counts_of(rows, self.counts.shape[1])
        return unit_rows(scale_columns(with_data(counts, 1 + np.log(counts.data)), self.idf))

    @cached_property
    def tfidf_by_term(self) -> Csr:
        return self.tfidf.T.tocsr()

    @cached_property
    def titles_by_term(self) -> Csr:
        return unit_rows(scale_columns(self.titles, self.idf)).T.tocsr()

    @cached_property
    def title_idf(self) -> Csr:
        """idf wherever a title has a term, (vocabulary, n)."""
        return scale_columns(self.titles, self.idf).T.tocsr()

    @cached_property
    def title_masses(self) -> Floats:
        """Sum of idf of each title's terms, (n,)."""
        masses: Floats = np.maximum(self.titles @ self.idf, 1e-9)
        return masses

    @cached_property
    def grams_by_gram(self) -> Csr:
        return unit_rows(scale_columns(self.grams, self.gram_idf)).T.tocsr()

    @cached_property
    def title_gram_idf(self) -> Floats:
        df = np.bincount(self.title_grams.indices, minlength=self.title_grams.shape[1])
        return np.log1p(self.n_items / (df + 0.5)).astype(np.float32)

    @cached_property
    def title_grams_by_gram(self) -> Csr:
        """idf among titles wherever a title has a 4-gram, (2 ** GRAM_BITS, n)."""
        return scale_columns(self.title_grams, self.title_gram_idf).T.tocsr()

    @cached_property
    def title_gram_masses(self) -> Floats:
        """Sum of idf of each title's 4-grams, (n,)."""
        masses: Floats = np.maximum(self.title_grams @ self.title_gram_idf, 1e-9)
        return masses

    @cached_property
    def points(self) -> Floats:
        """Items as points of length 1, (n, dimensions)."""
        return points(self.tfidf, self.term_points)

    def points_of(self, batch: QueryBatch) -> Floats:
        """Queries as points of length 1, (b, dimensions)."""
        return points(scale_columns(batch.terms, self.idf), self.term_points)


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
    """A bucket for each run of `GRAM` characters: an FNV-like mix, spread by Fibonacci hashing.

    Wraps on purpose.
    """
    if codes.size < GRAM:
        return np.zeros(0, dtype=np.int32)
    span = codes.size - GRAM + 1
    mixed = codes[:span]
    for offset in range(1, GRAM):
        mixed = mixed * np.uint64(0x100000001B3) + codes[offset : offset + span]
    return ((mixed * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(64 - GRAM_BITS)).astype(np.int32)
