"""Evaluation on one split: a snapshot pair, searched through a backend, and its baselines: BM25
over the items' own text, and the exact cut of the ranker behind `statistical`.

`cogr.metrics` measures all three: the whole retrieved set, and rankings in one total order.
Memory and OpenSearch give equal figures.

`--new-items` measures how well `statistical` finds items that were added after its fit: a share of
the items is held out with its labels and added afterwards, as `cogr-index update` adds items. Then
a split's queries are asked, with all labels.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from cogr.datasets.builder import by_hash
from cogr.datasets.changes import Changes
from cogr.errors import DataError
from cogr.keywords import self_keyword
from cogr.matching.mirror import Mirror
from cogr.metrics import (
    full_set,
    grades_of,
    measure,
    per_query,
    retrieved_ids,
    rows_of_queries,
    search_all,
    sweep_cutoff,
)
from cogr.records import SPLITS, Dataset, Item, Query, Split
from cogr.snapshots import Snapshot, check_pair, open_snapshot
from indexers.backends import Backend, Words, text_boost
from indexers.backends.memory import MemoryBackend
from indexers.text import Lexical
from indexers.workspace import Workspace

if TYPE_CHECKING:
    from indexers.generators.statistical.artefact import Artefact
    from indexers.generators.statistical.generator import Statistical
    from indexers.generators.statistical.new_items import Judge

LONGEST = 1000
"""Length of rankings, from which cutoffs are chosen and rank metrics computed."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """One way to search: its rankings and retrieved sets on one split.

    Attributes:
        name: "bm25", "exact cut" or "what serves".
        of: what its sets are, in words.
        runs: query id -> ids of its retrieved items, best first: the head of its ranking.
        rankings: query id -> the whole ranking, 1,000 items at most.
        cutoff: items a query, where it is the same for all queries.
    """

    name: str
    of: str
    runs: Mapping[str, Sequence[str]]
    rankings: Mapping[str, Sequence[str]]
    cutoff: int | None = None

    def row(self, dataset: Dataset, split: Split) -> dict[str, Any]:
        """Its figures: P, R and F1 of the sets, rank metrics of the whole rankings."""
        figures = measure(dataset, dataset.require(split), self.runs, self.rankings)
        cutoff = {"cutoff": self.cutoff} if self.cutoff else {}
        return {"name": self.name, **figures, **cutoff, "sets": self.of}


def bm25(dataset: Dataset, split: Split, cutoff: int | None = None) -> Baseline:
    """BM25 (bm25s, English stems), its sets cut at the number of items that maximises macro F1 on
    the training queries.

    Args:
        cutoff: the number, where it is known already.

    Raises DataError when the split or the training split is empty, MissingExtraError without the
    extra `statistical`.
    """
    train, asked = dataset.require("train"), dataset.require(split)
    lexical = Lexical(dataset.items)

    def rank(queries: Sequence[Query]) -> dict[str, list[str]]:
        return {
            query.id: [id_ for id_, _ in lexical.best(lexical.scores(query.text), LONGEST)]
            for query in queries
        }

    if cutoff is None:
        relevant = {query.id: dataset.relevant[query.id] for query in train}
        cutoff = sweep_cutoff(rank(train), relevant, {query.id: query.weight for query in train}).k
    rankings = rank(asked)
    of = f"the best {cutoff} items of each ranking, as is best for the training queries"
    sets = {id_: ids[:cutoff] for id_, ids in rankings.items()}
    return Baseline("bm25", of, sets, rankings, cutoff)


def exact_cut(artefact: Artefact, dataset: Dataset, split: Split) -> Baseline:
    """The rankings of the ranker behind `statistical`, cut where their expected F1 is highest; no
    keywords are used.

    Raises DataError when the split is empty.
    """
    from indexers.generators.statistical.artefact import rankings

    found = list(rankings(artefact, dataset.require(split)))
    sets = {id_: ids[:cut] for id_, ids, cut in found}
    of = "the head of each ranking that has the highest expected F1"
    return Baseline("exact cut", of, sets, {id_: ids[:LONGEST] for id_, ids, _ in found})


def served(workspace: Workspace, split: Split, items: Snapshot, queries: Snapshot) -> Baseline:
    """What a pair answers when it serves: the set that keywords and literal matches of the query's
    text find, then more by text.
    """
    settings, backend = workspace.settings, workspace.backend
    asked = workspace.dataset.require(split)
    sets, rankings = {}, {}
    for id_, row in rows_of_queries(asked, queries, weights=settings.keywords.weights).items():
        words = Words(row.text, text_boost(row.weights, settings.serving.blend))
        found = backend.retrieved(row.weighted, snapshot=items.id, words=words)
        whole = backend.search(row.weighted, size=LONGEST, snapshot=items.id, words=words)
        sets[id_] = [hit.id for hit in found.hits]
        rankings[id_] = [hit.id for hit in whole.hits]
    of = "what keywords find, and items with every word of the query in one field"
    return Baseline("what serves", of, sets, rankings)


def baselines(
    workspace: Workspace, split: Split, items: Snapshot, queries: Snapshot
) -> list[Baseline]:
    """BM25, and the exact cut where one of the pair was written by `statistical`.

    Raises DataError when the split is empty, MissingExtraError without the extra `statistical`.
    """
    found = [bm25(workspace.dataset, split)]
    kinds = {snapshot.manifest.generator.get("kind") for snapshot in (items, queries)}
    if "statistical" in kinds:
        found.append(exact_cut(fit_in(workspace)(workspace.dataset), workspace.dataset, split))
    return found


@dataclass(frozen=True)
class Evaluation:
    """Figures of one pair on one split.

    Attributes:
        queries: how many queries the split has.
        figures: measure -> macro average over them, as `cogr.metrics.measure` gives it.
        f1s: F1 of each query times its share of all weights times the number of queries, so that
            their mean is the weighted F1.
        graded: whether gains in nDCG are the labels' grades; else they are 1 for relevant items.
        keywords_per_item: mean size of S_i over all items.
        keywords_per_query: mean size of S_q over the split's queries.
        seconds: how long the searches took.
    """

    split: Split
    item: str
    query: str
    backend: str
    queries: int
    figures: Mapping[str, float]
    f1s: NDArray[np.float64]
    graded: bool
    keywords_per_item: float
    keywords_per_query: float
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """For --json: split, p, r, f1, and the rest."""
        return {
            "split": self.split,
            **{name: round(value, 6) for name, value in self.figures.items()},
            "ndcg_gains": "grades" if self.graded else "binary",
            "queries": self.queries,
            "item_snapshot": self.item,
            "query_snapshot": self.query,
            "backend": self.backend,
            "keywords_per_item": round(self.keywords_per_item, 3),
            "keywords_per_query": round(self.keywords_per_query, 3),
            "seconds": round(self.seconds, 3),
        }


def ensure_pushed(backend: Backend, item: Snapshot) -> bool:
    """Push an item snapshot that the backend lacks, so that it can be evaluated; what serves stays.
    Returns whether it was pushed.
    """
    if any(known.snapshot == item.id and known.complete for known in backend.list()):
        return False
    backend.push(item)
    return True


def evaluate(
    backend: Backend,
    dataset: Dataset,
    item: Snapshot,
    query: Snapshot,
    split: Split,
    *,
    weights: bool = True,
) -> Evaluation:
    """P, R and F1 of the full retrieved set, and rank metrics, on one split.

    Args:
        weights: False leaves the keywords' weights out, as the setting `keywords.weights` does.

    Raises:
        DataError: the split is empty.
        SnapshotError: the snapshots don't fit one another, or lack a query of the split.
    """
    check_pair(item.manifest, query.manifest)
    queries = dataset.require(split)

    def search(keywords: Mapping[str, float]) -> list[str]:
        return [hit.id for hit in backend.retrieved(keywords, snapshot=item.id).hits]

    started = time.monotonic()
    rows = rows_of_queries(queries, query, weights=weights)
    found = per_query(dataset, queries, search_all(search, rows))
    return Evaluation(
        split=split,
        item=item.id,
        query=query.id,
        backend=backend.name,
        queries=len(queries),
        seconds=time.monotonic() - started,
        figures={**found.means, "f1_se": found.standard_errors["f1"]},
        f1s=found.values["f1"] * found.weights / found.weights.mean(),
        graded=grades_of(dataset) is not None,
        keywords_per_item=item.manifest.keywords / max(1, item.manifest.entities),
        keywords_per_query=sum(len(row.keywords) for row in rows.values()) / len(queries),
    )


def figures_of_pair(
    workspace: Workspace, items: str, queries: str, splits: Sequence[Split] = SPLITS
) -> dict[str, dict[str, Any]]:
    """Split -> figures of a pair of snapshots, measured in memory, for each split that has queries;
    those of dev with `f1s`.
    """
    dataset, backend = workspace.dataset, MemoryBackend(workspace.store)
    item, query = (open_snapshot(workspace.store, id_) for id_ in (items, queries))
    backend.push(item)
    found: dict[str, dict[str, Any]] = {}
    weights = workspace.settings.keywords.weights
    for split in splits:
        if dataset.queries.get(split):
            one = evaluate(backend, dataset, item, query, split, weights=weights)
            more = {"f1s": one.f1s.round(6).tolist()} if split == "dev" else {}
            found[split] = {**one.as_dict(), **more}
    return found


# Items that came after the fit

MEASURES = ("r_new", "p_new", "r_old", "p", "r", "f1")
Fit = Callable[[Dataset], "Artefact"]
Retrieved = Mapping[str, frozenset[str]]
"""Query id -> ids of the retrieved items."""


def figures(
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
    for key in MEASURES:
        values = kept[key]
        error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
        row[key] = round(float(np.mean(values)), 6) if values else None
        row[f"{key}_se"] = round(float(error), 6) if values else None
    return row


def of_statistical(
    dataset: Dataset, new: frozenset[str], split: Split, fit: Fit, judge: Judge | None = None
) -> Iterator[dict[str, Any]]:
    """`statistical`: with nothing fitted again (`update --side item`), with the queries that gain
    rewritten (`update --side both`), and with both sides rebuilt.

    Args:
        new: the items that come later (`checked_new`).
        fit: fits it to a data set.
        judge: gives evidence on new items.

    Raises DataError when the split is empty.
    """
    from indexers.generators.statistical.new_items import (
        chosen,
        cold_of,
        gaining,
        joined,
        with_keywords,
    )

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
    yield figures("statistical, nothing refitted", queries, dataset.relevant, new, updated)
    now = with_keywords(joined(old, joining, cold), joining, items)
    better = gaining(now, joining, (items, pair[1]))
    asked |= _keywords(now, [known[id_] for id_ in better])
    both = _retrieved(items, asked, queries)
    yield figures("statistical, queries rewritten", queries, dataset.relevant, new, both)
    rebuilt = retrieved_by(fit(after), dataset, queries)
    yield figures("statistical, both sides rebuilt", queries, dataset.relevant, new, rebuilt)


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
    """Ids of the items that count as new, a share of all. Raises DataError where there are none, or
    none is relevant to a query.
    """
    new = by_hash((item.id for item in dataset.items), share)
    if not any(new & ids for ids in dataset.relevant.values()):
        raise DataError(
            f"A share of {share:g} of the {len(dataset.items):,} items is {len(new)}, and no query "
            "finds any of them relevant; give a larger share."
        )
    return new


def judge_in(workspace: Workspace) -> Judge | None:
    """What gives evidence on new items, where the settings name a judge."""
    if workspace.settings.generator.statistical.judge is None:
        return None
    with workspace.generator("item", "statistical") as generator:
        return cast("Statistical", generator).with_judge


def fit_in(workspace: Workspace) -> Fit:
    """A function that fits `statistical` with a workspace's settings, and keeps the artefact in its
    store.
    """

    def fit(dataset: Dataset) -> Artefact:
        with workspace.with_dataset(dataset).generator("query", "statistical") as generator:
            return cast("Statistical", generator).artefact

    return fit
