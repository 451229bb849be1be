"""The answers of the expander and OpenSearch as values, and the memory of expansions. Nothing here
sends requests.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from threading import Lock
from typing import Any

from cachetools import TTLCache

_SEPARATORS = re.compile(r"[\s,;、،؛]+")


class SearchError(Exception):
    """OpenSearch can't be reached, refuses, or returns only a part of an answer."""


class RefusedError(ValueError):
    """The expander refuses the request: a wrong token, too long a query.

    There is no fallback, since the caller has to correct the request.
    """


@dataclass(frozen=True)
class Expansion:
    """A query's keywords.

    Attributes:
        keywords: the normalised query first, then its keywords.
        source: cache, index, model, or none; with none the query is the only keyword.
        reason: for the source none, why; "no expander" when the expander did not answer.
        clause: the OpenSearch query, for a body of your own: first the set, then what more the
            text finds. The fallback's has the query alone.
        set: the query of the set alone, as a filter for counts and facets.
        index: the index to search, so that keywords and items belong to one round; None to use the
            alias.
        snapshots: ids of the pair of snapshots.
        weights: boost of each keyword; () where all are 1.
        confidence: expected F1 of what the keywords retrieve, 0 to 1; None where it is unknown.
        text_boost: weight of the text's score beside the keywords'.
    """

    keywords: Sequence[str]
    source: str
    reason: str
    clause: Mapping[str, Any]
    set: Mapping[str, Any]
    index: str | None = None
    snapshots: Mapping[str, str | None] = field(default_factory=dict)
    weights: Sequence[float] = ()
    confidence: float | None = None
    text_boost: float = 1.0

    @classmethod
    def read(cls, answer: Mapping[str, Any]) -> Expansion:
        """From the expander's answer."""
        named = {name: answer[name] for name in cls.__dataclass_fields__}
        named |= {name: tuple(named[name]) for name in ("keywords", "weights")}
        return cls(**named)

    @classmethod
    def fallback(cls, query: str) -> Expansion:
        """The expansion without an expander; for plain words it is close to the expander's
        normalisation.
        """
        text = _SEPARATORS.sub(" ", unicodedata.normalize("NFKC", query).casefold()).strip()
        if not text:
            return cls((), "none", "no expander", {"match_none": {}}, {"match_none": {}})
        clause = {"match": {"keywords": {"query": text}}}
        return cls((text,), "none", "no expander", clause, clause)


@dataclass(frozen=True)
class Hit:
    """One item. `tier` says whether it belongs to the set or is one "more" by its text; `matched`
    lists the keywords that it was found by; `sort` continues a search (`search_after`).
    """

    id: str
    tier: str
    score: float
    source: Mapping[str, Any]
    matched: Sequence[str]
    sort: Sequence[Any]


@dataclass(frozen=True)
class Found:
    """The answer to a search: the size of the set (what the keywords find, and items that have
    every word of the query in one field), how many more the text finds, the best hits, facets of
    the set, and the expansion it was made with.
    """

    total: int
    more: int
    hits: Sequence[Hit]
    aggregations: Mapping[str, Any]
    expansion: Expansion

    @classmethod
    def read(cls, answer: Any, expansion: Expansion) -> Found:
        """From OpenSearch's answer. Raises SearchError when it is not complete."""
        try:
            if answer["timed_out"] or answer["_shards"]["failed"]:
                raise SearchError("OpenSearch gave only a part of the answer; search again")
            hits = [_hit(hit["_source"], tuple(hit["sort"]), hit) for hit in answer["hits"]["hits"]]
            facets = dict(answer["aggregations"]["set"])
            total, every = answer["aggregations"]["total"], answer["hits"]["total"]["value"]
            count = total["doc_count"]
            del facets["doc_count"]
            return cls(count, every - count, hits, facets, expansion)
        except (KeyError, TypeError, IndexError) as error:
            raise SearchError(f"OpenSearch's answer can't be read: {error!r}") from error


def _hit(source: Mapping[str, Any], sort: Sequence[Any], hit: Mapping[str, Any]) -> Hit:
    # Every order ends with score and id.
    score, matched = sort[-2], tuple(hit.get("matched_queries", ()))
    if score >= TIER:
        return Hit(source["item_id"], "set", score - TIER, source, matched, sort)
    return Hit(source["item_id"], "more", score, source, matched, sort)


TIER = 1024
"""The score that the template adds to every item of the set."""
SIZE = 1000
"""Most cached queries; beyond them the least recently used one is dropped."""


class Memory:
    """A cache of expansions by query, for some seconds; all of one pair of snapshots. Threads may
    share it.

    Only expansions with keywords are kept, since a query without any may have keywords the next
    time.
    """

    def __init__(self, seconds: float) -> None:
        # As JSON, because callers may change the clause that they get.
        self._known: TTLCache[str, str] = TTLCache(SIZE, seconds)
        self._pair: Mapping[str, str | None] = {}
        self._lock = Lock()

    def get(self, query: str) -> Expansion | None:
        """The cached expansion of a query, or None."""
        with self._lock:
            known = self._known.get(query)
        return None if known is None else Expansion.read(json.loads(known))

    def put(self, query: str, expansion: Expansion) -> None:
        """Cache an answer of the expander.

        An answer of another pair means that a pair was published, so all others are dropped.
        """
        with self._lock:
            if expansion.snapshots != self._pair:
                self._known.clear()
                self._pair = expansion.snapshots
            if expansion.source != "none":
                self._known[query] = json.dumps(asdict(expansion))

    def forget(self) -> None:
        """Drop all expansions."""
        with self._lock:
            self._known.clear()
