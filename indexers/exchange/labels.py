"""Judgements and queries into a data set of JSON lines: `cogr-index import labels`, and the queries
of a log that `cogr-index update --save` keeps.

A query is identified by its text, or by its id where the judgements have no text. Of several grades
of one pair in the files the highest is kept, as when a data set is read; a pair that labels.jsonl
has already gets the new grade. Files are replaced as a whole, and importing the same again changes
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from cogr.datasets.fields import id_field, number_field, text_field
from cogr.datasets.judgements import FORMATS, Judged, read_judgements
from cogr.datasets.reading import Place, find, json_records, lines
from cogr.errors import DataError, SettingsError, SnapshotError
from cogr.keywords import self_keyword
from cogr.metrics import rows_of_queries, search_all
from cogr.records import Dataset, Query, Split
from cogr.snapshots import Row, open_snapshot
from cogr.store import replacing, storage_errors
from indexers.backends import Hit
from indexers.workspace import Workspace


def check_place(path: Path) -> None:
    """Raise SettingsError for a file that can't be written to, or that would not be read."""
    if path.suffix != ".jsonl":
        raise SettingsError(f"--save writes JSON lines; name a .jsonl file, not {path.name}.")
    if not path.absolute().parent.is_dir():
        raise SettingsError(
            f"The folder of --save {path} does not exist; make it, or name another file."
        )
    packed = path.with_name(f"{path.name}.gz")
    if packed.exists() and not path.exists():
        raise SettingsError(
            f"--save {path} would hide {packed}, which is read now; unpack that first."
        )


def save_queries(path: Path, queries: Sequence[Query]) -> int:
    """Add the queries whose ids a file of JSON lines lacks. Returns their number.

    The file is replaced as a whole: a kill leaves the old one or the new one, and a second time
    adds nothing. Raises DataError and StorageError.
    """
    there = {id_field(record, "id", place) for place, record in _records(path)}
    new = [{"id": one.id, "text": one.text} for one in queries if one.id not in there]
    if new:
        before = path.read_bytes() if path.is_file() else b""
        gap = b"\n" if before and not before.endswith(b"\n") else b""
        with replacing(path) as file:
            file.write(before + gap + _lines(new))
    return len(new)


@dataclass
class LabelsImported:
    """The result of an import of judgements.

    Attributes:
        read: judgements of the files.
        unrated: pairs and queries without a judgement; such queries are kept.
        conflicts: pairs with several different grades in the files, of which the highest stays.
        queries, new_queries: in queries.jsonl now, and of these, how many were not there.
        labels, new_labels, changed: in labels.jsonl now; of these, how many were not there, or had
            another grade.
        remarks: sentences on what to look at.
    """

    read: int = 0
    unrated: int = 0
    conflicts: int = 0
    queries: int = 0
    new_queries: int = 0
    labels: int = 0
    new_labels: int = 0
    changed: int = 0
    remarks: list[str] = field(default_factory=list)


def import_labels(
    paths: Sequence[Path], folder: Path, *, format: str | None = None, texts: Path | None = None
) -> LabelsImported:
    """Add judgements to a data set of JSON lines.

    Args:
        folder: of the data set.
        format: of the files; None for what each looks like.
        texts: of queries, where the files have ids alone: lines of id, tab and text, or JSON
            objects as in queries.jsonl.

    Raises DataError and StorageError.
    """
    found, queries = LabelsImported(), _Queries(folder / "queries.jsonl", texts)
    grades: dict[tuple[str, str], float] = {}
    conflicts: set[tuple[str, str]] = set()
    for one in (one for path in paths for one in read_judgements(path, format)):
        query = queries.id_of(one)
        if one.grade is None or not one.item:
            found.unrated += 1
            continue
        found.read += 1
        pair = query, one.item
        if grades.setdefault(pair, one.grade) != one.grade:
            conflicts.add(pair)
            grades[pair] = max(grades[pair], one.grade)
    found.conflicts = len(conflicts)
    labels = _joined(folder / "labels.jsonl", grades, found)
    found.queries, found.new_queries = len(queries.records), queries.new
    with storage_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
        for name, records in (("queries", queries.records.values()), ("labels", labels)):
            with replacing(folder / f"{name}.jsonl") as file:
                file.write(_lines(records))
    return found


class _Queries:
    def __init__(self, path: Path, texts: Path | None) -> None:
        self.records: dict[str, Mapping[str, Any]] = {}
        self.new = 0
        self._by_text: dict[str, str] = {}
        for place, record in _records(path):
            self._add(place, record)
        self._texts = dict(_texts(texts)) if texts else {}

    def _add(self, place: Place, record: Mapping[str, Any]) -> str:
        id_ = id_field(record, "id", place)
        self.records[id_] = record
        return self._by_text.setdefault(self_keyword(text_field(record, "text", place)), id_)

    def id_of(self, one: Judged) -> str:
        text = one.query or self._texts.get(one.query_id, "")
        if not text:
            if one.query_id in self.records:
                return one.query_id
            raise DataError(
                f"{one.place}: the query {one.query_id!r} has no text here; name a file of ids and "
                "texts with --queries."
            )
        known = self._by_text.get(self_keyword(text))
        if known is not None:
            return known
        free = one.query_id and one.query_id not in self.records
        id_ = one.query_id if free else f"q-{sha256(self_keyword(text).encode()).hexdigest()[:12]}"
        self.new += 1
        return self._add(one.place, {"id": id_, "text": text})


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    if not path.is_file():
        raise DataError(f"The file of queries {path} does not exist; name one with --queries.")
    if next((line for _, line in lines(path)), "").lstrip().startswith("{"):
        for place, record in json_records(path):
            yield id_field(record, "id", place), text_field(record, "text", place)
        return
    for number, line in lines(path):
        id_, tab, text = line.partition("\t")
        if line.strip() and not (tab and text.strip()):
            raise DataError(
                f"{Place(path, number)}: the line is not an id, a tab and a text; write one "
                "query a line."
            )
        yield id_.strip(), text.strip()


def _joined(
    path: Path, grades: Mapping[tuple[str, str], float], found: LabelsImported
) -> Iterable[Mapping[str, Any]]:
    kept, before = dict[tuple[str, str], Mapping[str, Any]](), dict[tuple[str, str], float]()
    for place, record in _records(path):
        pair = id_field(record, "query", place), id_field(record, "item", place)
        kept[pair], before[pair] = record, number_field(record, "grade", place, 1.0)
    for pair, grade in grades.items():
        value = int(grade) if grade == int(grade) else grade
        found.new_labels += pair not in before
        found.changed += before.get(pair, grade) != grade
        kept[pair] = {**kept.get(pair, {}), "query": pair[0], "item": pair[1], "grade": value}
    found.labels = len(kept)
    highest = [max(some.values(), default=0.0) for some in (grades, before)]
    if grades and before and highest[0] != highest[1]:
        found.remarks.append(
            f"The new grades reach {highest[0]:g}, those that labels.jsonl had reach "
            f"{highest[1]:g}: if these are two scales, bring them to one, since dataset.threshold "
            "holds for both."
        )
    return kept.values()


def _records(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    found = find(path.parent, path.name)
    return json_records(found) if found else iter(())


def _lines(records: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode()


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
