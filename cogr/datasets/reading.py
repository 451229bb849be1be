"""Reads files record by record, with the place (file and line) of each for error messages.

Streams: a line or a row is in memory, never a file. gzip is recognised by its first bytes, not by
the name. Nothing here knows what a record means.

`Sheet` is a table as spreadsheets and databases write it, CSV or TSV. Its delimiter is the one of
comma, semicolon, tab and bar by which the first line has most of the wanted columns, then most
columns. Double quotes quote cells, which may hold delimiters and line ends.
"""

from __future__ import annotations

import codecs
import csv
import difflib
import gzip
import io
import json
import logging
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from cogr.errors import DataError, SettingsError

log = logging.getLogger(__name__)

MAX_CELL = 1 << 24
"""Characters of a cell."""


class Place(NamedTuple):
    """The place of a record: a file (or another source) and a line, row or record
    counted from 1.
    """

    source: Path | str
    number: int
    unit: str = "line"

    def __str__(self) -> str:
        return f"{self.source}, {self.unit} {self.number}"


def find(folder: Path, name: str) -> Path | None:
    """A file of a folder, plain or as `name.gz`; None where there is neither."""
    return next(filter(Path.is_file, (folder / name, folder / f"{name}.gz")), None)


def need(folder: Path, name: str, advice: str) -> Path:
    """As `find`, but raises DataError, which ends with the advice, when the file is missing."""
    path = find(folder, name)
    if path is None:
        raise DataError(f"{folder} has no {name} (or {name}.gz): {advice}.")
    return path


@contextmanager
def open_bytes(path: Path) -> Iterator[IO[bytes]]:
    """Open for reading, unpacking gzip on the way.

    Raises DataError for what can't be read, is damaged, or is read as UTF-8 and is not.
    """
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
        # GzipFile splits lines in Python; the buffer around it splits them in C.
        with (
            io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(path)), 1 << 16)
            if packed
            else path.open("rb")
        ) as file:
            yield file
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: the text is not {_Named.encoding}; save the file as UTF-8."
        ) from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path} is truncated or damaged ({error}); fetch it again.") from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise DataError(f"{path} can't be read ({reason}); name a readable file.") from error


def lines(path: Path, *, named: bool = True) -> Iterator[tuple[int, str]]:
    """Lines with their numbers from 1, without line ends. Only \\n (or \\r\\n) ends a line; a byte
    order mark is skipped. The encoding is as of `encoding_of`, or without `named` the detected one.
    Raises DataError.
    """
    encoding = encoding_of(path) if named else _detected(path)
    with open_bytes(path) as file:
        texts = io.TextIOWrapper(file, encoding, newline="\n")
        for number, text in enumerate(texts, start=1):
            yield number, text.removesuffix("\n").removesuffix("\r")


def json_records(path: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The objects of a file with one JSON object a line, which is UTF-8 whatever encoding is named
    for other files. Empty lines are skipped. Raises DataError that names the line.
    """
    for number, line in lines(path, named=False):
        if line and not line.isspace():
            place = Place(path, number)
            yield place, json_object(parse_json(line, place), place)


def json_whole(path: Path) -> Any:
    """The JSON value that a whole file is. Raises DataError."""
    with open_bytes(path) as file:
        return parse_json(file.read().decode(_detected(path)), Place(path, 1))


def parse_json(text: str, place: Place) -> Any:
    """JSON from a text. Raises DataError that names the place."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise DataError(f"{place}: the JSON is nested too deeply; write flat objects.") from error
    except ValueError as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise DataError(
            f"{place}: this is not JSON ({reason}); write one JSON object a line."
        ) from error


def json_object(value: Any, place: Place) -> dict[str, Any]:
    """The value itself when it is a JSON object. Raises DataError otherwise."""
    if not isinstance(value, dict):
        raise DataError(
            f"{place}: the record is not a JSON object but {type(value).__name__}; write an object "
            "with named fields."
        )
    return value


def parquet_rows(
    path: Path,
    columns: Collection[str] | None = None,
    tell: Callable[[Sequence[str], int], object] | None = None,
) -> Iterator[tuple[Place, dict[str, Any]]]:
    """The rows of a parquet file, of the columns that are asked for and there.

    Args:
        tell: gets the names of all columns, and the number of rows, before the first row.

    Raises DataError for a file that can't be read, or a value beyond Python's types, such as a date
    after the year 9999.
    """
    import pyarrow as pa  # only where it is needed
    import pyarrow.parquet as pq

    number = 0
    try:
        with pq.ParquetFile(path) as file:
            there = file.schema_arrow.names
            if tell:
                tell(there, file.metadata.num_rows)
            read = None if columns is None else [name for name in columns if name in there]
            for batch in file.iter_batches(batch_size=4096, columns=read, use_threads=False):
                batch.validate(full=True)
                for row in batch.to_pylist():
                    number += 1
                    yield Place(path, number, "row"), row
    except (pa.ArrowException, OSError, UnicodeDecodeError, ValueError, OverflowError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise DataError(
            f"{path} is not a parquet file, or damaged after row {number} ({reason}); write "
            "it again."
        ) from error


DELIMITERS = ",;\t|"
_HEAD = 1 << 16
_DECIMAL_COMMA = re.compile(r"-?(?:\d+|\d{1,3}(?:\.\d{3})+),\d+")


@dataclass(frozen=True)
class Sheet:
    """A table with a header line.

    Attributes:
        header: names of the columns, without surrounding white space.
    """

    path: Path
    delimiter: str
    header: tuple[str, ...]
    encoding: str

    @classmethod
    def open(cls, path: Path, wanted: Collection[str] = ()) -> Sheet:
        """Detect encoding, delimiter and header of a table; `wanted` columns help to find the
        delimiter. Raises DataError where it is empty, damaged or no text, or names a column twice.
        """
        encoding = encoding_of(path)
        with open_bytes(path) as file:
            head = io.TextIOWrapper(file, encoding).read(_HEAD)
        headers = {choice: _first_row(head, choice) for choice in DELIMITERS}
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
        return cls(path, delimiter, header, encoding)

    @classmethod
    def of(cls, path: Path, *columns: str) -> Sheet:
        """A table that has these columns. Raises as `open`, and DataError where it lacks one."""
        sheet = cls.open(path, columns)
        for column in columns:
            sheet.need(column)
        return sheet

    def need(self, column: str, setting: str = "") -> None:
        """Raise DataError where there is no such column; `setting`: what can name another one."""
        if column in self.header:
            return
        shown = ", ".join(name for name in self.header if name)
        advice = f"set {setting} to the one that is meant"
        if not setting:
            advice = "rename one of the columns to it"
        raise DataError(
            f"{self.path}, line 1: the header has no column {column!r}; {advice}"
            f"{nearest(column, self.header)} (there are: {shown:.300})."
        )

    def records(self) -> Iterator[tuple[Place, dict[str, Any]]]:
        """The rows below the header as mappings of the named columns; cells lose the white space
        around them, and those that are empty, NULL or \\N are left out. Rows without any text are
        skipped.

        Raises:
            DataError: a row with another number of columns, a quote that is not closed, or a cell
                beyond `MAX_CELL`.
        """
        width = len(self.header)
        rows = self._rows()
        next(rows, None)
        for place, row in rows:
            cells = [self._cell(cell) for cell in row]
            if any(cells[width:]) or (any(cells) and len(cells) < width):
                raise self._uneven(place, row)
            if any(cells):
                named = zip(self.header, cells, strict=False)
                yield place, {name: cell for name, cell in named if name and cell}

    def _cell(self, text: str) -> str:
        # As MySQL and PostgreSQL write no value, and line ends in tables with tabs; semicolons
        # separate cells where a comma separates decimals.
        text = text.strip()
        if text in ("\\N", "NULL"):
            return ""
        if self.delimiter == ";" and _DECIMAL_COMMA.fullmatch(text):
            return text.replace(".", "").replace(",", ".")
        return text.replace("\\n", "\n") if self.delimiter == "\t" and "\\n" in text else text

    def _rows(self) -> Iterator[tuple[Place, list[str]]]:
        csv.field_size_limit(MAX_CELL)
        taken: list[str] = []
        with open_bytes(self.path) as file:
            text = io.TextIOWrapper(file, self.encoding)
            reader = csv.reader(_kept(text, taken), delimiter=self.delimiter)
            try:
                for row in reader:
                    place = Place(self.path, reader.line_num)
                    if len(taken) > 1 and self._swallows(taken):
                        yield from self._one_by_one(reader.line_num, taken)
                    else:
                        yield place, row
                    taken.clear()
            except csv.Error as error:
                place = Place(self.path, reader.line_num)
                raise DataError(f"{place}: the row can't be read ({error}).") from error

    def _swallows(self, taken: Sequence[str]) -> bool:
        """Whether a row of several lines is rows, of which a cell begins with a quote that nothing
        closes: by the rules of CSV it does not end, or a cell of it holds whole rows.
        """
        try:
            (row,) = csv.reader(taken, delimiter=self.delimiter, strict=True)
        except csv.Error:
            return True
        counts = [(cell.count("\n"), cell.count(self.delimiter)) for cell in row]
        if self.delimiter == "\t":
            return any(ends and marks for ends, marks in counts)
        more = len(self.header) - 1
        return any(ends > 1 and marks == ends * more > 0 for ends, marks in counts)

    def _one_by_one(self, last: int, taken: Sequence[str]) -> Iterator[tuple[Place, list[str]]]:
        """The lines as rows, in which a quote that nothing closes is text; of tables with tabs, as
        databases and logs write them. Raises DataError for others.
        """
        if self.delimiter != "\t":
            raise DataError(
                f"{Place(self.path, last - len(taken) + 1)}: a quote at the beginning of a cell is "
                "not closed in its row; close it, or double the quotes that belong to a text."
            )
        for number, line in enumerate(taken, start=last - len(taken) + 1):
            try:
                (row,) = csv.reader([line], delimiter="\t", strict=True)
            except (csv.Error, ValueError):
                row = line.rstrip("\r\n").split("\t")
            yield Place(self.path, number), row

    def _uneven(self, place: Place, row: Sequence[str]) -> DataError:
        called = {"\t": "tabs", ",": "commas", ";": "semicolons"}.get(self.delimiter, "bars")
        return DataError(
            f"{place}: the row has {len(row)} columns where {len(self.header)} are expected; "
            f"separate the columns by {called}, and put a text that holds one in double quotes."
        )


class _Named:
    encoding = ""


def use_encoding(name: str) -> None:
    """Read every text file from now on in this encoding; with "" it is detected. Raises
    SettingsError for an unknown one.
    """
    try:
        _Named.encoding = codecs.lookup(name).name if name else ""
    except LookupError as error:
        raise SettingsError(
            f"The encoding {name!r} is unknown; name one that Python has, such as cp1252, "
            "iso8859-2 or utf-16."
        ) from error


def encoding_of(path: Path) -> str:
    """The encoding of a text file: the named one, else cp1252 where it is plainly Western text in
    that, which is said, else UTF-8. Raises DataError that names line and byte of what is neither.
    """
    return _Named.encoding or _detected(path)


def _detected(path: Path) -> str:
    with open_bytes(path) as file, suppress(UnicodeDecodeError):
        for _ in codecs.iterdecode(iter(partial(file.read, 1 << 20), b""), "utf-8"):
            pass
        return "utf-8-sig"
    with open_bytes(path) as file:
        raw = file.read()
    if _is_cp1252(raw):
        _tell(path)
        return "cp1252"
    for number, line in enumerate(raw.split(b"\n"), start=1):
        try:
            line.decode()
        except UnicodeDecodeError as error:
            raise DataError(
                f"{Place(path, number)}: the text is not UTF-8 (byte {error.start + 1}); convert "
                "the file to UTF-8, or name its encoding with --encoding or dataset.encoding."
            ) from error
    return "utf-8-sig"


@cache
def _tell(path: Path) -> None:
    log.warning("%s is not UTF-8 and is read as cp1252; --encoding names another one.", path)


_LETTERS = rb"[A-Za-z\xc0-\xd6\xd8-\xf6\xf8-\xfe]+"
_SIGNS = rb"[\x80\x85\x91-\x97\x99\xa0\xa3\xa7\xa9\xab\xae\xb0\xb2-\xb5\xb7\xbb-\xbe\xd7]"


def _is_cp1252(raw: bytes) -> bool:
    """Whether bytes that are no UTF-8 read as a Western language in cp1252: nothing but its letters
    and usual signs, nothing that is UTF-8, and words with such letters have as many others.
    """
    words = b"".join(word for word in re.findall(_LETTERS, raw) if not word.isascii())
    ascii_ = len(re.sub(rb"[^A-Za-z]", b"", words))
    rest = re.sub(_SIGNS, b"", re.sub(_LETTERS, b"", raw))
    torn = re.search(rb"[\xc2-\xc5][\x80-\xbf]|\xe2[\x80-\xbf]{2}", raw)
    return rest.isascii() and 2 * ascii_ >= len(words) and not torn


def _kept(lines: Iterable[str], taken: list[str]) -> Iterator[str]:
    for line in lines:
        taken.append(line)
        yield line


def _first_row(text: str, delimiter: str) -> tuple[str, ...]:
    rows = csv.reader(io.StringIO(text), delimiter=delimiter)
    try:
        return tuple(name.strip() for name in next(rows, []))
    except csv.Error:
        return ()


def nearest(name: str, known: Sequence[str]) -> str:
    """The hint ", such as X" with the most similar known name; "" where none is similar."""
    spelled = {one.casefold(): one for one in known if one}
    near = difflib.get_close_matches(name.casefold(), spelled, n=1, cutoff=0.5)
    return f", such as {spelled[near[0]]!r}" if near else ""
