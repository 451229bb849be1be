"""The documents of an index in id order, compared with a snapshot's rows piece by piece.

Each piece is one search over a range of ids and owes nothing to the one before, so that a
comparison can stop and go on anywhere. Which rows make a piece, and what becomes of the
differences, is `indexers.release.verify`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cogr.records import Side
from cogr.snapshots import Row
from indexers.backends.checks import mismatches
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.mapping import document, id_field
from indexers.backends.opensearch.search import checked
from indexers.backends.protocol import Mismatch

PAGE = 2_000
"""Documents of one answer."""


def compare(
    cluster: Cluster, index: str, side: Side, rows: Sequence[Row], after: str, *, last: bool
) -> list[Mismatch]:
    """See `Backend.compare`.

    A document is known by its `_id`; one whose id field says otherwise differs in that field.
    """
    expected = {
        row.id: document(
            side, row.id, row.text, row.self_keyword, list(row.keywords), row.fields_json
        )
        for row in rows
    }
    bounds = {"gt": after} if after else {}
    if not last:
        bounds["lte"] = rows[-1].id
    held = {"range": {id_field(side): bounds}} if bounds else {"exists": {"field": id_field(side)}}
    found = dict(_documents(cluster, index, side, held))
    if last:
        nameless = {"bool": {"must_not": {"exists": {"field": id_field(side)}}}}
        found |= dict(_documents(cluster, index, side, nameless))
    return list(mismatches(expected, found))


def _documents(
    cluster: Cluster, index: str, side: Side, query: Mapping[str, Any]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(`_id`, document) of everything that the query finds, page by page, in the order of the id
    field.
    """
    body: dict[str, Any] = {
        "size": PAGE,
        "query": {"bool": {"filter": query}},
        "sort": [{id_field(side): "asc"}],
        "track_total_hits": True,
    }
    doing = f"reading documents of {index}"
    while True:
        answer = checked(
            cluster.call("POST", f"/{index}/_search", body=body, doing=doing), cluster.url, index
        )
        hits = answer["hits"]["hits"]
        for hit in hits:
            yield hit["_id"], hit["_source"]
        if len(hits) < PAGE or hits[-1]["sort"] == [None]:
            return
        body["search_after"] = hits[-1]["sort"]
