"""Writing a snapshot: rows are counted and hashed on their way to the file."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from io import BufferedRandom
from itertools import islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
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
)
from cogr.snapshots.texts import texts_of
from cogr.store import Store, sha256_of, storage_errors

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
_READ = frozenset(("id", "text", "fields", "body"))

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
    snapshot; a damaged one is rewritten, with a warning. Memory: one batch of rows, and 8 bytes a
    keyword. The file is made in TMPDIR first.

    Args:
        provenance: further fields of the manifest; a callable is called after the last row, for
            counts that are complete only then.

    Raises:
        SnapshotError: ids out of order or repeated.
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
            made = _batch(batch, schema)
            counts.add(made)
            writer.write_batch(made)


def _batch(rows: list[Row], schema: pa.Schema) -> pa.RecordBatch:
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
    return pa.RecordBatch.from_pydict({name: columns[name] for name in schema.names}, schema)


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
        file_sha256=sha256_of(file),
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
        self._side = side
        facts = json.dumps([NORMALISER, dict(sorted(fields.items()))])
        self._content, self._reading = hashlib.sha256(facts.encode()), hashlib.sha256()
        self.entities = self.keywords = self.empty = 0
        self._words: list[NDArray[np.int64]] = []
        self._last: str | None = None

    def add(self, rows: pa.RecordBatch) -> None:
        self._check_order(rows["id"].to_pylist())
        for name in rows.schema.names:
            for part in _content(rows[name]):
                self._content.update(part)
                if name in _READ:
                    self._reading.update(part)
        self.entities += len(rows)
        words = rows["keywords"].flatten()
        self.keywords += len(words)
        self.empty += int(np.count_nonzero(integers(rows["keywords"].value_lengths()) == 0))
        # Two of a million strings have the same 64-bit hash with a probability of 1 in 3e7.
        distinct = map(hash, words.unique().to_pylist())
        self._words.append(np.fromiter(distinct, np.int64))

    def _check_order(self, ids: list[str]) -> None:
        for id_ in ids:
            if self._last is not None and id_ <= self._last:
                raise SnapshotError(
                    f"Rows must come in ascending id order without repeats, but {id_!r} follows "
                    f"{self._last!r}."
                )
            self._last = id_

    @property
    def read_hash(self) -> str:
        """Of what a search by text reads of items: ids, titles, extra fields, texts."""
        return self._reading.hexdigest() if self._side == "item" else ""

    @property
    def content_hash(self) -> str:
        return self._content.hexdigest()

    @property
    def vocabulary(self) -> int:
        return len(np.unique(np.concatenate(self._words))) if self._words else 0


def _content(column: pa.Array) -> Iterator[bytes]:
    """A column of a batch as bytes: the length of each list (-1 for none) and of each text, then
    all values. So two different columns never give the same bytes.
    """
    if pa.types.is_list(column.type):
        yield integers(column.value_lengths().fill_null(-1)).tobytes()
        column = column.flatten()
    if pa.types.is_string(column.type):
        lengths = integers(pc.binary_length(column))
        yield lengths.tobytes()
        yield bytes(memoryview(column.buffers()[2] or b"")[: int(lengths.sum())])
    else:
        values = column.fill_null(-1.0)
        yield bytes(memoryview(values.buffers()[1] or b"")[: values.nbytes])
