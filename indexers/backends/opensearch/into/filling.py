"""The values of one snapshot's field: every document that lacks them gets them, and nothing else of
it is touched.

A sweep scrolls through the documents without the field and updates the known ones partially, each
only if nobody has changed it since it was read (`if_seq_no`, `if_primary_term`); what was changed
meanwhile is left to the next sweep. What is changed all the while is in the end updated by its
shard alone, which reads, merges and writes under its own version check. The field itself says what
is done, so a death costs nothing, and the same call goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from cogr.errors import CheckFailedError
from cogr.matching.mirror import Mirror
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.indexes import refresh
from indexers.backends.opensearch.into.target import Target
from indexers.backends.opensearch.writer import Document, Seen, merge_into_documents

SWEEPS = 10
"""After so many, documents that still lose the field are somebody's doing."""
SHOWN = 10
"""Ids that are named."""
CHECKED_SWEEPS = 3
"""After so many, what is still left is changed too often to be caught between two of
our requests.
"""
_PAGE = 1_000
_KEEP_ALIVE = "5m"


@dataclass
class Filled:
    """What filling did and found.

    Attributes:
        written: documents that got the field.
        conflicts: updates that were held back because somebody changed the document meanwhile; they
            were made later.
        unknown: documents that the snapshot does not know.
        absent: entities of the snapshot that the index has no document of.
    """

    written: int = 0
    conflicts: int = 0
    sweeps: int = 0
    unknown: int = 0
    absent: int = 0
    first_unknown: list[str] = field(default_factory=list)
    first_absent: list[str] = field(default_factory=list)


@dataclass
class _Sweep:
    """One pass over the documents without the field.

    `checked`: versions are compared by us, not by the shard.
    """

    checked: bool
    known: int = 0
    bare: int = 0
    unknown: list[str] = field(default_factory=list)
    unknown_count: int = 0


def fill(cluster: Cluster, target: Target, name: str, mirror: Mirror) -> Filled:
    """Give the field to every document that the snapshot knows. Returns when none lacks it.

    Memory: a page of ids, the bulk chunks, and the mirror, which is mapped.

    Raises:
        CheckFailedError: documents keep losing the field.
        ServiceError: the cluster went away; the same call goes on.
    """
    done = Filled()
    while True:
        done.sweeps += 1
        refresh(cluster, target.index)
        sweep = _Sweep(done.sweeps <= CHECKED_SWEEPS)
        written = merge_into_documents(
            cluster, target.index, _changes(cluster, target.index, name, mirror, sweep)
        )
        done.written += written
        done.conflicts += sweep.known - written
        if not sweep.known:
            break
        if done.sweeps == SWEEPS:
            raise CheckFailedError(
                f"After {SWEEPS} sweeps documents of {target.index} still lack the field {name}: "
                "something replaces whole documents "
                "all the while; let it update documents partially, or run the same command when "
                "it is quiet."
            )
    done.unknown, done.first_unknown = sweep.unknown_count, sweep.unknown
    with_field = count(cluster, target.index, {"exists": {"field": name}})
    done.absent = max(0, len(mirror) - with_field - sweep.bare)
    done.first_absent = (
        list(islice(_absent(cluster, target.index, mirror), SHOWN)) if done.absent else []
    )
    return done


def _changes(
    cluster: Cluster, index: str, name: str, mirror: Mirror, sweep: _Sweep
) -> Iterator[tuple[Seen, Document]]:
    for hit in scroll(cluster, index, {"bool": {"must_not": {"exists": {"field": name}}}}):
        id_ = hit["_id"]
        place = mirror.ids.find(id_)
        if place < 0:
            sweep.unknown_count += 1
            sweep.unknown += [id_] if len(sweep.unknown) < SHOWN else []
        elif keywords := mirror.keywords_of(place):
            sweep.known += 1
            version = (hit["_seq_no"], hit["_primary_term"]) if sweep.checked else None
            yield Seen(id_, version, hit.get("_routing")), {name: list(keywords)}
        else:
            sweep.bare += 1


def scroll(cluster: Cluster, index: str, query: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every hit of a query, as of one moment, with the number of its last change."""
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
            # A page that got lost on the way is lost: the scroll is past it. The next sweep finds
            # its documents again.
            answer = cluster.call("POST", "/_search/scroll", body=again, doing=doing)
    finally:
        gone = {"scroll_id": [answer["_scroll_id"]]}
        cluster.call("DELETE", "/_search/scroll", body=gone, doing=doing, missing_ok=True)


def count(cluster: Cluster, index: str, query: dict[str, Any]) -> int:
    """How many documents a query finds, after a refresh."""
    refresh(cluster, index)
    answer = cluster.call(
        "POST", f"/{index}/_count", body={"query": query}, doing=f"counting documents of {index}"
    )
    return int(answer["count"])


def _absent(cluster: Cluster, index: str, mirror: Mirror) -> Iterator[str]:
    """Ids of the snapshot that the index has no document of, in order."""
    ids = (mirror.id_of(place) for place in range(len(mirror)))
    while batch := list(islice(ids, _PAGE)):
        there = ids_there(cluster, index, batch)
        yield from (id_ for id_ in batch if id_ not in there)


def ids_there(cluster: Cluster, index: str, ids: Sequence[str]) -> set[str]:
    """Those of some ids that the index has a document of."""
    query = {"size": len(ids), "query": {"ids": {"values": list(ids)}}, "_source": False}
    answer = cluster.call(
        "POST", f"/{index}/_search", body=query, doing=f"looking for documents of {index}"
    )
    return {hit["_id"] for hit in answer["hits"]["hits"]}


def check_values(
    cluster: Cluster, target: Target, name: str, mirror: Mirror, places: frozenset[int]
) -> int:
    """Compare the field of some documents with the snapshot; the number that were there to compare.

    Raises:
        CheckFailedError: one has other values: something else writes to the field.
    """
    compared = 0
    ids = (mirror.id_of(place) for place in sorted(places))
    while batch := list(islice(ids, 100)):
        query = {"size": len(batch), "query": {"ids": {"values": batch}}, "_source": [name]}
        answer = cluster.call(
            "POST", f"/{target.index}/_search", body=query, doing=f"reading {target.index}"
        )
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
