"""What training queries say about a new query: items that are relevant to similar queries are
likely to be relevant to it, and its words are translated into the items' words.

Every feature that uses labels comes from here. A training query must not see its own labels: each
function takes the batch's `own` rows and leaves them out, so that the features for training are
leave-one-out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from indexers.generators.statistical import FEW_QUERIES
from indexers.generators.statistical.ranking.matrices import (
    Csr,
    Floats,
    Ints,
    row_max,
    row_of,
    row_sums,
    scale_columns,
    scale_rows,
    top_rows,
    unit,
    unit_rows,
    with_data,
)
from indexers.generators.statistical.ranking.text_index import QueryBatch, TextIndex

_SHRINKAGE = 0.5
"""Added to the sum of a vote's weights, so that one moderately similar query does not decide alone.
"""

NEAREST = 20
"""Training queries that are nearest to a query's point."""
LIFT = 3
"""A word's weight in a profile is its weight less this many times its mean weight over all items.
"""

PROFILE_WORDS = 30
QUERY_TERMS = 16
"""The rarest terms of a query that are looked up; long texts have more."""

FLOOR = 0.02
"""Added to each term's match before the geometric mean, so that one miss does not forbid."""


class TrainingQueries:
    """The items' text, the training queries and what is relevant to them: all that features are
    computed from.

    Args:
        index: the items.
        texts: of the training queries, in the order of `relevance`; or they as matrices.
        relevance: 0/1, (training queries, items).
        few: by their number where None.

    Attributes:
        few: whether the ranker has few training queries (`FEW_QUERIES`).
        points, encoded: of the queries, in the latent space and by the encoder.
        found_points, found_encoded: means of their relevant items.
    """

    def __init__(
        self,
        index: TextIndex,
        texts: Sequence[str] | QueryBatch,
        relevance: Csr,
        few: bool | None = None,
    ) -> None:
        self.index, self.relevance = index, relevance
        n = relevance.shape[0]
        self.few = n < FEW_QUERIES if few is None else few
        queries = texts if isinstance(texts, QueryBatch) else index.batch(texts, range(n))
        self.queries = queries
        self._labelled, narrow = np.unique(relevance.indices, return_inverse=True)
        shape = (relevance.shape[0], self._labelled.size)
        self._narrow = sp.csr_matrix((relevance.data, narrow, relevance.indptr), shape=shape)
        self.by_term = unit_rows(scale_columns(queries.terms, index.idf)).T.tocsr()
        self.by_gram = unit_rows(scale_columns(queries.grams, index.gram_idf)).T.tocsr()
        self.popularity = np.asarray(relevance.sum(axis=0), dtype=np.float32).ravel()
        self.term_relevance = (queries.terms.T @ self._narrow).tocsr()
        self.term_queries = np.asarray(queries.terms.sum(axis=0), dtype=np.float32).ravel()
        self.points, self.encoded = index.points_of(queries), queries.encoded
        self.found_points = unit(relevance @ index.points)
        self.found_encoded = unit(relevance @ index.encoded)
        each = scale_rows(relevance, 1 / np.maximum(row_sums(relevance), 1))
        self._centroids = each @ index.tfidf
        self._profiles = (queries.terms.T @ self._centroids).tocsr()
        self._background = LIFT * np.asarray(index.tfidf.mean(axis=0), dtype=np.float32).ravel()

    def without(self, rows: Ints) -> TrainingQueries:
        """As if these training queries, ascending, had never been asked."""
        kept = np.delete(np.arange(self.relevance.shape[0]), rows)
        batch = replace(self.queries.rows(kept), own=np.arange(kept.size))
        return TrainingQueries(self.index, batch, self.relevance[kept], self.few)

    @cached_property
    def by_item(self) -> Csr:
        """Relevance by item, each training query scaled by 1 / sqrt of the number of its relevant
        items.
        """
        return scale_rows(
            self.relevance, 1 / np.sqrt(np.maximum(row_sums(self.relevance), 1))
        ).T.tocsr()

    def similar(self, terms: Csr, own: Ints) -> Csr:
        """Cosine of idf vectors with those of training queries, (b, training queries)."""
        return _without_own(terms @ self.by_term, own)

    def alike(self, grams: Csr, own: Ints) -> Csr:
        """Cosine of character 4-grams with those of training queries, (b, training queries)."""
        return _without_own(grams @ self.by_gram, own)

    def overlap(self, scores: Csr, own: Ints) -> Csr:
        """Cosine of item scores with training queries' relevant sets, (b, training queries)."""
        return _without_own(unit_rows(scores) @ self.by_item, own)

    def vote(self, similarity: Csr, k: int, power: int) -> Csr:
        """sum S^power R / (sum S^power + 0.5) over the k most similar training queries, (b, items),
        in [0, 1).
        """
        weights = top_rows(similarity, k)
        weights = with_data(weights, weights.data**power)
        votes = scale_rows(weights @ self._narrow, 1 / (row_sums(weights) + _SHRINKAGE))
        return self._of_items(votes)

    def _of_items(self, votes: Csr) -> Csr:
        """A matrix over all items from one over the labelled ones. scipy's products take memory and
        time for every column, and most items have no label.
        """
        shape = (votes.shape[0], self.relevance.shape[1])
        return sp.csr_matrix((votes.data, self._labelled[votes.indices], votes.indptr), shape=shape)

    def own_relevance(self, own: Ints) -> Csr:
        """Rows of `relevance` for the batch's training queries; empty rows for others."""
        return _rows_of(self.relevance, own)

    def term_vote(self, batch: QueryBatch) -> Csr:
        """Share of the training queries with a term of the query (counted once a term) that have
        the item among their relevant ones.
        """
        terms = row_sums(batch.terms)
        own = _rows_of(self._narrow, batch.own)
        hits = batch.terms @ self.term_relevance - scale_rows(own, terms)
        seen: Floats = batch.terms @ self.term_queries - terms * (batch.own >= 0)
        return self._of_items(scale_rows(hits, 1 / (seen + 2)))

    def fit(self, batch: QueryBatch) -> tuple[Csr, Csr]:
        """How well items fit the profiles of the query's terms: idf-weighted geometric mean and
        minimum over terms, (b, items) each.

        The profile of a term holds the words that are much more frequent in items relevant to
        training queries with that term than in other items: shoppers type "sofa", the catalogue
        writes "settee". An item that fits the profiles of all terms of a query fits the query, even
        when nobody has asked for that combination before. This is Rocchio's feedback, for each term
        and from labels. Items that fit no term have 0 in both.
        """
        terms = top_rows(scale_columns(batch.terms, self.index.idf), QUERY_TERMS)
        scores = self._meaning(terms, batch) @ self.index.tfidf_by_term
        fits = scale_rows(scores, 1 / np.maximum(row_max(scores), 1e-9)).toarray()
        touched = np.flatnonzero(fits.any(axis=0))
        fits = fits[:, touched]
        mean = np.zeros((batch.size, touched.size), dtype=np.float32)
        least = np.zeros_like(mean)
        asked = np.flatnonzero(np.diff(terms.indptr))
        if asked.size:
            first, weights = terms.indptr[asked], terms.data
            least[asked] = np.minimum.reduceat(fits, first, axis=0)
            logs = np.add.reduceat(np.log(fits + FLOOR) * weights[:, None], first, axis=0)
            mean[asked] = np.exp(logs / np.add.reduceat(weights, first)[:, None])
            mean[asked] *= np.maximum.reduceat(fits, first, axis=0) > 0
        return self._sparse(mean, touched), self._sparse(least, touched)

    def _sparse(self, values: Floats, items: Ints) -> Csr:
        """A matrix over all items from one over some."""
        row, column = np.nonzero(values)
        starts = np.searchsorted(row, np.arange(values.shape[0] + 1))
        shape = (values.shape[0], self.index.n_items)
        return sp.csr_matrix((values[row, column], items[column], starts), shape=shape)

    def _meaning(self, terms: Csr, batch: QueryBatch) -> Csr:
        """A row of item words for each stored (query, term): its profile without the query's own
        labels, and itself.
        """
        own, term = batch.own[row_of(terms)], terms.indices
        learned = self._profiles[term] - scale_rows(self._centroids[np.maximum(own, 0)], own >= 0)
        others = self.term_queries[term] - (own >= 0)
        learned = scale_rows(learned, 1 / np.maximum(others, 1))
        learned = with_data(
            learned, np.maximum(learned.data - self._background[learned.indices], 0)
        )
        learned = scale_rows(unit_rows(top_rows(learned, PROFILE_WORDS)), others / (others + 1))
        shape = (term.size, self.index.idf.size)
        itself = sp.csr_matrix(
            (self.index.df[term] > 0, term, np.arange(term.size + 1)), shape=shape, dtype=np.float32
        )
        return unit_rows(learned + itself)


def _rows_of(relevance: Csr, own: Ints) -> Csr:
    return scale_rows(relevance[np.maximum(own, 0)], (own >= 0).astype(np.float32))


def _without_own(similarity: Csr, own: Ints) -> Csr:
    """Similarity to training queries, 0 to oneself."""
    return with_data(
        similarity, np.where(similarity.indices == own[row_of(similarity)], 0, similarity.data)
    )
