"""The saved form of a mirror: flat arrays that are memory-mapped, and a manifest that is written
last.

A cache, not a truth: it can be made again from its snapshot at any time. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from cogr.errors import SnapshotError
from cogr.matching.postings import Postings
from cogr.store import Store
from cogr.strings import SortedStrings

FORMAT = 1
_MANIFEST = "mirror.json"
_TYPES: dict[str, type[np.generic]] = {
    "ids-offsets": np.int64,
    "ids-data": np.uint8,
    "terms-offsets": np.int64,
    "terms-data": np.uint8,
    "starts": np.int64,
    "entities": np.uint32,
    "set-starts": np.int64,
    "set-terms": np.uint32,
    "own": np.int32,
    "length-codes": np.uint8,
}


class MirrorManifest(BaseModel):
    """What a saved mirror is. `files`: sha256 of each array's file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int
    snapshot: str | None
    content_hash: str | None
    entities: int
    keywords: int
    vocabulary: int
    files: dict[str, str]


def save(folder: Path, postings: Postings, snapshot: str | None, content_hash: str | None) -> None:
    """Write the arrays, then the manifest, each atomically.

    Raises StorageError when the disk is full or read-only.
    """
    store = Store(folder)
    store.remove(_MANIFEST)
    for name, array in _arrays(postings).items():
        with store.replacing(f"{name}.npy") as file:
            # Not np.save: its tofile hides why a disk refuses.
            npy.write_array_header_1_0(file, npy.header_data_from_array_1_0(array))  # type: ignore[no-untyped-call]
            file.write(array.data)
    manifest = MirrorManifest(
        format=FORMAT,
        snapshot=snapshot,
        content_hash=content_hash,
        entities=len(postings.ids),
        keywords=len(postings.entities),
        vocabulary=len(postings.terms),
        files={name: _sha256(folder / f"{name}.npy") for name in _TYPES},
    )
    store.write_json(_MANIFEST, manifest.model_dump(mode="json"))


def open_saved(folder: Path, *, verify: bool = True) -> tuple[Postings, MirrorManifest]:
    """Map a saved mirror. `verify` compares every file's sha256 first (about 0.5 s per 300 MB).

    Raises:
        SnapshotError: not there, broken, or of another format.
    """
    manifest = _read_manifest(folder)
    arrays = {name: _map(folder, name, manifest, verify=verify) for name in _TYPES}
    postings = Postings(
        ids=SortedStrings(arrays["ids-offsets"], arrays["ids-data"]),
        terms=SortedStrings(arrays["terms-offsets"], arrays["terms-data"]),
        starts=arrays["starts"],
        entities=arrays["entities"],
        set_starts=arrays["set-starts"],
        set_terms=arrays["set-terms"],
        own=arrays["own"],
        length_codes=arrays["length-codes"],
    )
    found = (len(postings.ids), len(postings.entities), len(postings.terms))
    if found != (manifest.entities, manifest.keywords, manifest.vocabulary):
        raise _broken(folder, "its arrays do not have the sizes that its manifest says")
    return postings, manifest


def _read_manifest(folder: Path) -> MirrorManifest:
    store = Store(folder)
    if not store.exists(_MANIFEST):
        raise SnapshotError(f"There is no saved mirror in {folder}; build it from its snapshot.")
    data = store.read(_MANIFEST)
    try:
        version = _FormatOnly.model_validate_json(data).format
        if version != FORMAT:
            raise SnapshotError(
                f"The mirror in {folder} has format {version}, this version reads {FORMAT}; "
                "build it again from its snapshot."
            )
        return MirrorManifest.model_validate_json(data)
    except ValidationError as error:
        raise _broken(folder, f"{_MANIFEST} can't be read") from error


class _FormatOnly(BaseModel):
    format: int


def _map(folder: Path, name: str, manifest: MirrorManifest, *, verify: bool) -> NDArray[Any]:
    path = folder / f"{name}.npy"
    if not path.is_file():
        raise _broken(folder, f"{path.name} is not there")
    if verify and _sha256(path) != manifest.files.get(name):
        raise _broken(folder, f"{path.name} does not match its sha256")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise _broken(folder, f"{path.name} is cut short or no array") from error
    if array.dtype != _TYPES[name] or array.ndim != 1:
        raise _broken(folder, f"{path.name} has another type than this version's")
    return np.asarray(array)


def _broken(folder: Path, why: str) -> SnapshotError:
    return SnapshotError(
        f"The mirror in {folder} is broken: {why}; build it again from its snapshot."
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _arrays(postings: Postings) -> dict[str, NDArray[Any]]:
    return dict(zip(_TYPES, _in_order(postings), strict=True))


def _in_order(postings: Postings) -> Iterator[NDArray[Any]]:
    for strings in (postings.ids, postings.terms):
        yield strings.offsets
        yield strings.data
    yield postings.starts
    yield postings.entities
    yield postings.set_starts
    yield postings.set_terms
    yield postings.own
    yield postings.length_codes
