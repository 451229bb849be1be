"""The ranker's features of a pair (query, item): text matches, votes of training queries, and the
numbers that a data set has for the item or the pair.

`candidates` picks the promising pairs of each query and gives their features; all other pairs count
as irrelevant.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from indexers.generators.statistical.ranking.matrices import (
    Csr,
    Floats,
    Ints,
    among,
    binary,
    kth_highest,
    row_max,
    row_of,
    row_sums,
    scale_columns,
    scale_rows,
    top_dense,
    top_rows,
    unit,
    unit_rows,
    values_at,
)
from indexers.generators.statistical.ranking.text_index import QueryBatch, TextIndex
from indexers.generators.statistical.ranking.training_queries import (
    NEAREST,
    TrainingQueries,
)

_VOTES = ("vote_grams", "vote_bm25", "vote_feedback", "vote_term", "vote_latent", "vote_found")
PAIR_FEATURES = (
    "bm25",
    "bm25_share",
    "coverage",
    "title",
    "title_share",
    "title_covered",
    "grams",
    "title_grams",
    "title_grams_share",
    "title_grams_covered",
    "numbers_missing",
    "title_numbers_missing",
    "feedback",
    "profile",
    "profile_least",
    "vote_terms",
    "vote_nearest",
    *_VOTES,
)
POINT_FEATURES = ("latent", "latent_feedback")
QUERY_FEATURES = ("most_similar", "most_overlap", "terms", "best_share", "tenth", "fiftieth")
ITEM_FEATURES = ("popularity", "length")
FEATURES = PAIR_FEATURES + POINT_FEATURES + QUERY_FEATURES + ITEM_FEATURES

FEW_FEATURES = ("latent_best",)
"""A further feature where training queries are few."""

ENCODED_POINTS = ("encoded", "encoded_best")
ENCODED_VOTES = ("vote_encoded", "vote_encoded_found")
ENCODED_QUERY_FEATURES = ("most_encoded", "most_encoded_found")
ENCODED_FEATURES = ENCODED_POINTS + ENCODED_VOTES + ENCODED_QUERY_FEATURES
"""Further features where there is an encoder."""

CANDIDATES = ("bm25", "feedback", "profile", *_VOTES)
"""Features whose best items become candidates, beside "latent"."""

DEPTH, DEPTH_OF_FEW = 40, 60
"""Items that each of `CANDIDATES` brings in; more where training queries are few."""

SPELLED_DEPTH, SPELLED_DEPTH_OF_FEW = 10, 60
"""Items whose titles are spelled like the query; msrd and nfcorpus lose where it is 40."""

BATCH_CELLS = 2_000_000
"""Queries x items that are worked on at once."""


@dataclass(frozen=True, slots=True)
class CandidatePairs:
    """Candidate pairs, grouped by query.

    Attributes:
        x: features, (pairs, features): `FEATURES`, then `FEW_FEATURES` where training queries are
            few, `ENCODED_FEATURES` with an encoder, three a signal of pairs.
        query: row of the query in the batch, ascending, (pairs,).
        item: item, ascending within a query, (pairs,).
    """

    x: Floats
    query: Ints
    item: Ints

    @classmethod
    def of(cls, parts: Iterable[CandidatePairs]) -> CandidatePairs:
        """The pairs of some batches, one after the other."""
        columns = zip(*((part.x, part.query, part.item) for part in parts), strict=True)
        return cls(*map(np.concatenate, columns))

    def spans(self, queries: int) -> list[slice]:
        """The places of each query's pairs, of a batch of so many queries."""
        bounds = np.searchsorted(self.query, np.arange(queries + 1)).tolist()
        return [*map(slice, bounds, bounds[1:])]

    def where(self, kept: NDArray[np.bool_]) -> CandidatePairs:
        """The pairs where the mask, (pairs,), is true."""
        return CandidatePairs(self.x[kept], self.query[kept], self.item[kept])


def candidates(sources: TrainingQueries, batch: QueryBatch) -> CandidatePairs:
    """Features of the candidates of each query: the best `DEPTH` items by each of `CANDIDATES`, and
    `SPELLED_DEPTH` of them by the 4-grams of their titles.
    """
    size = max(1, BATCH_CELLS // max(sources.index.n_items, 1))
    starts = range(0, batch.size, size)
    parts = [
        _candidates(sources, batch.rows(np.arange(at, min(at + size, batch.size)))) for at in starts
    ]
    shifted = zip(parts, starts, strict=True)
    return CandidatePairs.of(replace(part, query=part.query + at) for part, at in shifted)


def _candidates(sources: TrainingQueries, batch: QueryBatch) -> CandidatePairs:
    signals, index = _signals(sources, batch), sources.index
    depth = DEPTH_OF_FEW if sources.few else DEPTH
    spelled = SPELLED_DEPTH_OF_FEW if sources.few else SPELLED_DEPTH
    names = (*CANDIDATES, *(("near_encoded", *ENCODED_VOTES) if signals.encoded else ()))
    scores = [*(signals.pair[name] for name in names), *batch.pair_signals]
    best = [top_rows(values, depth) for values in scores]
    best.append(top_dense(signals.points["latent"] @ index.points.T, depth))
    best.append(index.nearest_titles(batch.grams, spelled))
    if signals.encoded:
        best.append(index.nearest_encoded(signals.encoded[1], depth))
    chosen = np.zeros((batch.size, index.n_items), dtype=bool)
    for rows in best:
        chosen[row_of(rows), rows.indices] = True
    row, item = np.divmod(np.flatnonzero(chosen), index.n_items)
    return CandidatePairs(_columns(sources, batch, signals, row, item), row, item)


def _columns(
    sources: TrainingQueries, batch: QueryBatch, signals: _Signals, row: Ints, item: Ints
) -> Floats:
    index = sources.index
    scratch = np.zeros(batch.size * index.n_items, dtype=np.float32)
    at = row * index.n_items + item
    own = values_at(sources.own_relevance(batch.own), at, scratch)
    near = _near_text(index, batch, row, item)
    columns: list[NDArray[Any]] = [
        near[name] if name in near else values_at(signals.pair[name], at, scratch)
        for name in PAIR_FEATURES
    ]
    items = index.points[item]
    columns += [np.einsum("ij,ij->i", signals.points[n][row], items) for n in POINT_FEATURES]
    columns += [signals.query[name][row] for name in QUERY_FEATURES]
    columns += [np.log1p(sources.popularity[item] - own), np.log1p(index.lengths[item])]
    if sources.few:
        columns += [np.einsum("ij,ij->i", signals.points[n][row], items) for n in FEW_FEATURES]
    if signals.encoded:
        encoded = index.encoded[item]
        columns += [np.einsum("ij,ij->i", points[row], encoded) for points in signals.encoded]
        columns += [values_at(signals.pair[name], at, scratch) for name in ENCODED_VOTES]
        columns += [signals.query[name][row] for name in ENCODED_QUERY_FEATURES]
    for signal in batch.pair_signals:
        values = values_at(signal, at, scratch)
        columns += [values, rank_shares(row, values) * (values > 0), row_max(signal)[row] > 0]
    return np.stack(columns, axis=1).astype(np.float32)


def rank_shares(row: Ints, values: Floats) -> Floats:
    """Each value's place among the candidates of its query, in (0, 1], 1 the highest; of equals the
    earlier lower. `row` ascends.
    """
    places = np.empty(row.size, dtype=np.int64)
    places[np.lexsort((values, row))] = np.arange(row.size)
    first = np.searchsorted(row, row)
    shares: Floats = (places - first + 1) / (np.searchsorted(row, row, side="right") - first)
    return shares


@dataclass(frozen=True, slots=True)
class _Signals:
    """The features of a batch of queries, before candidates are picked: of all pairs, (b, items)
    each, but for those of `_near_text`; what items' points are compared with, (b, dimensions) each,
    by the encoder too where there is one; and of queries, (b,) each.
    """

    pair: dict[str, Csr]
    points: dict[str, Floats]
    query: dict[str, Floats]
    encoded: Sequence[Floats] = ()


def _signals(sources: TrainingQueries, batch: QueryBatch) -> _Signals:
    index = sources.index
    share = 1 / np.maximum(batch.terms @ index.idf, 1e-9)
    scores = batch.terms @ index.bm25
    highest = row_max(scores)
    bm25 = scale_rows(scores, 1 / np.maximum(highest, 1e-9))
    first = top_rows(bm25, 10)
    profile, profile_least = sources.fit(batch)
    pair = {
        "bm25": bm25,
        "bm25_share": scale_rows(scores, share),
        "feedback": _feedback(index, unit_terms(index, batch), first),
        "profile": profile,
        "profile_least": profile_least,
    }
    points = {"latent": index.points_of(batch), "latent_feedback": unit(first @ index.points)}
    query = {
        "terms": row_sums(batch.terms),
        "best_share": highest * share,
        "tenth": kth_highest(bm25, 10),
        "fiftieth": kth_highest(bm25, 50),
    }
    _votes(sources, batch, points["latent"], pair, query)
    if sources.few:
        best = pair["bm25"] + pair["feedback"] + 2 * (pair["vote_bm25"] + pair["vote_found"])
        points["latent_best"] = unit(top_rows(best.tocsr(), 20) @ index.points)
    encoded = _encoded(sources, batch, pair, query) if index.encoder else ()
    return _Signals(pair, points, query, encoded)


def _encoded(
    sources: TrainingQueries, batch: QueryBatch, pair: dict[str, Csr], query: dict[str, Floats]
) -> tuple[Floats, Floats]:
    """The points of `_Signals`; what else the encoder says is put into `pair` and `query`."""
    index, points = sources.index, batch.encoded
    for others, vote, most in zip(
        (sources.encoded, sources.found_encoded), ENCODED_VOTES, ENCODED_QUERY_FEATURES, strict=True
    ):
        similar = _near(points, others, batch.own)
        pair[vote], query[most] = sources.vote(similar, NEAREST, 6), row_max(similar)
    seed = pair["bm25"] + pair["feedback"] + 2 * pair["vote_bm25"] + 2 * pair[ENCODED_VOTES[1]]
    pair["near_encoded"] = index.nearest_encoded(points, DEPTH_OF_FEW)
    best = top_rows((seed + top_rows(pair["near_encoded"], 50)).tocsr(), 20)
    return points, unit(best @ index.encoded)


def _near_text(index: TextIndex, batch: QueryBatch, row: Ints, item: Ints) -> dict[str, Floats]:
    """How the texts and titles of candidates match their queries, (pairs,) each.

    The shares of the query's idf that a title covers, and of the title's that the query covers, are
    computed for terms and for 4-grams, which keep stop words and word order. Numbers are terms with
    a digit: missing is their share of the query's idf that is not in the text, or in the title.
    """
    items, local = np.unique(item, return_inverse=True)

    def of(queries: Csr, texts: Csr) -> Floats:
        if batch.size == 1:  # The same sums, without turning the texts round.
            return np.asarray(texts @ queries.toarray()[0])
        products = (queries @ texts.T.tocsr()).tocsr()
        return values_at(products, row * items.size + local, scratch)

    scratch = np.zeros(batch.size * items.size, dtype=np.float32)
    by_term, by_gram = (index.counts, index.titles), (index.grams, index.title_grams)
    counts, titles = (among(texts[items], batch.terms.indices) for texts in by_term)
    grams, title_grams = (among(texts[items], batch.grams.indices) for texts in by_gram)
    titles = scale_columns(titles, index.idf)
    grams = scale_rows(scale_columns(grams, index.gram_idf), index.gram_scales[items])
    share = (1 / np.maximum(batch.terms @ index.idf, 1e-9))[row]
    gram_share = (1 / np.maximum(batch.grams @ index.title_gram_idf, 1e-9))[row]
    in_title = of(batch.terms, titles)
    numbers = (batch.terms @ (index.idf * index.numbers))[row]
    numbered = scale_columns(binary(counts), index.idf * index.numbers)
    in_title_grams = of(batch.grams, scale_columns(title_grams, index.title_gram_idf))
    gram_covered = 1 / index.title_gram_masses[item]
    return {
        "coverage": of(batch.terms, scale_columns(binary(counts), index.idf)) * share,
        "title": of(unit_terms(index, batch), scale_rows(titles, index.title_scales[items])),
        "grams": of(unit_grams(index, batch), grams),
        "title_share": in_title * share,
        "title_covered": in_title * (1 / index.title_masses[item]),
        "title_grams": in_title_grams * np.sqrt(gram_share) * np.sqrt(gram_covered),
        "title_grams_share": in_title_grams * gram_share,
        "title_grams_covered": in_title_grams * gram_covered,
        "numbers_missing": (numbers - of(batch.terms, numbered)) * share,
        "title_numbers_missing": (numbers - of(batch.terms, scale_columns(titles, index.numbers)))
        * share,
    }


def _near(points: Floats, others: Floats, own: Ints) -> Csr:
    """Cosine of queries' points with the `NEAREST` of the training queries' points `others`, (b,
    training queries).
    """
    cosines = points @ others.T
    trained = np.flatnonzero(own >= 0)
    cosines[trained, own[trained]] = 0
    return top_dense(cosines, NEAREST)


def unit_terms(index: TextIndex, batch: QueryBatch) -> Csr:
    """Terms of queries by idf, rows of length 1."""
    return unit_rows(scale_columns(batch.terms, index.idf))


def unit_grams(index: TextIndex, batch: QueryBatch) -> Csr:
    """4-grams of queries by idf, rows of length 1."""
    return unit_rows(scale_columns(batch.grams, index.gram_idf))


def _votes(
    sources: TrainingQueries,
    batch: QueryBatch,
    points: Floats,
    pair: dict[str, Csr],
    query: dict[str, Floats],
) -> None:
    """Votes of training queries, and how near the nearest ones are, put into `pair` and `query`."""
    index, own = sources.index, batch.own
    similar = sources.similar(unit_terms(index, batch), own)
    alike = sources.alike(unit_grams(index, batch), own)
    overlap = sources.overlap(top_rows(pair["bm25"], 20), own)
    overlap_feedback = sources.overlap(top_rows(pair["feedback"], 30), own)
    pair |= {
        "vote_terms": sources.vote(similar, 50, 2),
        "vote_nearest": sources.vote(similar, 5, 2),
        "vote_grams": sources.vote(alike, 20, 3),
        "vote_bm25": sources.vote(overlap, 20, 2),
        "vote_feedback": sources.vote(overlap_feedback, 20, 2),
        "vote_term": sources.term_vote(batch),
        "vote_latent": sources.vote(_near(points, sources.points, own), NEAREST, 4),
        "vote_found": sources.vote(_near(points, sources.found_points, own), NEAREST, 4),
    }
    query |= {"most_similar": row_max(similar), "most_overlap": row_max(overlap)}


def _feedback(index: TextIndex, terms: Csr, first: Csr) -> Csr:
    """Pseudo-relevance feedback (Rocchio): the query plus the mean of its ten best items, kept to
    60 terms; cosine.
    """
    top = scale_rows(first, 1 / np.maximum(row_sums(first), 1e-9))
    return unit_rows(top_rows((terms + top @ index.tfidf).tocsr(), 60)) @ index.tfidf_by_term
