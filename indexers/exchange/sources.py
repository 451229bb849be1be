"""Sources of items: files in common shop formats, and databases, page by page.

- `csv`: any table of a spreadsheet or a database (`cogr.datasets.reading`);
- `jsonl`: a JSON object a line;
- `json`: a JSON array of objects, or an object with one under `products` or `items`;
- `parquet`;
- `merchant`: a product feed of Google Merchant Center, RSS 2.0, Atom or tab-separated;
- `shopify`: Shopify's product CSV, of which all rows of one handle are a product, or its
  `products.json`;
- a database by an SQLAlchemy URL, read in the order of its ids, so that an interrupted import goes
  on behind the last one.

An index of a cluster is in `index_source`. A source has parts that are read independently of each
other.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, Protocol
from uuid import UUID

from cogr.datasets.fields import Columns
from cogr.datasets.reading import Place, Sheet, json_object, lines, open_bytes, parse_json
from cogr.errors import DataError, MissingExtraError, ServiceError, SettingsError, learn_words

PAGE = 1_000

Record = tuple[Place, Mapping[str, Any]] | DataError
"""A record and its place, or why there is none."""


@dataclass(frozen=True)
class Page:
    """Some records of a part.

    Attributes:
        cursor: JSON that says where the part goes on, also in another process; None at its end.
    """

    records: Sequence[Record]
    cursor: Any


class Source(Protocol):
    """A source of items.

    Attributes:
        name: for messages.
    """

    name: str

    @property
    def key(self) -> str:
        """The source with its parameters: an interrupted import resumes only with the same key."""
        ...

    def begin(self) -> list[Any]:
        """Each part's first cursor. Raises DataError, ServiceError."""
        ...

    def page(self, part: int, cursor: Any) -> Page:
        """The page of a part at a cursor.

        Raises DataError, ServiceError; GoneError where a cursor is of no use any more.
        """
        ...

    def close(self) -> None:
        """The source was read to its end."""
        ...


class GoneError(Exception):
    """A part can't go on from a cursor: the source must be read again from its beginning."""


FORMATS = ("csv", "jsonl", "json", "parquet", "merchant", "shopify")

DEFAULTS: dict[str, Columns] = {
    "merchant": Columns(text=("description",)),
    "shopify": Columns(id="Handle", title="Title", text=("Body (HTML)", "Vendor", "Type", "Tags")),
    "shopify new": Columns(
        id="URL handle", title="Title", text=("Description", "Vendor", "Type", "Tags")
    ),
    "shopify json": Columns(
        id="id",
        text=("body_html", "vendor", "product_type", "tags"),
        updated="updated_at",
    ),
}
"""Default names of a feed's fields."""


class FileSource:
    """Files of one format; each is a part.

    Args:
        paths: the files, plain or packed by gzip (parquet: plain).
        format: one of `FORMATS`, or None for what the first file looks like.
        wanted: fields that are asked for, and by which options; a table must have them.

    Raises:
        DataError: a file is not there.
        SettingsError: an unknown format.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        format: str | None = None,
        wanted: Mapping[str, str] | None = None,
    ) -> None:
        for path in paths:
            if not path.is_file():
                raise DataError(f"The file {path} is not there; name a file of items.")
        self.format = format or looks_like(paths[0])
        if self.format not in FORMATS:
            raise SettingsError(
                f"--format {self.format!r} is unknown; write one of {', '.join(FORMATS)}."
            )
        self.paths, self._wanted = list(paths), dict(wanted or {})
        self.name = ", ".join(map(str, paths))
        self.parts = len(paths)
        self._open: dict[int, tuple[int, Iterator[Record]]] = {}

    @property
    def columns(self) -> Columns:
        """Default names of the fields."""
        if self.format != "shopify":
            return DEFAULTS.get(self.format, Columns())
        if _is_json(self.paths[0]):
            return DEFAULTS["shopify json"]
        old = DEFAULTS["shopify"]
        header = Sheet.open(self.paths[0], [old.id]).header
        return old if old.id in header else DEFAULTS["shopify new"]

    @property
    def key(self) -> str:
        """Names, sizes and times of the files, so that a changed file is read anew."""
        found = ((path, path.stat()) for path in self.paths)
        stats = [(str(path.absolute()), stat.st_size, stat.st_mtime_ns) for path, stat in found]
        return hashlib.sha256(json.dumps([self.format, stats]).encode()).hexdigest()

    def begin(self) -> list[int]:
        return [0] * self.parts

    def page(self, part: int, cursor: int) -> Page:
        """The next records; the cursor is how many came before."""
        done = cursor
        at, records = self._open.get(part) or (0, self._records(self.paths[part]))
        if at != done:
            at, records = 0, self._records(self.paths[part])
            for _ in islice(records, done):
                pass
        found = list(islice(records, PAGE))
        done += len(found)
        self._open[part] = done, records
        return Page(found, done if len(found) == PAGE else None)

    def close(self) -> None:
        self._open.clear()

    def _records(self, path: Path) -> Iterator[Record]:
        if self.format == "jsonl":
            return _json_lines(path)
        if self.format == "parquet":
            return _parquet(path)
        if self.format == "merchant" and _starts_with(path, b"<"):
            return _feed(path)
        if self.format == "json" or (self.format == "shopify" and _is_json(path)):
            return _json_array(path)
        chosen = "--id" in self._wanted.values()
        rows = _table(path, ({} if chosen else {self.columns.id: "--id"}) | self._wanted)
        # Without a SKU as its id, a product is the first of its handle's rows.
        handle = self.columns.id if self.format == "shopify" else ""
        return _products(rows, handle, alone=not chosen) if handle else rows


def looks_like(path: Path) -> str:
    """A file's format, by its name and its beginning."""
    name = path.name.removesuffix(".gz").lower()
    if name.endswith(".parquet"):
        return "parquet"
    if _starts_with(path, b"<"):
        return "merchant"
    if name.endswith((".csv", ".tsv", ".txt")):
        header = Sheet.open(path).header
        shopify = ({"Handle", "Title"}, {"URL handle", "Title"})
        return "shopify" if any(names <= {*header} for names in shopify) else "csv"
    if _PRODUCTS.match(_start(path)):
        return "shopify"
    return "json" if name.endswith(".json") or _starts_with(path, b"[") else "jsonl"


_PRODUCTS = re.compile(rb'\{\s*"products"\s*:')


def _start(path: Path) -> bytes:
    with open_bytes(path) as file:
        return file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip()


def _starts_with(path: Path, sign: bytes) -> bool:
    return _start(path).startswith(sign)


def _is_json(path: Path) -> bool:
    return _starts_with(path, b"{") or _starts_with(path, b"[")


def _json_lines(path: Path) -> Iterator[Record]:
    for number, line in lines(path):
        if line and not line.isspace():
            place = Place(path, number)
            try:
                record = json_object(parse_json(line, place), place)
            except DataError as error:
                yield error
                continue
            inner = record.get("_source")  # a document as search or a dump shows it
            yield place, {"_id": record.get("_id"), **inner} if isinstance(inner, dict) else record


def _json_array(path: Path) -> Iterator[Record]:
    text = "\n".join(line for _, line in lines(path))
    found = parse_json(text, Place(path, 1))
    if isinstance(found, dict):
        found = next((found[name] for name in ("products", "items") if name in found), found)
    if not isinstance(found, list):
        raise DataError(
            f"{path}: the JSON is no array, nor an object with one under 'products' or 'items'; "
            "write one."
        )
    for number, one in enumerate(found, start=1):
        place = Place(path, number, "record")
        try:
            yield place, json_object(one, place)
        except DataError as error:
            yield error


def _table(path: Path, wanted: Mapping[str, str]) -> Iterator[Record]:
    sheet = Sheet.open(path, wanted)
    for column, option in wanted.items():
        sheet.need(column, option)
    errors: list[DataError] = []
    for place, row in sheet.rows(errors.append):
        yield from errors
        errors.clear()
        cells = zip(sheet.header, row, strict=True)
        yield place, {name: text for name, cell in cells if name and (text := cell.strip())}
    yield from errors


def _products(rows: Iterator[Record], handle: str, *, alone: bool) -> Iterator[Record]:
    """Rows of Shopify's CSV: those of a variant get what the product's first row says.

    Args:
        handle: the column that says which rows belong together.
        alone: leave the rows of further variants out.
    """
    first: Mapping[str, Any] = {}
    for row in rows:
        if isinstance(row, DataError):
            yield row
            continue
        place, record = row
        if record.get(handle) is not None and record.get(handle) == first.get(handle):
            if not alone:
                yield place, {**first, **record}
            continue
        first = record
        yield place, first


def _parquet(path: Path) -> Iterator[Record]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=PAGE, use_threads=False):
                for record in batch.to_pylist():
                    number += 1
                    yield Place(path, number, "row"), record
    except pa.ArrowException as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise DataError(f"{path} is no parquet file or damaged ({reason}).") from error


def _feed(path: Path) -> Iterator[Record]:
    """The products of an RSS 2.0 or Atom feed, by the local names of their elements."""
    try:
        from defusedxml import DefusedXmlException
        from defusedxml.ElementTree import ParseError, iterparse
    except ModuleNotFoundError as error:
        raise MissingExtraError("A product feed in XML", "data") from error
    number = 0
    try:
        with open_bytes(path) as file:
            for _, element in iterparse(file):
                if _local(element.tag) in ("item", "entry"):
                    number += 1
                    yield Place(path, number, "product"), _children(element)
                    element.clear()
    except (ParseError, DefusedXmlException) as error:
        raise DataError(
            f"{path} is no feed, or a damaged one, after product {number} ({error}); fetch it "
            "again."
        ) from error


def _children(element: Any) -> dict[str, Any]:
    """Texts of an element's children; several of one name are a list. Google's own names count more
    than RSS's of the same name.
    """
    found: dict[str, list[Any]] = {}
    googles = {_local(child.tag) for child in element if "base.google.com" in child.tag}
    for child in element:
        name = _local(child.tag)
        if name in googles and "base.google.com" not in child.tag:
            continue
        value = _children(child) if len(child) else (child.text or "").strip()
        if value:
            found.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


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


class SqlSource:
    """A table or a query of a database, as `indexers.exchange.sources.Source`.

    Args:
        url: of SQLAlchemy, such as postgresql+psycopg://shop@localhost/shop; its driver must be
            installed.
        query: a table's name, or a SELECT without a semicolon.
        id: the column of the items' ids, by which rows are ordered; unique and never null.
        since: a column of times and a time: only rows that are not older.

    Raises:
        MissingExtraError: SQLAlchemy is not installed.
        SettingsError: a malformed URL, or one whose driver is not installed.
    """

    def __init__(
        self, url: str, query: str, id: str = "id", since: tuple[str, datetime] | None = None
    ) -> None:
        try:
            import sqlalchemy as sql
        except ModuleNotFoundError as error:
            raise MissingExtraError("A database (--sql)", "data") from error
        try:
            address = sql.make_url(url)
            if address.password:
                learn_words([str(address.password)])
            self._engine = sql.create_engine(address)
        except (sql.exc.ArgumentError, sql.exc.NoSuchModuleError, ModuleNotFoundError) as error:
            raise SettingsError(
                f"--sql names no database ({error}); write an SQLAlchemy URL such as "
                "postgresql+psycopg://user@host/shop, and install its driver."
            ) from error
        self.name = f"{address.render_as_string(hide_password=True)}"
        self._sql, self._id = sql, id
        asked = query.strip().rstrip(";")
        inner = f"({asked})" if " " in asked else asked
        column = sql.column
        rows = sql.select(sql.text("*")).select_from(sql.text(f"{inner} AS cogr_items"))
        if since:
            # A day more, whatever zone and type the column has; the importer knows exactly.
            rows = rows.where(column(since[0]) >= str(since[1].date() - timedelta(days=1)))
        self._rows = rows.order_by(column(id)).limit(PAGE)
        self._key = hashlib.sha256(json.dumps([self.name, asked, id, str(since)]).encode())

    @property
    def key(self) -> str:
        return self._key.hexdigest()

    def begin(self) -> list[dict[str, Any]]:
        return [{"rows": 0}]

    def page(self, part: int, cursor: Mapping[str, Any]) -> Page:  # noqa: ARG002
        """The next rows; the cursor is the last id and how many rows came before."""
        before, rows = cursor["rows"], self._rows
        if "after" in cursor:
            rows = rows.where(self._sql.column(self._id) > cursor["after"])
        with self._errors(), self._engine.connect() as connection:
            found = [dict(row) for row in connection.execute(rows).mappings()]
        if found and self._id not in found[0]:
            raise DataError(
                f"{self.name}: the rows have no column {self._id!r}; name the items' id with --id."
            )
        records: list[Record] = [
            (Place(self.name, before + number, "row"), {k: _plain(v) for k, v in row.items()})
            for number, row in enumerate(found, start=1)
        ]
        if len(found) < PAGE:
            return Page(records, None)
        last = _plain(found[-1][self._id])
        return Page(records, {"after": last, "rows": before + len(found)})

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._sql.exc.InterfaceError as error:
            raise ServiceError(f"{self.name} can't be reached ({error.orig}).") from error
        except self._sql.exc.DBAPIError as error:
            reason = " ".join(str(error.orig).split())
            raise SettingsError(
                f"{self.name} refuses the query ({reason}); correct --sql, --query or the names of "
                "columns."
            ) from error


def _plain(value: Any) -> Any:
    """A database's value as JSON has it."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    return value
