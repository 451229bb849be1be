"""Snapshots: the frozen keyword sets of one side. Rewards, evaluation, indexes and rollbacks are
all computed from snapshots.

A snapshot is a folder with `keywords.parquet` (columns id, text, self, keywords; weights and
confidence of queries; keys of items' texts, see `texts`, and fields where items carry some; rows in
id order) and `manifest.json`, its facts and its origin, which is written last: a folder without it
is not a snapshot. Write-once. Its file `set_aside.jsonl` has the entities without keywords of their
own, and why. `writing` makes snapshots; they are opened and read here. Nothing here needs servers
or models.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import IO, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cogr.errors import SnapshotError
from cogr.keywords import NORMALISER, query_key, self_keyword, with_self
from cogr.mapped import SortedStrings, Strings, StringsSpool
from cogr.records import FieldType, FieldValue, Side, fields_of
from cogr.store import Store, as_line, sha256_of

_FORMAT = 1
ID = re.compile(r"(?:item|query)-r\d{3,}-[0-9a-f]{12}")
"""The pattern of snapshot ids. Folders with other names are neither read nor removed."""
log = logging.getLogger(__name__)


class Provenance(BaseModel):
    """The fields of a manifest that the maker of a snapshot gives; the others are computed from the
    rows.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    round: int = Field(0, ge=0)
    k_max: int = 30
    prompt_hash: str = ""
    generator: Mapping[str, Any] = {}
    dataset_hash: str = ""
    parent: str | None = None
    cut_to_budget: int = 0
    set_aside: int = 0
    notes: Mapping[str, Any] = {}
    texts: tuple[str, ...] | None = None


class Manifest(Provenance):
    """The facts and the origin of a snapshot. docs/snapshots.md describes each field."""

    format: int = _FORMAT
    id: str
    side: Side
    content_hash: str
    file_sha256: str
    entities: int
    keywords: int
    vocabulary: int
    empty: int
    read_hash: str = ""
    normaliser: str = NORMALISER
    created: str
    fields: Mapping[str, FieldType] = {}
    checksum: str = ""

    @property
    def sum(self) -> str:
        """The right value of `checksum`: a sha256 over all other fields."""
        fields = json.dumps(self.model_dump(mode="json", exclude={"checksum"}), sort_keys=True)
        return hashlib.sha256(fields.encode()).hexdigest()

    def summed(self, **changed: Any) -> Manifest:
        """The manifest with these fields changed, and a new checksum."""
        made = self.model_copy(update=changed)
        return made.model_copy(update={"checksum": made.sum})

    def provenance(self, **changed: Any) -> Provenance:
        """What the maker of the snapshot gave, with these fields changed."""
        return Provenance(**self.model_dump(include={*Provenance.model_fields}) | changed)


def manifest_path(snapshot_id: str) -> str:
    """The place of a snapshot's manifest in the store."""
    return f"snapshots/{snapshot_id}/manifest.json"


def id_of_snapshot(side: Side, round_: int, content_hash: str) -> str:
    """The id of a snapshot: side, round and the first 12 digits of its content's hash."""
    return f"{side}-r{round_:03d}-{content_hash[:12]}"


def side_of(snapshot_id: str) -> Side:
    """The side that a snapshot id begins with."""
    return "query" if snapshot_id.startswith("query-") else "item"


def round_of(snapshot_id: str) -> int:
    """The round that a snapshot id names."""
    return int(snapshot_id.split("-")[1].removeprefix("r"))


def check_side(snapshot_id: str, side: Side) -> None:
    """Refuse a snapshot of the other side. Raises SnapshotError."""
    if not snapshot_id.startswith(f"{side}-"):
        raise SnapshotError(
            f"Snapshot {snapshot_id} is not a snapshot of the side {side}; name one that is."
        )


def folders(store: Store) -> list[str]:
    """Names of the folders that have a manifest."""
    return [
        name
        for name in store.list("snapshots")
        if ID.fullmatch(name) and store.exists(manifest_path(name))
    ]


def list_snapshots(store: Store, side: Side | None = None) -> list[Manifest]:
    """The manifests of the store's snapshots that can be read, oldest first; `surveyed` finds the
    others.
    """
    manifests = []
    for id_ in folders(store):
        try:
            manifests.append(read_manifest(store, id_))
        except SnapshotError as error:
            log.info("%s", error)
    return [manifest for manifest in _by_age(manifests) if side in (None, manifest.side)]


def _by_age(manifests: Iterable[Manifest]) -> list[Manifest]:
    return sorted(manifests, key=lambda manifest: (manifest.created, manifest.id))


def read_manifest(store: Store, snapshot_id: str) -> Manifest:
    """The manifest of one snapshot. Raises SnapshotError when it is unknown or broken."""
    path = manifest_path(snapshot_id)
    if not ID.fullmatch(snapshot_id) or not store.exists(path):
        known = folders(store)
        have = (
            f"it has {', '.join(known[-3:])}"
            if known
            else "it has none yet; run cogr-index rebuild --side item"
        )
        raise SnapshotError(f"The store {store.url} has no snapshot {snapshot_id!r}: {have}.")
    where = f"The manifest of snapshot {snapshot_id} in {store.url}"
    try:
        manifest = Manifest.model_validate_json(store.read(path))
    except (ValidationError, OSError) as error:
        raise SnapshotError(f"{where} is broken; rebuild it or restore it.") from error
    if manifest.format != _FORMAT:
        raise SnapshotError(
            f"Snapshot {snapshot_id} has format {manifest.format}, this version reads {_FORMAT}; "
            "rebuild it."
        )
    if manifest.id != snapshot_id or manifest.checksum != manifest.sum:
        raise SnapshotError(
            f"{where} is broken (its id or checksum differs); rebuild it or restore it."
        )
    return manifest


class Paired(Protocol):
    """What decides whether two snapshots make a pair."""

    @property
    def round(self) -> int: ...

    @property
    def normaliser(self) -> str: ...


def why_no_pair(item: Paired, query: Paired) -> str:
    """Why keywords of these queries must not search these items; "" for a pair. A pair is of one
    round, since both sides learn together, and of one normaliser, which this version reads.
    """
    if item.round != query.round:
        return f"the items are of round {item.round} and the queries of round {query.round}"
    if item.normaliser != query.normaliser or item.normaliser != NORMALISER:
        return f"their normalisers are {item.normaliser} and {query.normaliser}"
    return ""


def check_normalisers(normalisers: Mapping[str, str]) -> None:
    """Refuse snapshots that can't be matched with one another. `normalisers`: version by snapshot
    id. Raises SnapshotError.
    """
    if len(set(normalisers.values())) > 1:
        spoken = " and ".join(f"{id_} ({normaliser})" for id_, normaliser in normalisers.items())
        raise SnapshotError(
            f"{spoken} have different normalisers and can't be matched; rebuild both sides with "
            "--no-publish, then publish them in one call."
        )


RULES = "rules"
"""The note of a manifest that has a merchant's rules."""
ROWS = 16_384
"""Rows of a batch, and of a row group of the file."""
WEIGHTS = pa.field("weights", pa.list_(pa.field("element", pa.float32(), nullable=False)))
"""The column of queries' weights: one for each keyword in order and one more, last, for the own
text; null where all are 1.
"""
CONFIDENCE = pa.field("confidence", pa.float32())
"""The column of queries' confidences; null where it is unknown."""


def rounded(value: float) -> float:
    """A weight or a confidence rounded to four significant digits, which float32 can represent."""
    return float(f"{value:.4g}")


@dataclass(frozen=True, slots=True)
class Row:
    """One entity of a snapshot.

    Attributes:
        text: its own text, unnormalised (query text, item title).
        keywords: its keyword set, distinct and normalised, in generation order, without the own
            text.
        fields_json: its extra fields (`cogr.records.typed`), as one JSON object; "" for none.
        weights: of a query, the boost of each keyword in the order of `keywords`, and last that of
            the own text; `rounded`. () where all are 1. What has a keyword of weight 0 is left out
            of the query's set.
        confidence: of a query, the expected F1 of what its keywords retrieve, 0 to 1, `rounded`;
            None where it is unknown.
        own: the own text as a keyword, None until it is computed.
        body: of an item, the key of its text beside the title (`cogr.snapshots.texts`); "" for
            none.
    """

    id: str
    text: str
    keywords: tuple[str, ...]
    fields_json: str = ""
    weights: tuple[float, ...] = ()
    confidence: float | None = None
    own: str | None = field(default=None, compare=False, repr=False)
    body: str = ""

    @property
    def self_keyword(self) -> str:
        """The own text as a keyword; "" when nothing of it is left."""
        return self_keyword(self.text) if self.own is None else self.own

    @property
    def key(self) -> str:
        """What a query's row is looked up by."""
        return query_key(self.text)

    @property
    def weighted(self) -> dict[str, float]:
        """S ∪ {self} -> weight, the own text first, for a search."""
        own = self.self_keyword
        if not self.weights:
            return dict.fromkeys(with_self(own, self.keywords), 1.0)
        *weights, last = self.weights
        result = {own: last} if own else {}
        for word, weight in zip(self.keywords, weights, strict=True):
            result.setdefault(word, weight)
        return result

    @property
    def unweighted(self) -> Row:
        """Without the weights of a ranker, but with those of a merchant's rules: a weight of 0, and
        that of a word in brackets, which nobody else can write.
        """
        words = (*self.keywords, "")
        weights = [
            weight if not weight or word.startswith("[") else 1.0
            for word, weight in zip(words, self.weights, strict=False)
        ]
        return replace(self, weights=() if set(weights) <= {1.0} else tuple(weights))

    @property
    def fields(self) -> Mapping[str, FieldValue]:
        """Its extra fields by name, parsed at each call."""
        return fields_of(self.fields_json)


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

    @property
    def base(self) -> Snapshot:
        """The snapshot without a merchant's rules that this one was made from; itself where it has
        none. Raises SnapshotError where that one was removed.
        """
        note = self.manifest.notes.get(RULES)
        return open_snapshot(self.store, note["base"]) if note else self

    def batches(self, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The rows as Arrow batches in id order, streaming; all columns, or only these."""
        with self._opened() as file:
            # Arrow's threads might still hold the file when the process ends, which would abort it.
            yield from pq.ParquetFile(file).iter_batches(ROWS, columns=columns, use_threads=False)

    def _opened(self) -> IO[bytes]:
        try:
            return self.store.open(self.path)
        except FileNotFoundError as error:
            raise SnapshotError(
                f"The rows of {self.id} were removed in the meantime; see cogr-index list, or "
                "rebuild it."
            ) from error

    def ids(self) -> SortedStrings:
        """The entities' ids, in a mapped file.

        Raises StorageError when the disk of temporary files is full.
        """
        return SortedStrings(self._spooled("id"))

    def texts(self) -> Strings:
        """The entities' own texts in id order, in a mapped file. Raises as `ids`."""
        return Strings(self._spooled("text"))

    def fields(self) -> Strings | None:
        """The entities' extra fields in id order, as JSON objects, in a mapped file; None where
        there are none. Raises as `ids`.
        """
        return Strings(self._spooled("fields")) if self.manifest.fields else None

    def _spooled(self, column: str) -> pa.LargeStringArray:
        spool = StringsSpool()
        for batch in self.batches([column]):
            spool.append(batch[column])
        return spool.arrow()

    def rows(self, numbers: Collection[int] | None = None) -> Iterator[Row]:
        """The rows in id order (code points ascending), streaming; all, or those with these
        numbers, counted from 0.
        """
        for batch in self.batches() if numbers is None else self._sample(numbers):
            yield from rows_of(batch)

    def _sample(self, numbers: Collection[int]) -> Iterator[pa.RecordBatch]:
        wanted, start = np.sort(np.fromiter(numbers, np.int64, len(numbers))), 0
        for batch in self.batches():
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


def rows_of(batch: pa.RecordBatch) -> Iterator[Row]:
    """The rows of a batch with the columns id, text and keywords, and maybe the others."""
    names = ("id", "text", "keywords", "fields", "weights", "confidence", "self", "body")
    columns = [_cells(batch, name) for name in names]
    for id_, text, words, fields, weights, sure, own, body in zip(*columns, strict=True):
        kept = tuple(weights or ())
        yield Row(id_, text, tuple(words), fields or "", kept, sure, own, body or "")


def _cells(batch: pa.RecordBatch, name: str) -> list[Any]:
    # A float32 becomes its shortest decimal form, which is the value before the conversion.
    if name not in batch.schema.names or batch[name].null_count == len(batch):
        return [None] * len(batch)
    column = batch[name]
    if name == "weights":
        column = column.cast(pa.list_(pa.string())).cast(pa.list_(pa.float64()))
    elif name == "confidence":
        column = column.cast(pa.string()).cast(pa.float64())
    return list(column.to_pylist())


def open_snapshot(store: Store, snapshot_id: str) -> Snapshot:
    """Open a snapshot, after comparing its file with the manifest's sha256. Raises SnapshotError
    where it is unknown, broken, or of another format or normaliser.
    """
    manifest = read_manifest(store, snapshot_id)
    if manifest.normaliser != NORMALISER:
        raise SnapshotError(
            f"Snapshot {snapshot_id} was written with normaliser {manifest.normaliser}, this "
            f"version reads {NORMALISER}; rebuild it."
        )
    snapshot = Snapshot(manifest, store)
    _verify_file(snapshot)
    return snapshot


def _verify_file(snapshot: Snapshot) -> None:
    try:
        with snapshot.store.open(snapshot.path) as file:
            digest = sha256_of(file)
    except OSError as error:
        raise SnapshotError(
            f"The keywords.parquet of snapshot {snapshot.id} in {snapshot.store.url} can't be read "
            f"({error.strerror or error}); rebuild it or restore it."
        ) from error
    if digest != snapshot.manifest.file_sha256:
        raise SnapshotError(
            f"Snapshot {snapshot.id} in {snapshot.store.url} does not match its manifest (sha256 "
            "differs); rebuild it or restore it."
        )


def surveyed(store: Store) -> tuple[list[Manifest], dict[str, str]]:
    """The manifests of `list_snapshots`; and id -> what is wrong, of the snapshots that can't be
    opened, which may be in both.

    On a local store every file is also read and its sha256 compared, about a gigabyte a second.
    """
    manifests, damage = [], {}
    for id_ in folders(store):
        try:
            manifests.append(read_manifest(store, id_))
            if store.is_local:
                _verify_file(Snapshot(manifests[-1], store))
        except SnapshotError as error:
            damage[id_] = str(error)
    return _by_age(manifests), damage


def write_set_aside(store: Store, snapshot_id: str, set_aside: Mapping[str, str]) -> None:
    """Write the file of a snapshot: id -> reason, in this order."""
    lines = (as_line({"id": id_, "reason": reason}) for id_, reason in set_aside.items())
    store.write(_set_aside_path(snapshot_id), b"".join(lines))


def read_set_aside(store: Store, snapshot_id: str) -> dict[str, str]:
    """id -> reason of a snapshot's entities that were set aside; empty where the snapshot has no
    such file.

    Raises SnapshotError when the file is damaged.
    """
    path = _set_aside_path(snapshot_id)
    try:
        lines = store.read(path).decode().splitlines() if store.exists(path) else []
        return {str(row["id"]): str(row["reason"]) for row in map(json.loads, lines)}
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SnapshotError(
            f"The file {path} in {store.url} is damaged; run cogr-index rebuild --side "
            f"{snapshot_id.split('-')[0]}."
        ) from error


def _set_aside_path(snapshot_id: str) -> str:
    return f"snapshots/{snapshot_id}/set_aside.jsonl"
