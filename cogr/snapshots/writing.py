"""Writing a snapshot: rows are counted and hashed on their way to the file."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import tempfile
import time
from array import array
from collections.abc import Callable, Iterable, Mapping
from io import BufferedRandom
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cogr.errors import SnapshotError
from cogr.keywords import NORMALISER
from cogr.mapped import integers
from cogr.records import FieldType, Side
from cogr.snapshots import (
    CONFIDENCE,
    ROWS,
    WEIGHTS,
    Manifest,
    Provenance,
    Row,
    Snapshot,
    id_of_snapshot,
    manifest_path,
    open_snapshot,
    rounded,
)
from cogr.snapshots.texts import texts_of
from cogr.store import Store, storage_errors

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
BODY = pa.field("body", pa.string(), nullable=False)
"""The column of items: the key of each one's text (`cogr.snapshots.texts`), "" for none."""
HEAVIEST = 1e6
"""The largest weight of a query's keyword."""
HASHES_AT_ONCE = 1 << 20
"""Batch size: hashes of keywords that are collected before they are merged with the known ones."""

log = logging.getLogger(__name__)


def write_snapshot(
    store: Store,
    side: Side,
    rows: Iterable[Row],
    provenance: Provenance | Callable[[], Provenance],
    fields: Mapping[str, FieldType] | None = None,
) -> Snapshot:
    """Freeze rows (in ascending id order) as a snapshot; the manifest is written last.

    Equal rows give an equal content hash and an equal id. Writing them again returns the existing
    snapshot; a damaged one is rewritten, with a warning. Memory: one batch of rows, and 16 bytes a
    distinct keyword. The file is made in TMPDIR first.

    Args:
        provenance: further fields of the manifest; a callable is called after the last row, for
            counts that are complete only then.

    Raises:
        SnapshotError: ids out of order or repeated; invalid weights or an invalid confidence.
        StorageError: the store is full or read-only.
    """
    fields = fields or {}
    counts = _Counts(side, fields)
    more = ([WEIGHTS, CONFIDENCE] if side == "query" else [BODY]) + ([FIELDS] if fields else [])
    with tempfile.TemporaryFile() as file:
        with storage_errors(tempfile.gettempdir()):
            _write_rows(file, rows, counts, pa.schema([*SCHEMA, *more]))
        manifest = _manifest(
            side, counts, file, provenance() if callable(provenance) else provenance, fields
        )
        return _kept(store, manifest) or _frozen(store, manifest, file)


def _kept(store: Store, made: Manifest) -> Snapshot | None:
    if not store.exists(manifest_path(made.id)):
        return None
    try:
        kept = open_snapshot(store, made.id)
        texts_of(kept)
        return kept
    except SnapshotError as error:
        log.warning("Snapshot %s was damaged, and is written again: %s", made.id, error)
        return None


def _frozen(store: Store, manifest: Manifest, file: BufferedRandom) -> Snapshot:
    snapshot = Snapshot(manifest, store)
    with store.replacing(snapshot.path) as target:
        file.seek(0)
        shutil.copyfileobj(file, target, 1 << 20)
    store.write_json(manifest_path(manifest.id), manifest.model_dump(mode="json"))
    return snapshot


def _write_rows(
    file: BufferedRandom, rows: Iterable[Row], counts: _Counts, schema: pa.Schema
) -> None:
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        rows = iter(rows)
        while batch := list(islice(rows, ROWS)):
            _check_weights(batch, counts.side)
            table = _table(batch, schema)
            counts.add(table)
            writer.write_table(table)


def _check_weights(rows: list[Row], side: Side) -> None:
    weights = {weight for row in rows for weight in row.weights}
    bad = {weight for weight in weights if not 0 <= weight <= HEAVIEST or weight != rounded(weight)}
    for row in rows:
        sure = row.confidence
        if row.weights and len(row.weights) != len(row.keywords) + 1:
            what = (
                f"has {len(row.weights)} weights for {len(row.keywords)} keywords and its own text"
            )
        elif bad and (wrong := next((one for one in row.weights if one in bad), None)) is not None:
            what = f"has a weight of {wrong}, not one of four digits from 0 to {HEAVIEST:,.0f}"
        elif sure is not None and not (0 <= sure <= 1 and sure == rounded(sure)):
            what = f"has a confidence of {sure}, not one of four digits from 0 to 1"
        elif side == "item" and (row.weights or sure is not None):
            what = "is an item and has weights or a confidence, which queries alone have"
        else:
            continue
        raise SnapshotError(f"The row {row.id!r} {what}; fix what wrote it.")


def _table(rows: list[Row], schema: pa.Schema) -> pa.Table:
    columns = {
        "id": [row.id for row in rows],
        "text": [row.text for row in rows],
        "self": [row.self_keyword for row in rows],
        "keywords": [row.keywords for row in rows],
        "weights": [row.weights or None for row in rows],
        "confidence": [row.confidence for row in rows],
        "fields": [row.fields_json for row in rows],
        "body": [row.body for row in rows],
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
    content_hash = counts.content_hash
    return Manifest(
        **dict(provenance),
        id=id_of_snapshot(side, provenance.round, content_hash),
        side=side,
        content_hash=content_hash,
        file_sha256=hashlib.file_digest(file, "sha256").hexdigest(),
        entities=counts.entities,
        keywords=counts.keywords,
        vocabulary=counts.vocabulary,
        empty=counts.empty,
        read_hash=counts.read_hash,
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        fields=dict(sorted(fields.items())),
    ).summed()


class _Counts:
    def __init__(self, side: Side, fields: Mapping[str, FieldType]) -> None:
        self.side = side
        self._sha = hashlib.sha256(NORMALISER.encode())
        if fields:
            self._sha.update(json.dumps(dict(sorted(fields.items()))).encode())
        self._weighing, self._reading = hashlib.sha256(), hashlib.sha256()
        self._weighs = False
        self.entities = self.keywords = self.empty = 0
        self._vocabulary = _Distinct()
        self._last: str | None = None

    def add(self, table: pa.Table) -> None:
        columns = {name: table[name].combine_chunks() for name in table.column_names}
        self._check_order(columns["id"].to_pylist())
        keywords = columns["keywords"]
        sizes, words = integers(keywords.value_lengths()), keywords.flatten()
        self._sha.update(_spelled(columns, sizes, words))
        if self.side == "query":
            self._add_weights(columns)
        else:
            self._add_bodies(columns)
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

    def _add_weights(self, columns: Mapping[str, pa.Array]) -> None:
        given = [columns["weights"], columns["confidence"]]
        if all(column.null_count == len(column) for column in given):
            return
        self._weighs = True
        weights, confidence = given
        counts = integers(weights.value_lengths().fill_null(0))
        sure = _floats(confidence.fill_null(-1.0))
        # The number of the first row fixes the position of the rows in the snapshot.
        for part in (np.array([self.entities], "<u8"), counts, _floats(weights.flatten()), sure):
            self._weighing.update(part.astype(part.dtype.newbyteorder("<")).tobytes())

    def _add_bodies(self, columns: Mapping[str, pa.Array]) -> None:
        for name in ("id", "text", "fields", "body"):
            if name in columns:
                self._reading.update(_lengths_and_bytes(columns[name]))
        if any(columns["body"].to_pylist()):
            self._weighs = True
            self._weighing.update(np.array([self.entities], "<u8").tobytes())
            self._weighing.update(_lengths_and_bytes(columns["body"]))

    @property
    def read_hash(self) -> str:
        """Of what a search by text reads of items: ids, titles, extra fields, texts."""
        return self._reading.hexdigest() if self.side == "item" else ""

    @property
    def content_hash(self) -> str:
        if not self._weighs:
            return self._sha.hexdigest()
        return hashlib.sha256(self._sha.digest() + self._weighing.digest()).hexdigest()

    @property
    def vocabulary(self) -> int:
        return len(self._vocabulary)


def _spelled(
    columns: Mapping[str, pa.Array], sizes: NDArray[np.int32], words: pa.StringArray
) -> pa.Buffer:
    # id, text, number of keywords, each keyword, and the fields where there are any, row by row,
    # each after its length (4 bytes, little-endian), which makes the bytes unambiguous. By columns,
    # because row by row takes three times as long.
    rows = len(sizes)
    fields = [columns["fields"]] if "fields" in columns else []
    parts = pa.concat_arrays(
        [columns["id"], columns["text"], _arrow(sizes).cast(pa.string()), words, *fields]
    )
    # The start of each row's parts, and the part at each position.
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


def _lengths_and_bytes(strings: pa.StringArray) -> bytes:
    whole = pa.concat_arrays([strings])
    _, offsets, data = whole.buffers()
    ends = np.frombuffer(offsets, "<i4")[: len(whole) + 1]
    return ends.tobytes() + bytes(memoryview(data or b"")[: ends[-1]])


def _floats(values: pa.FloatArray) -> NDArray[np.float32]:
    held = np.frombuffer(values.buffers()[1] or b"", np.float32)
    return held[values.offset : values.offset + len(values)]


def _arrow(values: NDArray[Any]) -> pa.Array:
    # Arrow's own conversion of NumPy arrays imports pandas.
    values = np.ascontiguousarray(values)
    type_ = pa.from_numpy_dtype(values.dtype)
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(values)])


class _Distinct:
    # By 64-bit hashes: two of a million strings have the same one with a probability of 1 in 3e7.
    def __init__(self) -> None:
        self._known = np.zeros(0, np.int64)
        self._new = array("q")

    def update(self, strings: Iterable[str]) -> None:
        self._new.extend(map(hash, strings))
        if len(self._new) >= max(HASHES_AT_ONCE, len(self._known)):
            self._merge()

    def __len__(self) -> int:
        self._merge()
        return len(self._known)

    def _merge(self) -> None:
        self._known = np.union1d(self._known, np.frombuffer(self._new, np.int64))
        self._new = array("q")
