"""What goes out: keyword sets, judgements and results as files for other programs.

Keyword sets and results are written as they come.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cogr.datasets.judgements import FORMATS, Judged
from cogr.datasets.reading import Place
from cogr.errors import SettingsError, SnapshotError
from cogr.metrics import rows_of_queries
from cogr.records import Dataset, Query, Split
from cogr.snapshots import Row, Snapshot, open_snapshot
from cogr.store import replacing
from indexers.backends import Hit
from indexers.workspace import Workspace


def export_keywords(snapshot: Snapshot, to: Path) -> None:
    """Write a snapshot's rows to a file, a JSON object a line. Raises StorageError."""
    with replacing(to) as file:
        for row in snapshot.rows():
            record = {"id": row.id, "text": row.text, "self": row.self_keyword}
            more = {"weights": row.weights, "confidence": row.confidence, "fields": row.fields}
            there = {name: value for name, value in more.items() if value not in (None, (), {})}
            line = {**record, "keywords": row.keywords, **there}
            file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")


@dataclass(frozen=True)
class Pair:
    """The two snapshots that results are of, and each query's row."""

    item: str
    query: str
    rows: Mapping[str, Row]


def queries_of(dataset: Dataset, split: Split | None) -> list[Query]:
    """The labelled queries of a split, or of all. Raises DataError for an empty split."""
    return list(dataset.require(split) if split else dataset.all_queries())


def serving_pair(workspace: Workspace, queries: Sequence[Query]) -> Pair:
    """What serves, for some queries; one that the query side lacks is searched by its own text.

    Raises SnapshotError where nothing serves, ServiceError.
    """
    item, query = (workspace.backend.serving()[side] for side in ("item", "query"))
    if item is None or query is None:
        raise SnapshotError("No pair serves yet: run cogr-index rebuild for both sides.")
    weights = workspace.settings.keywords.weights
    snapshot = open_snapshot(workspace.store, query)
    return Pair(item, query, rows_of_queries(queries, snapshot, unknown=True, weights=weights))


def run_of(workspace: Workspace, pair: Pair, size: int) -> dict[str, Sequence[Hit]]:
    """Query id -> its best hits. Raises ServiceError."""

    def search(keywords: Mapping[str, float]) -> Sequence[Hit]:
        return workspace.backend.search(keywords, size=size, snapshot=pair.item).hits

    return {id_: search(row.weighted) for id_, row in pair.rows.items()}


def write_run(run: Mapping[str, Sequence[Hit]], pair: Pair, to: Path) -> int:
    """Write a TREC run, whose tag names the query snapshot; how many hits. Raises SettingsError for
    an id that a run can't have, StorageError.
    """
    lines = []
    for query, hits in run.items():
        for rank, hit in enumerate(hits, start=1):
            if any(letter.isspace() for letter in query + hit.id):
                raise SettingsError(
                    f"The id {query!r} or {hit.id!r} has white space, which separates columns in "
                    "a TREC run; give it another id."
                )
            lines.append(f"{query} Q0 {hit.id} {rank} {float(hit.score)!r} cogr-{pair.query}\n")
    with replacing(to) as file:
        file.write("".join(lines).encode())
    return len(lines)


def judged_of(dataset: Dataset, queries: Sequence[Query]) -> Iterator[Judged]:
    """The judgements of some queries, in the order of queries and of ids."""
    number = 0
    for query in queries:
        for item, grade in sorted(dataset.judged.get(query.id, {}).items()):
            number += 1
            place = Place(f"the data set {dataset.name}", number, "judgement")
            yield Judged(place, query.text, query.id, item, grade)


def write_labels(dataset: Dataset, queries: Sequence[Query], to: Path, format: str) -> int:
    """Write judgements in a format of `cogr.datasets.judgements`; how many there are.

    Beside formats that have ids alone lies `<file>.queries.tsv` with ids and texts, for `import
    labels --queries`. Raises DataError and StorageError.
    """
    judged = list(judged_of(dataset, queries))
    files = {to: FORMATS[format][1](judged)}
    if format != "quepid":
        lines = (f"{query.id}\t{' '.join(query.text.split())}\n" for query in queries)
        files[to.with_name(f"{to.name}.queries.tsv")] = "".join(lines)
    for path, text in files.items():
        with replacing(path) as file:
            file.write(text.encode())
    return len(judged)
