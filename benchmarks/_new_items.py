"""The ranker behind `statistical` without keywords, and how well `statistical` finds items that
came after its fit: some items are held out with their labels and added afterwards, as `cogr-index
update` adds items. Then a split's queries are asked, with all labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from cogr.datasets.changes import Changes
from cogr.keywords import self_keyword
from cogr.matching.mirror import Mirror
from cogr.metrics import full_set
from cogr.records import Dataset, Item, Query, Split
from indexers.generators.statistical.artefact import Artefact
from indexers.generators.statistical.keyword_selection import exact_cut as best_prefix
from indexers.generators.statistical.new_items import (
    WithJudge,
    chosen,
    cold_of,
    gaining,
    joined,
    with_keywords,
)
from indexers.release.beside_text import MAX_RANKING
from trainers.evaluation import Baseline

Retrieved = Mapping[str, frozenset[str]]
"""Query id -> ids of the retrieved items."""

MEASURES_OF_NEW = ("p", "r", "f1", "r_new", "p_new", "r_old")


def figures_of_new(
    name: str,
    queries: Sequence[Query],
    relevant: Mapping[str, frozenset[str]],
    new: frozenset[str],
    retrieved: Retrieved,
) -> dict[str, Any]:
    """Means of retrieved sets over the queries that have a measure (None where none has), and their
    standard errors as NAME_se.

    `r_new` and `r_old` are recall of the relevant new and old items, `p_new` is the precision of
    the retrieved new items; p, r and f1 are of all items, and p is 0 where nothing is retrieved.

    Args:
        relevant: query id -> its relevant items, new ones too.
        new: ids of the items that were added after training.
    """
    wanted = {query.id: relevant[query.id] for query in queries}
    hits = {id_: retrieved[id_] & ids for id_, ids in wanted.items()}
    shares = {
        "r_new": [(hits[id_] & new, ids & new) for id_, ids in wanted.items()],
        "p_new": [(hits[id_] & new, retrieved[id_] & new) for id_ in wanted],
        "r_old": [(hits[id_] - new, ids - new) for id_, ids in wanted.items()],
        "r": [(hits[id_], ids) for id_, ids in wanted.items()],
    }
    kept = {key: [len(part) / len(of) for part, of in pairs if of] for key, pairs in shares.items()}
    whole = full_set(retrieved, wanted).values
    kept |= {key: whole[key].tolist() for key in ("p", "f1")}
    with_new = sum(bool(ids & new) for ids in wanted.values())
    row: dict[str, Any] = {"name": name, "queries": len(queries), "with_new": with_new}
    for key in MEASURES_OF_NEW:
        values = kept[key]
        error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
        row[key] = round(float(np.mean(values)), 6) if values else None
        row[f"{key}_se"] = round(float(error), 6) if values else None
    return row


def exact_cut(artefact: Artefact, dataset: Dataset, split: Split) -> Baseline:
    """The rankings of the ranker behind `statistical`, cut where their expected F1 is highest; no
    keywords are used.
    """
    queries, sets, rankings = dataset.require(split), {}, {}
    for query, (items, p) in zip(queries, artefact.probabilities(queries), strict=True):
        cut, _ = best_prefix(p, artefact.expected_relevant(query, p))
        order = np.argsort(-p, kind="stable")
        rankings[query.id] = [artefact.item_ids[item] for item in items[order]][:MAX_RANKING]
        sets[query.id] = [artefact.item_ids[item] for item in items[order[: len(cut)]]]
    of = "the head of each ranking that has the highest expected F1"
    return Baseline("exact cut", of, sets, rankings)


Fit = Callable[[Dataset], Artefact]


def of_statistical(
    dataset: Dataset, new: frozenset[str], split: Split, fit: Fit, judge: WithJudge | None = None
) -> Iterator[dict[str, Any]]:
    """`statistical`: with nothing fitted again (`update --side item`), with the queries that gain
    rewritten (`update --side both`), and with both sides rebuilt.

    Args:
        new: ids of the items that come later.
        fit: fits it to a data set.
        judge: gives evidence on new items.
    """
    queries, before = dataset.require(split), Changes("item", {}, new).applied_to(dataset)
    added = {item.id: item for item in dataset.items if item.id in new}
    after = Changes("item", added, frozenset()).applied_to(before)
    old, every = fit(before), [*before.all_queries(), *before.unlabelled, *queries]
    known = {query.id: query for query in every}
    asked = _keywords(old, [*known.values()])
    sets = {item.id: old.item_keywords(item) for item in before.items}
    own = [self_keyword(query.text) for query in known.values()]
    pair = (_mirror(before.items, sets), Mirror.from_sets([*asked], [*asked.values()], own))
    cold, joining = cold_of(old), [*added.values()]
    sets |= chosen(old, cold, joining, pair, judge)
    items = _mirror(dataset.items, sets)
    updated = _retrieved(items, asked, queries)
    yield figures_of_new("statistical, nothing refitted", queries, dataset.relevant, new, updated)
    now = with_keywords(joined(old, joining, cold), joining, items)
    better = gaining(now, joining, (items, pair[1]))
    asked |= _keywords(now, [known[id_] for id_ in better])
    both = _retrieved(items, asked, queries)
    yield figures_of_new("statistical, queries rewritten", queries, dataset.relevant, new, both)
    rebuilt = retrieved_by(fit(after), dataset, queries)
    yield figures_of_new("statistical, both sides rebuilt", queries, dataset.relevant, new, rebuilt)


def retrieved_by(artefact: Artefact, dataset: Dataset, queries: Sequence[Query]) -> Retrieved:
    """The sets that a fit's keywords retrieve among all items."""
    sets = {item.id: artefact.item_keywords(item) for item in dataset.items}
    return _retrieved(_mirror(dataset.items, sets), _keywords(artefact, queries), queries)


def _keywords(artefact: Artefact, queries: Sequence[Query]) -> dict[str, list[str]]:
    found = zip(queries, artefact.query_keywords(queries), strict=True)
    return {query.id: words for query, words in found}


def _mirror(items: Sequence[Item], sets: Mapping[str, Sequence[str]]) -> Mirror:
    titles = [self_keyword(item.title) for item in items]
    return Mirror.from_sets([item.id for item in items], [sets[item.id] for item in items], titles)


def _retrieved(
    mirror: Mirror, asked: Mapping[str, Sequence[str]], queries: Sequence[Query]
) -> Retrieved:
    words = {query.id: [*asked[query.id], self_keyword(query.text)] for query in queries}
    return {
        id_: frozenset(map(mirror.ids.__getitem__, mirror.retrieved(some)))
        for id_, some in words.items()
    }
