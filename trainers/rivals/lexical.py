"""Methods that match the words of a text: BM25, doc2query, a floor that memorises labels, and a
ceiling that uses the labels it is measured by.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from cogr.metrics import best_head
from cogr.records import Item, Query
from indexers.text import Lexical
from trainers.rivals import Fitted, Method, Params, Ranked, Sets, Task, grid
from trainers.rivals.keyword import fitted_generator, item_keywords
from trainers.rivals.measuring import DEPTH, ids_of

PARAMETERS = (
    *((1.5, 0.75), (1.2, 0.75), (0.9, 0.4), (0.6, 0.75), (2.5, 0.75), (1.5, 0.4)),
    *((1.5, 0.95), (2.5, 0.95)),
)
"""Pairs (k1, b) to try: the defaults of bm25s, Lucene and Anserini, and others around them."""
_LABEL_BYTES = 8


def by_words(lexical: Lexical) -> Fitted:
    """A fitted BM25; items without a word of the query are left out."""

    def rank(queries: Sequence[Query], depth: int) -> Ranked:
        return {query.id: lexical.best(lexical.scores(query.text), depth) for query in queries}

    return Fitted(rank, lexical.size_bytes / len(lexical.items))


class BM25(Method):
    """BM25 over title and text, by bm25s."""

    seeded = False
    grid = grid("k1 b", *PARAMETERS)

    def fit(self, task: Task, params: Params) -> Fitted:
        items = task.dataset.items
        return by_words(Lexical(items, params["k1"], params["b"], [*map(task.text, items)]))


class Doc2Query(Method):
    """BM25 over texts to which an item generator's keywords are added: the queries that an item
    should be found by (Nogueira et al. 2019).
    """

    grid = grid(
        "kinds times",
        *(("all", 1), ("anchors", 1), ("phrases", 1), ("all", 3), ("anchors", 3), ("anchors", 5)),
    )

    def fit(self, task: Task, params: Params) -> Fitted:
        generator = fitted_generator(task)
        items, times = task.dataset.items, params["times"]
        sets = item_keywords(generator, items, params["kinds"])
        texts = [
            " ".join((task.text(item), *(word for word in words for _ in range(times))))
            for item, words in zip(items, sets, strict=True)
        ]
        return by_words(Lexical(items, texts=texts))


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
        return Fitted(rank, (_LABEL_BYTES * labels + index.size_bytes) / len(task.dataset.items))


class PerfectCutoff(BM25):
    """BM25 with the best cutoff for each query, by the labels."""

    family = "ceiling"

    def fit(self, task: Task, params: Params) -> Fitted:
        plain, relevant = super().fit(task, params), task.dataset.relevant

        def sets(run: Ranked) -> Sets:
            heads = {query: ids[:DEPTH] for query, ids in ids_of(run).items()}
            return {id_: ids[: best_head(ids, relevant[id_])[0]] for id_, ids in heads.items()}

        return Fitted(plain.rank, plain.bytes_an_item, sets=sets)
