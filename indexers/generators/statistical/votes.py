"""Training queries as voters: what is relevant to queries like this one is likely to be relevant to
this one.

Every learned feature of the ranker is a weighted vote of training queries. A training query that is
scored itself must not hear its own vote: each function takes the batch's `own` rows and leaves them
out, which is all that honest leave-one-out training features need.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from indexers.generators.statistical.matrices import (
    Csr,
    Floats,
    Ints,
    row_of,
    row_sums,
    scale_columns,
    scale_rows,
    top_rows,
    unit_rows,
    with_data,
)
from indexers.generators.statistical.text_index import QueryBatch, TextIndex

SHRINKAGE = 0.5
"""Added to the sum of a vote's weights, so that one lukewarm neighbour does not decide alone."""


class Voters:
    """The training queries and what is relevant to them.

    Args:
        index: the items.
        queries: the training queries, in the order of `relevance`.
        relevance: 0/1, (training queries, items).
    """

    def __init__(self, index: TextIndex, queries: QueryBatch, relevance: Csr) -> None:
        self.queries, self.relevance = queries, relevance
        self.by_term = unit_rows(scale_columns(queries.terms, index.idf)).T.tocsr()
        self.by_gram = unit_rows(scale_columns(queries.grams, index.gram_idf)).T.tocsr()
        self.popularity = np.asarray(relevance.sum(axis=0), dtype=np.float32).ravel()
        self.term_relevance = (queries.terms.T @ relevance).tocsr()
        self.term_queries = np.asarray(queries.terms.sum(axis=0), dtype=np.float32).ravel()

    @cached_property
    def by_item(self) -> Csr:
        """Relevance by item, each training query scaled by 1 / sqrt of the number of its relevant
        items.
        """
        return scale_rows(
            self.relevance, 1 / np.sqrt(np.maximum(row_sums(self.relevance), 1))
        ).T.tocsr()

    def similar(self, terms: Csr, own: Ints) -> Csr:
        """Cosine of the queries' idf vectors with those of training queries, (b,
        training queries).
        """
        return _without_own(terms @ self.by_term, own)

    def alike(self, grams: Csr, own: Ints) -> Csr:
        """Cosine of character 4-grams with those of training queries, (b, training queries)."""
        return _without_own(grams @ self.by_gram, own)

    def overlap(self, scores: Csr, own: Ints) -> Csr:
        """Cosine of item scores with the relevant sets of training queries, (b,
        training queries).
        """
        return _without_own(unit_rows(scores) @ self.by_item, own)

    def vote(self, similarity: Csr, k: int, power: int) -> Csr:
        """sum S^power R / (sum S^power + 0.5) over the k most similar training queries, (b, items),
        in [0, 1).
        """
        weights = top_rows(similarity, k)
        weights = with_data(weights, weights.data**power)
        return scale_rows(weights @ self.relevance, 1 / (row_sums(weights) + SHRINKAGE))

    def own_relevance(self, own: Ints) -> Csr:
        """Rows of `relevance` for the training queries of the batch; empty rows for
        other queries.
        """
        return scale_rows(self.relevance[np.maximum(own, 0)], (own >= 0).astype(np.float32))

    def term_vote(self, batch: QueryBatch) -> Csr:
        """Of the training queries that share a term with the query (once a term), the share that
        finds an item relevant.
        """
        terms = row_sums(batch.terms)
        hits = batch.terms @ self.term_relevance - scale_rows(self.own_relevance(batch.own), terms)
        seen: Floats = batch.terms @ self.term_queries - terms * (batch.own >= 0)
        return scale_rows(hits, 1 / (seen + 2))


def _without_own(similarity: Csr, own: Ints) -> Csr:
    """Similarity to training queries, 0 to oneself."""
    return with_data(
        similarity, np.where(similarity.indices == own[row_of(similarity)], 0, similarity.data)
    )
