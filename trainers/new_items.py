"""Measures how well `statistical` finds items that were added after its fit.

A share of the items is held out with its labels and added afterwards, as `cogr-index update` adds
items. Then a split's queries are asked, with all labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from cogr.datasets.builder import by_hash
from cogr.datasets.changes import Changes
from cogr.errors import DataError
from cogr.keywords import self_keyword
from cogr.matching.mirror import Mirror
from cogr.metrics import full_set, retrieved_ids
from cogr.records import Dataset, Item, Query, Split
from indexers.workspace import Workspace

if TYPE_CHECKING:
    from indexers.generators.statistical.artefact import Artefact
    from indexers.generators.statistical.generator import Statistical

MEASURES = ("r_new", "p_new", "r_old", "p", "r", "f1")
Fit = Callable[[Dataset], "Artefact"]
Retrieved = Mapping[str, frozenset[str]]
"""Query id -> ids of the retrieved items."""


@dataclass(frozen=True)
class Figures:
    """The figures of a pair with the new items added.

    Attributes:
        name: the pair, and what was rebuilt when the items were added.
        means: measure -> (mean over the queries that have it, its standard error). `r_new` and
            `r_old` are recall of the relevant new and old items, `p_new` is the precision of the
            retrieved new items; p, r and f1 are of all items, and p is 0 where nothing is
            retrieved.
        queries: of the split; with_new: those that have a relevant new item.
    """

    name: str
    means: Mapping[str, tuple[float, float] | None]
    queries: int
    with_new: int

    def as_dict(self) -> dict[str, Any]:
        """For --json: each measure, and its standard error as NAME_se; None where no query has
        one.
        """
        found: dict[str, float | None] = {}
        for key, pair in self.means.items():
            mean, error = (None, None) if pair is None else pair
            found[key] = None if mean is None else round(mean, 6)
            found[f"{key}_se"] = None if error is None else round(error, 6)
        return {"name": self.name, "queries": self.queries, "with_new": self.with_new, **found}


def figures(
    name: str,
    queries: Sequence[Query],
    relevant: Mapping[str, frozenset[str]],
    new: frozenset[str],
    retrieved: Retrieved,
) -> Figures:
    """Figures of retrieved sets.

    Args:
        relevant: query id -> its relevant items, new ones too.
        new: ids of the items that were added after training.
    """
    whole = full_set(retrieved, {query.id: relevant[query.id] for query in queries}).values
    kept: dict[str, list[float]] = {key: [] for key in MEASURES}
    kept |= {key: whole[key].tolist() for key in ("p", "f1")}
    for query in queries:
        found, wanted = retrieved[query.id], relevant[query.id]
        hits = found & wanted
        for key, part, of in (
            ("r_new", hits & new, wanted & new),
            ("p_new", hits & new, found & new),
            ("r_old", hits - new, wanted - new),
            ("r", hits, wanted),
        ):
            if of:
                kept[key].append(len(part) / len(of))
    return Figures(
        name,
        {key: _mean(values) for key, values in kept.items()},
        len(queries),
        sum(bool(relevant[query.id] & new) for query in queries),
    )


def _mean(values: Sequence[float]) -> tuple[float, float] | None:
    """Mean and standard error, as `cogr.metrics.Figures` has them."""
    if not values:
        return None
    error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return float(np.mean(values)), float(error)


def of_statistical(
    dataset: Dataset, new: frozenset[str], split: Split, fit: Fit
) -> Iterator[Figures]:
    """`statistical`: with nothing fitted again (`update --side item`), and with both sides rebuilt.

    Args:
        new: the items that come later (`checked_new`).
        fit: fits it to a data set.

    Raises DataError when the split is empty.
    """
    from indexers.generators.statistical.new_items import chosen, cold_of

    queries, before = dataset.require(split), Changes("item", {}, new).applied_to(dataset)
    added = {item.id: item for item in dataset.items if item.id in new}
    after = Changes("item", added, frozenset()).applied_to(before)
    old, every = fit(before), [*before.all_queries(), *before.unlabelled, *queries]
    known = {query.id: query for query in every}
    asked = _keywords(old, [*known.values()])
    pair = (
        _mirror(before.items, {item.id: old.item_keywords(item) for item in before.items}),
        Mirror.from_sets(
            [*asked], [*asked.values()], [self_keyword(q.text) for q in known.values()]
        ),
    )
    sets = {item.id: old.item_keywords(item) for item in before.items}
    sets |= chosen(old, cold_of(old), [*added.values()], pair)
    updated = _retrieved(_mirror(dataset.items, sets), asked, queries)
    yield figures("statistical, nothing refitted", queries, dataset.relevant, new, updated)
    rebuilt = retrieved_by(fit(after), dataset, queries)
    yield figures("statistical, both sides rebuilt", queries, dataset.relevant, new, rebuilt)


def new_ids(dataset: Dataset, share: float) -> frozenset[str]:
    """Ids of the items that count as new: a share of all."""
    return by_hash((item.id for item in dataset.items), share)


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
    return retrieved_ids(mirror, words)


def checked_new(dataset: Dataset, share: float) -> frozenset[str]:
    """The new items. Raises DataError where there are none, or none is relevant to a query."""
    new = new_ids(dataset, share)
    if not any(new & ids for ids in dataset.relevant.values()):
        raise DataError(
            f"A share of {share:g} of the {len(dataset.items):,} items is {len(new)}, and no query "
            "finds any of them relevant; give a larger share."
        )
    return new


def fit_in(workspace: Workspace) -> Fit:
    """A function that fits `statistical` with a workspace's settings, and keeps the artefact in its
    store.
    """

    def fit(dataset: Dataset) -> Artefact:
        with workspace.with_dataset(dataset).generator("query", "statistical") as generator:
            return cast("Statistical", generator).artefact

    return fit
