"""What goes out: keyword sets, judgements and results as files for other programs.

A format of keyword sets turns a snapshot's rows into text, streaming. In `bulk` a keyword is one
term, ranked by BM25 with the mirror's parameters.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cogr.datasets.judgements import FORMATS, Judged
from cogr.datasets.reading import Place
from cogr.errors import SettingsError, SnapshotError, UserError
from cogr.keywords import with_self
from cogr.metrics import rows_of_queries, search_all
from cogr.records import Dataset, Query, Split
from cogr.snapshots import Row, Snapshot, open_snapshot
from cogr.store import Store, replacing
from indexers.backends import Hit
from indexers.backends.opensearch.client import Version
from indexers.backends.opensearch.indexes import PLURAL, document, index_settings, mapping, meta_of
from indexers.workspace import Workspace

NAMES = ("jsonl", "parquet", "bulk")
"""As `cogr-index export --format` takes them; parquet is the snapshot's own file."""


def export(snapshot: Snapshot, to: Path, format_: str, prefix: str = "cogr") -> list[str]:
    """Write a snapshot's rows to a file, and for `bulk` the index's mapping beside it. Returns the
    names of files beside it. Raises UserError and StorageError.
    """
    if format_ not in NAMES:
        raise UserError(f"The format {format_!r} is unknown; it is one of {', '.join(NAMES)}.")
    if not to.absolute().parent.is_dir():
        raise UserError(
            f"The folder {to.absolute().parent} does not exist; create it, or name another file."
        )
    folder = Store(to.absolute().parent)
    if format_ == "parquet":
        folder.write(to.name, snapshot.store.read(snapshot.path))
        return []
    with folder.replacing(to.name) as file:
        for piece in _bulk(snapshot, prefix) if format_ == "bulk" else _jsonl(snapshot):
            file.write(piece.encode())
    if format_ == "jsonl":
        return []
    beside = f"{to.name}.mapping.json"
    folder.write_json(beside, _mapping(snapshot))
    return [beside]


def _line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) + "\n"


def _jsonl(snapshot: Snapshot) -> Iterator[str]:
    for row in snapshot.rows():
        record = {"id": row.id, "text": row.text, "self": row.self_keyword}
        more = {"weights": row.weights, "confidence": row.confidence, "fields": row.fields}
        there = {name: value for name, value in more.items() if value not in (None, (), {})}
        yield _line({**record, "keywords": row.keywords, **there})


def _bulk(snapshot: Snapshot, prefix: str) -> Iterator[str]:
    index = f"{prefix}-{PLURAL[snapshot.side]}"
    for row in snapshot.rows():
        keywords = with_self(row.self_keyword, row.keywords)
        yield _line({"index": {"_index": index, "_id": row.id}})
        yield _line(document(snapshot.side, row) | {"keywords": keywords})


def _mapping(snapshot: Snapshot) -> Mapping[str, Any]:
    meta = meta_of(snapshot.manifest)
    return {
        "settings": index_settings(1),
        "mappings": mapping(snapshot.side, Version(3, 0, "3.0.0"), meta),
    }


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

    return search_all(search, pair.rows)


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
