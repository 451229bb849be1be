"""What goes out: keyword sets, judgements and results as files for other programs.

Keyword sets are written as they come.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cogr.datasets.judgements import BEIR, QUEPID
from cogr.errors import DataError
from cogr.records import Dataset, Query, Split
from cogr.snapshots import Snapshot
from cogr.store import as_line, replacing
from indexers.backends import Hit
from indexers.search import Searcher


def export_keywords(snapshot: Snapshot, to: Path) -> None:
    """Write a snapshot's rows to a file, a JSON object a line. Raises StorageError."""
    with replacing(to) as file:
        for row in snapshot.rows():
            record = {"id": row.id, "text": row.text, "self": row.self_keyword}
            more = {"weights": row.weights, "confidence": row.confidence, "fields": row.fields}
            there = {name: value for name, value in more.items() if value not in (None, (), {})}
            line = {**record, "keywords": row.keywords, **there}
            file.write(as_line(line))


def queries_of(dataset: Dataset, split: Split | None) -> list[Query]:
    """The labelled queries of a split, or of all. Raises DataError for an empty split."""
    return list(dataset.require(split) if split else dataset.all_queries())


Hits = Mapping[str, Sequence[Hit]]
"""Query id -> its best hits, those of the set first."""


def run_of(serving: Searcher, queries: Sequence[Query], size: int) -> Hits:
    """The best hits of what serves, as a search gives them. Raises ServiceError."""
    return {one.id: serving.find(serving.row_for(one.text), size).hits for one in queries}


def write_run(run: Hits, query: str | None, to: Path) -> int:
    """Write a TREC run, whose tag names the query snapshot; how many hits. Raises DataError for an
    id that a run can't have, StorageError.

    Tools sort a run again by its scores, and break ties each in its own way. So a score here says
    the place: that of the last hit is 1.
    """
    lines = [
        f"{_word(id_)} Q0 {_word(hit.id)} {rank} {len(hits) + 1 - rank} cogr-{query or 'none'}\n"
        for id_, hits in run.items()
        for rank, hit in enumerate(hits, start=1)
    ]
    with replacing(to) as file:
        file.write("".join(lines).encode())
    return len(lines)


def _word(id_: str) -> str:
    if any(letter.isspace() for letter in id_):
        raise DataError(
            f"The id {id_!r} has white space, which separates columns in TREC's formats; give it "
            "another id, or write another format."
        )
    return id_


def write_labels(dataset: Dataset, queries: Sequence[Query], to: Path, format: str) -> int:
    """Write judgements in a format of `cogr.datasets.judgements`; how many there are.

    Beside formats that have ids alone lies `<file>.queries.tsv` with ids and texts, for `import
    labels --queries`. Raises DataError and StorageError.
    """
    judged = [
        (query, item, f"{grade:g}")
        for query in queries
        for item, grade in sorted(dataset.judged.get(query.id, {}).items())
    ]
    if format == "quepid":
        # A spreadsheet takes such a text for a formula; Quepid puts a space before it, too.
        formula = ("=", "+", "-", "@")
        texts = {query: " " * query.text.startswith(formula) + query.text for query in queries}
        rows = [(texts[query], item, grade) for query, item, grade in judged]
        files = {to: _table([(*QUEPID, "rating"), *rows], ",")}
    else:
        rows = [(query.id, item, grade) for query, item, grade in judged]
        lines = (f"{query.id}\t{' '.join(query.text.split())}\n" for query in queries)
        files = {to.with_name(f"{to.name}.queries.tsv"): "".join(lines)}
    if format == "beir":
        files[to] = _table([BEIR, *rows], "\t")
    if format == "trec":
        words = (f"{_word(query)} 0 {_word(item)} {grade}\n" for query, item, grade in rows)
        files[to] = "".join(words)
    for path, text in files.items():
        with replacing(path) as file:
            file.write(text.encode())
    return len(judged)


def _table(rows: Iterable[Sequence[str]], delimiter: str) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows(rows)
    return text.getvalue()
