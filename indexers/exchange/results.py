"""Results back to where a team looks: runs of what serves, and the data set's judgements, in the
formats of evaluation tools.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cogr.datasets.judgements import FORMATS, Judged, rank_eval_body
from cogr.datasets.reading import Place
from cogr.datasets.sheets import safe_cell
from cogr.errors import DataError, SettingsError, SnapshotError
from cogr.evaluation import measure, rows_of_queries, search_all
from cogr.metrics import CUTOFFS
from cogr.records import SPLITS, Dataset, Query
from cogr.snapshots import Row, open_snapshot
from cogr.store import replacing, storage_errors
from indexers.backends.opensearch.search import query_body
from indexers.backends.protocol import Hit
from indexers.workspace import Workspace

METRIC = {"precision": {"k": CUTOFFS[0], "relevant_rating_threshold": 1}}
"""Of a written `_rank_eval` body; any other may take its place."""


@dataclass(frozen=True)
class Pair:
    """The two snapshots that results are of, and each query's row."""

    item: str
    query: str
    rows: Mapping[str, Row]

    @property
    def tag(self) -> str:
        """Of a TREC run."""
        return f"cogr-{self.query}"


def queries_of(dataset: Dataset, split: str | None) -> list[Query]:
    """The labelled queries of a split, or of all.

    Raises:
        SettingsError: an unknown split.
        DataError: an empty split.
    """
    if split is None:
        return list(dataset.all_queries())
    chosen = next((one for one in SPLITS if one == split), None)
    if chosen is None:
        raise SettingsError(f"--split {split!r} is unknown; write one of {', '.join(SPLITS)}.")
    return list(dataset.require(chosen))


def serving_pair(workspace: Workspace, queries: Sequence[Query]) -> Pair:
    """What serves, for some queries; one that the query side lacks is searched by its own text.

    Raises SnapshotError where nothing serves, ServiceError.
    """
    item, query = (workspace.backend.serving()[side] for side in ("item", "query"))
    if item is None or query is None:
        raise SnapshotError("No pair serves yet: run cogr-index rebuild for both sides.")
    rows = rows_of_queries(
        queries,
        open_snapshot(workspace.store, query),
        unknown=True,
        weights=workspace.settings.keywords.weights,
    )
    return Pair(item, query, rows)


def run_of(workspace: Workspace, pair: Pair, size: int) -> dict[str, Sequence[Hit]]:
    """Query id -> its best hits. Raises ServiceError."""

    def search(keywords: Mapping[str, float]) -> Sequence[Hit]:
        return workspace.backend.search(keywords, size=size, snapshot=pair.item).hits

    return search_all(search, pair.rows)


def trec_run(run: Mapping[str, Sequence[Hit]], tag: str) -> Iterator[str]:
    """Lines of a TREC run: query id, Q0, item, rank from 1, score, tag. Raises SettingsError."""
    for query, hits in run.items():
        for rank, hit in enumerate(hits, start=1):
            for id_ in (query, hit.id):
                if any(letter.isspace() for letter in id_):
                    raise SettingsError(
                        f"The id {id_!r} has white space, which separates columns in a TREC run; "
                        "write a .csv file."
                    )
            yield f"{query} Q0 {hit.id} {rank} {float(hit.score)!r} {tag}\n"


def csv_run(run: Mapping[str, Sequence[Hit]], rows: Mapping[str, Row]) -> Iterator[str]:
    """The same with texts, for people: query_id, query, item, rank, score, title."""
    yield _row("query_id", "query", "item", "rank", "score", "title")
    for query, hits in run.items():
        for rank, hit in enumerate(hits, start=1):
            asked, title = safe_cell(rows[query].text), safe_cell(hit.text)
            yield _row(query, asked, hit.id, rank, float(hit.score), title)


def _row(*cells: object) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def score(dataset: Dataset, run: Mapping[str, Sequence[str]], split: str | None) -> dict[str, Any]:
    """A run of any system, by the data set's labels and the metrics of `cogr-train evaluate`; a
    query that the run lacks counts as 0.

    Raises:
        DataError: no query of the run is in the data set.
    """
    queries = queries_of(dataset, split)
    asked = {query.id for query in queries}
    if not asked & run.keys():
        raise DataError(
            f"No query of the run is one of the {len(queries)} labelled ones of the data set "
            f"{dataset.name}; give the run the ids of its queries."
        )
    counts = {
        "queries": len(queries),
        "lacking": len(asked - run.keys()),
        "unknown": len(run.keys() - asked),
    }
    return {
        **counts,
        **{name: round(one, 6) for name, one in measure(dataset, queries, run).items()},
    }


def judged_of(dataset: Dataset, queries: Sequence[Query]) -> Iterator[Judged]:
    """The judgements of some queries, in the order of queries and of ids."""
    place = Place(f"the data set {dataset.name}", 0, "judgement")
    number = 0
    for query in queries:
        for item, grade in sorted(dataset.judged.get(query.id, {}).items()):
            number += 1
            yield Judged(place._replace(number=number), query.text, query.id, item, grade)


def write_labels(
    dataset: Dataset, queries: Sequence[Query], to: Path, format: str, pair: Pair | None, index: str
) -> int:
    """Write judgements in a format of `cogr.datasets.judgements`; how many there are.

    Beside qrels, which have ids alone, lies `<file>.queries.tsv` with ids and texts, for
    `import labels --queries`.

    Args:
        pair: for rank_eval, whose requests are the clauses of its keywords.
        index: for rank_eval, which has the items' ids as its documents' own.

    Raises:
        DataError: an id or a grade that the format can't have.
        StorageError: the disk is full or read-only.
    """
    judged = list(judged_of(dataset, queries))
    writer = FORMATS[format].write
    if writer is not None:
        text = writer(judged)
    else:
        if pair is None:
            raise SnapshotError("rank_eval asks what serves: publish a pair first.")
        rows = pair.rows
        body = rank_eval_body(judged, index, lambda id_: {"query": query_body(rows[id_].weighted)})
        text = json.dumps({**body, "metric": METRIC}, ensure_ascii=False) + "\n"
    with storage_errors(str(to)):
        to.write_text(text, "utf-8")
        if format == "trec":
            lines = (f"{query.id}\t{' '.join(query.text.split())}\n" for query in queries)
            to.with_name(f"{to.name}.queries.tsv").write_text("".join(lines), "utf-8")
    return len(judged)


def written(to: Path, pieces: Iterator[str]) -> int:
    """Write a file line by line; how many lines. Raises StorageError."""
    count = 0
    with replacing(to) as file:
        for piece in pieces:
            file.write(piece.encode())
            count += 1
    return count
