"""Manifests: the facts and the origin of a snapshot, and the list of a store's snapshots."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
)

from cogr.errors import SnapshotError
from cogr.item_fields import FieldType
from cogr.keywords import NORMALISER
from cogr.records import Side
from cogr.store import Store

FORMAT = 1
ID = re.compile(r"(?:item|query)-r\d{3,}-[0-9a-f]{12}")
"""The pattern of snapshot ids. Folders with other names are neither read nor removed."""
log = logging.getLogger(__name__)


class Manifest(BaseModel):
    """The facts and the origin of a snapshot. docs/snapshots.md describes each field."""

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
        """The right value of `checksum`: a sha256 over all other fields."""
        fields = json.dumps(self.model_dump(mode="json", exclude={"checksum"}), sort_keys=True)
        return hashlib.sha256(fields.encode()).hexdigest()

    def summed(self, **changed: Any) -> Manifest:
        """The manifest with these fields changed, and a new checksum."""
        made = self.model_copy(update=changed)
        return made.model_copy(update={"checksum": made.sum})


@dataclass(frozen=True)
class Provenance:
    """The fields of a manifest that the maker of a snapshot gives; the others are computed from the
    rows.
    """

    round: int = 0
    k_max: int = 30
    prompt_hash: str = ""
    generator: Mapping[str, Any] | None = None
    dataset_hash: str = ""
    parent: str | None = None
    cut_to_budget: int = 0
    set_aside: int = 0
    notes: Mapping[str, Any] | None = None


def manifest_path(snapshot_id: str) -> str:
    """The place of a snapshot's manifest in the store."""
    return f"snapshots/{snapshot_id}/manifest.json"


def id_of(side: Side, round_: int, content_hash: str) -> str:
    """The id of a snapshot: side, round and the first 12 digits of its content's hash."""
    return f"{side}-r{round_:03d}-{content_hash[:12]}"


def folders(store: Store) -> list[str]:
    """Names of the folders that have a manifest."""
    return [
        name
        for name in store.list("snapshots")
        if ID.fullmatch(name) and store.exists(manifest_path(name))
    ]


def list_snapshots(store: Store, side: Side | None = None) -> list[Manifest]:
    """The sound manifests of the store's snapshots, oldest first; `damaged_snapshots` finds the
    others.
    """
    found = []
    for id_ in folders(store):
        try:
            found.append(read_manifest(store, id_))
        except SnapshotError as error:
            log.info("%s", error)
    return sorted(
        (m for m in found if side is None or m.side == side), key=lambda m: (m.created, m.id)
    )


def read_manifest(store: Store, snapshot_id: str) -> Manifest:
    """The manifest of one snapshot. Raises SnapshotError when it is unknown or broken."""
    path = manifest_path(snapshot_id)
    if not ID.fullmatch(snapshot_id) or not store.exists(path):
        known = folders(store)
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
    if manifest.id != snapshot_id or manifest.id != id_of(
        manifest.side, manifest.round, manifest.content_hash
    ):
        raise SnapshotError(
            f"{where} belongs to another snapshot ({manifest.id!r}); rebuild it or restore it."
        )
    if manifest.checksum != manifest.sum:
        raise SnapshotError(f"{where} is broken (its checksum differs); rebuild it or restore it.")
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


def check_pair(item: Manifest, query: Manifest) -> None:
    """Refuse two snapshots whose keywords can't be compared. Raises SnapshotError."""
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
            f"{spoken} have different normalisers and can't be matched; rebuild both sides with "
            "--no-publish, then publish them in one call."
        )
