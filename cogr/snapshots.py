"""Snapshots: the frozen keyword sets of one side. The unit of truth for rewards, evaluation,
indexes and rollbacks.

A snapshot is a folder with `keywords.parquet` (columns id, text, self, keywords, and fields where
items carry some; rows in id order) and `manifest.json`, which is written last: a folder without it
is no snapshot. Write-once. Nothing here knows of servers or models.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
import tempfile
import time
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from io import BufferedRandom
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cogr.errors import SnapshotError
from cogr.item_fields import FieldType, fields_of
from cogr.keywords import NORMALISER, READABLE, self_keyword
from cogr.records import FieldValue, Side
from cogr.store import Store, storage_errors
from cogr.strings import SortedStrings, Strings, StringsSpool, integers

SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
        pa.field("self", pa.string(), nullable=False),
        pa.field(
            "keywords", pa.list_(pa.field("element", pa.string(), nullable=False)), nullable=False
        ),
    ]
)
FIELDS = pa.field("fields", pa.string(), nullable=False)
"""The column of a snapshot whose items carry extra fields: one JSON object an item, "" for none."""
FORMAT = 1
MIGRATION = (
    "run cogr-index rebuild --no-publish for --side item and for --side query, then cogr-index "
    "publish with both in one call"
)
"""What to do when snapshots are of two versions of the normaliser."""
ID = re.compile(r"(?:item|query)-r\d{3,}-[0-9a-f]{12}")
"""What a snapshot's id looks like: nothing else is looked for in a store, and nothing else is
removed from one.
"""
_ROWS = 16_384
_COUNTED = (
    "id",
    "side",
    "round",
    "content_hash",
    "entities",
    "keywords",
    "vocabulary",
    "empty",
    "normaliser",
)
"""What the rows alone decide of a manifest."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Row:
    """One entity of a snapshot.

    Attributes:
        id: the entity's id.
        text: its own text as it was given (query text, item title).
        keywords: its keyword set, distinct and normalised, in generation order, without the own
            text.
        fields_json: its extra fields (`cogr.item_fields.typed`), as one JSON object; "" for none.
        own: the own text as a keyword, by the rules of the snapshot that the row is of; None where
            nobody has worked it out yet.
    """

    id: str
    text: str
    keywords: tuple[str, ...]
    fields_json: str = ""
    own: str | None = field(default=None, compare=False, repr=False)

    @property
    def self_keyword(self) -> str:
        """The own text as a keyword; "" when nothing of it is left."""
        return self_keyword(self.text) if self.own is None else self.own

    @property
    def fields(self) -> Mapping[str, FieldValue]:
        """Its extra fields by name, parsed at each call."""
        return fields_of(self.fields_json)


class Manifest(BaseModel):
    """What a snapshot is and where it comes from. Field by field in docs/snapshots.md."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int = FORMAT
    id: str
    side: Side
    round: int = Field(ge=0)
    content_hash: str
    file_sha256: str
    entities: int
    keywords: int
    vocabulary: int
    empty: int
    cut_to_budget: int = 0
    set_aside: int = 0
    k_max: int
    normaliser: str = NORMALISER
    prompt_hash: str = ""
    generator: Mapping[str, Any] = {}
    dataset_hash: str = ""
    parent: str | None = None
    created: str
    notes: Mapping[str, Any] = {}
    fields: Mapping[str, FieldType] = {}
    checksum: str = ""

    @property
    def sum(self) -> str:
        """What `checksum` must be: a sha256 over all other fields."""
        fields = json.dumps(self.model_dump(mode="json", exclude={"checksum"}), sort_keys=True)
        return hashlib.sha256(fields.encode()).hexdigest()

    def summed(self, **changed: Any) -> Manifest:
        """With these fields changed, and its checksum."""
        made = self.model_copy(update=changed)
        return made.model_copy(update={"checksum": made.sum})


@dataclass(frozen=True)
class Provenance:
    """What the maker of a snapshot says of it; the rest of the manifest is counted."""

    round: int = 0
    k_max: int = 30
    prompt_hash: str = ""
    generator: Mapping[str, Any] | None = None
    dataset_hash: str = ""
    parent: str | None = None
    cut_to_budget: int = 0
    set_aside: int = 0
    notes: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Snapshot:
    """An open snapshot. Make one with `write_snapshot` or `open_snapshot`."""

    manifest: Manifest
    store: Store

    @property
    def id(self) -> str:
        return self.manifest.id

    @property
    def side(self) -> Side:
        return self.manifest.side

    @property
    def path(self) -> str:
        return f"snapshots/{self.id}/keywords.parquet"

    def batches(
        self, columns: Sequence[str] | None = None, *, encoded: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow batches in id order, streaming; all columns, or these alone.

        Args:
            encoded: leave keywords as the file has them, numbers in a dictionary of each batch:
                read in half the time.
        """
        numbered = ["keywords.list.element"] if encoded else None
        with self.store.open(self.path, "rb") as file:
            rows = pq.ParquetFile(file, read_dictionary=numbered)
            # Arrow joins no two row groups, since each has a dictionary of its own.
            for group in range(rows.num_row_groups):
                # Arrow's threads may still hold the file when the process ends, which aborts it.
                yield from rows.iter_batches(
                    _ROWS, row_groups=[group], columns=columns, use_threads=False
                )

    def ids(self) -> SortedStrings:
        """The entities' ids, in a mapped file.

        Raises StorageError when the disk of temporary files is full.
        """
        return self._spooled("id").sorted_strings()

    def texts(self) -> Strings:
        """The entities' own texts in id order, in a mapped file. Raises as `ids`."""
        return self._spooled("text").strings()

    def fields(self) -> Strings | None:
        """The entities' extra fields in id order, as JSON objects, in a mapped file; None where
        there are none. Raises as `ids`.
        """
        return self._spooled("fields").strings() if self.manifest.fields else None

    def _spooled(self, column: str) -> StringsSpool:
        spool = StringsSpool()
        for batch in self.batches([column]):
            spool.append(batch[column])
        return spool

    def rows(self, numbers: Collection[int] | None = None) -> Iterator[Row]:
        """The rows in id order (code points ascending), streaming; all, or those of these numbers,
        counted from 0.
        """
        for batch in self.batches() if numbers is None else self.sample(numbers):
            columns = (batch[name].to_pylist() for name in ("id", "text", "keywords"))
            cells = zip(*columns, self.fields_of(batch), batch["self"].to_pylist(), strict=True)
            yield from (
                Row(id_, text, tuple(words), fields, own) for id_, text, words, fields, own in cells
            )

    def fields_of(self, batch: pa.RecordBatch) -> list[str]:
        """The extra fields of each row of a batch, as JSON objects; "" where there are none."""
        return batch["fields"].to_pylist() if self.manifest.fields else [""] * len(batch)

    def sample(self, numbers: Collection[int]) -> Iterator[pa.RecordBatch]:
        """As `batches`, of the rows of these numbers alone: the whole file is read, but little of
        it decoded.
        """
        wanted, start = np.sort(np.fromiter(numbers, np.int64, len(numbers))), 0
        for batch in self.batches(encoded=True):
            end = start + len(batch)
            here = wanted[slice(*np.searchsorted(wanted, (start, end)))] - start
            yield batch.take(
                pa.Array.from_buffers(pa.int64(), len(here), [None, pa.py_buffer(here)])
            )
            start = end

    @cached_property
    def by_id(self) -> Mapping[str, Row]:
        """All rows in memory, by id."""
        return {row.id: row for row in self.rows()}


class _Distinct:
    """Counts distinct strings, by 64-bit hashes: 16 bytes a string at most.

    Two of a million share one by a chance of 1 in 3e7.
    """

    _AT_ONCE = 1 << 20

    def __init__(self) -> None:
        self._known = np.zeros(0, np.int64)
        self._new = array("q")

    def update(self, strings: Iterable[str]) -> None:
        self._new.extend(map(hash, strings))
        if len(self._new) >= max(self._AT_ONCE, len(self._known)):
            self._merge()

    def __len__(self) -> int:
        self._merge()
        return len(self._known)

    def _merge(self) -> None:
        self._known = np.union1d(self._known, np.frombuffer(self._new, np.int64))
        self._new = array("q")


class _Counts:
    """Content hash and counts of rows as they pass by, table by table.

    Types of fields, where there are any, are part of the content.
    """

    def __init__(self, fields: Mapping[str, FieldType]) -> None:
        # Equal rows of two versions of the normaliser are two snapshots: their own texts match
        # otherwise.
        self._sha = hashlib.sha256(NORMALISER.encode())
        if fields:
            self._sha.update(json.dumps(dict(sorted(fields.items()))).encode())
        self.entities = self.keywords = self.empty = 0
        self._vocabulary = _Distinct()
        self._last: str | None = None

    def add(self, table: pa.Table) -> None:
        """Count a table that is not empty, with the columns of SCHEMA, and FIELDS where it has it.

        Raises SnapshotError for ids out of order.
        """
        columns = {name: table[name].combine_chunks() for name in table.column_names}
        self._check_order(columns["id"].to_pylist())
        keywords = columns["keywords"]
        sizes, words = integers(keywords.value_lengths()), keywords.flatten()
        self._sha.update(_spelled(columns, sizes, words))
        self.entities += len(table)
        self.keywords += len(words)
        self.empty += int(np.count_nonzero(sizes == 0))
        self._vocabulary.update(words.unique().to_pylist())

    def _check_order(self, ids: list[str]) -> None:
        for id_ in ids:
            if self._last is not None and id_ <= self._last:
                raise SnapshotError(
                    f"Rows must come in ascending id order without repeats, but {id_!r} follows "
                    f"{self._last!r}."
                )
            self._last = id_

    @property
    def content_hash(self) -> str:
        return self._sha.hexdigest()

    @property
    def vocabulary(self) -> int:
        return len(self._vocabulary)


def _spelled(
    columns: Mapping[str, pa.Array], sizes: NDArray[np.int32], words: pa.StringArray
) -> pa.Buffer:
    """The bytes that the content hash is of: id, text, number of keywords, each keyword, and the
    fields where there are any, row by row, each with its length before it (4 bytes, little-endian).

    With lengths two different lists of rows never give one byte string. As columns, since row by
    row it takes three times as long.
    """
    rows = len(sizes)
    fields = [columns["fields"]] if "fields" in columns else []
    parts = pa.concat_arrays(
        [columns["id"], columns["text"], _arrow(sizes).cast(pa.string()), words, *fields]
    )
    # Where each row's parts begin, and which part stands at which place.
    starts = np.cumsum(sizes + 3 + len(fields)) - (sizes + 3 + len(fields))
    order, is_word = np.empty(len(parts), np.int64), np.ones(len(parts), bool)
    heads = [starts, starts + 1, starts + 2, *([starts + 3 + sizes] * len(fields))]
    first = (0, rows, 2 * rows, 3 * rows + len(words))
    for place, number in zip(heads, first, strict=False):
        order[place], is_word[place] = np.arange(number, number + rows), False
    order[is_word] = np.arange(3 * rows, 3 * rows + len(words))
    ordered = parts.take(_arrow(order)).cast(pa.binary())
    lengths = np.diff(np.frombuffer(ordered.buffers()[1], np.int32)[: len(parts) + 1])
    prefixes = _arrow(lengths.astype("<u4")).view(pa.binary(4)).cast(pa.binary())
    pairs = np.arange(2 * len(parts)).reshape(2, -1).T.ravel()
    return pa.concat_arrays([prefixes, ordered]).take(_arrow(pairs)).buffers()[2]


def _arrow(values: NDArray[Any]) -> pa.Array:
    """Without pandas, which Arrow imports to convert an array of NumPy's."""
    values = np.ascontiguousarray(values)
    type_ = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(values)])


def write_snapshot(
    store: Store,
    side: Side,
    rows: Iterable[Row],
    provenance: Provenance | Callable[[], Provenance],
    fields: Mapping[str, FieldType] | None = None,
) -> Snapshot:
    """Freeze rows (in ascending id order) as a snapshot; the manifest is written last.

    Equal rows give an equal content hash and an equal id; writing them again returns the snapshot
    that is there, when it is whole. One that is damaged is written again, with a warning.
    A callable `provenance` is read after the last row, for counts that are complete only then.
    Memory: one batch of rows, and 16 bytes a distinct keyword; the file is made beside the store
        first (TMPDIR).

    Args:
        rows: what they say of their own texts is by this version's rules: rows of a snapshot of
            another version come without it.
        fields: types of the extra fields that the rows carry.

    Raises:
        SnapshotError: ids out of order or repeated.
        StorageError: the store is full or read-only.
    """
    fields = fields or {}
    counts = _Counts(fields)
    with tempfile.TemporaryFile() as file:
        with storage_errors(tempfile.gettempdir()):
            _write_rows(file, rows, counts, SCHEMA.append(FIELDS) if fields else SCHEMA)
        manifest = _manifest(
            side, counts, file, provenance() if callable(provenance) else provenance, fields
        )
        return _kept(store, manifest) or _frozen(store, manifest, file)


def _kept(store: Store, made: Manifest) -> Snapshot | None:
    """The whole snapshot that is there with these rows; None where there is none, or a
    damaged one.
    """
    if not store.exists(_manifest_path(made.id)):
        return None
    try:
        known = open_snapshot(store, made.id)
        if wrong := [
            name for name in _COUNTED if getattr(known.manifest, name) != getattr(made, name)
        ]:
            raise SnapshotError(
                f"The manifest of snapshot {made.id} has another {wrong[0]} than its rows."
            )
    except SnapshotError as error:
        log.warning("Snapshot %s was damaged, and is written again: %s", made.id, error)
        return None
    return known


def _frozen(store: Store, manifest: Manifest, file: BufferedRandom) -> Snapshot:
    """Put the file into the store, then the manifest; a damaged snapshot's own, where that is
    whole.
    """
    snapshot = Snapshot(manifest, store)
    with store.replacing(snapshot.path) as target:
        file.seek(0)
        shutil.copyfileobj(file, target, 1 << 20)
    if store.exists(_manifest_path(manifest.id)):
        manifest = _mended(store, manifest)
    store.write_json(_manifest_path(manifest.id), manifest.model_dump(mode="json"))
    return Snapshot(manifest, store)


def _mended(store: Store, made: Manifest) -> Manifest:
    """Where the rows come from, as the manifest that is there says it, if that can be trusted."""
    try:
        known = read_manifest(store, made.id)
    except SnapshotError:
        return made
    if any(getattr(known, name) != getattr(made, name) for name in _COUNTED):
        return made
    return known.summed(file_sha256=made.file_sha256)


def _write_rows(
    file: BufferedRandom, rows: Iterable[Row], counts: _Counts, schema: pa.Schema
) -> None:
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for batch in _batched(rows):
            table = _table(batch, schema)
            counts.add(table)
            writer.write_table(table)


def _batched(rows: Iterable[Row]) -> Iterator[list[Row]]:
    batch: list[Row] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


def _table(rows: list[Row], schema: pa.Schema) -> pa.Table:
    columns = {
        "id": [row.id for row in rows],
        "text": [row.text for row in rows],
        "self": [row.self_keyword for row in rows],
        "keywords": [row.keywords for row in rows],
        "fields": [row.fields_json for row in rows],
    }
    return pa.Table.from_pydict({name: columns[name] for name in schema.names}, schema=schema)


def _manifest(
    side: Side,
    counts: _Counts,
    file: BufferedRandom,
    provenance: Provenance,
    fields: Mapping[str, FieldType],
) -> Manifest:
    file.seek(0)
    return Manifest(
        id=_id_of(side, provenance.round, counts.content_hash),
        side=side,
        round=provenance.round,
        content_hash=counts.content_hash,
        file_sha256=hashlib.file_digest(file, "sha256").hexdigest(),
        entities=counts.entities,
        keywords=counts.keywords,
        vocabulary=counts.vocabulary,
        empty=counts.empty,
        cut_to_budget=provenance.cut_to_budget,
        set_aside=provenance.set_aside,
        k_max=provenance.k_max,
        normaliser=NORMALISER,
        prompt_hash=provenance.prompt_hash,
        generator=dict(provenance.generator or {}),
        dataset_hash=provenance.dataset_hash,
        parent=provenance.parent,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        notes=dict(provenance.notes or {}),
        fields=dict(sorted(fields.items())),
    ).summed()


def _manifest_path(snapshot_id: str) -> str:
    return f"snapshots/{snapshot_id}/manifest.json"


def list_snapshots(store: Store, side: Side | None = None) -> list[Manifest]:
    """Manifests of every snapshot in the store that has a sound one, oldest first; the others are
    `damaged_snapshots`.
    """
    found = []
    for id_ in _folders(store):
        try:
            found.append(read_manifest(store, id_))
        except SnapshotError as error:
            log.info("%s", error)
    return sorted(
        (m for m in found if side is None or m.side == side), key=lambda m: (m.created, m.id)
    )


def damaged_snapshots(store: Store) -> dict[str, str]:
    """Id -> what is wrong, of the snapshots that can't be opened; on a local store files are
    compared too.

    Costs: every file of a local store is read once (a gigabyte a second or so).
    """
    found = {}
    for id_ in _folders(store):
        try:
            manifest = read_manifest(store, id_)
            if store.is_local:
                _verify_file(Snapshot(manifest, store))
        except SnapshotError as error:
            found[id_] = str(error)
    return found


def _folders(store: Store) -> list[str]:
    """Names of the folders that have a manifest."""
    return [
        name
        for name in store.list("snapshots")
        if ID.fullmatch(name) and store.exists(_manifest_path(name))
    ]


def read_manifest(store: Store, snapshot_id: str) -> Manifest:
    """The manifest of one snapshot. Raises SnapshotError when it is unknown or broken."""
    path = _manifest_path(snapshot_id)
    if not ID.fullmatch(snapshot_id) or not store.exists(path):
        known = _folders(store)
        have = (
            f"it has {', '.join(known[-3:])}"
            if known
            else "it has none yet; run cogr-index rebuild"
        )
        raise SnapshotError(f"The store {store.url} has no snapshot {snapshot_id!r}: {have}.")
    where = f"The manifest of snapshot {snapshot_id} in {store.url}"
    try:
        manifest = Manifest.model_validate_json(store.read(path))
    except (ValidationError, OSError) as error:
        raise SnapshotError(f"{where} is broken; rebuild it or restore it.") from error
    if manifest.format != FORMAT:
        raise SnapshotError(
            f"Snapshot {snapshot_id} has format {manifest.format}, this version reads {FORMAT}; "
            "rebuild it."
        )
    if manifest.id != snapshot_id or manifest.id != _id_of(
        manifest.side, manifest.round, manifest.content_hash
    ):
        raise SnapshotError(
            f"{where} is of another one ({manifest.id!r}); rebuild it or restore it."
        )
    if manifest.checksum and manifest.checksum != manifest.sum:
        raise SnapshotError(f"{where} is broken (its checksum differs); rebuild it or restore it.")
    return manifest


def _id_of(side: Side, round_: int, content_hash: str) -> str:
    return f"{side}-r{round_:03d}-{content_hash[:12]}"


def open_snapshot(store: Store, snapshot_id: str, *, verify: bool = True) -> Snapshot:
    """Open a snapshot, by default after comparing its file with the manifest's sha256.

    Raises:
        SnapshotError: unknown, broken, of another format, or of a normaliser that this version
            can't read.
    """
    manifest = read_manifest(store, snapshot_id)
    if manifest.normaliser not in READABLE:
        raise SnapshotError(
            f"Snapshot {snapshot_id} was written with normaliser {manifest.normaliser}, this "
            "version reads "
            f"{' and '.join(READABLE)}; rebuild it."
        )
    snapshot = Snapshot(manifest, store)
    if verify:
        _verify_file(snapshot)
    return snapshot


def _verify_file(snapshot: Snapshot) -> None:
    if not snapshot.store.exists(snapshot.path):
        raise SnapshotError(
            f"Snapshot {snapshot.id} in {snapshot.store.url} has lost its keywords.parquet; "
            "rebuild it or restore it."
        )
    sha = hashlib.sha256()
    try:
        with snapshot.store.open(snapshot.path) as file:
            while chunk := file.read(1 << 20):
                sha.update(chunk)
    except OSError as error:
        raise SnapshotError(
            f"The keywords.parquet of snapshot {snapshot.id} in {snapshot.store.url} can't be read "
            f"({error.strerror or error}); rebuild it or restore it."
        ) from error
    if sha.hexdigest() != snapshot.manifest.file_sha256:
        raise SnapshotError(
            f"Snapshot {snapshot.id} in {snapshot.store.url} does not match its manifest (sha256 "
            "differs); rebuild it or restore it."
        )


def check_pair(item: Manifest, query: Manifest) -> None:
    """Refuse two snapshots that can't be matched with one another. Raises SnapshotError."""
    if (item.side, query.side) != ("item", "query"):
        raise SnapshotError(
            f"A pair is an item and a query snapshot, but {item.id} is {item.side} and "
            f"{query.id} is {query.side}."
        )
    check_normalisers({one.id: one.normaliser for one in (item, query)})


def check_normalisers(normalisers: Mapping[str, str]) -> None:
    """Refuse snapshots that can't be matched with one another.

    Args:
        normalisers: version of the normaliser by snapshot id.

    Raises:
        SnapshotError: there is more than one version.
    """
    if len(set(normalisers.values())) > 1:
        spoken = " and ".join(f"{id_} ({normaliser})" for id_, normaliser in normalisers.items())
        raise SnapshotError(
            f"{spoken} have different normalisers and can't be matched; {MIGRATION}."
        )
