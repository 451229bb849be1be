"""Items' texts, kept once by content: a row has the key of its text, and the manifest names the
files that hold it.

A file is `texts/<sha256>.parquet` (columns key and text). Snapshots of the same texts share it, and
one that changes some of its parent's adds a file with these alone, until there are `MAX_FILES`:
then all are written anew. So an older snapshot can be pushed again after the data has changed.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from cogr.errors import SnapshotError
from cogr.snapshots import ROWS, Manifest, Snapshot
from cogr.store import Store, sha256_of, storage_errors

TEXTS = "texts"
"""The folder of the store that has them."""
MAX_FILES = 16
_BYTES = 12
_SCHEMA = pa.schema(
    [pa.field("key", pa.string(), nullable=False), pa.field("text", pa.string(), nullable=False)]
)
_Keys = NDArray[np.bytes_]


def _key_of(text: str) -> str:
    """The key of a text, 24 digits of its hash; "" for a blank one."""
    if not text.strip():
        return ""
    return hashlib.blake2b(text.encode(), digest_size=_BYTES).hexdigest()


def files_of(manifests: Iterable[Manifest]) -> set[str]:
    """Names of the files that these snapshots name."""
    return {name for manifest in manifests for name in manifest.texts or ()}


def _sound(store: Store, path: str) -> bool:
    with store.open(path) as file:
        return path.endswith(f"/{sha256_of(file)}.parquet")


class Texts:
    """The texts of a snapshot, by key. Memory: 32 bytes a text, and a batch of texts a file.

    Raises SnapshotError where a file is lost or damaged.
    """

    def __init__(self, store: Store, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._files = [_File(store, name) for name in names]

    def has(self, keys: Sequence[str]) -> list[bool]:
        """Whether each of the keys is known."""
        known = np.zeros(len(keys), np.bool_)
        for file in self._files:
            known |= file.places(keys) >= 0
        return list(known.tolist())

    def of(self, keys: Sequence[str]) -> list[str]:
        """The text of each key; "" of "". Raises SnapshotError for an unknown one."""
        texts: dict[str, str] = {"": ""}
        for file in self._files:
            texts |= file.read([key for key in dict.fromkeys(keys) if key not in texts])
        if lost := next((key for key in keys if key not in texts), None):
            raise SnapshotError(
                f"The store has no text {lost!r}, which a snapshot names; run cogr-index rebuild "
                "--side item."
            )
        return [texts[key] for key in keys]


class _File:
    def __init__(self, store: Store, name: str) -> None:
        path = f"{TEXTS}/{name}"
        try:
            if not _sound(store, path):
                raise ValueError("its sha256 differs")
            self._rows = pq.ParquetFile(store.open(path))
        except (OSError, ValueError) as error:
            raise SnapshotError(
                f"The texts {path} in {store.url} are lost or damaged ({error}); restore them, or "
                "run cogr-index rebuild --side item."
            ) from error
        keys = np.array(self._rows.read(["key"])["key"].to_pylist(), f"S{2 * _BYTES}")
        self._order = np.argsort(keys, kind="stable").astype(np.uint32)
        self._keys: _Keys = keys[self._order]
        self._read: tuple[int, list[str]] = (-1, [])

    def places(self, keys: Sequence[str]) -> NDArray[np.int64]:
        if not len(self._keys):
            return np.full(len(keys), -1)
        wanted = np.array(keys, self._keys.dtype)
        at = np.minimum(np.searchsorted(self._keys, wanted), len(self._keys) - 1)
        return np.where(self._keys[at] == wanted, self._order[at].astype(np.int64), -1)

    def read(self, keys: Sequence[str]) -> Mapping[str, str]:
        by_key = {}
        placed = zip(self.places(keys).tolist(), keys, strict=True)
        for place, key in sorted(pair for pair in placed if pair[0] >= 0):
            group, row = divmod(place, ROWS)
            if self._read[0] != group:
                texts = self._rows.read_row_group(group, ["text"], use_threads=False)["text"]
                self._read = group, texts.to_pylist()
            by_key[key] = self._read[1][row]
        return by_key


class TextsWriter:
    """Keeps texts that `base` lacks, in a file of their own.

    Args:
        base: the parent's texts, which the new snapshot's manifest names too; None to write all.
    """

    def __init__(self, store: Store, base: Texts | None = None) -> None:
        self._store, self._base = store, base
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self._rows = pq.ParquetWriter(self._file, _SCHEMA, compression="zstd")
        self._waiting: list[tuple[str, str]] = []
        self._written = 0

    def __enter__(self) -> TextsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._rows.close()
        self._file.close()

    def add(self, texts: Sequence[str]) -> list[str]:
        """Keep these texts; returns their keys."""
        keys = [_key_of(text) for text in texts]
        known = self._base.has(keys) if self._base else [False] * len(keys)
        pairs = zip(keys, texts, strict=True)
        new = dict(pair for pair, kept in zip(pairs, known, strict=True) if pair[0] and not kept)
        self._waiting += new.items()
        while len(self._waiting) >= ROWS:
            self._write(ROWS)
        return keys

    def _write(self, count: int) -> None:
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        columns = {"key": [key for key, _ in batch], "text": [text for _, text in batch]}
        with storage_errors(tempfile.gettempdir()):
            self._rows.write_table(pa.Table.from_pydict(columns, _SCHEMA))
        self._written += len(batch)

    def keep(self) -> tuple[str, ...]:
        """Names of the files that hold the texts, the parent's first; all are in the store now.
        After this call nothing may be added.
        """
        if self._waiting:
            self._write(len(self._waiting))
        self._rows.close()
        before = self._base.names if self._base else ()
        if not self._written:
            return before
        self._file.seek(0)
        name = f"{sha256_of(self._file)}.parquet"
        if not self._store.exists(path := f"{TEXTS}/{name}") or not _sound(self._store, path):
            self._file.seek(0)
            with self._store.replacing(f"{TEXTS}/{name}") as target:
                shutil.copyfileobj(self._file, target, 1 << 20)
        return (*before, name)


def pieces(title: str, text: str) -> list[str]:
    """What a search reads of an item: its title twice, since it counts twice, and its text; a title
    with which the text begins is in it already.
    """
    return [title, text] if text.startswith(title) else [title, title, text]


def texts_of(snapshot: Snapshot) -> Texts:
    """The texts that a snapshot names. Raises as `Texts`."""
    return Texts(snapshot.store, snapshot.manifest.texts or ())


def whole_texts(snapshot: Snapshot) -> Iterator[list[str]]:
    """`pieces` of each item in id order, streaming; of titles alone where texts are not kept.

    Raises SnapshotError where texts are lost.
    """
    kept = texts_of(snapshot)
    for batch in snapshot.batches(["text", "body"]):
        titles, keys = batch["text"].to_pylist(), batch["body"].to_pylist()
        yield from map(pieces, titles, kept.of(keys))
