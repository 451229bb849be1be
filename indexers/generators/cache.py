"""The generation cache: what a generator once wrote, keyed by everything that decided it; and the
loop that generates answers and writes them into it every few seconds, the same for a rebuild in
this process, a worker's shard and a judge.

Each generator fingerprint has a folder of write-once Parquet segments. A segment appears whole or
not at all. The cache also makes a rebuild resumable: the work left is the keys without an answer.
Keys are 16 bytes each, in one array. The cache knows nothing of snapshots.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyroaring import BitMap

from cogr.errors import StorageError
from cogr.mapped import Strings, StringsSpool
from cogr.matching.postings import to_bitmap
from cogr.prompts import Prompt
from cogr.records import Side
from cogr.store import Store
from indexers.generators import (
    Answer,
    Completion,
    Failure,
    Generator,
    Reads,
    Request,
    fingerprint_hash,
)
from indexers.telemetry import prometheus

log = logging.getLogger(__name__)

SIZE = 16
"""Bytes of a key."""

SEGMENT_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary(SIZE), nullable=False),
        pa.field("answer", pa.string(), nullable=False),
    ]
)
"""Columns of a segment. An answer is a JSON object."""


class Cached:
    """Answers by position of their keys, in temporary files. Memory: 4 bytes a key.

    Args:
        segments: tables of the cache, without lone surrogates; the first of several answers to a
            key counts.
    """

    def __init__(self, keys: Keys, segments: Iterator[pa.Table]) -> None:
        # From 1; 0 where there is no answer.
        self._rows = np.zeros(len(keys), np.uint32)
        spool, count = StringsSpool(), 0
        for table in segments:
            rows, positions = keys.find(_keys(table))
            new = self._rows[positions] == 0
            positions, first = np.unique(positions[new], return_index=True)
            rows = rows[new][first]
            taken = pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)])
            spool.append(table["answer"].take(taken).combine_chunks())
            self._rows[positions] = np.arange(count, count + len(rows)) + 1
            count += len(rows)
        self._answers = Strings(spool.arrow())

    def answers(self, ids: Sequence[str], start: int) -> list[Answer | None]:
        """Answers of the positions start .. start + len(ids), given the ids that they belong to;
        None where there is none.
        """
        rows = self._rows[start : start + len(ids)].tolist()
        return [
            _parsed(id_, self._answers[row - 1]) if row else None
            for id_, row in zip(ids, rows, strict=True)
        ]


def _parsed(id_: str, text: str) -> Answer:
    values = json.loads(text)
    kind: type[Answer] = Failure if "reason" in values else Completion
    known = kind.__dataclass_fields__
    return kind(id_, **{name: value for name, value in values.items() if name in known})


def _spelled(answer: Answer) -> str:
    values: dict[str, Any] = {"reason": answer.reason} if isinstance(answer, Failure) else {}
    if isinstance(answer, Completion):
        values = {"text": answer.text, "tokens": answer.tokens, "truncated": answer.truncated}
        values |= {"weights": dict(answer.weights), "confidence": answer.confidence}
    return json.dumps(values, ensure_ascii=False)


_SUM = 16
"""Hex digits of a segment's sha256 in its name."""


def _keys(table: pa.Table) -> Keys:
    keys = table["key"].combine_chunks()
    return Keys(
        memoryview(keys.buffers()[1])[keys.offset * SIZE : (keys.offset + len(keys)) * SIZE]
    )


def _is_whole(name: str, data: bytes) -> bool:
    digits = name.removesuffix(".parquet").partition("-")[2]
    whole = len(digits) == _SUM and hashlib.sha256(data).hexdigest().startswith(digits)
    return whole and pq.read_schema(pa.BufferReader(data)).equals(SEGMENT_SCHEMA)


class GenerationCache:
    """The segments of one generator fingerprint."""

    def __init__(self, store: Store, fingerprint: Mapping[str, object]) -> None:
        self._store = store
        self._folder = f"cache/{fingerprint_hash(fingerprint)}"

    def add(self, keyed: Sequence[tuple[bytes, Answer]]) -> str | None:
        """Write one segment with completions and permanent failures; its path, None without any.

        Its name stands for its keys and its content: writing the same again replaces it harmlessly.
        """
        kept = sorted(
            ((key, a) for key, a in keyed if isinstance(a, Completion) or a.permanent),
            key=lambda pair: pair[0],
        )
        if not kept:
            return None
        name = hashlib.blake2b(b"".join(key for key, _ in kept), digest_size=16).hexdigest()
        columns = {"key": [key for key, _ in kept], "answer": [_spelled(a) for _, a in kept]}
        table = pa.Table.from_pydict(columns, schema=SEGMENT_SCHEMA)
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        data = buffer.getvalue()
        sha = hashlib.sha256(data).hexdigest()
        path = f"{self._folder}/{name}-{sha[:_SUM]}.parquet"
        self._store.write(path, data)
        return path

    def load(self, keys: Keys) -> Cached:
        """The answers to the keys, copied out of all segments once."""
        tables = (self.read(name, SEGMENT_SCHEMA.names) for name in self.names())
        return Cached(keys, (table for table in tables if table is not None))

    def missing(self, keys: Keys) -> BitMap:
        """Positions of the keys that have no answer yet.

        Reads keys only, one segment after the other.
        """
        return Missing(self, keys).look()

    def names(self) -> list[str]:
        return [name for name in self._store.list(self._folder) if name.endswith(".parquet")]

    def read(self, name: str, columns: Sequence[str]) -> pa.Table | None:
        """Columns of a segment; None when it is gone or damaged."""
        path = f"{self._folder}/{name}"
        try:
            data = self._store.read(path)
            if not _is_whole(name, data):
                self._store.move(path, f"{path}.damaged")
                log.warning(
                    "The cache file %s is damaged: set aside as %s.damaged; its entities are "
                    "generated again.",
                    path,
                    name,
                )
                return None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(
                f"The cache file {path} in {self._store.url} can't be read "
                f"({error.strerror or error}); make it readable, or "
                "remove it, and its entities are generated again."
            ) from error
        schema = pa.schema([SEGMENT_SCHEMA.field(column) for column in columns])
        return read_table(pa.BufferReader(data), schema)


class Missing:
    """The positions of keys without an answer, for repeated looks: each segment's keys are read
    once.
    """

    def __init__(self, cache: GenerationCache, keys: Keys) -> None:
        self._cache, self._keys = cache, keys
        self._seen: set[str] = set()
        self._known = np.zeros(len(keys), bool)

    def look(self) -> BitMap:
        """The positions that have no answer now."""
        names = set(self._cache.names())
        if self._seen - names:
            # Segments are gone, and their answers with them.
            self._seen, self._known[:] = set(), False
        for name in names - self._seen:
            if (table := self._cache.read(name, ["key"])) is not None:
                self._known[self._keys.find(_keys(table))[1]] = True
        self._seen = names
        return to_bitmap(np.flatnonzero(~self._known).astype(np.uint32))


def request_key(id_: str, prompt: Prompt, reads: Reads) -> bytes:
    """The cache key of one entity's request: the prompt, and the entity's id too where the
    generator reads the entity.

    The generator's fingerprint is not hashed here, because it names the cache's folder.
    """
    own = id_ if reads == "entity" else ""
    data = f"{own}\0{prompt.text}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=SIZE).digest()


class Keys:
    """Cache keys by position, one after another in one buffer."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self._data = memoryview(data)

    @classmethod
    def of(cls, keys: Iterable[bytes]) -> Keys:
        data = bytearray()
        for key in keys:
            data += key
        return cls(data)

    def __len__(self) -> int:
        return len(self._data) // SIZE

    def __getitem__(self, at: int) -> bytes:
        return bytes(self._data[at * SIZE : (at + 1) * SIZE])

    def __iter__(self) -> Iterator[bytes]:
        return map(self.__getitem__, range(len(self)))

    def find(self, others: Keys) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
        """All pairs of equal keys: positions among the others, ascending, and positions here."""
        order, sorted_heads = self._order
        heads, tails = others._halves.T
        first, last = (np.searchsorted(sorted_heads, heads, side) for side in ("left", "right"))
        counts = last - first
        rows = np.repeat(np.arange(len(heads)), counts)
        # Of each range first .. last, all places.
        places = np.arange(len(rows)) + np.repeat(first - (np.cumsum(counts) - counts), counts)
        positions = order[places]
        same = tails[rows] == self._halves[positions, 1]
        return rows[same], positions[same]

    @cached_property
    def _order(self) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
        heads = self._halves[:, 0]
        order = np.argsort(heads).astype(np.uint32)
        return order, heads[order]

    @property
    def _halves(self) -> NDArray[np.uint64]:
        return np.frombuffer(self._data, np.uint64).reshape(-1, 2)


def read_table(file: IO[bytes], schema: pa.Schema) -> pa.Table:
    """The columns that a schema names, of its types.

    It reads in the calling thread: threads of `pq.read_table` may still be closing the file when
    the process ends, which would abort the process.

    Raises:
        ArrowInvalid: no Parquet file, a column is missing or has values of another kind.
    """
    table = pq.ParquetFile(file).read(columns=schema.names, use_threads=False)
    if missing := set(schema.names) - set(table.column_names):
        raise pa.ArrowInvalid(f"it has no column {min(missing)}")
    return table.select(schema.names).cast(schema)


Keyed = tuple[bytes, Request]
"""A request and the cache key of its answer."""


FLUSH_SECONDS = 20.0
"""Longest time between two writes to the cache, and so the most work that a kill can cost."""
FLUSH_ANSWERS = 20_000
"""Most answers between two writes: some megabytes of memory. 100 million answers make 5,000 files.
"""


def generate_into(
    cache: GenerationCache,
    side: Side,
    generator: Generator,
    keyed: Iterable[Keyed],
    each: Callable[[], object] = lambda: None,
) -> dict[str, str]:
    """Generate answers, and write them to the cache as they come. Returns the reasons of the
    failures that the cache does not remember, by entity id. However the call ends, the answers so
    far are in the cache.

    Args:
        keyed: the requests, at least one; read as fast as the generator takes them.
        each: called after every answer; the stream ends where it returns True.

    Raises:
        RuntimeError: the generator left requests unanswered.
        ServiceError: the generator's service can't be reached.
        StorageError: the cache can't be written.
    """
    asked: dict[str, bytes] = {}
    waiting: list[tuple[bytes, Answer]] = []
    transient: dict[str, str] = {}
    unread, written = iter(keyed), time.monotonic()
    try:
        for answer in generator.generate(_requests(unread, asked)):
            waiting.append((asked.pop(answer.id), answer))
            if isinstance(answer, Failure) and not answer.permanent:
                transient[answer.id] = answer.reason
            if len(waiting) >= FLUSH_ANSWERS or time.monotonic() - written >= FLUSH_SECONDS:
                _write(cache, side, waiting)
                written = time.monotonic()
            if each() is True:
                return transient
    finally:
        _write(cache, side, waiting)
    if left := [*asked, *(request.id for _, request in unread)]:
        raise RuntimeError(
            f"the generator left {len(left)} requests unanswered, such as {min(left)}"
        )
    return transient


def _write(cache: GenerationCache, side: Side, waiting: list[tuple[bytes, Answer]]) -> None:
    cache.add(waiting)
    counts = Counter(_kind(answer) for _, answer in waiting)
    for kind, count in counts.items():
        prometheus.ANSWERS.labels(side, kind).inc(count)
    tokens = sum(answer.tokens for _, answer in waiting if isinstance(answer, Completion))
    prometheus.TOKENS.labels(side).inc(tokens)
    waiting.clear()


def _kind(answer: Answer) -> str:
    if isinstance(answer, Completion):
        return "completion"
    return "permanent_failure" if answer.permanent else "transient_failure"


def _requests(keyed: Iterable[Keyed], asked: dict[str, bytes]) -> Iterator[Request]:
    for key, request in keyed:
        asked[request.id] = key
        yield request
