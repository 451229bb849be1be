"""Request bodies that combine keywords with what a team has; docs/combining.md shows them,
`bench_combining.py` measures them.

`text` is a shopper's query, `clause` the OpenSearch query of its keywords, `vector` its embedding.
Nothing here sends anything.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

Body = dict[str, Any]
FIELDS = ("title^2", "text")
SIGNAL = "popularity"
"""A number that a team ranks by: sales, clicks, margin."""
NEIGHBOURS = 100


def words(text: str) -> Body:
    """What the team asks today."""
    return {"multi_match": {"query": text, "fields": list(FIELDS)}}


def weighted(query: Any, boost: float) -> Body:
    """A query whose scores are multiplied."""
    return {"bool": {"should": [query], "boost": boost}}


def neighbours(vector: Any) -> Body:
    """The nearest embeddings."""
    return {"knn": {"embedding": {"vector": vector, "k": NEIGHBOURS}}}


def any_of(*queries: Body) -> Body:
    """Items that any of the queries finds, by the sum of their scores."""
    return {"query": {"bool": {"should": list(queries)}}}


def today(text: str) -> Body:
    return {"query": words(text)}


def alone(clause: Any) -> Body:
    """(a) Keywords find and rank."""
    return {"query": clause}


def beside_text(text: str, clause: Any, boost: float) -> Body:
    """(b) Words or keywords find, both rank."""
    return any_of(words(text), weighted(clause, boost))


def two_tiers(text: str, clause: Any, boost: float) -> Body:
    """First what keywords find and what the words name, then what more the words find."""
    first = _first(text, clause)
    above = {"constant_score": {"filter": first["query"], "boost": 1024}}
    return any_of(clause, weighted(words(text), boost), above)


def _first(text: str, clause: Any) -> Body:
    every = {"multi_match": {"query": text, "fields": ["title"], "operator": "and"}}
    return any_of(clause, every)


def counted(text: str, clause: Any) -> Body:
    """Count and facets of the first tier."""
    brands = {"brands": {"terms": {"field": "brand"}}}
    return {**_first(text, clause), "size": 0, "track_total_hits": True, "aggs": brands}


def as_filter(text: str, clause: Any) -> Body:
    """(c) Keywords find, words rank; what no word is in comes last."""
    return {"query": {"bool": {"filter": [clause], "should": [words(text)]}}}


def rescored(text: str, clause: Any, weight: float) -> Body:
    """(c) Keywords find and rank, words rank the best hundred again."""
    again = {"rescore_query": words(text), "query_weight": 1, "rescore_query_weight": weight}
    return {"query": clause, "rescore": {"window_size": 100, "query": again}}


def by_signal(text: str, clause: Any, boost: float, factor: float) -> Body:
    """(c) Keywords find; words, keywords and the team's own signal rank."""
    found = {"bool": {"filter": [clause], "should": [words(text), weighted(clause, boost)]}}
    signal = {"field": SIGNAL, "modifier": "log1p", "factor": factor, "missing": 0}
    return {
        "query": {
            "function_score": {"query": found, "field_value_factor": signal, "boost_mode": "sum"}
        }
    }


def text_and_vectors(text: str, vector: Any, nearness: float) -> Body:
    """Words or nearness find, both rank: what a team with vectors asks today."""
    return any_of(words(text), weighted(neighbours(vector), nearness))


def beside_both(text: str, clause: Any, vector: Any, boost: float, nearness: float) -> Body:
    """(d) Words, keywords or nearness find, all rank."""
    return any_of(words(text), weighted(clause, boost), weighted(neighbours(vector), nearness))


def reciprocal_rank_fusion(rankings: Sequence[Sequence[str]], k: int = 60) -> list[str]:
    """(d) Several rankings as one: 1 / (k + rank), summed (Cormack, Clarke and Büttcher 2009).

    Ties in id order.
    """
    scores: defaultdict[str, float] = defaultdict(float)
    for ranking in rankings:
        for rank, id_ in enumerate(ranking, start=1):
            scores[id_] += 1 / (k + rank)
    return sorted(scores, key=lambda id_: (-scores[id_], id_))
