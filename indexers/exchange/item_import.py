"""`cogr-index import items`: from a source to the JSON lines that the loader `jsonl` reads.

Items are checked as the loader checks them; a bad record is counted and named, and stops the import
only beyond a share. The items go into a draft beside the file. A small note, replaced atomically,
has the valid length of the draft and the cursor of each part of the source: a killed import resumes
from it without losses or repeats. At the end the draft becomes the file in one step.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

from cogr.datasets.builder import HTML, NULS, Options, make_item
from cogr.datasets.fields import Columns, id_field, time_field, written
from cogr.datasets.reading import Place, json_records, parse_json
from cogr.errors import CogrError, DataError, ServiceError
from cogr.records import Item, Say
from cogr.store import replacing, storage_errors
from indexers.exchange.sources import GoneError, Page, Record, Source, pick

SHOWN = 20
"""Bad records that are named."""
_EARLY = 1_000
"""Records after which a share of bad ones can stop the import before its end."""
_THREADS = 8
_MILLISECONDS = 1e11
"""The year 5138 in seconds, 1973 in milliseconds."""
_TELL = 10.0
"""Seconds between two lines of progress."""
NOTE_SECONDS = 1.0
"""Seconds between two notes of the progress."""


@dataclass(frozen=True)
class Mapped:
    """Which fields of a record become an item.

    Attributes:
        columns: names or dotted paths in the source; of `fields`, name -> path.
        target: names of the file's fields, from the data set's settings.
        strip_html: take HTML out of titles and texts.
        since: leave out records updated before, or without a time; None for all records.
    """

    columns: Columns
    target: Columns = field(default_factory=Columns)
    strip_html: bool = True
    since: datetime | None = None

    @property
    def paths(self) -> list[str]:
        """Every field that is read."""
        one = self.columns
        names = [one.id, one.title, *one.text, one.updated, *one.fields.values()]
        return [name for name in dict.fromkeys(names) if name]

    def line(
        self, place: Place, record: Mapping[str, Any], notes: Counter[str]
    ) -> tuple[str, str] | None:
        """The item's id and its line; None where it is older than `since`. Raises DataError."""
        columns = self.columns
        flat = {path: pick(record, path) for path in self.paths}
        for name in (columns.title, *columns.text):
            # A field of an index may hold several values; "" is as good as none.
            flat[name] = written(flat[name], name, place) or None
        updated = _updated(flat, columns.updated, place) if columns.updated else None
        if self.since and (updated is None or updated < self.since):
            return None
        if not any(flat[name] for name in (columns.title, *columns.text)):
            names = ", ".join(map(repr, (columns.title, *columns.text)))
            raise DataError(
                f"{place}: the record has none of {names}; name its title and text with --title "
                "and --text."
            )
        title, text = columns.title_and_text(flat, place)
        options = Options(fields=tuple(columns.fields), columns=columns, strip_html=self.strip_html)
        item = make_item(
            place, id_field(flat, columns.id, place), title, text, flat, options, notes
        )
        return item.id, self._written(item, updated)

    def _written(self, item: Item, updated: datetime | None) -> str:
        target = self.target
        values: dict[str, Any] = {target.id: item.id, target.title: item.title}
        # All of the text is in the first of the fields that are joined; the loader wants them all.
        values |= {**dict.fromkeys(target.text, ""), target.text[0]: item.text}
        if updated is not None and target.updated:
            values[target.updated] = updated.astimezone(UTC).isoformat().replace("+00:00", "Z")
        values |= {target.fields.get(name, name): value for name, value in item.fields.items()}
        return json.dumps(values, ensure_ascii=False)

    @property
    def key(self) -> str:
        return json.dumps([asdict(self.columns), asdict(self.target), self.strip_html])


@dataclass
class Counts:
    """Counts of the records.

    `read` = `written` + `bad` + `older`.

    Attributes:
        read: records of the source.
        written: items in the file.
        bad: records that are no item, or repeat an item's id.
        older: records before `since`.
        html, nul: items whose title or text had HTML, or NUL characters, that were taken out.
        problems: the first bad records, a sentence each.
    """

    read: int = 0
    written: int = 0
    bad: int = 0
    older: int = 0
    html: int = 0
    nul: int = 0
    problems: list[str] = field(default_factory=list)

    def fault(self, problem: object) -> None:
        """Count a bad record."""
        self.bad += 1
        if len(self.problems) < SHOWN:
            self.problems.append(str(problem))


@dataclass(frozen=True)
class Imported:
    """The result of an import.

    Attributes:
        counts: of this import and of the one that it went on from.
        resumed: records that an interrupted import had read.
        items: items in the file now.
        changed: of these, items that were there before and are replaced; 0 without `since`.
    """

    counts: Counts
    resumed: int
    items: int
    changed: int

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        more = {"resumed": self.resumed, "items": self.items, "changed": self.changed}
        return asdict(self.counts) | more


def import_items(
    source: Source,
    to: Path,
    mapped: Mapped,
    *,
    bad_share: float = 0.01,
    say: Say = lambda _: None,
) -> Imported:
    """Write a source's items to a file, whole or not at all.

    With `mapped.since` they go into the file that is there: a known id is replaced, a new one
    added.

    Args:
        to: the file of JSON lines.
        bad_share: the largest accepted share of bad records.
        say: gets messages on the progress, and when an interrupted import resumes or begins anew.

    Raises:
        DataError: too many bad records, a damaged source; names file and line, or the document.
        ServiceError: the source can't be reached.
        StorageError: the disk is full or read-only.
    """
    with storage_errors(str(to.parent)):
        to.parent.mkdir(parents=True, exist_ok=True)
        draft = _Draft(to, f"{source.key} {mapped.key} {mapped.since}")
        resumed = draft.resume(source)
        if resumed:
            say(f"An import of {source.name} was interrupted; going on after {resumed:,} records.")
        try:
            _read(source, draft, mapped, bad_share, say)
        except GoneError as error:
            draft.discard()
            if not resumed:
                raise ServiceError(
                    f"{source.name} can't be read at one point in time any longer; run the same "
                    "command again."
                ) from error
            say(f"{source.name} can't be read as it was then; reading it anew.")
            resumed = draft.resume(source)
            _read(source, draft, mapped, bad_share, say)
        source.close()
        items, changed = draft.finish(mapped.target.id, merge=mapped.since is not None)
    return Imported(draft.counts, resumed, items, changed)


def newest(path: Path, target: Columns) -> datetime | None:
    """The latest `updated` of a file's items; None where none says one. Raises DataError."""
    times = (time_field(record, target.updated, place) for place, record in json_records(path))
    return max((time for time in times if time is not None), default=None)


class _Draft:
    """The items so far, and the note of the draft's valid length.

    Attributes:
        key: what is imported and how.
        counts: so far.
        cursors: where each part goes on; None for a part that is done.
    """

    def __init__(self, to: Path, key: str) -> None:
        self.key, self.counts = key, Counts()
        self.cursors: list[Any] = []
        self._to = to
        self._path, self._note = (to.with_name(f".{to.name}.{end}") for end in ("part", "note"))
        self._ids: set[bytes] = set()
        self._file: IO[bytes] | None = None
        self._noted = 0.0

    def resume(self, source: Source) -> int:
        """Go on from an interrupted import of the same, or begin; how many records it had read."""
        if self._path.is_file() and self._note.is_file():
            note = parse_json(self._note.read_text("utf-8"), Place(self._note, 1))
            if note["key"] == self.key:
                with self._path.open("r+b") as file:
                    file.truncate(note["bytes"])
                self.counts, self.cursors = Counts(**note["counts"]), note["cursors"]
                for line in self._path.open("rb"):
                    self._ids.add(_mark(next(iter(json.loads(line).values()))))
                return self.counts.read
        self.discard()
        self._path.write_bytes(b"")
        self.cursors = source.begin()
        return 0

    def discard(self) -> None:
        """Forget everything."""
        self.counts = Counts()
        self._ids.clear()
        self._note.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)

    def __enter__(self) -> None:
        self._file = self._path.open("ab")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._file is not None
        if kind is None or issubclass(kind, CogrError):
            # Anything else may have come between a page's items and its cursor.
            self._keep()
        self._file.close()

    def add(self, part: int, page: Page, lines: Sequence[tuple[Place, str, str]]) -> None:
        """A page's items, and where its part goes on."""
        assert self._file is not None
        for place, id_, line in lines:
            if (mark := _mark(id_)) in self._ids:
                self.counts.fault(f"{place}: the id {id_!r} was there before; give each its own.")
                continue
            self._ids.add(mark)
            self.counts.written += 1
            self._file.write(line.encode() + b"\n")
        self.cursors[part] = page.cursor
        if time.monotonic() - self._noted >= NOTE_SECONDS:
            self._keep()

    def _keep(self) -> None:
        """Write the note of the draft's valid length."""
        assert self._file is not None
        self._file.flush()
        os.fsync(self._file.fileno())
        note = {
            "key": self.key,
            "bytes": self._file.tell(),
            "counts": asdict(self.counts),
            "cursors": self.cursors,
        }
        with replacing(self._note) as file:
            file.write(json.dumps(note).encode())
        self._noted = time.monotonic()

    def finish(self, id_: str, *, merge: bool) -> tuple[int, int]:
        """The draft becomes the file; items in it, and how many were there before."""
        items, changed = self.counts.written, 0
        if merge and self._to.is_file():
            with replacing(self._to) as file:
                for kept, line in self._others(id_):
                    items, changed = items + kept, changed + (not kept)
                    if kept:
                        file.write(line)
                with self._path.open("rb") as draft:
                    while block := draft.read(1 << 20):
                        file.write(block)
                file.flush()
                os.fsync(file.fileno())
        else:
            self._path.replace(self._to)
        self._note.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)
        return items, changed

    def _others(self, id_: str) -> Iterator[tuple[bool, bytes]]:
        """The lines of the file that is there, and whether the draft says nothing of them."""
        for place, record in json_records(self._to):
            line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
            yield _mark(id_field(record, id_, place)) not in self._ids, line


def _updated(record: Mapping[str, Any], key: str, place: Place) -> datetime | None:
    """As `time_field`, but also accepts milliseconds since 1970, as in an index; they are
    distinguished from seconds by size.
    """
    value = record[key]
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, int | float) and abs(value) >= _MILLISECONDS:
        value = value / 1000
    return time_field({key: value}, key, place)


def _mark(id_: str) -> bytes:
    """An id in eight bytes, so that the ids of a large catalogue fit into memory."""
    return blake2b(id_.encode(), digest_size=8).digest()


def _read(
    source: Source,
    draft: _Draft,
    mapped: Mapped,
    bad_share: float,
    say: Say,
) -> None:
    """Read all parts to their ends, one page of each at a time."""
    counts, last_message = draft.counts, time.monotonic()
    with draft, ThreadPoolExecutor(max(1, min(_THREADS, len(draft.cursors)))) as pool:
        asked: dict[Future[Page], int] = {
            pool.submit(source.page, part, cursor): part
            for part, cursor in enumerate(draft.cursors)
            if cursor is not None
        }
        while asked:
            for ready in wait(asked, return_when=FIRST_COMPLETED).done:
                part, page = asked.pop(ready), ready.result()
                if page.cursor is not None:
                    asked[pool.submit(source.page, part, page.cursor)] = part
                draft.add(part, page, _lines(page.records, mapped, counts))
                if time.monotonic() - last_message >= _TELL:
                    last_message = time.monotonic()
                    say(f"{counts.read:,} records read, {counts.bad:,} of them bad.")
                if counts.read >= _EARLY:
                    _check(counts, bad_share, source)
    _check(counts, bad_share, source)


def _lines(
    records: Sequence[Record], mapped: Mapped, counts: Counts
) -> list[tuple[Place, str, str]]:
    found, notes = [], Counter[str]()
    for record in records:
        counts.read += 1
        if isinstance(record, DataError):
            counts.fault(record)
            continue
        place, values = record
        try:
            line = mapped.line(place, values, notes)
        except DataError as error:
            counts.fault(error)
            continue
        if line is None:
            counts.older += 1
        else:
            found.append((place, *line))
    counts.html += notes[HTML]
    counts.nul += notes[NULS]
    return found


def _check(counts: Counts, bad_share: float, source: Source) -> None:
    """Raises DataError for too many bad records, or for none at all that are good."""
    if counts.bad > bad_share * counts.read:
        raise DataError(
            f"{counts.bad:,} of {counts.read:,} records of {source.name} are bad, more than the "
            f"{bad_share:.0%} of --bad-share; mend them, correct the names of columns, or allow "
            f"more. The first one: {counts.problems[0]}"
        )
