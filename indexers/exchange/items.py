"""`cogr-index import items`: from files, a database or an index to the JSON lines that the loader
`jsonl` reads.

Items are checked as the loader checks them. A bad record is counted and named, and stops the import
only beyond a share. The file is replaced in one step at the end: an import that is killed or fails
leaves it as it was.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from cogr.datasets.builder import HTML, Options, make_item
from cogr.datasets.fields import Columns, id_field, time_field, written
from cogr.datasets.reading import (
    Place,
    Sheet,
    json_array,
    json_object,
    lines,
    open_bytes,
    parquet_rows,
    parse_json,
)
from cogr.errors import DataError, MissingExtraError, ServiceError, SettingsError, learn_words
from cogr.records import Item
from cogr.store import replacing, storage_errors
from indexers.backends.opensearch.client import Cluster

KEEP_ALIVE = "30m"
"""Time for which the cluster keeps a point in time after the last page."""
PAGE = 1_000


def documents(
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
    body: dict[str, Any] = {"size": PAGE, "query": query, "sort": [{order: "asc"}]}
    if fields:
        body["_source"] = [name for name in fields if name != "_id"]
    begun = cluster.call(
        "POST",
        f"/{index}/_search/point_in_time",
        params={"keep_alive": KEEP_ALIVE},
        doing=doing,
        missing_ok=True,
    )
    if begun is None:
        raise DataError(f"There is no index {index!r} at {cluster.url}; name one with --index.")
    body["pit"] = {"id": begun["pit_id"], "keep_alive": KEEP_ALIVE}
    try:
        while True:
            answer = cluster.call("POST", "/_search", body=body, doing=doing, missing_ok=True)
            if answer is None or answer["timed_out"] or answer["_shards"]["failed"]:
                raise ServiceError(
                    f"The answer from {index} is incomplete, or its point in time has expired; "
                    "check the cluster's health, and run the same command again."
                )
            hits = answer["hits"]["hits"]
            for hit in hits:
                place = Place(hit["_index"], hit["_id"], "document")
                yield place, {"_id": hit["_id"], **hit["_source"]}
            if len(hits) < PAGE:
                return
            body["search_after"] = hits[-1]["sort"]
    finally:
        cluster.call(
            "DELETE",
            "/_search/point_in_time",
            body={"pit_id": [begun["pit_id"]]},
            doing=f"closing {index}",
            missing_ok=True,
        )


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
        for _, record in (one for name in indexes for one in documents(cluster, name, (), since)):
            if keeps(record):
                line = {name: value for name, value in record.items() if name != "_id"}
                file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                written += 1
    return written


SHOWN = 20
"""Bad records that are named."""

Record = tuple[Place, Mapping[str, Any] | DataError]
"""A place, and the record there or why there is none."""


def file_records(paths: Sequence[Path], mapped: Mapped) -> Iterator[Record]:
    """The records of files, whose content tells the format; plain or packed by gzip (parquet:
    plain). Raises DataError.
    """
    for path in paths:
        if not path.is_file():
            raise DataError(f"The file {path} does not exist; name a file of items.")
    return (one for path in paths for one in _file(path, mapped))


def _file(path: Path, mapped: Mapped) -> Iterator[Record]:
    with open_bytes(path) as file:
        start = file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(b"PAR1") or path.suffix == ".parquet":
        heads = (name.partition(".")[0] for name in mapped.paths)
        return parquet_rows(path, dict.fromkeys((*mapped.paths, *heads)))
    if start.startswith(b"["):
        return json_array(path)
    return _json_lines(path) if start.startswith(b"{") else _rows(path, mapped.asked)


def _rows(path: Path, wanted: Mapping[str, str]) -> Iterator[Record]:
    sheet = Sheet.open(path, wanted)
    for column, option in wanted.items():
        sheet.need(column, option)
    bad: list[DataError] = []
    for place, record in sheet.records(bad.append):
        yield from ((place, error) for error in bad)
        bad.clear()
        yield place, record
    yield from ((Place(path, 0), error) for error in bad)


def _json_lines(path: Path) -> Iterator[Record]:
    for number, line in lines(path):
        if line and not line.isspace():
            place = Place(path, number)
            try:
                record = json_object(parse_json(line, place), place)
            except DataError as error:
                yield place, error
                continue
            inner = record.get("_source")  # a document as search or a dump shows it
            yield place, {"_id": record.get("_id"), **inner} if isinstance(inner, dict) else record


def sql_records(url: str, query: str) -> tuple[str, Iterator[Record]]:
    """The rows of a database, and its name without a password.

    Args:
        url: of SQLAlchemy, such as postgresql+psycopg://shop@localhost/shop; its driver must be
            installed.
        query: a table's name, or a SELECT.

    Raises MissingExtraError, SettingsError and ServiceError.
    """
    try:
        import sqlalchemy as sql
    except ModuleNotFoundError as error:
        raise MissingExtraError("A database (--sql)", "data") from error
    try:
        address = sql.make_url(url)
        if address.password:
            learn_words([str(address.password)])
        engine = sql.create_engine(address)
    except (sql.exc.ArgumentError, sql.exc.NoSuchModuleError, ModuleNotFoundError) as error:
        raise SettingsError(
            f"--sql is not the URL of a database ({error}); write an SQLAlchemy URL such as "
            "postgresql+psycopg://user@host/shop, and install its driver."
        ) from error
    name = address.render_as_string(hide_password=True)
    asked = query.strip().rstrip(";")
    asked = asked if " " in asked else f"SELECT * FROM {asked}"

    def rows() -> Iterator[Record]:
        try:
            with engine.connect().execution_options(yield_per=1000) as connection:
                for number, row in enumerate(connection.execute(sql.text(asked)).mappings(), 1):
                    yield Place(name, number, "row"), {k: _plain(v) for k, v in row.items()}
        except sql.exc.InterfaceError as error:
            raise ServiceError(f"{name} can't be reached ({error.orig}).") from error
        except sql.exc.DBAPIError as error:
            reason = " ".join(str(error.orig).split())
            raise SettingsError(
                f"{name} refuses the query ({reason}); correct --sql or --query."
            ) from error
        finally:
            engine.dispose()

    return name, rows()


def _plain(value: Any) -> Any:
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value) if isinstance(value, UUID) else value


def pick(record: Mapping[str, Any], path: str) -> Any:
    """A field by its name, or by a dotted path through objects; lists on the way give lists."""
    if path in record or "." not in path:
        return record.get(path)
    head, _, rest = path.partition(".")
    inner = record.get(head)
    if isinstance(inner, Mapping):
        return pick(inner, rest)
    if isinstance(inner, list):
        picked = [pick(one, rest) for one in inner if isinstance(one, Mapping)]
        flat = (one if isinstance(one, list) else [one] for one in picked if one is not None)
        return [value for some in flat for value in some] or None
    return None


COUNTS = ("read", "written", "blank", "repeated", "bad", "html")
"""What an import counts: `read` = `written` + `repeated` + `bad`. `blank` items have neither title
nor text; of `html` some was taken out.
"""


@dataclass
class Imported:
    """The result of an import: `COUNTS`, and the first bad records, a sentence each."""

    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))
    problems: list[str] = field(default_factory=list)

    def fault(self, problem: object) -> None:
        """Count a bad record."""
        self.counts["bad"] += 1
        if len(self.problems) < SHOWN:
            self.problems.append(str(problem))


@dataclass(frozen=True)
class Mapped:
    """Which fields of a record become an item.

    Attributes:
        columns: names or dotted paths in the source; of `fields`, name -> path.
        target: names of the file's fields, from the data set's settings.
        asked: fields that were named -> by which options; some record must have each.
    """

    columns: Columns
    target: Columns = field(default_factory=Columns)
    asked: Mapping[str, str] = field(default_factory=dict)

    @property
    def paths(self) -> list[str]:
        """Every field that is read."""
        one = self.columns
        names = [one.id, one.title, *one.text, one.updated, *one.fields.values()]
        return [name for name in dict.fromkeys(names) if name]

    def item(
        self, place: Place, flat: dict[str, Any], notes: Counter[str]
    ) -> tuple[Item, datetime | None]:
        """The item of the fields that are read, and when it changed. Raises DataError."""
        columns = self.columns
        for name in (columns.title, *columns.text):
            # A field of an index may hold several values; "" is as good as none.
            flat[name] = written(flat[name], name, place) or None
        updated = time_field(flat, columns.updated, place) if columns.updated else None
        title, text = columns.title_and_text(flat, place)
        options = Options(fields=tuple(columns.fields), columns=columns, strip_html=True)
        id_ = id_field(flat, columns.id, place)
        return make_item(place, id_, title, text, flat, options, notes), updated

    def line(self, item: Item, updated: datetime | None) -> bytes:
        """The item as the loader `jsonl` reads it."""
        target = self.target
        values: dict[str, Any] = {target.id: item.id, target.title: item.title}
        # All of the text is in the first of the fields that are joined; the loader wants them all.
        values |= {**dict.fromkeys(target.text, ""), target.text[0]: item.text}
        if updated is not None and target.updated:
            values[target.updated] = updated.isoformat().replace("+00:00", "Z")
        values |= {target.fields.get(name, name): value for name, value in item.fields.items()}
        return json.dumps(values, ensure_ascii=False).encode() + b"\n"


def import_items(
    records: Iterable[Record], to: Path, mapped: Mapped, *, name: str, bad_share: float = 0.01
) -> Imported:
    """Write items to a file, whole or not at all. Raises DataError, ServiceError and
    StorageError.
    """
    found = Imported()
    counts = found.counts
    with storage_errors(str(to.parent)):
        to.parent.mkdir(parents=True, exist_ok=True)
    with replacing(to) as file:
        seen = set[str]()
        for line in _new_lines(records, mapped, found, seen):
            file.write(line)
        if counts["bad"] > bad_share * counts["read"]:
            raise DataError(
                f"{counts['bad']:,} of {counts['read']:,} records of {name} are bad, more than the "
                f"{bad_share:.0%} of --bad-share; correct them or the names of columns, or allow "
                f"more. The first one: {found.problems[0]}"
            )
        if counts["written"]:
            _check_names(mapped, seen, name, blank=counts["blank"] == counts["written"])
    return found


def _new_lines(
    records: Iterable[Record], mapped: Mapped, found: Imported, seen: set[str]
) -> Iterator[bytes]:
    notes, counts, ids = Counter[str](), found.counts, dict[int, int]()
    for place, record in records:
        counts["read"] += 1
        try:
            if isinstance(record, DataError):
                raise record
            flat = {path: pick(record, path) for path in mapped.paths}
            seen.update(path for path in mapped.asked if flat.get(path) is not None)
            item = mapped.item(place, flat, notes)
            line = mapped.line(*item)
            if ids.setdefault(hash(item[0].id), hash(line)) != hash(line):
                raise DataError(
                    f"{place}: the id {item[0].id!r} appeared earlier with other values; give each "
                    "item its own."
                )
        except DataError as error:
            found.fault(error)
            continue
        if len(ids) == counts["written"]:
            counts["repeated"] += 1
            continue
        counts["written"] += 1
        counts["blank"] += not (item[0].title.strip() or item[0].text.strip())
        yield line
    counts["html"] = notes[HTML]


def _check_names(mapped: Mapped, seen: Collection[str], name: str, *, blank: bool) -> None:
    missing = next((path for path in mapped.asked if path not in seen), None)
    if missing is not None:
        raise DataError(
            f"{mapped.asked[missing]} names {missing!r}, which no record of {name} has; name a "
            "field that is there."
        )
    if blank:
        names = ", ".join(map(repr, (mapped.columns.title, *mapped.columns.text)))
        raise DataError(
            f"No record of {name} has any of {names}; name its title and text with --title and "
            "--text."
        )
