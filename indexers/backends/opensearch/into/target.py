"""The index of another team, and the field that a snapshot gets in it.

Adds to the mapping; writes no document.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cogr.errors import UserError
from cogr.matching.bm25 import DEFAULT
from indexers.backends.checks import check_side
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.mapping import IndexState

_FIELD = re.compile(r"[a-z][a-z0-9_]*")
_SUFFIX = r"r\d{3,}_[0-9a-f]{12}"


@dataclass(frozen=True)
class Target:
    """Where the keywords go.

    Attributes:
        name: what the team calls it, an index or an alias of one.
        field: what the names of the fields begin with.
        state: the one index behind the name.
    """

    name: str
    field: str
    state: IndexState

    @property
    def index(self) -> str:
        return self.state.name

    @property
    def is_alias(self) -> bool:
        return self.name != self.index

    @property
    def fields(self) -> list[str]:
        """The fields of snapshots that its mapping has."""
        return sorted(name for name in self.state.properties if snapshot_of(self.field, name))


def field_of(field: str, snapshot_id: str) -> str:
    """The field of one item snapshot, such as `cogr_keywords_r003_0123456789ab`.

    Raises SnapshotError for a query snapshot.
    """
    check_side(snapshot_id, "item")
    return f"{field}_{snapshot_id.removeprefix('item-').replace('-', '_')}"


def snapshot_of(field: str, name: str) -> str | None:
    """The snapshot that a field is of; None for a field that is none of ours."""
    if not re.fullmatch(rf"{re.escape(field)}_{_SUFFIX}", name):
        return None
    return f"item-{name.removeprefix(f'{field}_').replace('_', '-')}"


def open_target(cluster: Cluster, name: str, field: str) -> Target:
    """The index behind a name.

    Raises:
        UserError: there is none, or several, or it is one of cogr's own, or it scores otherwise
            than BM25 with our parameters, or the field's name is none.
    """
    if not _FIELD.fullmatch(field):
        raise UserError(
            f"--field {field!r} is no name of a field; use small letters, digits and underscores."
        )
    found = (
        cluster.call("GET", f"/{name}", doing=f"looking at the index {name}", missing_ok=True) or {}
    )
    if len(found) != 1:
        names = ", ".join(sorted(found)) or "nothing"
        raise UserError(
            f"{name} names {names} at {cluster.url}; give --into one index, or an alias of one."
        )
    ((index, answer),) = found.items()
    state = IndexState.read(index, answer)
    if state.snapshot:
        raise UserError(
            f"The index {index} is one of cogr's own; give --into the index that holds your "
            "products."
        )
    _check_similarity(state)
    return Target(name, field, state)


def _check_similarity(state: IndexState) -> None:
    default: Mapping[str, Any] = state.settings.get("similarity", {}).get("default", {})
    same = default.get("type", "BM25") == "BM25" and (
        float(default.get("k1", DEFAULT.k1)),
        float(default.get("b", DEFAULT.b)),
    ) == (DEFAULT.k1, DEFAULT.b)
    if not same:
        raise UserError(
            f"The index {state.name} has a default similarity of its own ({dict(default)}), by "
            "which keywords would be scored "
            f"otherwise than in training; keep BM25 with k1 {DEFAULT.k1} and b {DEFAULT.b}, or "
            "publish to an index of cogr's own."
        )


def add_field(cluster: Cluster, target: Target, snapshot_id: str) -> str:
    """Add a snapshot's field to the mapping, where it is not there yet; its name."""
    name = field_of(target.field, snapshot_id)
    mapping: dict[str, Any] = {"type": "keyword", "norms": True, "index_options": "freqs"}
    if cluster.version.has_use_similarity:
        mapping["use_similarity"] = True
    body = {"properties": {name: mapping}}
    cluster.call(
        "PUT",
        f"/{target.index}/_mapping",
        body=body,
        doing=f"adding the field {name} to {target.index}",
    )
    return name
