"""An index of the real OpenSearch for one method of a comparison, and searches over it.

It is made when the method is fitted and removed when the method is closed.
"""

from __future__ import annotations

import json
import uuid
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cogr.records import Query
from cogr.settings import OpenSearchSettings
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.mapping import index_settings, mapping

Ranked = dict[str, list[tuple[str, float]]]

SERVER = "start one with cogr-ops opensearch start, and set opensearch.url or COGR_OPENSEARCH_URL"
"""How to get one."""


class Index:
    """One index of a cluster, which exists as long as this object. `texts` are pairs of an item's
    id and what its field `text` has.
    """

    def __init__(
        self,
        settings: OpenSearchSettings,
        body: Mapping[str, Any],
        texts: Iterable[tuple[str, Any]],
    ) -> None:
        self.cluster = Cluster(settings)
        self.name = f"{settings.prefix}-compare-{uuid.uuid4().hex[:12]}"
        self._call("PUT", "", "creating an index to compare with", body)
        self._gone = weakref.finalize(self, _remove, self.cluster, self.name)
        lines: list[Any] = []
        for id_, text in texts:
            lines += [{"index": {}}, {"id": id_, "text": text}]
        for at in range(0, len(lines), 2000):
            self._call("POST", "/_bulk", "indexing items to compare with", lines[at : at + 2000])
        self._call("POST", "/_refresh", "refreshing")
        self._call("POST", "/_forcemerge", "merging", params={"max_num_segments": "1"})

    def rank(
        self, queries: Sequence[Query], clauses: Sequence[Mapping[str, Any]], depth: int
    ) -> Ranked:
        """Rankings by one clause a query on the field `text`, equal scores by id."""
        found: Ranked = {}
        for at in range(0, len(queries), 50):
            lines: list[Any] = []
            for clause in clauses[at : at + 50]:
                lines += [{}, search_body(clause, depth)]
            answer = self._call("POST", "/_msearch", "searching", lines)
            for query, one in zip(queries[at : at + 50], answer["responses"], strict=True):
                hits = one.get("hits", {}).get("hits", [])
                found[query.id] = [(hit["fields"]["id"][0], float(hit["_score"])) for hit in hits]
        return found

    @property
    def count(self) -> int:
        """Number of items in the server's index."""
        return int(self._call("GET", "/_count", "counting")["count"])

    @property
    def bytes(self) -> int:
        """Of its primary shards on disk."""
        stats = self._call("GET", "/_stats/store", "asking for its size")
        return int(stats["_all"]["primaries"]["store"]["size_in_bytes"])

    def _call(
        self, method: str, path: str, doing: str, body: Any = None, params: Any = None
    ) -> Any:
        if isinstance(body, list):
            body = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in body).encode()
        return self.cluster.call(
            method, f"/{self.name}{path}", doing=doing, body=body, params=params
        )


def _remove(cluster: Cluster, name: str) -> None:
    """Remove an index made for a comparison; an unreachable server keeps it."""
    cluster.try_once("DELETE", f"/{name}", None)


def search_body(clause: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """A search by one clause: scores, ids, equal scores by id."""
    return {
        "size": depth,
        "_source": False,
        "track_scores": True,
        "docvalue_fields": ["id"],
        "sort": [{"_score": "desc"}, {"id": "asc"}],
        "query": dict(clause),
    }


def index_body(text: Mapping[str, Any], k1: float, b: float, analysis: Mapping[str, Any]) -> Any:
    """Settings and mapping of an index of one shard, whose field `text` is as given."""
    return {
        "settings": {
            "number_of_shards": 1,
            "number_of_replicas": 0,
            "index.similarity.default": {"type": "BM25", "k1": k1, "b": b},
            "analysis": analysis,
        },
        "mappings": {"properties": {"id": {"type": "keyword"}, "text": {"type": "text", **text}}},
    }


def keyword_body(settings: OpenSearchSettings) -> Any:
    """Settings and mapping of an index whose field `text` holds keywords, as the product's has."""
    field = mapping("item", Cluster(settings).version, {})["properties"]["keywords"]
    return {
        "settings": index_settings(1),
        "mappings": {"properties": {"id": {"type": "keyword"}, "text": field}},
    }
