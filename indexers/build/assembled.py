"""What the last rebuild of a side was assembled from, so that a rerun with nothing changed need not
assemble it again.

A note in the store names the snapshot and a digest of everything that decided it: entities, keys,
the cache's files, budget, versions. Any difference, or a doubt, and the snapshot is assembled as if
there were no note. Nothing is generated here.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterable

from pydantic import BaseModel, ConfigDict, ValidationError

from cogr import __version__
from cogr.errors import SnapshotError
from cogr.keywords import NORMALISER
from cogr.records import Entity, Item, Side, self_text
from cogr.snapshots import open_snapshot
from cogr.store import Store
from indexers.build.parse_stats import ParseStats

log = logging.getLogger(__name__)


class Note(BaseModel):
    """The content of `assembled/<side>.json`; the counts are those that the snapshot's manifest
    does not have.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    digest: str
    snapshot: str
    cut_to_budget: int
    set_aside: int
    stats: ParseStats


def digest_of(entities: Iterable[Entity], keys: Iterable[bytes], **more: object) -> str:
    """One hash for all that decides a snapshot's rows.

    Args:
        entities, keys: in the plan's order, aligned.
        more: what else decides them, such as the budget and the state of the cache.
    """
    header = json.dumps(
        {**more, "cogr": __version__, "normaliser": NORMALISER}, sort_keys=True, default=str
    )
    digest = hashlib.blake2b(header.encode(), digest_size=32)
    for entity, key in zip(entities, keys, strict=True):
        fields = entity.fields_json if isinstance(entity, Item) else ""
        text = f"{len(entity.id)} {entity.id}\0{self_text(entity)}\0{fields}\0"
        digest.update(text.encode("utf-8", "surrogatepass") + key)
    return digest.hexdigest()


def recall(store: Store, side: Side, digest: str) -> Note | None:
    """The note of the last rebuild, when it was made from the very same and its snapshot is still
    there, and whole.
    """
    try:
        note = Note.model_validate_json(store.read(_path(side)))
        if note.digest != digest:
            return None
        open_snapshot(store, note.snapshot)
    except SnapshotError as error:
        log.info("It is assembled again: %s", error)
        return None
    except (OSError, ValidationError):
        return None
    return note


def remember(store: Store, side: Side, note: Note) -> None:
    """Leave the note; the former one is replaced."""
    store.write(_path(side), note.model_dump_json().encode())


def _path(side: Side) -> str:
    return f"assembled/{side}.json"
