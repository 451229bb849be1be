"""`cogr-index import items`: from files, a database or an index to the JSON lines that the loader
`jsonl` reads.

Items are checked as the loader checks them. A bad record is counted and named, and stops the import
only beyond a share. The file is replaced in one step at the end: an import that is killed or fails
leaves it as it was.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from cogr.datasets.builder import HTML, NULS, Options, make_item
from cogr.datasets.fields import Columns, id_field, time_field, written
from cogr.datasets.reading import (
    Place,
    Sheet,
    json_array,
    json_object,
    json_records,
    lines,
    open_bytes,
    parquet_rows,
    parse_json,
)
from cogr.errors import DataError, MissingExtraError, ServiceError, SettingsError, learn_words
from cogr.records import Item, Say
from cogr.store import replacing, storage_errors

FORMATS = ("csv", "jsonl", "json", "parquet")
SHOWN = 20
"""Bad records that are named."""
_EARLY = 1_000
"""Records after which a share of bad ones can stop the import before its end."""
_TELL = 10.0
"""Seconds between two lines of progress."""

Record = tuple[Place, Mapping[str, Any] | DataError]
"""A place, and the record there or why there is none."""


def file_records(paths: Sequence[Path], format: str | None, mapped: Mapped) -> Iterator[Record]:
    """The records of files, plain or packed by gzip (parquet: plain).

    Args:
        format: one of `FORMATS`, or None for what each file looks like.
        mapped: names the fields that are read; a table must have those that were named.

    Raises:
        DataError: a file is missing or damaged.
        SettingsError: an unknown format.
    """
    if format is not None and format not in FORMATS:
        raise SettingsError(f"--format {format!r} is unknown; write one of {', '.join(FORMATS)}.")
    for path in paths:
        if not path.is_file():
            raise DataError(f"The file {path} is not there; name a file of items.")
    return (one for path in paths for one in _file(path, format or looks_like(path), mapped))


def looks_like(path: Path) -> str:
    """A file's format, by its name and its beginning."""
    name = path.name.removesuffix(".gz").lower()
    if name.endswith(".parquet"):
        return "parquet"
    if name.endswith((".csv", ".tsv", ".txt")):
        return "csv"
    with open_bytes(path) as file:
        start = file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip()
    return "json" if start.startswith(b"[") else "jsonl"


def _file(path: Path, format: str, mapped: Mapped) -> Iterator[Record]:
    if format == "csv":
        return _rows(path, mapped.asked)
    if format == "parquet":
        heads = (name.partition(".")[0] for name in mapped.paths)
        return parquet_rows(path, dict.fromkeys((*mapped.paths, *heads)))
    return _json_lines(path) if format == "jsonl" else json_array(path)


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

    Raises:
        MissingExtraError: SQLAlchemy is not installed.
        SettingsError: a malformed URL, or one whose driver is not installed; a refused query.
        ServiceError: the database can't be reached.
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
            f"--sql names no database ({error}); write an SQLAlchemy URL such as "
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
    """A database's value as JSON has it."""
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


@dataclass
class Counts:
    """Counts of the records.

    `read` = `written` + `repeated` + `bad` + `older`.

    Attributes:
        read: records of the source.
        written: items of the source in the file; `blank` of them have neither title nor text.
        repeated: records that repeat an earlier one in everything that is read.
        bad: records that are no item, or repeat an id with other values.
        older: records before `since`.
        html, nul: items whose title or text had HTML, or NUL characters, that were taken out.
        items: items in the file now.
        changed: of these, items that were there before and are replaced; 0 without `since`.
        problems: the first bad records, a sentence each.
    """

    read: int = 0
    written: int = 0
    blank: int = 0
    repeated: int = 0
    bad: int = 0
    older: int = 0
    html: int = 0
    nul: int = 0
    items: int = 0
    changed: int = 0
    problems: list[str] = field(default_factory=list)

    def fault(self, problem: object) -> None:
        """Count a bad record."""
        self.bad += 1
        if len(self.problems) < SHOWN:
            self.problems.append(str(problem))


@dataclass(frozen=True)
class Mapped:
    """Which fields of a record become an item.

    Attributes:
        columns: names or dotted paths in the source; of `fields`, name -> path.
        target: names of the file's fields, from the data set's settings.
        since: leave out records updated before, or without a time; None for all records.
        asked: fields that were named -> by which options; some record must have each.
    """

    columns: Columns
    target: Columns = field(default_factory=Columns)
    since: datetime | None = None
    asked: Mapping[str, str] = field(default_factory=dict)

    @property
    def paths(self) -> list[str]:
        """Every field that is read."""
        one = self.columns
        names = [one.id, one.title, *one.text, one.updated, *one.fields.values()]
        return [name for name in dict.fromkeys(names) if name]

    def item(
        self, place: Place, flat: dict[str, Any], notes: Counter[str]
    ) -> tuple[Item, datetime | None] | None:
        """The item of the fields that are read, and when it changed; None where that is before
        `since`. Raises DataError.
        """
        columns = self.columns
        for name in (columns.title, *columns.text):
            # A field of an index may hold several values; "" is as good as none.
            flat[name] = written(flat[name], name, place) or None
        updated = time_field(flat, columns.updated, place) if columns.updated else None
        if self.since and (updated is None or updated < self.since):
            return None
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
    records: Iterable[Record],
    to: Path,
    mapped: Mapped,
    *,
    name: str,
    bad_share: float = 0.01,
    say: Say = lambda _: None,
) -> Counts:
    """Write items to a file, whole or not at all.

    With `mapped.since` they go into the file that is there: a known id is replaced, a new one
    added.

    Args:
        to: the file of JSON lines.
        name: of the source, for messages.
        bad_share: the largest accepted share of bad records.
        say: gets messages on the progress.

    Raises:
        DataError: too many bad records, a field that no record has, a damaged source; names file
            and line, or the document.
        ServiceError: the source can't be reached.
        StorageError: the disk is full or read-only.
    """
    counts, ids = Counts(), dict[int, int]()
    with storage_errors(str(to.parent)):
        to.parent.mkdir(parents=True, exist_ok=True)
    with replacing(to) as file:
        for line in _new_lines(records, mapped, counts, ids, (name, bad_share), say):
            file.write(line)
        counts.items = counts.written
        for place, record in json_records(to) if mapped.since and to.is_file() else ():
            if hash(id_field(record, mapped.target.id, place)) in ids:
                counts.changed += 1
            else:
                counts.items += 1
                file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
    return counts


def _new_lines(
    records: Iterable[Record],
    mapped: Mapped,
    counts: Counts,
    ids: dict[int, int],
    source: tuple[str, float],
    say: Say,
) -> Iterator[bytes]:
    """The lines of the source's items; `ids` gets hashes of ids and lines."""
    notes, seen, told = Counter[str](), Counter[str](), time.monotonic()
    for place, record in records:
        counts.read += 1
        try:
            if isinstance(record, DataError):
                raise record
            flat = {path: pick(record, path) for path in mapped.paths}
            seen.update(path for path in mapped.asked if flat.get(path) is not None)
            found = mapped.item(place, flat, notes)
            if found is None:
                counts.older += 1
                continue
            item, line = found[0], mapped.line(*found)
            if ids.setdefault(hash(item.id), hash(line)) != hash(line):
                raise DataError(
                    f"{place}: the id {item.id!r} was there before with other values; give each "
                    "item its own."
                )
        except DataError as error:
            counts.fault(error)
            if counts.read >= _EARLY:
                _check_share(counts, *source)
            continue
        if len(ids) == counts.written:
            counts.repeated += 1
            continue
        counts.written += 1
        counts.blank += not (item.title.strip() or item.text.strip())
        yield line
        if time.monotonic() - told >= _TELL:
            told = time.monotonic()
            say(f"{counts.read:,} records read, {counts.bad:,} of them bad.")
    counts.html, counts.nul = notes[HTML], notes[NULS]
    _check_share(counts, *source)
    _check_names(mapped, counts, seen, source[0])


def _check_share(counts: Counts, name: str, share: float) -> None:
    if counts.bad > share * counts.read:
        raise DataError(
            f"{counts.bad:,} of {counts.read:,} records of {name} are bad, more than the "
            f"{share:.0%} of --bad-share; correct them or the names of columns, or allow more. The "
            f"first one: {counts.problems[0]}"
        )


def _check_names(mapped: Mapped, counts: Counts, seen: Counter[str], name: str) -> None:
    """Refuse names of fields that no record has."""
    missing = [path for path in mapped.asked if not seen[path]] if counts.written else []
    if missing:
        raise DataError(
            f"{mapped.asked[missing[0]]} names {missing[0]!r}, which no record of {name} has; name "
            "a field that is there."
        )
    if counts.written and counts.blank == counts.written:
        names = ", ".join(map(repr, (mapped.columns.title, *mapped.columns.text)))
        raise DataError(
            f"No record of {name} has any of {names}; name its title and text with --title and "
            "--text."
        )


def newest(path: Path, target: Columns) -> datetime | None:
    """The latest `updated` of a file's items; None where none says one. Raises DataError."""
    times = (time_field(record, target.updated, place) for place, record in json_records(path))
    return max((time for time in times if time is not None), default=None)
