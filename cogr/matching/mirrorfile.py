"""The saved form of a mirror: two Arrow IPC files that are memory-mapped, and a manifest that is
written last.

`entities.arrow` has a row an entity, `keywords.arrow` a row a keyword; each is one record batch. A
cache: it can be made again from its snapshot at any time.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from cogr.errors import SnapshotError
from cogr.mapped import SortedStrings, integers
from cogr.matching.postings import Postings
from cogr.store import Store

_MANIFEST = "mirror.json"
_NUMBERS = pa.large_list(pa.uint32())
_SCHEMAS = {
    "entities.arrow": pa.schema(
        {
            "id": pa.large_string(),
            "keywords": _NUMBERS,
            "own": pa.int32(),
            "length_code": pa.uint8(),
        }
    ),
    "keywords.arrow": pa.schema({"keyword": pa.large_string(), "entities": _NUMBERS}),
}


class MirrorManifest(BaseModel):
    """What a saved mirror is. `files`: sha256 of each file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal[2] = 2
    snapshot: str | None
    content_hash: str | None
    files: dict[str, str]


def save(folder: Path, postings: Postings, snapshot: str | None, content_hash: str | None) -> None:
    """Write the files, then the manifest, each atomically.

    Raises StorageError when the disk is full or read-only.
    """
    store = Store(folder)
    store.remove(_MANIFEST)
    for old in store.list(""):
        if old.endswith(".npy"):  # of format 1
            store.remove(old)
    for name, columns in _columns(postings).items():
        batch = pa.RecordBatch.from_arrays(columns, schema=_SCHEMAS[name])
        with store.replacing(name) as file, pa.ipc.new_file(file, batch.schema) as writer:
            writer.write_batch(batch)
    manifest = MirrorManifest(
        snapshot=snapshot,
        content_hash=content_hash,
        files={name: _sha256(folder / name) for name in _SCHEMAS},
    )
    store.write_json(_MANIFEST, manifest.model_dump(mode="json"))


def _columns(postings: Postings) -> dict[str, list[pa.Array]]:
    entities = [
        postings.ids.arrow,
        _lists(postings.set_starts, postings.set_terms),
        _numbers(postings.own, pa.int32()),
        _numbers(postings.length_codes, pa.uint8()),
    ]
    keywords = [postings.terms.arrow, _lists(postings.starts, postings.entities)]
    return dict(zip(_SCHEMAS, (entities, keywords), strict=True))


def _numbers(values: NDArray[Any], type_: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(values)])


def _lists(starts: NDArray[np.int64], values: NDArray[np.uint32]) -> pa.Array:
    return pa.Array.from_buffers(
        _NUMBERS,
        len(starts) - 1,
        [None, pa.py_buffer(starts)],
        children=[_numbers(values, pa.uint32())],
    )


def open_saved(folder: Path, *, verify: bool = True) -> tuple[Postings, MirrorManifest]:
    """Map a saved mirror. `verify` compares each file's sha256 first (about 0.5 s per 300 MB).

    Raises:
        SnapshotError: not there, broken, or of another format.
    """
    manifest = _read_manifest(folder)
    entities, keywords = (_map(folder, name, manifest, verify=verify) for name in _SCHEMAS)
    sets, inverted = entities["keywords"], keywords["entities"]
    postings = Postings(
        ids=SortedStrings(entities["id"]),
        terms=SortedStrings(keywords["keyword"]),
        starts=_starts(inverted),
        entities=integers(inverted.values),
        set_starts=_starts(sets),
        set_terms=integers(sets.values),
        own=integers(entities["own"]),
        length_codes=integers(entities["length_code"]),
    )
    return postings, manifest


def _starts(lists: pa.LargeListArray) -> NDArray[np.int64]:
    return integers(lists.offsets) if len(lists) else np.zeros(1, np.int64)


def _read_manifest(folder: Path) -> MirrorManifest:
    store = Store(folder)
    if not store.exists(_MANIFEST):
        raise SnapshotError(f"There is no saved mirror in {folder}; build it from its snapshot.")
    try:
        return MirrorManifest.model_validate_json(store.read(_MANIFEST))
    except ValidationError as error:
        raise _broken(folder, f"{_MANIFEST} is damaged or of another format") from error


def _map(folder: Path, name: str, manifest: MirrorManifest, *, verify: bool) -> pa.RecordBatch:
    path = folder / name
    if not path.is_file():
        raise _broken(folder, f"{name} is not there")
    if verify and _sha256(path) != manifest.files.get(name):
        raise _broken(folder, f"{name} does not match its sha256")
    try:
        batch = pa.ipc.open_file(pa.memory_map(str(path))).get_batch(0)
        batch.validate()
    except (pa.ArrowException, OSError, IndexError) as error:
        raise _broken(folder, f"{name} is cut short or no Arrow file") from error
    if batch.schema != _SCHEMAS[name]:
        raise _broken(folder, f"{name} has other columns than this version's")
    return batch


def _broken(folder: Path, why: str) -> SnapshotError:
    return SnapshotError(
        f"The mirror in {folder} is broken: {why}; build it again from its snapshot."
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
