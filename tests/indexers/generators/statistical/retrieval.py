"""Retrieval by bare sets, and its F1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cogr.keywords import self_keyword
from cogr.metrics import full_set
from cogr.records import Dataset, Item, Query, Split
from indexers.generators.statistical.artefact import Artefact
from indexers.generators.statistical.keyword_selection import exact_cut


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


def cut_f1(dataset: Dataset, artefact: Artefact, split: Split = "test") -> float:
    """Macro F1 of what the ranker retrieves by its own cut."""
    queries, found = dataset.queries[split], {}
    for query, (items, p) in zip(queries, artefact.probabilities(queries), strict=True):
        cut, _ = exact_cut(p, artefact.expected_relevant(query, p))
        found[query.id] = frozenset(artefact.item_ids[item] for item in items[cut])
    return f1(dataset, found)


def f1(dataset: Dataset, runs: Mapping[str, frozenset[str]]) -> float:
    """Macro F1 of retrieved sets over the queries of `runs`."""
    return full_set(runs, {query: dataset.relevant[query] for query in runs}).means["f1"]
