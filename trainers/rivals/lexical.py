"""Methods that match words: BM25, OpenSearch's own text field, and doc2query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cogr.records import Query
from indexers.text import Lexical
from trainers.rivals import (
    NOTHING,
    Fitted,
    Method,
    NotRunError,
    Params,
    Ranked,
    Spent,
    Task,
    grid,
)
from trainers.rivals.keyword import fitted_generator, item_keywords
from trainers.rivals.server import SERVER, Index, index_body

PARAMETERS = (
    *((1.5, 0.75), (1.2, 0.75), (0.9, 0.4), (0.6, 0.75), (2.5, 0.75), (1.5, 0.4)),
    *((1.5, 0.95), (2.5, 0.95)),
)
"""Pairs (k1, b) to try: the defaults of bm25s, Lucene and Anserini, and others around them."""


def by_words(lexical: Lexical, before: Spent = NOTHING) -> Fitted:
    """A fitted BM25; items without a word of the query are left out."""

    def rank(queries: Sequence[Query], depth: int) -> Ranked:
        return {query.id: lexical.best(lexical.scores(query.text), depth) for query in queries}

    return Fitted(rank, lexical.size_bytes / len(lexical.items), before=before)


def on_server(task: Task, body: Mapping[str, Any], texts: Any, said: Any = None) -> Fitted:
    """A text field of the server; `said` turns a query's text into what is searched."""
    index = Index(task.settings.opensearch, body, texts)

    def rank(queries: Sequence[Query], depth: int) -> Ranked:
        asked = [said(query.text) if said else query.text for query in queries]
        return index.rank(queries, [{"match": {"text": {"query": text}}} for text in asked], depth)

    return Fitted(rank, index.bytes / len(task.dataset.items))


class BM25(Method):
    """BM25 over title and text, by bm25s."""

    seeded = False
    grid = grid("k1 b", *PARAMETERS)

    def fit(self, task: Task, params: Params) -> Fitted:
        items = task.dataset.items
        return by_words(Lexical(items, params["k1"], params["b"], [*map(task.text, items)]))


class OpenSearchText(Method):
    """OpenSearch's own text field: its analyser `english`, its BM25."""

    seeded = False
    grid = grid("k1 b", (1.2, 0.75), *PARAMETERS[2:6])

    def fit(self, task: Task, params: Params) -> Fitted:
        if task.settings.opensearch.url is None:
            raise NotRunError("an OpenSearch", SERVER)
        body = index_body({"analyzer": "english"}, params["k1"], params["b"], {})
        return on_server(task, body, ((item.id, task.text(item)) for item in task.dataset.items))


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
        items = task.dataset.items
        texts = [
            " ".join((task.text(item), *(word for word in words for _ in range(params["times"]))))
            for item, words in zip(
                items, item_keywords(generator, items, params["kinds"]), strict=True
            )
        ]
        return by_words(Lexical(items, texts=texts), before)
