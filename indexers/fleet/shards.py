"""A shard's requests as a Parquet file: entities, prompts and cache keys, so that a worker needs no
data set to answer them.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from cogr.prompts import Prompt
from cogr.records import Entity, Item, Query
from indexers.build.cache import SIZE, read_table
from indexers.fleet.records import RunFolder
from indexers.generators.protocol import Request

SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary(), nullable=False),
        pa.field("id", pa.string(), nullable=False),
        pa.field("title", pa.string()),
        pa.field("text", pa.string(), nullable=False),
        pa.field("weight", pa.float64(), nullable=False),
        pa.field("system", pa.string(), nullable=False),
        pa.field("user", pa.string(), nullable=False),
        pa.field("cut", pa.bool_(), nullable=False),
    ]
)

_NO_FILE = (pa.ArrowException, OSError)
"""What reading raises where there is no shard, or a damaged one: its entities are then planned or
sent again.
"""

Keyed = tuple[bytes, Request]

_TRACE = ("traceparent", "tracestate")


def write_shard(
    folder: RunFolder, shard: str, keyed: Sequence[Keyed], trace: Mapping[str, str] | None = None
) -> None:
    """Write the requests of a shard, in their order.

    Args:
        trace: the trace context that the worker's spans continue
            (`indexers.telemetry.traces.Span.carrier`).
    """
    entities = [request.entity for _, request in keyed]
    prompts = [request.prompt for _, request in keyed]
    table = pa.Table.from_pydict(
        {
            "key": [key for key, _ in keyed],
            "id": [request.id for _, request in keyed],
            "title": [entity.title if isinstance(entity, Item) else None for entity in entities],
            "text": [entity.text for entity in entities],
            "weight": [entity.weight if isinstance(entity, Query) else 1.0 for entity in entities],
            "system": [prompt.system for prompt in prompts],
            "user": [prompt.user for prompt in prompts],
            "cut": [prompt.cut for prompt in prompts],
        },
        schema=SCHEMA.with_metadata(dict(trace)) if trace else SCHEMA,
    )
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    folder.store.write(_path(folder, shard), buffer.getvalue())


def read_shard(folder: RunFolder, shard: str) -> list[Keyed] | None:
    """The requests of a shard; None when there is no such file, or a damaged one."""
    try:
        data = folder.store.read(_path(folder, shard))
        return [_request(row) for row in read_table(io.BytesIO(data), SCHEMA).to_pylist()]
    except (*_NO_FILE, AssertionError):
        return None


def read_trace(folder: RunFolder, shard: str) -> dict[str, str]:
    """The trace context that a shard was written with; {} when there is none."""
    try:
        data = folder.store.read(_path(folder, shard))
        found = pq.read_schema(io.BytesIO(data)).metadata or {}
        return {
            name: value.decode() for key, value in found.items() if (name := key.decode()) in _TRACE
        }
    except (*_NO_FILE, UnicodeDecodeError):
        return {}


def read_keys(folder: RunFolder, shard: str) -> list[bytes]:
    """The cache keys of a shard; [] when there is no such file, or a damaged one."""
    try:
        data = folder.store.read(_path(folder, shard))
        keys: list[bytes] = read_table(io.BytesIO(data), pa.schema([SCHEMA.field("key")]))[
            "key"
        ].to_pylist()
    except _NO_FILE:
        return []
    # A key of another length is no key of ours.
    return [key for key in keys if len(key) == SIZE]


def _request(row: dict[str, object]) -> Keyed:
    key, id_, text = row["key"], row["id"], row["text"]
    assert isinstance(key, bytes)
    assert isinstance(id_, str)
    assert isinstance(text, str)
    title = row["title"]
    entity: Entity = (
        Query(id_, text, float(str(row["weight"])))
        if title is None
        else Item(id_, str(title), text)
    )
    prompt = Prompt(str(row["system"]), str(row["user"]), bool(row["cut"]))
    return key, Request(id_, entity, prompt)


def _path(folder: RunFolder, shard: str) -> str:
    return f"{folder.path}/shards/{shard}.parquet"
