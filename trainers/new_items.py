"""`cogr-train evaluate --new-items`: how well items are found that came after a pair was made.

A share of the items is held out with its labels, and both sides are written without it. The items
are then added without labels as `cogr-index update --side item` adds them: nothing is fitted again
and no query is rewritten. Last, both sides are written again. The generators are those of the
settings, and all of it lies in a store of its own, which is removed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from cogr.datasets.builder import by_hash
from cogr.datasets.changes import Changes
from cogr.errors import DataError
from cogr.metrics import full_set, rows_of_queries
from cogr.records import Dataset, Query, Split
from cogr.snapshots import Snapshot
from indexers.rebuild.plan import Job
from indexers.rebuild.run import RebuildRequest, generate_and_freeze, make_job
from indexers.rebuild.update import job_of_changes
from indexers.release import release
from indexers.workspace import Workspace
from trainers.evaluation import ensure_pushed

MEASURES = ("r_new", "p_new", "r_old", "p", "r", "f1")
Retrieved = Mapping[str, frozenset[str]]
"""Query id -> ids of the retrieved items."""


def new_items(
    workspace: Workspace, share: float, split: Split, generator: str | None = None
) -> Iterator[dict[str, Any]]:
    """The figures after an update of the items, then those after both sides were written again.

    Args:
        share: of all items, those that are new, by a hash of their ids.
        generator: of both sides; those of the settings where it is None.

    Raises:
        DataError: the split is empty, no item is new, or none of the new ones is relevant.
        GeneratorError, MissingExtraError, ServiceError: as of a rebuild.
    """
    dataset = workspace.dataset
    queries, new = dataset.require(split), checked_new(dataset, share)
    before = Changes("item", {}, new).applied_to(dataset)
    changes = Changes("item", {i.id: i for i in dataset.items if i.id in new}, frozenset())
    items, asked = (RebuildRequest(side, generator) for side in ("item", "query"))
    with TemporaryDirectory(prefix="cogr-new-items-") as folder:
        settings = workspace.settings.model_copy(update={"store": folder, "backend": "memory"})
        known = Workspace(settings).with_dataset(before)
        pair = [_written(make_job(known, request)) for request in (items, asked)]
        release(known, [one.id for one in pair], push=True, gate=False)
        later = known.with_dataset(changes.applied_to(before))
        updated = _written(job_of_changes(later, items, pair[0], changes))
        found = _retrieved(later, updated, pair[1], queries)
        yield figures("updated", queries, dataset.relevant, new, found)
        again = _written(make_job(later, items))
        release(later, [again.id], push=True, gate=False)
        found = _retrieved(later, again, _written(make_job(later, asked)), queries)
        yield figures("written again", queries, dataset.relevant, new, found)


def _written(job: Job) -> Snapshot:
    with job.generator:
        return generate_and_freeze(job).snapshot


def _retrieved(
    workspace: Workspace, items: Snapshot, asked: Snapshot, queries: Sequence[Query]
) -> Retrieved:
    backend = workspace.backend
    ensure_pushed(backend, items)

    def search(keywords: Mapping[str, float]) -> frozenset[str]:
        found = backend.retrieved(keywords, snapshot=items.id)
        return frozenset(hit.id for hit in found.hits)

    rows = rows_of_queries(queries, asked, unknown=True)
    return {id_: search(row.weighted) for id_, row in rows.items()}


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
