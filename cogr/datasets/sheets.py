"""Tables as spreadsheets and databases write them, CSV and TSV. Encoding and delimiter are found by
looking at the file.

Encoding: the one of a byte order mark (UTF-8, UTF-16); else UTF-8 where every line is UTF-8; else
Windows-1252, of which Latin-1's letters are a part. A file in which most lines beyond ASCII are
UTF-8 is damaged, and refused. Delimiter: of comma, semicolon, tab and bar the one by which the
first line has most of the wanted columns, then most columns. Double quotes quote fields, which may
hold delimiters and line ends. Lines may end in any way. Streams; reads the file twice.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from cogr.datasets.fields import nearest
from cogr.datasets.reading import MAX_FIELD_CHARS, Dialect, Place, check_columns, find, open_bytes
from cogr.errors import DataError

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
