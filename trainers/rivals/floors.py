"""Floors, which learn nothing and which every learned method should beat, and ceilings, which use
the labels that they are measured by.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cogr.keywords import self_keyword
from cogr.metrics import best_head
from cogr.records import Item, Query
from indexers.generators.extractive import Extractive
from indexers.generators.statistical import LEAST_QUERIES
from indexers.text import Lexical
from trainers.rivals import Fitted, Method, NotRunError, Params, Ranked, Sets, Task, grid
from trainers.rivals.keyword import (
    fitted_generator,
    item_keywords,
    keyword_ranks,
    mirror_of,
    weighted,
)
from trainers.rivals.lexical import BM25
from trainers.rivals.measuring import DEPTH, ids_of

_BYTES = 8
"""Bytes of a stored label: a query and an item."""


def _ordered(votes: dict[str, float], depth: int) -> list[tuple[str, float]]:
    return sorted(votes.items(), key=lambda pair: (-pair[1], pair[0]))[:depth]


class Nearest(Method):
    """The relevant items of the most similar training queries, which vote by their BM25 scores:
    memorised labels. A training query is not its own neighbour.
    """

    family = "floor"
    seeded = False
    grid = grid(
        "nearest share",
        *((10, 0.5), (10, 0.0), (3, 0.5), (5, 0.0), (20, 0.5), (20, 1.0), (50, 0.5), (50, 1.0)),
    )

    def fit(self, task: Task, params: Params) -> Fitted:
        """A neighbour's vote is divided by its number of items to the power `share`."""
        nearest, share, relevant = params["nearest"], params["share"], task.dataset.relevant
        train = task.dataset.require("train")
        index = Lexical([Item(query.id, query.text) for query in train])

        def votes(query: Query) -> dict[str, float]:
            found = index.rank(query.text, nearest + 1)
            others = [(one.id, score) for one, score in found if one.id != query.id]
            counted: dict[str, float] = {}
            for id_, score in others[:nearest]:
                for item in relevant[id_]:
                    own = score / len(relevant[id_]) ** share
                    counted[item] = counted.get(item, 0.0) + own
            return counted

        def rank(queries: Sequence[Query], depth: int) -> Ranked:
            return {query.id: _ordered(votes(query), depth) for query in queries}

        labels = sum(len(relevant[query.id]) for query in train)
        return Fitted(rank, (_BYTES * labels + index.size_bytes) / len(task.dataset.items))


class Fused(Method):
    """The nearest training queries' items and BM25, by reciprocal rank fusion (Cormack, Clarke and
    Büttcher 2009).
    """

    family = "floor"
    seeded = False
    grid = grid(
        "nearest share constant weight",
        *((10, 0.5, 60, 1.0), (10, 0.5, 60, 2.0), (10, 0.5, 10, 2.0), (20, 0.5, 60, 1.0)),
        *((20, 0.5, 10, 1.0), (50, 0.5, 60, 2.0), (50, 0.5, 10, 2.0), (50, 0.5, 10, 4.0)),
    )

    def fit(self, task: Task, params: Params) -> Fitted:
        """By the sum of 1 / (constant + rank), the neighbours' times `weight`."""
        near, plain = Nearest().fit(task, params), BM25().fit(task, BM25.grid[0])

        def rank(queries: Sequence[Query], depth: int) -> Ranked:
            votes: dict[str, dict[str, float]] = {query.id: {} for query in queries}
            for fitted, weight in ((near, params["weight"]), (plain, 1.0)):
                for query, ids in ids_of(fitted.rank(queries, depth)).items():
                    for at, id_ in enumerate(ids, 1):
                        own = weight / (params["constant"] + at)
                        votes[query][id_] = votes[query].get(id_, 0.0) + own
            return {query: _ordered(found, depth) for query, found in votes.items()}

        return Fitted(rank, near.bytes_an_item + plain.bytes_an_item)


class OracleKeywords(Method):
    """The best choice among the items' keywords for a query, by the true labels."""

    family = "ceiling"
    seeded = False

    def fit(self, task: Task, params: Params) -> Fitted:  # noqa: ARG002
        generator, before = fitted_generator(task)
        if isinstance(generator, Extractive):
            raise NotRunError(
                f"item keywords learned from {LEAST_QUERIES} labelled training queries",
                "bring labels, or pip install 'cogr[statistical]'",
            )
        from indexers.generators.statistical.artefact import K_MAX
        from indexers.generators.statistical.keyword_selection import select_keywords

        items, keywords = task.dataset.items, generator.artefact.keywords
        numbers = {item.id: number for number, item in enumerate(items)}

        def chosen(query: Query) -> dict[str, float]:
            relevant = np.zeros(len(items))
            relevant[[numbers[id_] for id_ in task.dataset.relevant[query.id]]] = 1.0
            forced = keywords.owners(self_keyword(query.text))
            found = select_keywords(relevant, keywords.writable, limit=K_MAX, forced=forced)
            return weighted(query, [keywords.keywords[number] for number in found.keywords], {})

        mirror = mirror_of(items, item_keywords(generator, items))
        return keyword_ranks(mirror, lambda asked: [*map(chosen, asked)], before=before)


class PerfectCutoff(Method):
    """BM25 with the best cutoff for each query, by the labels."""

    family = "ceiling"
    seeded = False
    grid = BM25.grid

    def fit(self, task: Task, params: Params) -> Fitted:
        plain, relevant = BM25().fit(task, params), task.dataset.relevant

        def sets(queries: Sequence[Query]) -> Sets:
            run = ids_of(plain.rank(queries, DEPTH))
            return {id_: ids[: best_head(ids, relevant[id_])[0]] for id_, ids in run.items()}

        return Fitted(plain.rank, plain.bytes_an_item, sets=sets)
