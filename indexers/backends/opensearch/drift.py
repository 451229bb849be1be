"""How far the statistics behind an index's scores are from those of its snapshot.

A document that is replaced or removed counts on as a deleted one until the cluster merges it away: in the number of documents (N),
in their average length (avgdl), and in how many have a keyword (docFreq). A frozen index has none; one that was changed in place drifts.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from cogr.snapshots import Snapshot
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.indexes import stats

MOST_KEYWORDS = 1_000
"""Changed keywords whose docFreq is compared."""


@dataclass(frozen=True)
class Statistics:
    """What BM25 reads: documents with a keyword, keywords in all, and documents that have each of some keywords."""

    documents: int
    keywords: int
    frequencies: Mapping[str, int]


@dataclass(frozen=True)
class Drift:
    """Relative errors of the statistics.

    Attributes:
        deleted: deleted documents that are not merged away; marks of removals are among them, which score nothing.
        documents: of N.
        length: of avgdl.
        idf: the largest one of an idf among the changed keywords; what a wrong docFreq comes to.
        keyword: the keyword that has it; "" for none.
    """

    deleted: int
    documents: float
    length: float
    idf: float
    keyword: str

    @property
    def largest(self) -> float:
        """The largest of the errors."""
        return max(self.documents, self.length, self.idf)


def exact_statistics(snapshot: Snapshot, words: Collection[str]) -> Statistics:
    """A snapshot's own statistics. One pass over its rows."""
    documents = keywords = 0
    frequencies = dict.fromkeys(words, 0)
    for row in snapshot.rows():
        own = {word for word in (row.self_keyword, *row.keywords) if word}
        documents += bool(own)
        keywords += len(own)
        for word in own & frequencies.keys():
            frequencies[word] += 1
    return Statistics(documents, keywords, frequencies)


def live_statistics(cluster: Cluster, index: str, words: Collection[str]) -> Statistics:
    """What the one shard of an index scores by, deleted documents included."""
    body = {
        "doc": {"keywords": sorted(words)},
        "fields": ["keywords"],
        "field_statistics": True,
        "term_statistics": True,
        "positions": False,
        "offsets": False,
    }
    doing = f"reading the statistics of {index}"
    answer = cluster.call("POST", f"/{index}/_termvectors", body=body, doing=doing)["term_vectors"]
    if "keywords" not in answer:
        return Statistics(0, 0, dict.fromkeys(words, 0))
    field, terms = answer["keywords"]["field_statistics"], answer["keywords"]["terms"]
    frequencies = {word: int(terms.get(word, {}).get("doc_freq", 0)) for word in words}
    return Statistics(field["doc_count"], field["sum_ttf"], frequencies)


def drift(live: Statistics, exact: Statistics, deleted: int) -> Drift:
    """The errors of live statistics, with idf as in `cogr.bm25`. Keywords that no entity has any more are left out."""
    lengths = [some.keywords / some.documents if some.documents else 0.0 for some in (live, exact)]
    errors = [
        (_error(_idf(live.documents, live.frequencies[word]), _idf(exact.documents, count)), word)
        for word, count in exact.frequencies.items()
        if count
    ]
    worst, keyword = max(errors, default=(0.0, ""))
    return Drift(deleted, _error(live.documents, exact.documents), _error(*lengths), worst, keyword if worst else "")


def _idf(documents: int, frequency: int) -> float:
    return math.log(1 + (documents - frequency + 0.5) / (frequency + 0.5))


def _error(found: float, right: float) -> float:
    return abs(found / right - 1) if right else float(found != right)


def deleted_documents(cluster: Cluster, index: str) -> int:
    """Deleted documents that are not merged away."""
    return int(stats(cluster, index, "docs")["docs"]["deleted"])
