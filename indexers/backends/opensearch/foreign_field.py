"""The keywords of one snapshot as a field of an index that another team owns and writes to.

The target is that index. A field of the snapshot is added to its mapping, filled and compared; then
a field alias, whose name never changes, points to it. That is the switch, and atomic. Clients
search the alias.

Filling adds the field to every document that lacks it and changes nothing else. A sweep scrolls
through the documents without the field and updates the known ones partially; documents that were
replaced meanwhile are left to the next sweep. A document that has the field is done, so the same
call goes on after a death. The same update removes fields of earlier snapshots, so that documents
have two at most.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from pyroaring import BitMap

from cogr.errors import CheckFailedError, UserError
from cogr.keywords import NORMALISER
from cogr.matching.bm25 import DEFAULT
from cogr.matching.mirror import Mirror
from cogr.snapshots import check_side
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.indexes import IndexState, refresh
from indexers.backends.opensearch.push import Document, merge_into_documents
from indexers.backends.opensearch.search import ask, whole

_SUFFIX = r"r\d{3,}_[0-9a-f]{12}"
_ID_TYPES = ("keyword", "byte", "short", "integer", "long", "unsigned_long")


@dataclass(frozen=True)
class Target:
    """The index that gets the keywords. `name` is the team's, of an index or of an alias of one;
    `field` is the name of the field alias, and the prefix of the fields of snapshots. `id_field` is
    where a document has the id of its item: in `_id`, or in a field of keywords or whole numbers.
    """

    name: str
    field: str
    state: IndexState
    id_field: str

    @property
    def index(self) -> str:
        return self.state.name

    @property
    def fields(self) -> list[str]:
        """The fields of snapshots that its mapping has."""
        return sorted(name for name in self.state.properties if snapshot_of(self.field, name))

    @property
    def serving(self) -> str | None:
        """The snapshot whose field the field alias points to."""
        return snapshot_of(self.field, self.state.properties.get(self.field, {}).get("path", ""))

    @property
    def wanted(self) -> dict[str, Any]:
        """What a search has to ask for. A document whose item may change is written only if it has
        not been since.
        """
        if self.id_field == "_id":
            return {}
        return {"docvalue_fields": [self.id_field], "seq_no_primary_term": True}

    def item_of(self, hit: Mapping[str, Any]) -> str:
        """The item's id; "" where the document has none, or several, as one with variants."""
        ids = {"_id": [hit["_id"]], **hit.get("fields", {})}.get(self.id_field, [])
        return str(ids[0]) if len({*ids}) == 1 else ""


def field_of(field: str, snapshot_id: str) -> str:
    """The field of one item snapshot, such as `cogr_keywords_r003_0123456789ab`."""
    check_side(snapshot_id, "item")
    return f"{field}_{snapshot_id.removeprefix('item-').replace('-', '_')}"


def snapshot_of(field: str, name: str) -> str | None:
    """The snapshot of a field; None for a field of another name."""
    if not re.fullmatch(rf"{re.escape(field)}_{_SUFFIX}", name):
        return None
    return f"item-{name.removeprefix(f'{field}_').replace('_', '-')}"


def open_target(cluster: Cluster, name: str, field: str, id_field: str = "_id") -> Target:
    """The index behind a name. Raises UserError where there is not one such index, or it is cogr's
    own, scores otherwise than by our BM25 or loses parts of documents, or a field is invalid.
    """
    doing = f"looking at the index {name}"
    indexes = cluster.call("GET", f"/{name}", doing=doing, missing_ok=True) or {}
    if len(indexes) != 1:
        names = ", ".join(sorted(indexes)) or "nothing"
        raise UserError(
            f"{name} names {names} at {cluster.url}; name one index, or an alias of one."
        )
    ((index, answer),) = indexes.items()
    state = IndexState.read(index, answer)
    for flaw in _flaws(state):
        raise UserError(
            f"The index {index} {flaw}; name another index that holds your products, or "
            "publish to an index of CoGR's own."
        )
    _check_fields(state, field)
    _check_id_field(state, id_field)
    return Target(name, field, state, id_field)


def _check_id_field(state: IndexState, id_field: str) -> None:
    type_ = field_in(state.properties, id_field).get("type")
    if id_field != "_id" and type_ not in _ID_TYPES:
        raise UserError(
            f"serving.into.id_field {id_field!r} is "
            f"{f'of type {type_}' if type_ else 'not a field'} in the index {state.name}; "
            "give a field of keywords or whole numbers, such as sku."
        )


def field_in(properties: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """The mapping of a field, such as `codes.sku`; empty where there is none."""
    mapping: Mapping[str, Any] = {"properties": properties}
    for part in name.split("."):
        mapping = {**mapping.get("properties", {}), **mapping.get("fields", {})}.get(part, {})
    return mapping


def _check_fields(state: IndexState, field: str) -> None:
    path = state.properties.get(field, {}).get("path", "")
    if path and not snapshot_of(field, path):
        raise UserError(
            f"The index {state.name} has a field {field} that is an alias of {path}, which CoGR "
            "did not make; choose another serving.into.field."
        )
    for name, made in state.properties.items():
        wanted = "alias" if name == field else "keyword" if snapshot_of(field, name) else None
        if wanted and made.get("type") != wanted:
            raise UserError(
                f"The index {state.name} has a field {name} of type {made.get('type', 'object')} "
                "that CoGR did not make; leave it out of the copy of the documents, copy the "
                "mapping too, or choose another serving.into.field."
            )


def _flaws(state: IndexState) -> Iterator[str]:
    if state.snapshot:
        yield "is one of cogr's own"
    similarity: Mapping[str, Any] = state.settings.get("similarity", {}).get("default", {})
    formula = (float(similarity.get("k1", DEFAULT.k1)), float(similarity.get("b", DEFAULT.b)))
    if similarity.get("type", "BM25") != "BM25" or formula != (DEFAULT.k1, DEFAULT.b):
        yield f"scores keywords otherwise than BM25 with k1 {DEFAULT.k1} and b {DEFAULT.b}"
    source = state.mappings.get("_source", {})
    derived = state.settings.get("derived_source", {}).get("enabled", "false")
    if set(source) - {"enabled"} or not source.get("enabled", True) or str(derived) == "true":
        yield (
            "does not keep whole documents (_source, derived_source), so that an update would lose "
            "what they leave out"
        )


def add_field(
    cluster: Cluster, target: Target, snapshot_id: str, covered: float | None = None
) -> str:
    """Add a snapshot's field to the mapping, unless it is there, with what wrote it: the id field,
    and when it is filled the share of documents that it covers. Returns its name.
    """
    name = field_of(target.field, snapshot_id)
    if covered is None and name in target.fields:
        return name
    mapping: dict[str, Any] = {"type": "keyword", "norms": True, "index_options": "freqs"}
    mapping["meta"] = {"normaliser": NORMALISER, "id_field": target.id_field}
    if cluster.version.has_use_similarity:
        mapping["use_similarity"] = True
    if covered is not None:
        mapping["meta"]["covered"] = f"{covered:.4f}"
    _map(cluster, target, name, mapping, f"adding the field {name} to {target.index}")
    return name


def point_to(cluster: Cluster, target: Target, name: str) -> None:
    """Let the field alias, which clients search, point to a snapshot's field."""
    doing = f"pointing {target.field} of {target.index} to {name}"
    _map(cluster, target, target.field, {"type": "alias", "path": name}, doing)


def _map(cluster: Cluster, target: Target, name: str, made: dict[str, Any], doing: str) -> None:
    body = {"properties": {name: made}}
    cluster.call("PUT", f"/{target.index}/_mapping", body=body, doing=doing)


SWEEPS = 10
"""Most sweeps. If many documents still lack the field, another program keeps replacing them."""
_SHOWN = 10
"""Most ids of a kind that are named."""
LOW = 0.9
"""A smaller share of documents with keywords is worth a warning."""
_PAGE = 1_000
_KEEP_ALIVE = "5m"


@dataclass
class Coverage:
    """How an index compares with a snapshot. A document is `covered` (has its item's keywords),
    `lacking` (has none yet), `different` (has others, or has some but is no item's) or `unknown`
    (is no item's). `absent` counts items without a document; `first` names some ids of each kind
    but `covered`.
    """

    documents: int = 0
    covered: int = 0
    unknown: int = 0
    lacking: int = 0
    different: int = 0
    absent: int = 0
    first: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, id_: str) -> None:
        """Count one more of a kind."""
        setattr(self, kind, getattr(self, kind) + 1)
        if kind != "covered" and len(named := self.first.setdefault(kind, [])) < _SHOWN:
            named.append(id_)

    @property
    def share(self) -> float:
        """The share of documents that have their keywords."""
        return self.covered / max(1, self.documents)

    def spoken(self, index: str) -> str:
        """The counts as a sentence, with examples."""
        kinds = {
            "unknown": "are of no item of the snapshot",
            "lacking": "have no keywords",
            "different": "have other keywords",
            "absent": "items have no document",
        }
        told = [
            f"{count} {what} (such as {', '.join(map(repr, self.first[kind][:2]))})"
            for kind, what in kinds.items()
            if (count := getattr(self, kind))
        ]
        return (
            f"{self.covered} of {self.documents} documents of {index} ({self.share:.0%}) have the "
            f"snapshot's keywords{''.join(f'; {one}' for one in told)}"
        )


def fill(cluster: Cluster, target: Target, fields: Sequence[str], mirror: Mirror) -> int:
    """Add the first of the fields to every document of an item with keywords, in place of those of
    earlier snapshots, but for the one that serves and the other `fields`. Returns how many got it,
    when none lacks it, or after SWEEPS few do, which others replace all the time.

    Memory: a page of ids, the bulk chunks, and the mirror, which is mapped. Raises CheckFailedError
    where documents keep losing the field, and ServiceError; the same call goes on.
    """
    done, index, name = 0, target.index, fields[0]
    serving = target.state.properties.get(target.field, {}).get("path")
    old = [one for one in target.fields if one not in (*fields, serving)]
    gone = [one for one, count in holders(cluster, target, old).items() if count]
    for _ in range(SWEEPS):
        refresh(cluster, index)
        changes = _wrong(cluster, target, name, mirror, held=False)
        written = merge_into_documents(cluster, index, changes, gone)
        if not written:
            return done
        done += written
    if written <= (1 - LOW) * holders(cluster, target, [name])[name]:
        return done
    raise CheckFailedError(
        f"After {SWEEPS} sweeps {written} documents of {index} still lacked the field {name}: "
        "another program keeps replacing whole documents; have it update them partially, or run "
        "the same command when it is idle."
    )


def holders(cluster: Cluster, target: Target, fields: Sequence[str]) -> dict[str, int]:
    """How many documents have each of these fields."""
    if not fields:
        return {}
    held = {"filters": {"filters": {one: {"exists": {"field": one}} for one in fields}}}
    body = {"size": 0, "track_total_hits": True, "aggs": {"held": held}}
    buckets = ask(cluster, target.index, body)["aggregations"]["held"]["buckets"]
    return {one: bucket["doc_count"] for one, bucket in buckets.items()}


def mend(cluster: Cluster, target: Target, name: str, mirror: Mirror) -> int:
    """Write the keywords of documents anew that have others, such as of the item that they were of
    before, and remove those of documents that are no item's. Returns how many were written.
    """
    refresh(cluster, target.index)
    others = merge_into_documents(cluster, target.index, _wrong(cluster, target, name, mirror))
    nobodys = _wrong(cluster, target, name, mirror, known=False)
    return others + merge_into_documents(cluster, target.index, nobodys, [name])


def _wrong(
    cluster: Cluster,
    target: Target,
    name: str,
    mirror: Mirror,
    *,
    held: bool = True,
    known: bool = True,
) -> Iterator[tuple[Mapping[str, Any], Document]]:
    """Of the documents that have the field, or lack it, those that should have other keywords; or
    not `known`: those that should have none.
    """
    exists = {"exists": {"field": name}}
    query = exists if held else {"bool": {"must_not": exists}}
    shown = [name] if held else False
    for hit in scroll(cluster, target.index, query, _source=shown, **target.wanted):
        place = mirror.ids.find(target.item_of(hit))
        keywords = list(mirror.keywords_of(place)) if place >= 0 else []
        if hit.get("_source", {}).get(name) != keywords and bool(keywords) == known:
            yield hit, {name: keywords} if known else {}


def scroll(
    cluster: Cluster, index: str, query: Mapping[str, Any], **wanted: Any
) -> Iterator[dict[str, Any]]:
    """Every hit of a query at one point in time. Raises ServiceError where only a part of the
    shards answers.
    """
    body = {"size": _PAGE, "query": query, "sort": ["_doc"], "_source": False, **wanted}
    path, doing = f"/{index}/_search", f"reading the documents of {index}"
    answer = cluster.call("POST", path, body=body, params={"scroll": _KEEP_ALIVE}, doing=doing)
    try:
        while hits := whole(cluster, index, answer)["hits"]["hits"]:
            yield from hits
            again = {"scroll": _KEEP_ALIVE, "scroll_id": answer["_scroll_id"]}
            # A page lost on the way can't be read again, because the scroll is past it. The next
            # sweep finds its documents.
            answer = cluster.call("POST", "/_search/scroll", body=again, doing=doing)
    finally:
        gone = {"scroll_id": [answer["_scroll_id"]]}
        cluster.call("DELETE", "/_search/scroll", body=gone, doing=doing, missing_ok=True)


def compare_field(cluster: Cluster, target: Target, name: str, mirror: Mirror) -> Coverage:
    """Compare every document with the snapshot. Memory: a page of documents, and a bit an item."""
    coverage, met = Coverage(), BitMap()
    refresh(cluster, target.index)
    everything: dict[str, Any] = {"match_all": {}}
    for hit in scroll(cluster, target.index, everything, _source=[name], **target.wanted):
        coverage.documents += 1
        place = mirror.ids.find(target.item_of(hit))
        has = hit["_source"].get(name)
        if place < 0:
            coverage.add("different" if has else "unknown", hit["_id"])
            continue
        met.add(place)
        expected = list(mirror.keywords_of(place))
        same, lacks = (has or []) == expected, has is None
        coverage.add("covered" if same else "lacking" if lacks else "different", hit["_id"])
    coverage.absent = len(mirror) - len(met)
    absent = (mirror.ids[place] for place in range(len(mirror)) if place not in met)
    coverage.first |= {"absent": [*islice(absent, _SHOWN)]} if coverage.absent else {}
    return coverage
