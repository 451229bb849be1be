"""What comes in: items and logs of a cluster, judgements of other tools, and queries of a log that
`cogr-index update --save` keeps; all become JSON lines that the loader `jsonl` reads.

Files are replaced as a whole: an import that is killed or fails leaves them as they were.

A query is identified by its text, or by its id where the judgements have no text. Of several grades
of one pair in the files the highest is kept, as when a data set is read; a pair that labels.jsonl
has already gets the new grade. Importing the same again changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from cogr.datasets.builder import HTML, DatasetOptions, make_item
from cogr.datasets.fields import (
    Columns,
    id_field,
    number_field,
    pick,
    text_field,
    time_field,
    written,
)
from cogr.datasets.judgements import Judged, read_judgements
from cogr.datasets.reading import Place, find, json_records, lines
from cogr.errors import DataError, ServiceError
from cogr.keywords import query_key
from cogr.records import Query
from cogr.store import as_line, replacing, storage_errors
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.search import lost_shards

KEEP_ALIVE = "30m"
"""Time for which the cluster keeps a point in time after the last page."""
_PAGE = 1_000


def index_documents(
    cluster: Cluster,
    index: str,
    fields: Sequence[str] = (),
    since: tuple[str, datetime] | None = None,
) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    """The documents of an index, an alias or a pattern, each with its id as `_id`.

    Args:
        fields: of the documents that are read, such as `attributes.colour`; all when empty.
        since: a date field and a time: only documents that are not older.

    Raises DataError and ServiceError.
    """
    doing = f"reading {index}"
    query = {"range": {since[0]: {"gte": since[1].isoformat()}}} if since else {"match_all": {}}
    # `_shard_doc` costs nothing; before 3.3 only the id tells equal documents apart.
    version = cluster.version
    order = "_shard_doc" if (version.major, version.minor) >= (3, 3) else "_id"
    body: dict[str, Any] = {"size": _PAGE, "query": query, "sort": [{order: "asc"}]}
    if fields:
        body["_source"] = [name for name in fields if name != "_id"]
    path, alive = f"/{index}/_search/point_in_time", {"keep_alive": KEEP_ALIVE}
    begun = cluster.call("POST", path, params=alive, doing=doing, missing_ok=True)
    if begun is None:
        raise DataError(f"There is no index {index!r} at {cluster.url}; name one with --index.")
    body["pit"] = {"id": begun["pit_id"], **alive}
    try:
        while True:
            answer = cluster.call("POST", "/_search", body=body, doing=doing, missing_ok=True)
            if answer is None or answer["timed_out"] or lost_shards(begun) + lost_shards(answer):
                raise ServiceError(
                    f"The answer from {index} is incomplete, or its point in time has expired; "
                    "check the cluster's health, and run the same command again."
                )
            hits = answer["hits"]["hits"]
            for hit in hits:
                place = Place(hit["_index"], hit["_id"], "document")
                yield place, {"_id": hit["_id"], **hit["_source"]}
            if len(hits) < _PAGE:
                return
            body["search_after"] = hits[-1]["sort"]
    finally:
        path, ended = "/_search/point_in_time", {"pit_id": [begun["pit_id"]]}
        cluster.call("DELETE", path, body=ended, doing=f"closing {index}", missing_ok=True)


def copy_records(
    cluster: Cluster,
    indexes: Sequence[str],
    to: Path,
    keeps: Callable[[Mapping[str, Any]], bool],
    since: tuple[str, datetime] | None = None,
) -> int:
    """Documents of indexes as lines of JSON, in a file that is replaced as a whole; how many.
    Raises DataError, ServiceError and StorageError.
    """
    written = 0
    with replacing(to) as file:
        for _, record in (
            one for name in indexes for one in index_documents(cluster, name, (), since)
        ):
            if keeps(record):
                line = {name: value for name, value in record.items() if name != "_id"}
                file.write(as_line(line))
                written += 1
    return written


_SHOWN = 20
"""Bad documents that are named."""
MAX_BAD = 0.01
"""The largest accepted share of bad documents."""


@dataclass
class ItemsImported:
    """The result of an import of items: documents that were written, and the bad ones, the first a
    sentence each; texts that had HTML.
    """

    written: int = 0
    bad: int = 0
    html: int = 0
    problems: list[str] = field(default_factory=list)


def import_items(
    documents: Iterable[tuple[Place, Mapping[str, Any]]], to: Path, source: Columns, target: Columns
) -> ItemsImported:
    """Write documents as items to a file, whole or not at all.

    Args:
        source: names or dotted paths in the documents, each of which some document must have; of
            `fields`, name -> path.
        target: names of the file's fields, from the data set's settings.

    Raises DataError, ServiceError and StorageError.
    """
    told, notes, seen = ItemsImported(), Counter[str](), set[str]()
    paths = paths_of(source)
    options = DatasetOptions(fields=tuple(source.fields), columns=source, strip_html=True)
    with storage_errors(str(to.parent)):
        to.parent.mkdir(parents=True, exist_ok=True)
    with replacing(to) as file:
        for place, document in documents:
            flat = {path: pick(document, path) for path in paths}
            seen.update(path for path in paths if flat[path] is not None)
            try:
                file.write(_item_line(place, flat, options, target, notes))
                told.written += 1
            except DataError as error:
                told.bad += 1
                told.problems += [str(error)] if told.bad <= _SHOWN else []
        if absent := [path for path in paths if path not in seen]:
            raise DataError(
                f"No document has {absent[0]!r}; name fields that exist (--title, --text, --id, "
                "--updated, --field)."
            )
        if told.bad > MAX_BAD * (told.written + told.bad):
            raise DataError(
                f"{told.bad:,} of {told.written + told.bad:,} documents are bad, more than "
                f"{MAX_BAD:.0%}; correct them or the names of fields. The first one: "
                f"{told.problems[0]}"
            )
    told.html = notes[HTML]
    return told


def paths_of(source: Columns) -> list[str]:
    """The names and dotted paths of all fields that are read, each once."""
    names = [source.id, source.title, *source.text, source.updated, *source.fields.values()]
    return [name for name in dict.fromkeys(names) if name]


def _item_line(
    place: Place,
    flat: dict[str, Any],
    options: DatasetOptions,
    target: Columns,
    notes: Counter[str],
) -> bytes:
    source = options.columns
    for name in (source.title, *source.text):
        # A field of an index may hold several values; "" is as good as none.
        flat[name] = written(flat[name], name, place) or None
    updated = time_field(flat, source.updated, place) if source.updated else None
    title, text = source.title_and_text(flat, place)
    id_ = id_field(flat, source.id, place)
    item = make_item(place, id_, title, text, flat, options, notes)
    values: dict[str, Any] = {target.id: item.id, target.title: item.title}
    # All of the text is in the first of the fields that are joined; the loader wants them all.
    values |= {**dict.fromkeys(target.text, ""), target.text[0]: item.text}
    if updated is not None and target.updated:
        values[target.updated] = updated.isoformat().replace("+00:00", "Z")
    values |= {target.fields.get(name, name): value for name, value in item.fields.items()}
    return as_line(values)


def save_queries(path: Path, queries: Sequence[Query]) -> int:
    """Add the queries whose ids a file of JSON lines lacks. Returns their number.

    The file is replaced as a whole: a kill leaves the old one or the new one, and a second time
    adds nothing. Raises DataError and StorageError.
    """
    records = {id_field(record, "id", place): record for place, record in _records(path)}
    new = [{"id": one.id, "text": one.text} for one in queries if one.id not in records]
    if new:
        with replacing(path) as file:
            file.writelines(map(as_line, [*records.values(), *new]))
    return len(new)


@dataclass
class LabelsImported:
    """The result of an import of judgements.

    Attributes:
        read: judgements of the files.
        unrated: pairs and queries without a judgement; such queries are kept.
        new_queries, new_labels: how many queries.jsonl and labels.jsonl did not have.
        changed: labels that have another grade now.
    """

    read: int = 0
    unrated: int = 0
    new_queries: int = 0
    new_labels: int = 0
    changed: int = 0


def import_labels(
    paths: Sequence[Path],
    folder: Path,
    *,
    texts: Path | None = None,
    format: str | None = None,
) -> LabelsImported:
    """Add judgements to a data set of JSON lines.

    Args:
        folder: of the data set.
        texts: of queries, where the files have ids alone: lines of id, tab and text.
        format: of `cogr.datasets.judgements`; None to detect it.

    Raises DataError and StorageError.
    """
    result, queries = LabelsImported(), _Queries(folder / "queries.jsonl", texts)
    grades: dict[tuple[str, str], float] = {}
    for one in (one for path in paths for one in read_judgements(path, format)):
        query = queries.id_of(one)
        if one.grade is None or not one.item:
            result.unrated += 1
            continue
        result.read += 1
        pair = query, one.item
        grades[pair] = max(one.grade, grades.get(pair, one.grade))
    labels = _joined(folder / "labels.jsonl", grades, result)
    result.new_queries = queries.new
    with storage_errors(str(folder)):
        folder.mkdir(parents=True, exist_ok=True)
    for name, records in (("queries", queries.records.values()), ("labels", labels)):
        with replacing(folder / f"{name}.jsonl") as file:
            file.writelines(map(as_line, records))
    return result


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
        return self._by_text.setdefault(query_key(text_field(record, "text", place)), id_)

    def id_of(self, one: Judged) -> str:
        text = one.query or self._texts.get(one.query_id, "")
        if not text:
            if one.query_id in self.records:
                return one.query_id
            raise DataError(
                f"{one.place}: the query {one.query_id!r} has no text here; name a file of ids and "
                "texts with --queries."
            )
        key, taken = query_key(text), self.records.get(one.query_id)
        if taken and query_key(str(taken["text"])) == key:
            return one.query_id
        if (known := self._by_text.get(key)) is not None:
            return known
        free = one.query_id and not taken
        id_ = one.query_id if free else f"q-{sha256(key.encode()).hexdigest()[:12]}"
        self.new += 1
        return self._add(one.place, {"id": id_, "text": text})


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    for number, line in lines(path):
        id_, tab, text = line.partition("\t")
        if line.strip() and not (tab and text.strip()):
            raise DataError(
                f"{Place(path, number)}: the line is not an id, a tab and a text; write one "
                "query a line."
            )
        yield id_.strip(), text.strip()


def _joined(
    path: Path, grades: Mapping[tuple[str, str], float], result: LabelsImported
) -> Iterable[Mapping[str, Any]]:
    kept = dict[tuple[str, str], Mapping[str, Any]]()
    for place, record in _records(path):
        number_field(record, "grade", place, 1.0)
        kept[id_field(record, "query", place), id_field(record, "item", place)] = record
    for pair, grade in grades.items():
        before = kept.get(pair, {})
        result.new_labels += pair not in kept
        result.changed += pair in kept and before.get("grade", 1.0) != grade
        value = int(grade) if grade == int(grade) else grade
        kept[pair] = {**before, "query": pair[0], "item": pair[1], "grade": value}
    return kept.values()


def _records(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    file_there = find(path.parent, path.name)
    return json_records(file_there) if file_there else iter(())
