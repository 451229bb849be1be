"""What a query's words mean in the items' words, as the training labels tell it.

The profile of a term is what items relevant to training queries with that term say much more often
than other items do: shoppers type "sofa", the catalogue writes "settee". An item that fits the
profiles of all terms of a query fits the query, even when nobody has asked for that combination
before. This is Rocchio's feedback, for each term and from labels.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from indexers.generators.statistical.matrices import (
    Csr,
    Floats,
    Ints,
    row_max,
    row_of,
    row_sums,
    scale_columns,
    scale_rows,
    top_rows,
    unit_rows,
    with_data,
)
from indexers.generators.statistical.text_index import QueryBatch, TextIndex

LIFT = 3
"""A word belongs to a profile by what it weighs beyond this many times its mean weight over all
items.
"""

PROFILE_WORDS = 30
QUERY_TERMS = 16
"""The rarest terms of a query that are looked up; long texts have more."""

FLOOR = 0.02
"""Added to each term's match before the geometric mean, so that one miss does not forbid."""


class Profiles:
    """Profiles of all terms of the training queries.

    Args:
        index: the items.
        queries: the training queries, in the order of `relevance`.
        relevance: 0/1, (training queries, items).
    """

    def __init__(self, index: TextIndex, queries: QueryBatch, relevance: Csr) -> None:
        self.index = index
        self.centroids = scale_rows(relevance, 1 / np.maximum(row_sums(relevance), 1)) @ index.tfidf
        self.by_term = (queries.terms.T @ self.centroids).tocsr()
        self.term_queries = np.asarray(queries.terms.sum(axis=0), dtype=np.float32).ravel()
        self.background = LIFT * np.asarray(index.tfidf.mean(axis=0), dtype=np.float32).ravel()

    def match(self, batch: QueryBatch) -> tuple[Csr, Csr]:
        """How well items fit the query's terms: idf-weighted geometric mean and minimum over terms,
        (b, items) each.

        Items that fit no term have 0 in both.
        """
        terms = top_rows(scale_columns(batch.terms, self.index.idf), QUERY_TERMS)
        scores = self._profiles(terms, batch) @ self.index.tfidf_by_term
        fit = scale_rows(scores, 1 / np.maximum(row_max(scores), 1e-9)).toarray()
        touched = np.flatnonzero(fit.any(axis=0))
        fit = fit[:, touched]
        mean = np.zeros((batch.size, touched.size), dtype=np.float32)
        least = np.zeros_like(mean)
        asked = np.flatnonzero(np.diff(terms.indptr))
        if asked.size:
            first, weights = terms.indptr[asked], terms.data
            least[asked] = np.minimum.reduceat(fit, first, axis=0)
            logs = np.add.reduceat(np.log(fit + FLOOR) * weights[:, None], first, axis=0)
            mean[asked] = np.exp(logs / np.add.reduceat(weights, first)[:, None])
            mean[asked] *= np.maximum.reduceat(fit, first, axis=0) > 0
        return self._sparse(mean, touched), self._sparse(least, touched)

    def _sparse(self, values: Floats, items: Ints) -> Csr:
        """A matrix over all items from one over some."""
        row, column = np.nonzero(values)
        starts = np.searchsorted(row, np.arange(values.shape[0] + 1))
        shape = (values.shape[0], self.index.n_items)
        return sp.csr_matrix((values[row, column], items[column], starts), shape=shape)

    def _profiles(self, terms: Csr, batch: QueryBatch) -> Csr:
        """A row of item words for each stored (query, term): its profile without the query's own
        labels, and itself.
        """
        own, term = batch.own[row_of(terms)], terms.indices
        learned = self.by_term[term] - scale_rows(self.centroids[np.maximum(own, 0)], own >= 0)
        others = self.term_queries[term] - (own >= 0)
        learned = scale_rows(learned, 1 / np.maximum(others, 1))
        learned = with_data(learned, np.maximum(learned.data - self.background[learned.indices], 0))
        learned = scale_rows(unit_rows(top_rows(learned, PROFILE_WORDS)), others / (others + 1))
        shape = (term.size, self.index.idf.size)
        itself = sp.csr_matrix(
            (self.index.df[term] > 0, term, np.arange(term.size + 1)), shape=shape, dtype=np.float32
        )
        return unit_rows(learned + itself)
