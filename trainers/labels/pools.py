"""Pairs of query and item to judge: pooled from several ways to search.

Of each query the first items of every retriever (`indexers.inspection.retrieval`), without pairs
that are judged already. Pairs that stand high with several retrievers come first, a pair of every
query before the second of any: a budget that ends early has asked about all queries, and about what
decides their figures, since an item that no search finds changes none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cogr.datasets.splits import place
from cogr.records import Dataset, Item, Query
from indexers.inspection.retrieval import Retriever, Searches


@dataclass(frozen=True)
class Pair:
    """One question to the judge.

    Attributes:
        rank: the best place that a retriever gave the item, from 1.
        found_by: the retrievers that found it; none for a pair of the sample that people judged.
    """

    query: Query
    item: Item
    rank: int
    found_by: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        return f"{self.query.id}\t{self.item.id}"


def choose_queries(dataset: Dataset, most: int) -> list[Query]:
    """The queries asked most, by their weights; among equals by a hash of the text."""
    every = [*dataset.all_queries(), *dataset.unlabelled]
    ordered = sorted(every, key=lambda query: (-query.weight, place(query.text), query.id))
    return ordered[:most]


def pool(
    searches: Searches, queries: Sequence[Query], depths: Mapping[Retriever, int]
) -> list[Pair]:
    """Pairs that nobody judged, the most telling ones first.

    Args:
        depths: retriever -> how many items of each query it gives.
    """
    dataset = searches.dataset
    rows = {item.id: row for row, item in enumerate(dataset.items)}
    wanted = {name: depth for name, depth in depths.items() if depth}
    runs = searches.all(queries, max(wanted.values(), default=1))
    pairs: list[tuple[int, float, Pair]] = []
    for query in queries:
        places: dict[str, dict[str, int]] = defaultdict(dict)
        for name, depth in wanted.items():
            for rank, id_ in enumerate(runs.get(name, {}).get(query.id, ())[:depth], start=1):
                places[id_][name] = rank
        unknown = [id_ for id_ in places if id_ not in dataset.judged.get(query.id, {})]
        scores = {id_: sum(1 / rank for rank in places[id_].values()) for id_ in unknown}
        ordered = sorted(unknown, key=lambda id_: (-scores[id_], id_))
        for turn, id_ in enumerate(ordered):
            pair = Pair(
                query, dataset.items[rows[id_]], min(places[id_].values()), tuple(places[id_])
            )
            pairs.append((turn, -query.weight, pair))
    return [pair for _, _, pair in sorted(pairs, key=lambda one: (*one[:2], one[2].id))]


def known_sample(searches: Searches, size: int) -> list[Pair]:
    """Pairs that people judged, drawn by a hash: half of them relevant where there are enough of
    both kinds. Ranks are BM25's, 0 where it does not find the item among the first 100.
    """
    dataset = searches.dataset
    sides: dict[bool, list[tuple[float, Query, str]]] = {True: [], False: []}
    for query in dataset.all_queries():
        for id_ in dataset.judged[query.id]:
            relevant = id_ in dataset.relevant[query.id]
            sides[relevant].append((place(f"{query.id}\t{id_}"), query, id_))
    for found in sides.values():
        found.sort(key=lambda one: (one[0], one[1].id, one[2]))
    half = size // 2
    irrelevant = sides[False][: max(half, size - len(sides[True]))]
    chosen = [*sides[True][: size - len(irrelevant)], *irrelevant]
    rows = {item.id: row for row, item in enumerate(dataset.items)}
    ranked = {query.id: searches.bm25(query, 100) for _, query, _ in chosen}
    return [
        Pair(
            query,
            dataset.items[rows[id_]],
            ranked[query.id].index(id_) + 1 if id_ in ranked[query.id] else 0,
        )
        for _, query, id_ in chosen
    ]
