"""Evaluation on one split: a snapshot pair, searched through a backend, what it answers when it
serves, BM25 over the items' own text, and how well items are found that came after a pair was made.

`cogr.metrics` measures the first three: the whole retrieved set, and rankings in one total order.
Memory and OpenSearch give equal figures.

For `--new-items` a share of the items is held out with its labels, and both sides are written
without it. The items are then added without labels as `cogr-index update --side item` adds them:
nothing is fitted again and no query is rewritten. Last, both sides are written again. The
generators are those of the settings, and all of it lies in a store of its own, which is removed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cogr.datasets.builder import by_hash
from cogr.datasets.changes import Changes
from cogr.errors import DataError
from cogr.metrics import (
    full_set,
    grades_of,
    measure,
    measures_of,
    rows_of_queries,
    sweep_cutoff,
)
from cogr.records import SPLITS, Dataset, Query, Split
from cogr.snapshots import Snapshot, check_pair, open_snapshot
from indexers.backends import Backend, Pair, ServedSide
from indexers.backends.memory import MemoryBackend, Opened
from indexers.rebuild.plan import Job
from indexers.rebuild.run import RebuildRequest, generate_and_freeze, make_job
from indexers.rebuild.update import job_of_changes
from indexers.release import release
from indexers.release.beside_text import MAX_RANKING
from indexers.search import Searcher
from indexers.text import Lexical
from indexers.workspace import Workspace

Retrieved = Mapping[str, frozenset[str]]
"""Query id -> ids of the retrieved items."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """One way to search: its rankings and retrieved sets on one split.

    Attributes:
        name: "bm25" or "what serves".
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
        measured = measure(dataset, dataset.require(split), self.runs, self.rankings)
        figures = {**measured.means, "f1_se": measured.standard_errors["f1"]}
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
            query.id: [id_ for id_, _ in lexical.best(lexical.scores(query.text), MAX_RANKING)]
            for query in queries
        }

    if cutoff is None:
        relevant = {query.id: dataset.relevant[query.id] for query in train}
        weights = {query.id: query.weight for query in train}
        cutoff, _ = sweep_cutoff(rank(train), relevant, weights)
    rankings = rank(asked)
    of = f"the best {cutoff} items of each ranking, as is best for the training queries"
    sets = {id_: ids[:cutoff] for id_, ids in rankings.items()}
    return Baseline("bm25", of, sets, rankings, cutoff)


def served(workspace: Workspace, split: Split, items: Snapshot, queries: Snapshot) -> Baseline:
    """What a pair answers when it serves, as a search gives it: the set that keywords and literal
    matches of the query's text find, then more by text.
    """
    pair = Pair(ServedSide.of(items.manifest), ServedSide.of(queries.manifest))
    serving, sets = Searcher(workspace, pair, Opened(queries).row_of), dict[str, list[str]]()
    rankings = dict[str, list[str]]()
    for query in workspace.dataset.require(split):
        looked_up = serving.row_for(query.text)
        whole = serving.find(looked_up, MAX_RANKING)
        hits = whole.hits if whole.total <= MAX_RANKING else serving.whole_set(looked_up)
        rankings[query.id] = [hit.id for hit in whole.hits]
        sets[query.id] = [hit.id for hit in hits[: whole.total]]
    of = "what keywords find, and items with every word of the query in one field"
    return Baseline("what serves", of, sets, rankings)


@dataclass(frozen=True)
class Evaluation:
    """Figures of one pair on one split.

    Attributes:
        figures: measure -> macro average over its queries, as `cogr.metrics.measure` gives it.
        f1s: F1 of each query times its share of all weights times the number of queries, so that
            their mean is the weighted F1.
        ndcg_gains: "grades" if gains in nDCG are the labels' grades; else they are 1 for relevant
            items.
        keywords_per_item: mean size of S_i over all items.
        keywords_per_query: mean size of S_q over the split's queries.
        seconds: how long the searches took.
    """

    split: Split
    item_snapshot: str
    query_snapshot: str
    backend: str
    queries: int
    figures: Mapping[str, float]
    f1s: NDArray[np.float64]
    ndcg_gains: Literal["grades", "binary"]
    keywords_per_item: float
    keywords_per_query: float
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """For --json: the attributes, and each of the figures."""
        own = {name: value for name, value in vars(self).items() if name not in ("figures", "f1s")}
        rounded = {name: round(own[name], 3) for name in _ROUNDED}
        return {**own, **rounded, **{name: round(f, 6) for name, f in self.figures.items()}}


_ROUNDED = ("keywords_per_item", "keywords_per_query", "seconds")


def ensure_pushed(backend: Backend, item: Snapshot) -> bool:
    """Push an item snapshot that the backend lacks, so that it can be evaluated; what serves stays.
    Returns whether it was pushed.
    """
    if any(known.snapshot == item.id and known.complete for known in backend.list()):
        return False
    backend.push(item)
    return True


def evaluate(
    workspace: Workspace,
    item: Snapshot,
    query: Snapshot,
    split: Split,
    backend: Backend | None = None,
) -> Evaluation:
    """P, R and F1 of the full retrieved set, and rank metrics, on one split.

    Args:
        backend: where to search, that of the workspace by default.

    Raises:
        DataError: the split is empty.
        SnapshotError: the snapshots don't fit one another, or lack a query of the split.
    """
    check_pair(item.manifest, query.manifest)
    searched, dataset = backend or workspace.backend, workspace.dataset
    queries, started = dataset.require(split), time.monotonic()
    rows = rows_of_queries(queries, query, weights=workspace.settings.keywords.weights)
    hits = {id_: searched.retrieved(r.weighted, snapshot=item.id).hits for id_, r in rows.items()}
    figures = measure(dataset, queries, {id_: [hit.id for hit in own] for id_, own in hits.items()})
    return Evaluation(
        split,
        item.id,
        query.id,
        searched.name,
        len(queries),
        figures={**figures.means, "f1_se": figures.standard_errors["f1"]},
        f1s=figures.values["f1"] * figures.weights / figures.weights.mean(),
        ndcg_gains="binary" if grades_of(dataset) is None else "grades",
        keywords_per_item=item.manifest.keywords / max(1, item.manifest.entities),
        keywords_per_query=sum(len(row.keywords) for row in rows.values()) / len(queries),
        seconds=time.monotonic() - started,
    )


def split_figures(
    workspace: Workspace, items: str, queries: str, splits: Sequence[Split] = SPLITS
) -> dict[str, dict[str, Any]]:
    """Split -> figures of a pair of snapshots, measured in memory, for each split that has queries;
    those of dev with `f1s`.
    """
    backend = MemoryBackend(workspace.store)
    item, query = (open_snapshot(workspace.store, id_) for id_ in (items, queries))
    backend.push(item)
    figures: dict[str, dict[str, Any]] = {}
    for split in splits:
        if workspace.dataset.queries.get(split):
            one = evaluate(workspace, item, query, split, backend)
            more = {"f1s": one.f1s.round(6).tolist()} if split == "dev" else {}
            figures[split] = {**one.as_dict(), **more}
    return figures


# Items that came later


def new_items(workspace: Workspace, share: float, split: Split) -> Iterator[dict[str, Any]]:
    """The figures after an update of the items, then those after both sides were written again.

    Args:
        share: of all items, those that are new, by a hash of their ids.

    Raises:
        DataError: the split is empty, no item is new, or none of the new ones is relevant.
        GeneratorError, MissingExtraError, ServiceError: as of a rebuild.
    """
    dataset = workspace.dataset
    queries, new = dataset.require(split), checked_new(dataset, share)
    before = Changes("item", {}, new).applied_to(dataset)
    changes = Changes("item", {i.id: i for i in dataset.items if i.id in new}, frozenset())
    items, asked = (RebuildRequest(side) for side in ("item", "query"))
    with TemporaryDirectory(prefix="cogr-new-items-") as folder:
        own = workspace.into("").settings
        settings = own.model_copy(update={"store": folder, "backend": "memory"})
        known = Workspace(settings).with_dataset(before)
        pair = [_written(make_job(known, request)) for request in (items, asked)]
        release(known, [one.id for one in pair], push=True, gate=False)
        later = known.with_dataset(changes.applied_to(before))
        updated = _written(job_of_changes(later, items, pair[0], changes))
        retrieved = _retrieved(later, updated, pair[1], queries)
        yield figures_of_new("updated", queries, dataset.relevant, new, retrieved)
        again = _written(make_job(later, items))
        release(later, [again.id], push=True, gate=False)
        retrieved = _retrieved(later, again, _written(make_job(later, asked)), queries)
        yield figures_of_new("written again", queries, dataset.relevant, new, retrieved)


def _written(job: Job) -> Snapshot:
    with job.generator:
        return generate_and_freeze(job).snapshot


def _retrieved(
    workspace: Workspace, items: Snapshot, asked: Snapshot, queries: Sequence[Query]
) -> Retrieved:
    backend = workspace.backend
    ensure_pushed(backend, items)
    rows = rows_of_queries(queries, asked, unknown=True)
    results = {id_: backend.retrieved(r.weighted, snapshot=items.id) for id_, r in rows.items()}
    return {id_: frozenset(hit.id for hit in one.hits) for id_, one in results.items()}


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
    for key in measures_of("new"):
        values = kept[key]
        error = np.std(values, ddof=1) / len(values) ** 0.5 if len(values) > 1 else 0.0
        row[key] = round(float(np.mean(values)), 6) if values else None
        row[f"{key}_se"] = round(float(error), 6) if values else None
    return row


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
