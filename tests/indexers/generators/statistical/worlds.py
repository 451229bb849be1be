"""What the tests of `statistical` share: the sample shop, small data sets, and retrieval by bare
sets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cogr.datasets import load_dataset
from cogr.keywords import self_keyword
from cogr.metrics import full_set
from cogr.records import Dataset, Item, Query
from indexers.generators.statistical.artefact import Artefact, rankings

SHOP = Path(__file__).parents[4] / "trainers" / "demo" / "data"


def shop() -> Dataset:
    return load_dataset("jsonl", SHOP)


def small(items: Sequence[Item], queries: Mapping[str, tuple[str, Sequence[str]]]) -> Dataset:
    """A data set of training queries only: id -> (text, ids of relevant items)."""
    asked = [Query(id_, text) for id_, (text, _) in queries.items()]
    relevant = {id_: frozenset(ids) for id_, (_, ids) in queries.items()}
    return Dataset("small", items, {"train": asked, "dev": [], "test": []}, relevant, {}, "5" * 64)


def retrieved(
    artefact: Artefact, items: Sequence[Item], queries: Sequence[Query]
) -> dict[str, frozenset[str]]:
    """Items whose S_i ∪ {title} meets S_q ∪ {q}, by bare sets."""
    owners: dict[str, set[str]] = {}
    for item in items:
        for keyword in {*artefact.item_keywords(item), self_keyword(item.title)} - {""}:
            owners.setdefault(keyword, set()).add(item.id)
    found = artefact.query_keywords(queries)
    return {
        query.id: frozenset().union(
            *(owners.get(word, ()) for word in {*keywords, self_keyword(query.text)})
        )
        for query, keywords in zip(queries, found, strict=True)
    }


def exact_cut_run(artefact: Artefact, queries: Sequence[Query]) -> dict[str, list[str]]:
    """Query id -> ids of the items that the ranker retrieves by its own cut, best first."""
    return {id_: ranking[:cut] for id_, ranking, cut in rankings(artefact, queries)}


def f1(dataset: Dataset, runs: Mapping[str, frozenset[str]]) -> float:
    """Macro F1 of retrieved sets over the queries of `runs`."""
    return full_set(runs, {query: dataset.relevant[query] for query in runs}).means["f1"]
