"""Reads files record by record, with a place (file and line) for each, so that errors can name it.

Streams: a file is never in memory as a whole. gzip is recognised by its first bytes, not by the
name. Nothing here knows what a record means.

`Sheet` is a table as spreadsheets and databases write it, CSV or TSV. It is read twice: once to
find encoding and delimiter.

- Encoding: the one of a byte order mark (UTF-8, UTF-16); else UTF-8 where every line is UTF-8; else
  Windows-1252, of which Latin-1's letters are a part. A file in which most lines beyond ASCII are
  UTF-8 is damaged, and refused.
- Delimiter: of comma, semicolon, tab and bar the one by which the first line has most of the wanted
  columns, then most columns. Double quotes quote fields, which may hold delimiters and line ends.
  Lines may end in any way.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import json
import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from cogr.errors import DataError

_GZIP_MAGIC = b"\x1f\x8b"
_DECODE = json.JSONDecoder().raw_decode
_JSON_SPACE = " \t\r\n"
_BOM = b"\xef\xbb\xbf"
# The csv module refuses fields over 128 KB unless told otherwise, for the whole process.
MAX_FIELD_CHARS = 1 << 30


class Place(NamedTuple):
    """Where a record stands: a file (or another source) and a line, row or record
    counted from 1.
    """

    source: Path | str
    number: int
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.source}, {self.unit} {self.number}"


def find(folder: Path, name: str) -> Path | None:
    """The file `name` or `name.gz` in a folder, the plain one first; None when neither is there."""
    for candidate in (folder / name, folder / f"{name}.gz"):
        if candidate.is_file():
            return candidate
    return None


def need(folder: Path, name: str, advice: str) -> Path:
    """As `find`. Raises DataError, which ends with the advice, when the file is not there."""
    found = find(folder, name)
    if found is None:
        raise DataError(f"{folder} has no {name} (or {name}.gz): {advice}.")
    return found


def open_bytes(path: Path) -> IO[bytes]:
    """Open for reading, unpacking gzip on the way."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == _GZIP_MAGIC
        # GzipFile splits lines in Python; the buffer around it does it in C.
        return (
            io.BufferedReader(cast(io.RawIOBase, gzip.open(path, "rb")), 1 << 16)
            if packed
            else path.open("rb")
        )
    except PermissionError as error:
        raise DataError(f"{path} can't be read: permission is denied; make it readable.") from error


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers from 1, without line ends. Only \\n (or \\r\\n) ends a line; a byte
    order mark is skipped.

    Raises:
        DataError: bytes that are not UTF-8, or a damaged gzip file.
    """
    number = 0
    try:
        with open_bytes(path) as file:
            for number, raw in enumerate(file, start=1):
                if number == 1:
                    raw = raw.removeprefix(_BOM)
                yield number, raw.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        place = Place(path, number)
        raise DataError(
            f"{place}: the text is not UTF-8 (byte {error.start + 1}); convert the file to UTF-8."
        ) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path} is cut off or damaged after line {number} ({error}); fetch it again."
        ) from error


def json_records(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The objects of a file with one JSON object a line. Empty lines are skipped.

    Raises:
        DataError: a line that is no JSON, or JSON that is no object; names file and line.
    """
    for number, line in lines(path):
        if line and not line.isspace():
            place = Place(path, number)
            yield place, json_object(parse_json(line, place), place)


def parse_json(text: str, place: Place) -> Any:
    """JSON from a text. Raises DataError that names the place."""
    try:
        return _loads(text)
    except RecursionError as error:
        raise DataError(f"{place}: the JSON is nested too deeply; write flat objects.") from error
    except ValueError as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise DataError(
            f"{place}: this is no JSON ({reason}); write one JSON object a line."
        ) from error


def _loads(text: str) -> Any:
    """As `json.loads`, in half the time, which for a short line goes into looking for white space
    around the value.
    """
    text = text.strip(_JSON_SPACE)
    value, end = _DECODE(text)
    return value if end == len(text) else json.loads(text)


def json_object(value: Any, place: Place) -> dict[str, Any]:
    """The value itself when it is a JSON object. Raises DataError otherwise."""
    if not isinstance(value, dict):
        raise DataError(
            f"{place}: the record is no JSON object but {type(value).__name__}; write an object "
            "with named fields."
        )
    return value


class Dialect(NamedTuple):
    """How a table is written: the delimiter, and whether double quotes quote fields."""

    delimiter: str = "\t"
    quoted: bool = False


TSV = Dialect()
QUOTED_TSV = Dialect(quoted=True)
CSV = Dialect(delimiter=",", quoted=True)


def table(
    path: Path, columns: Sequence[str], dialect: Dialect = TSV
) -> Iterator[tuple[Place, list[str]]]:
    """The named columns of a table with a header line, row by row, in the order of `columns`.

    Raises:
        DataError: a header that lacks a column, or a row with another number of columns than the
            header.
    """
    rows = split_rows(path, dialect)
    place, header = next(rows, (Place(path, 1), []))
    missing = [name for name in columns if name not in header]
    if missing:
        raise DataError(
            f"{place}: the header lacks {', '.join(missing)}; the first line must name the columns "
            f"{', '.join(columns)}, separated by {_called(dialect)}."
        )
    positions = [header.index(name) for name in columns]
    for place, row in rows:
        check_columns(place, row, len(header), dialect)
        yield place, [row[position] for position in positions]


def split_rows(path: Path, dialect: Dialect = TSV) -> Iterator[tuple[Place, list[str]]]:
    """Rows of a table as they stand, header included. Empty lines are skipped."""
    csv.field_size_limit(MAX_FIELD_CHARS)
    # A quoted field may hold line ends, so they are given back to the csv module.
    ended = (f"{line}\n" for _, line in lines(path))
    if dialect.quoted:
        reader = csv.reader(ended, delimiter=dialect.delimiter)
    else:
        reader = csv.reader(ended, delimiter=dialect.delimiter, quoting=csv.QUOTE_NONE)
    try:
        for row in reader:
            if row:
                yield Place(path, reader.line_num), row
    except csv.Error as error:
        # In practice: a carriage return inside an unquoted field.
        place = Place(path, reader.line_num)
        raise DataError(
            f"{place}: the row can't be read ({error}); end lines with \\n or \\r\\n alone."
        ) from error


def check_columns(place: Place, row: Sequence[str], expected: int, dialect: Dialect = TSV) -> None:
    """Raises DataError when a row has another number of columns than expected."""
    if len(row) != expected:
        quotes = ", and put a text that holds one in double quotes" if dialect.quoted else ""
        raise DataError(
            f"{place}: the row has {len(row)} columns where {expected} are expected; "
            f"separate the columns by {_called(dialect)}{quotes}."
        )


def json_array(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The objects of a file that is one JSON array; the array is in memory as a whole.

    Raises:
        DataError: no JSON, no array, or an element that is no object.
    """
    text = "\n".join(line for _, line in lines(path))
    try:
        array = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}, line {error.lineno}: this is no JSON ({error.msg}); write one JSON array."
        ) from error
    except RecursionError as error:
        raise DataError(
            f"{path}: the JSON is nested too deeply; write an array of flat objects."
        ) from error
    if not isinstance(array, list):
        raise DataError(
            f"{path}: the JSON is no array but {type(array).__name__}; write one JSON array of "
            "objects."
        )
    for number, value in enumerate(array, start=1):
        place = Place(path, number, "record")
        yield place, json_object(value, place)


def _called(dialect: Dialect) -> str:
    return {"\t": "tabs", ",": "commas", ";": "semicolons"}.get(
        dialect.delimiter, repr(dialect.delimiter)
    )


DELIMITERS = ",;\t|"
WESTERN = "cp1252"
_HEAD = 1 << 16
_BOMS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


@dataclass(frozen=True)
class Sheet:
    """A table with a header line.

    Attributes:
        header: names of the columns, without surrounding white space.
        announced: whether its first line is Excel's `sep=;`.
    """

    path: Path
    encoding: str
    delimiter: str
    header: tuple[str, ...]
    announced: bool = False

    @classmethod
    def open(cls, path: Path, wanted: Collection[str] = ()) -> Sheet:
        """Look at a table.

        Args:
            wanted: columns that it should have, which help to find the delimiter.

        Raises:
            DataError: it is empty, damaged, in no encoding that is known, or names a column twice.
        """
        encoding = _encoding(path)
        with _text(path, encoding) as file:
            head = file.read(_HEAD)
        first, _, rest = head.partition("\n")
        announced = first.lower().startswith("sep=") and len(first) == len("sep=;")
        choices = first[-1] if announced else DELIMITERS
        headers = {choice: _first_row(rest if announced else head, choice) for choice in choices}
        delimiter = max(
            headers, key=lambda one: (len({*wanted} & {*headers[one]}), len(headers[one]))
        )
        header = headers[delimiter]
        if not any(header):
            raise DataError(f"{path} has no header line; name the columns in the first line.")
        twice = next((name for name in header if name and header.count(name) > 1), None)
        if twice is not None:
            raise DataError(
                f"{path}, line 1: the header names {twice!r} twice; give each column its own name."
            )
        return cls(path, encoding, delimiter, header, announced)

    def need(self, column: str, setting: str) -> None:
        """Raise DataError where there is no such column; the setting is what names it."""
        if column in self.header:
            return
        shown = ", ".join(name for name in self.header if name)
        raise DataError(
            f"{self.path}, line 1: the header has no column {column!r}; set {setting} to the one "
            f"that is meant{nearest(column, self.header)} (there are: {shown:.300})."
        )

    def rows(
        self, bad: Callable[[DataError], object] | None = None
    ) -> Iterator[tuple[Place, list[str]]]:
        """The rows below the header, as wide as it. Rows without any text are skipped.

        Args:
            bad: gets the error of a row with another number of columns, which is then left out;
                without it the error is raised.

        Raises:
            DataError: a row with another number of columns than the header.
        """
        width, dialect = len(self.header), Dialect(self.delimiter, quoted=True)
        with _text(self.path, self.encoding) as file:
            reader = csv.reader(file, delimiter=self.delimiter)
            try:
                for number, row in enumerate(reader):
                    if number <= self.announced or not any(row):
                        continue
                    place = Place(self.path, reader.line_num)
                    while len(row) > width and not row[-1]:
                        row.pop()
                    try:
                        check_columns(place, row, width, dialect)
                    except DataError as error:
                        if bad is None:
                            raise
                        bad(error)
                        continue
                    yield place, row
            except csv.Error as error:
                raise DataError(
                    f"{Place(self.path, reader.line_num)}: the row can't be read ({error})."
                ) from error


def find_sheet(folder: Path, name: str) -> Path | None:
    """`name.csv` or `name.tsv` in a folder, or one of them packed; None when none is there."""
    return find(folder, f"{name}.csv") or find(folder, f"{name}.tsv")


def safe_cell(text: str) -> str:
    """A text that no spreadsheet takes for a formula: with a blank before it where one would, as
    Quepid writes it.
    """
    return f" {text}" if text.startswith(("=", "+", "-", "@")) else text


def _first_row(text: str, delimiter: str) -> tuple[str, ...]:
    rows = csv.reader(io.StringIO(text), delimiter=delimiter)
    try:
        return tuple(name.strip() for name in next(rows, []))
    except csv.Error:
        return ()


def _encoding(path: Path) -> str:
    """The encoding by the rules above; reads the file to its end."""
    good, bad, first, western = 0, 0, 0, True
    with _damage(path), open_bytes(path) as file:
        start = next(file, b"")
        if start[:2] in _BOMS:
            return _BOMS[start[:2]]
        for number, raw in enumerate(chain([start], file), start=1):
            if raw.isascii():
                continue
            if _decodes(raw, "utf-8"):
                good += 1
            else:
                bad, first, western = bad + 1, first or number, western and _decodes(raw, WESTERN)
    if not bad:
        return "utf-8-sig"
    if good >= bad:
        raise DataError(
            f"{path}, line {first}: the text is not UTF-8, as the rest of the file is; mend this "
            "line."
        )
    if not western:
        raise DataError(
            f"{path}, line {first}: the text is neither UTF-8 nor Windows-1252; save the file as "
            "UTF-8."
        )
    return WESTERN


def _decodes(raw: bytes, encoding: str) -> bool:
    try:
        raw.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


@contextmanager
def _text(path: Path, encoding: str) -> Iterator[io.TextIOWrapper]:
    """The file as text, every line end as \\n."""
    csv.field_size_limit(MAX_FIELD_CHARS)
    with _damage(path), open_bytes(path) as file:
        try:
            yield io.TextIOWrapper(file, encoding)
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}: the text is no {encoding.upper()}; save the file as UTF-8."
            ) from error


@contextmanager
def _damage(path: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is cut off or damaged ({error}); fetch it again.") from error


def nearest(name: str, known: Sequence[str]) -> str:
    """The hint ", such as X" with the most similar known name; "" where none is similar."""
    spelled = {one.casefold(): one for one in known if one}
    near = difflib.get_close_matches(name.casefold(), spelled, n=1, cutoff=0.5)
    return f", such as {spelled[near[0]]!r}" if near else ""
