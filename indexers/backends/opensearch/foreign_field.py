"""The keywords of one snapshot as a field of an index that another team owns and writes to.

The target is that index. A field is added to its mapping, filled and verified; then a stored search
template uses it. Replacing the template is the switch, and atomic. Clients call the template by its
name, which never changes: `POST /<index>/_search/template {"id": NAME, "params": {"keywords":
[...]}}`. Its parameters are those of `<prefix>-search`; it returns whole documents, and the order
of ties is undefined.

Filling adds the field to every document that lacks it and changes nothing else. A sweep scrolls
through the documents without the field and updates the known ones partially, each only if it is
unchanged since it was read (`if_seq_no`, `if_primary_term`); changed ones are left to the next
sweep. After some sweeps the shard itself reads, merges and writes the remaining ones, under its own
version check. A document that has the field is done, so the same call goes on after a death.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from cogr.errors import CheckFailedError, UserError
from cogr.matching.bm25 import DEFAULT
from cogr.matching.mirror import Mirror
from indexers.backends import check_side
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.indexes import refresh
from indexers.backends.opensearch.mapping import IndexState
from indexers.backends.opensearch.search import template_source
from indexers.backends.opensearch.writer import Document, Seen, merge_into_documents

_FIELD = re.compile(r"[a-z][a-z0-9_]*")
_SUFFIX = r"r\d{3,}_[0-9a-f]{12}"


@dataclass(frozen=True)
class Target:
    """The index that gets the keywords. `name` is the team's, of an index or of an alias of one;
    `field` is the prefix of the fields' names.
    """

    name: str
    field: str
    state: IndexState

    @property
    def index(self) -> str:
        return self.state.name

    @property
    def is_alias(self) -> bool:
        return self.name in self.state.aliases

    @property
    def fields(self) -> list[str]:
        """The fields of snapshots that its mapping has."""
        return sorted(name for name in self.state.properties if snapshot_of(self.field, name))


def field_of(field: str, snapshot_id: str) -> str:
    """The field of one item snapshot, such as `cogr_keywords_r003_0123456789ab`."""
    check_side(snapshot_id, "item")
    return f"{field}_{snapshot_id.removeprefix('item-').replace('-', '_')}"


def snapshot_of(field: str, name: str) -> str | None:
    """The snapshot of a field; None for a field of another name."""
    if not re.fullmatch(rf"{re.escape(field)}_{_SUFFIX}", name):
        return None
    return f"item-{name.removeprefix(f'{field}_').replace('_', '-')}"


def open_target(cluster: Cluster, name: str, field: str) -> Target:
    """The index behind a name. Raises UserError where there is not one such index, or it is cogr's
    own, scores otherwise than by our BM25 or loses parts of documents, or the field is invalid.
    """
    if not _FIELD.fullmatch(field):
        raise UserError(
            f"--field {field!r} is not a field name; use small letters, digits and underscores."
        )
    doing = f"looking at the index {name}"
    found = cluster.call("GET", f"/{name}", doing=doing, missing_ok=True) or {}
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
    _check_whole_documents(state)
    return Target(name, field, state)


def _check_whole_documents(state: IndexState) -> None:
    """Refuse an index whose documents a partial update, or a copy, would index anew from less than
    they were indexed from.
    """
    source = state.mappings.get("_source", {})
    derived = state.settings.get("derived_source", {}).get("enabled", "false")
    lossy = {
        "_source.enabled = false": source.get("enabled", True) is False,
        "_source.excludes": bool(source.get("excludes")),
        "_source.includes": bool(source.get("includes")),
        "index.derived_source.enabled = true": str(derived) == "true",
    }
    if named := [setting for setting, holds in lossy.items() if holds]:
        raise UserError(
            f"The index {state.name} has {' and '.join(named)}, so an update would lose what its "
            "documents leave out; use an index that keeps whole documents, or publish to an index "
            "of CoGR's own."
        )


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
    """Add a snapshot's field to the mapping, unless it is there. Returns its name."""
    name = field_of(target.field, snapshot_id)
    mapping: dict[str, Any] = {"type": "keyword", "norms": True, "index_options": "freqs"}
    if cluster.version.has_use_similarity:
        mapping["use_similarity"] = True
    body, doing = {"properties": {name: mapping}}, f"adding the field {name} to {target.index}"
    cluster.call("PUT", f"/{target.index}/_mapping", body=body, doing=doing)
    return name


SWEEPS = 10
"""Most sweeps. If documents still lack the field, another program keeps replacing them."""
SHOWN = 10
"""Most ids that are named."""
CHECKED_SWEEPS = 3
"""Sweeps after which the shard does the updates, because the remaining documents change too often
between two requests.
"""
_PAGE = 1_000
_KEEP_ALIVE = "5m"


@dataclass
class Filled:
    """The result of filling.

    Attributes:
        conflicts: updates that were postponed because the document had changed meanwhile.
        unknown: documents that the snapshot lacks.
        absent: entities of the snapshot without a document in the index.
    """

    written: int = 0
    conflicts: int = 0
    sweeps: int = 0
    unknown: int = 0
    absent: int = 0
    first_unknown: list[str] = field(default_factory=list)
    first_absent: list[str] = field(default_factory=list)


def fill(cluster: Cluster, target: Target, name: str, mirror: Mirror) -> Filled:
    """Add the field to every document that the snapshot knows. Returns when none lacks it.

    Memory: a page of ids, the bulk chunks, and the mirror, which is mapped. Raises CheckFailedError
    where documents keep losing the field, and ServiceError; the same call goes on.
    """
    done, index = Filled(), target.index
    while True:
        done.sweeps, done.unknown, done.first_unknown = done.sweeps + 1, 0, []
        refresh(cluster, index)
        seen = Counter(known=0, without=0)
        changes = _changes(cluster, index, name, mirror, done, seen)
        written = merge_into_documents(cluster, index, changes)
        done.written += written
        done.conflicts += seen["known"] - written
        if not seen["known"]:
            break
        if done.sweeps == SWEEPS:
            raise CheckFailedError(
                f"After {SWEEPS} sweeps documents of {index} still lack the field {name}: "
                "something replaces whole documents "
                "all the while; let it update documents partially, or run the same command when "
                "it is quiet."
            )
    with_field = count(cluster, index, {"exists": {"field": name}})
    done.absent = max(0, len(mirror) - with_field - seen["without"])
    done.first_absent = [*islice(_absent(cluster, index, mirror), SHOWN)] if done.absent else []
    return done


def _changes(
    cluster: Cluster, index: str, name: str, mirror: Mirror, done: Filled, seen: Counter[str]
) -> Iterator[tuple[Seen, Document]]:
    """The updates of a sweep, which counts the documents that it finds in `done` and `seen`."""
    by_version = done.sweeps <= CHECKED_SWEEPS
    for hit in scroll(cluster, index, {"bool": {"must_not": {"exists": {"field": name}}}}):
        id_ = hit["_id"]
        place = mirror.ids.find(id_)
        if place < 0:
            done.unknown += 1
            done.first_unknown += [id_] if len(done.first_unknown) < SHOWN else []
        elif keywords := mirror.keywords_of(place):
            seen["known"] += 1
            version = (hit["_seq_no"], hit["_primary_term"]) if by_version else None
            yield Seen(id_, version, hit.get("_routing")), {name: list(keywords)}
        else:
            seen["without"] += 1


def scroll(cluster: Cluster, index: str, query: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every hit of a query at one point in time, with the number of its last change."""
    body = {
        "size": _PAGE,
        "query": query,
        "sort": ["_doc"],
        "_source": False,
        "seq_no_primary_term": True,
    }
    doing = f"reading the documents of {index}"
    answer = cluster.call(
        "POST", f"/{index}/_search", body=body, params={"scroll": _KEEP_ALIVE}, doing=doing
    )
    try:
        while hits := answer["hits"]["hits"]:
            yield from hits
            again = {"scroll": _KEEP_ALIVE, "scroll_id": answer["_scroll_id"]}
            # A page lost on the way can't be read again, because the scroll is past it. The next
            # sweep finds its documents.
            answer = cluster.call("POST", "/_search/scroll", body=again, doing=doing)
    finally:
        gone = {"scroll_id": [answer["_scroll_id"]]}
        cluster.call("DELETE", "/_search/scroll", body=gone, doing=doing, missing_ok=True)


def count(cluster: Cluster, index: str, query: dict[str, Any]) -> int:
    """How many documents a query finds, after a refresh."""
    refresh(cluster, index)
    doing = f"counting documents of {index}"
    return int(
        cluster.call("POST", f"/{index}/_count", body={"query": query}, doing=doing)["count"]
    )


def _absent(cluster: Cluster, index: str, mirror: Mirror) -> Iterator[str]:
    """Ids of the snapshot without a document in the index, in order."""
    ids = (mirror.id_of(place) for place in range(len(mirror)))
    while batch := list(islice(ids, _PAGE)):
        there = ids_there(cluster, index, batch)
        yield from (id_ for id_ in batch if id_ not in there)


def ids_there(cluster: Cluster, index: str, ids: Sequence[str]) -> set[str]:
    """The ids that have a document in the index."""
    query = {"size": len(ids), "query": {"ids": {"values": list(ids)}}, "_source": False}
    doing = f"looking for documents of {index}"
    answer = cluster.call("POST", f"/{index}/_search", body=query, doing=doing)
    return {hit["_id"] for hit in answer["hits"]["hits"]}


def check_values(
    cluster: Cluster, target: Target, name: str, mirror: Mirror, places: frozenset[int]
) -> int:
    """Compare the field of some documents with the snapshot. Returns how many of them exist. Raises
    CheckFailedError where another program has written to the field.
    """
    compared = 0
    ids = (mirror.id_of(place) for place in sorted(places))
    while batch := list(islice(ids, 100)):
        query = {"size": len(batch), "query": {"ids": {"values": batch}}, "_source": [name]}
        doing = f"reading {target.index}"
        answer = cluster.call("POST", f"/{target.index}/_search", body=query, doing=doing)
        for hit in answer["hits"]["hits"]:
            found, expected = hit["_source"].get(name), list(mirror.keywords_of(hit["_id"]))
            if found is not None and found != expected:
                raise CheckFailedError(
                    f"The field {name} of document {hit['_id']!r} in {target.index} is "
                    f"{found!r}, the snapshot says {expected!r}: "
                    "something else writes to it; remove the field's values there and run the "
                    "same command again."
                )
            compared += found is not None
    return compared


def template_name(prefix: str, target: Target) -> str:
    """The template's name, such as `shop-products-cogr_keywords`."""
    return f"{prefix}-{target.name}-{target.field}"


def switch(cluster: Cluster, template: str, name: str, text_fields: Sequence[str] = ()) -> None:
    """Make the template use a field, and search texts in the team's own fields."""
    made = template_source(name, id_field=None, shown=(), text_fields=text_fields)
    body, doing = {"lang": "mustache", "source": made}, f"storing the search template {template}"
    cluster.call("PUT", f"/_scripts/{template}", body={"script": body}, doing=doing)


def switched_to(cluster: Cluster, template: str, target: Target) -> str | None:
    """The snapshot whose field the template uses; None when there is no template yet."""
    doing = f"reading the template {template}"
    answer = cluster.call("GET", f"/_scripts/{template}", doing=doing, missing_ok=True)
    stored = answer["script"]["source"] if answer else ""
    named = (snapshot_of(target.field, word) for word in re.findall(r"\w+", stored))
    return next(filter(None, named), None)
