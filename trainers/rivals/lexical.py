"""Methods that match the words of a text: BM25, and doc2query."""

from __future__ import annotations

from collections.abc import Sequence

from cogr.records import Query
from indexers.text import Lexical
from trainers.rivals import Fitted, Method, Params, Ranked, Task, grid
from trainers.rivals.keyword import fitted_generator, item_keywords

PARAMETERS = (
    *((1.5, 0.75), (1.2, 0.75), (0.9, 0.4), (0.6, 0.75), (2.5, 0.75), (1.5, 0.4)),
    *((1.5, 0.95), (2.5, 0.95)),
)
"""Pairs (k1, b) to try: the defaults of bm25s, Lucene and Anserini, and others around them."""


def by_words(lexical: Lexical, before: float = 0.0) -> Fitted:
    """A fitted BM25; items without a word of the query are left out."""

    def rank(queries: Sequence[Query], depth: int) -> Ranked:
        return {query.id: lexical.best(lexical.scores(query.text), depth) for query in queries}

    return Fitted(rank, lexical.size_bytes / len(lexical.items), before=before)


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
        generator, before = fitted_generator(task)
        items, times = task.dataset.items, params["times"]
        sets = item_keywords(generator, items, params["kinds"])
        texts = [
            " ".join((task.text(item), *(word for word in words for _ in range(times))))
            for item, words in zip(items, sets, strict=True)
        ]
        return by_words(Lexical(items, texts=texts), before)
