"""What the ranker sees of a pair (query, item): matches of text, and votes of training queries.

`candidates` picks the pairs of each query that are worth a look and gives their features; all other
pairs count as irrelevant. What a feature is worth is the ranker's business.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from indexers.generators.statistical.evidence import Evidence
from indexers.generators.statistical.matrices import (
    Csr,
    Floats,
    Ints,
    kth_highest,
    row_max,
    row_sums,
    scale_columns,
    scale_rows,
    top_rows,
    unit_rows,
    values_at,
)
from indexers.generators.statistical.text_index import QueryBatch, TextIndex

PAIR_FEATURES = (
    "bm25",
    "bm25_share",
    "coverage",
    "title",
    "grams",
    "feedback",
    "profile",
    "profile_least",
    "vote_terms",
    "vote_nearest",
    "vote_grams",
    "vote_bm25",
    "vote_feedback",
    "vote_term",
)
QUERY_FEATURES = ("most_similar", "most_overlap", "terms", "best_share", "tenth", "fiftieth")
ITEM_FEATURES = ("popularity", "length")
FEATURES = PAIR_FEATURES + QUERY_FEATURES + ITEM_FEATURES

CANDIDATES = (
    "bm25",
    "feedback",
    "profile",
    "vote_grams",
    "vote_bm25",
    "vote_feedback",
    "vote_term",
)
"""Pair features whose best items become candidates."""

DEPTH = 40
"""Items that each of `CANDIDATES` brings in."""

BATCH_CELLS = 2_000_000
"""Queries x items that are worked on at once."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Candidate pairs, grouped by query.

    Attributes:
        x: features, (pairs, len(FEATURES)).
        query: row of the query in the batch, ascending, (pairs,).
        item: item, ascending within a query, (pairs,).
    """

    x: Floats
    query: Ints
    item: Ints


def candidates(evidence: Evidence, batch: QueryBatch) -> Pairs:
    """Features of the candidates of each query: the best `DEPTH` items by each of `CANDIDATES`."""
    size = max(1, BATCH_CELLS // max(evidence.index.n_items, 1))
    starts = range(0, batch.size, size)
    parts = [
        _candidates(evidence, batch.rows(np.arange(at, min(at + size, batch.size))))
        for at in starts
    ]
    return Pairs(
        np.concatenate([part.x for part in parts]),
        np.concatenate([part.query + at for part, at in zip(parts, starts, strict=True)]),
        np.concatenate([part.item for part in parts]),
    )


def _candidates(evidence: Evidence, batch: QueryBatch) -> Pairs:
    pair, query = _signals(evidence, batch)
    index, voters = evidence.index, evidence.voters
    chosen = np.zeros((batch.size, index.n_items), dtype=bool)
    for name in CANDIDATES:
        best = top_rows(pair[name], DEPTH)
        chosen[np.repeat(np.arange(batch.size), np.diff(best.indptr)), best.indices] = True
    row, item = np.nonzero(chosen)
    scratch = np.zeros(chosen.size, dtype=np.float32)
    at = row * index.n_items + item
    own = values_at(voters.own_relevance(batch.own), at, scratch)
    columns = [values_at(pair[name], at, scratch) for name in PAIR_FEATURES]
    columns += [query[name][row] for name in QUERY_FEATURES]
    columns += [np.log1p(voters.popularity[item] - own), np.log1p(index.lengths[item])]
    return Pairs(np.stack(columns, axis=1).astype(np.float32), row, item)


def _signals(evidence: Evidence, batch: QueryBatch) -> tuple[dict[str, Csr], dict[str, Floats]]:
    """Pair features, (b, items) each, and query features, (b,) each."""
    index, voters = evidence.index, evidence.voters
    own = batch.own
    share = 1 / np.maximum(batch.terms @ index.idf, 1e-9)
    terms = unit_rows(scale_columns(batch.terms, index.idf))
    grams = unit_rows(scale_columns(batch.grams, index.gram_idf))
    scores = batch.terms @ index.bm25
    best = row_max(scores)
    bm25 = scale_rows(scores, 1 / np.maximum(best, 1e-9))
    feedback = _feedback(index, terms, bm25)
    profile, profile_least = evidence.profiles.match(batch)
    similar = voters.similar(terms, own)
    overlap = voters.overlap(top_rows(bm25, 20), own)
    pair = {
        "bm25": bm25,
        "bm25_share": scale_rows(scores, share),
        "coverage": scale_rows(batch.terms @ index.matched_idf, share),
        "title": terms @ index.titles_by_term,
        "grams": grams @ index.grams_by_gram,
        "feedback": feedback,
        "profile": profile,
        "profile_least": profile_least,
        "vote_terms": voters.vote(similar, 50, 2),
        "vote_nearest": voters.vote(similar, 5, 2),
        "vote_grams": voters.vote(voters.alike(grams, own), 20, 3),
        "vote_bm25": voters.vote(overlap, 20, 2),
        "vote_feedback": voters.vote(voters.overlap(top_rows(feedback, 30), own), 20, 2),
        "vote_term": voters.term_vote(batch),
    }
    query = {
        "most_similar": row_max(similar),
        "most_overlap": row_max(overlap),
        "terms": row_sums(batch.terms),
        "best_share": best * share,
        "tenth": kth_highest(bm25, 10),
        "fiftieth": kth_highest(bm25, 50),
    }
    return pair, query


def _feedback(index: TextIndex, terms: Csr, bm25: Csr) -> Csr:
    """Pseudo-relevance feedback (Rocchio): the query plus the mean of its ten best items, kept to
    60 terms; cosine.
    """
    top = top_rows(bm25, 10)
    top = scale_rows(top, 1 / np.maximum(row_sums(top), 1e-9))
    return unit_rows(top_rows((terms + top @ index.tfidf).tocsr(), 60)) @ index.tfidf_by_term
