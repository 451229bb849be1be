"""Topics without labels: a second ranker, for queries that no training query is like.

A training query is scored while its paraphrases and neighbours vote, so the ranker learns that an
item without votes is irrelevant. A query on a topic that nobody labelled has no votes at all. The
training queries are therefore cut into groups of topics, and each group's candidates are computed
once more as if the group had no labels. The hidden ranker learns from these rows alone. A mixer, a
logistic regression on features of the query, says how likely it is that the labels know its topic;
p is the mean of both rankers by that.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from indexers.generators.statistical import FOLDS
from indexers.generators.statistical.ranking.features import (
    BATCH_CELLS,
    CandidatePairs,
    candidates,
)
from indexers.generators.statistical.ranking.matrices import (
    Csr,
    Floats,
    Ints,
    row_of,
    row_sums,
    unit,
)
from indexers.generators.statistical.ranking.training_queries import TrainingQueries

_SHARED = 0.2
"""Two queries are of one topic where they share so many of their relevant items (Jaccard)."""

LARGEST = 0.1
"""A topic with more than this share of the queries is cut."""

MAX_CONNECTED = 20_000
"""With more training queries all count as one topic, which is cut: comparing each with each takes
too long.
"""

_ROUNDS = 10
"""Of k-means."""


def topic_groups(sources: TrainingQueries, seed: int) -> Ints:
    """The group of each training query, 0 to `FOLDS` - 1; queries of one topic are in one group.

    Topics are connected components of queries that share relevant items; large ones are cut by
    k-means over the means of what they find.
    """
    n = sources.relevance.shape[0]
    topic = _connected(sources.relevance) if n <= MAX_CONNECTED else np.zeros(n, np.int64)
    for one in np.flatnonzero(np.bincount(topic) > max(1.0, LARGEST * n)):
        members = np.flatnonzero(topic == one)
        parts = int(np.ceil(2 * members.size / max(1.0, LARGEST * n)))
        part = _clusters(sources.found_points[members], min(parts, members.size), seed)
        topic[members] = topic.max() + 1 + part
    if np.unique(topic).size == 1:  # All find the same: no group may be without the others.
        topic = np.arange(n)
    _, topic, sizes = np.unique(topic, return_inverse=True, return_counts=True)
    groups, load = np.zeros(sizes.size, np.int64), np.zeros(FOLDS, np.int64)
    order = np.random.default_rng(seed).permutation(sizes.size)
    for one in order[np.argsort(-sizes[order], kind="stable")]:
        groups[one] = load.argmin()
        load[groups[one]] += sizes[one]
    result: Ints = groups[topic]
    return result


def _clusters(points: Floats, k: int, seed: int) -> Ints:
    """The cluster of each point, of length 1, by spherical k-means."""
    rng = np.random.default_rng(seed)
    centres, part = points[rng.permutation(len(points))[:k]], np.zeros(len(points), np.int64)
    for _ in range(_ROUNDS):
        part = (points @ centres.T).argmax(axis=1)
        members = csr_matrix((np.ones(part.size, np.float32), (part, np.arange(part.size))))
        centres = unit(members @ points)
    return part


def _connected(relevance: Csr) -> Ints:
    """The connected component of each training query. Some rows at a time, since queries for the
    same popular item are many pairs.
    """
    n, sizes, by_item = relevance.shape[0], row_sums(relevance), relevance.T.tocsr()
    topic = np.arange(n)
    step = max(1, BATCH_CELLS // max(n, 1))
    for at in range(0, n, step):
        common = (relevance[at : at + step] @ by_item).tocsr()
        one, other = at + row_of(common), common.indices
        near = common.data >= _SHARED * (sizes[one] + sizes[other] - common.data)
        places = topic[one[near]], topic[other[near]]
        graph = csr_matrix((np.ones(places[0].size, np.int8), places), shape=(n, n))
        topic = connected_components(graph, directed=False)[1][topic].astype(np.int64)
    return topic


def hidden_candidates(sources: TrainingQueries, rows: Ints, groups: Ints) -> CandidatePairs:
    """Candidates of the training queries `rows`, each as if its group had no labels.

    Args:
        groups: of all training queries.
    """
    parts = []
    for group in range(FOLDS):
        asked = np.flatnonzero(groups[rows] == group)
        if not asked.size:
            continue
        batch = sources.queries.rows(rows[asked])
        batch = replace(batch, own=np.full(asked.size, -1))
        pairs = candidates(sources.without(np.flatnonzero(groups == group)), batch)
        parts.append(replace(pairs, query=asked[pairs.query]))
    every = CandidatePairs.of(parts)
    order = np.argsort(every.query, kind="stable")
    return CandidatePairs(every.x[order], every.query[order], every.item[order])
