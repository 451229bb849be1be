"""The generation cache: what a generator once wrote, keyed by everything that decided it.

It is a folder of write-once Parquet segments per generator fingerprint. A segment appears whole or not at all, so the cache
is also what makes a rebuild resumable: the work that is left is a set difference over keys. It knows nothing of snapshots.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cogr.errors import StorageError
from cogr.store import Store
from indexers.generators.base import Answer, Completion, Failure, Reads, Request

SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("text", pa.string()),
        pa.field("failure", pa.string()),
        pa.field("tokens", pa.int32(), nullable=False),
        pa.field("truncated", pa.bool_(), nullable=False),
    ]
)


def fingerprint_hash(fingerprint: Mapping[str, object]) -> str:
    """16 hex digits that name a generator with all that decides its output."""
    text = json.dumps(fingerprint, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def request_key(request: Request, reads: Reads) -> bytes:
    """The cache key of one request: the prompt, and the entity's id too where the generator reads the entity.

    The fingerprint itself names the folder, so it is not hashed again.
    """
    own = request.id if reads == "entity" else ""
    data = f"{own}\0{request.prompt.text}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(data, digest_size=16).digest()


@dataclass(frozen=True)
class Segment:
    """One file of the cache: its path in the store and the sha256 of its bytes."""

    path: str
    sha256: str


@dataclass(frozen=True)
class Cached:
    """Answers aligned with the keys that were asked for; `rows` holds null where there is none yet.

    `state` stands for the cache's files as they were just before they were read.
    """

    table: pa.Table
    rows: pa.Array
    state: str = ""

    def missing(self) -> list[int]:
        """Positions of the keys that have no answer yet."""
        found: list[int] = pc.indices_nonzero(pc.is_null(self.rows)).to_pylist()
        return found

    def answers(self, ids: Sequence[str], start: int) -> list[Answer | None]:
        """Answers of the positions start .. start + len(ids), given the ids that they belong to."""
        part = self.table.take(self.rows.slice(start, len(ids)))
        columns = (part[name].to_pylist() for name in ("text", "failure", "tokens", "truncated"))
        return [_answer(id_, *values) for id_, *values in zip(ids, *columns, strict=True)]


def _answer(
    id_: str, text: str | None, failure: str | None, tokens: int | None, truncated: bool | None
) -> Answer | None:
    if failure is not None:
        return Failure(id_, failure)
    return None if text is None else Completion(id_, text, tokens or 0, bool(truncated))


class GenerationCache:
    """The segments of one generator fingerprint.

    Args:
        store: where the cache lies.
        fingerprint: the generator's; equal fingerprints share their answers.
    """

    def __init__(self, store: Store, fingerprint: Mapping[str, object]) -> None:
        self._store = store
        self._folder = f"cache/{fingerprint_hash(fingerprint)}"
        self._keys: dict[str, pa.Array] = {}

    def add(self, keyed: Sequence[tuple[bytes, Answer]]) -> Segment | None:
        """Write one segment with completions and lasting failures; None when there are none.

        Writing the same keys again replaces it harmlessly.
        """
        kept = sorted(
            ((key, a) for key, a in keyed if isinstance(a, Completion) or a.lasting), key=lambda pair: pair[0]
        )
        if not kept:
            return None
        name = hashlib.blake2b(b"".join(key for key, _ in kept), digest_size=16).hexdigest()
        table = pa.Table.from_pydict(
            {
                "key": [key for key, _ in kept],
                "text": [a.text if isinstance(a, Completion) else None for _, a in kept],
                "failure": [a.reason if isinstance(a, Failure) else None for _, a in kept],
                "tokens": [a.tokens if isinstance(a, Completion) else 0 for _, a in kept],
                "truncated": [isinstance(a, Completion) and a.truncated for _, a in kept],
            },
            schema=SCHEMA,
        )
        buffer = io.BytesIO()
        pq.write_table(table, buffer, compression="zstd")
        data = buffer.getvalue()
        path = f"{self._folder}/{name}.parquet"
        self._store.write(path, data)
        return Segment(path, hashlib.sha256(data).hexdigest())

    def load(self, keys: Sequence[bytes]) -> Cached:
        """What is known of the keys, in their order."""
        state, names = self._store.state(self._folder), self._store.list(self._folder)
        wanted = pa.array(keys, pa.binary())
        tables = [self._segment(name, wanted) for name in names if name.endswith(".parquet")]
        table = pa.concat_tables([SCHEMA.empty_table(), *tables])
        rows = pc.index_in(wanted, value_set=table["key"].combine_chunks())
        return Cached(table, rows, state)

    def missing(self, keys: Sequence[bytes]) -> list[int]:
        """Positions of the keys that have no answer yet.

        Reads keys only, and every segment once in this object's life: for whoever asks again and again, as a worker does for
        every shard. A segment's name stands for its keys, so what is remembered never grows stale.
        """
        names = {name for name in self._store.list(self._folder) if name.endswith(".parquet")}
        for name in self._keys.keys() - names:
            del self._keys[name]
        for name in names - self._keys.keys():
            self._keys[name] = self._read(name, ["key"])["key"].combine_chunks()
        wanted = pa.array(keys, pa.binary())
        known = pa.chunked_array(list(self._keys.values()), pa.binary())
        found: list[int] = pc.indices_nonzero(pc.invert(pc.is_in(wanted, value_set=known))).to_pylist()
        return found

    def _segment(self, name: str, wanted: pa.Array) -> pa.Table:
        table = self._read(name, SCHEMA.names)
        return table.filter(pc.is_in(table["key"], value_set=wanted))

    def _read(self, name: str, columns: Sequence[str]) -> pa.Table:
        path = f"{self._folder}/{name}"
        try:
            with self._store.open(path) as file:
                return pq.read_table(file, columns=list(columns), schema=SCHEMA)
        except (pa.ArrowInvalid, OSError) as error:
            raise StorageError(
                f"The cache file {path} in {self._store.url} can't be read ({error}); remove it, and its entities are generated again."
            ) from error
