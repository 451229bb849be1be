"""A floor, which memorises labels and which every learned method should beat, and two ceilings,
which use the labels that they are measured by.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from cogr.keywords import self_keyword
from cogr.metrics import best_head
from cogr.records import Item, Query
from indexers.text import Lexical
from trainers.rivals import Fitted, Method, Params, Ranked, Sets, Task, grid
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

        def votes(query: Query, depth: int) -> list[tuple[str, float]]:
            found = index.rank(query.text, nearest + 1)
            others = [(one.id, score) for one, score in found if one.id != query.id]
            counted: dict[str, float] = defaultdict(float)
            for id_, score in others[:nearest]:
                for item in relevant[id_]:
                    counted[item] += score / len(relevant[id_]) ** share
            return sorted(counted.items(), key=lambda pair: (-pair[1], pair[0]))[:depth]

        def rank(queries: Sequence[Query], depth: int) -> Ranked:
            return {query.id: votes(query, depth) for query in queries}

        labels = sum(len(relevant[query.id]) for query in train)
        return Fitted(rank, (_BYTES * labels + index.size_bytes) / len(task.dataset.items))


class OracleKeywords(Method):
    """The best choice among the items' keywords for a query, by the true labels."""

    family = "ceiling"
    seeded = False

    def fit(self, task: Task, params: Params) -> Fitted:  # noqa: ARG002
        from indexers.generators.statistical.artefact import K_MAX
        from indexers.generators.statistical.keyword_selection import select_keywords

        generator, before = fitted_generator(task)
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


class PerfectCutoff(BM25):
    """BM25 with the best cutoff for each query, by the labels."""

    family = "ceiling"

    def fit(self, task: Task, params: Params) -> Fitted:
        plain, relevant = super().fit(task, params), task.dataset.relevant

        def sets(run: Ranked) -> Sets:
            heads = {query: ids[:DEPTH] for query, ids in ids_of(run).items()}
            return {id_: ids[: best_head(ids, relevant[id_])[0]] for id_, ids in heads.items()}

        return Fitted(plain.rank, plain.bytes_an_item, sets=sets)
