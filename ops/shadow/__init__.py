"""`cogr-ops shadow`: a query log asked of the search that serves today and of one with CoGR's
keywords, and the answers compared. It changes no index; shoppers notice nothing. Means are over
searches, so a query that was asked ten times weighs ten times as much; latencies are over distinct
queries, since each is sent once.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import urllib3

from cogr.datasets.query_logs import Searched
from cogr.errors import ServiceError, UserError
from indexers.backends.opensearch.client import Cluster, service_error
from indexers.backends.opensearch.indexes import IndexState
from indexers.backends.opensearch.search import lost_shards
from ops.shadow.bodies import NOTHING, SERVED, Body

IN_A_ROW = 10
"""Failed queries in a row after which a replay ends, because that means an outage; all of them in
a log that is shorter.
"""
MAX_LITERAL = 1000
"""Most literal matches of a query that are looked up."""
_EXACT = {"search_type": "dfs_query_then_fetch"}
_NEEDED = NOTHING.keys() | {"index", "source"}
"""Of an expander's answer."""


@dataclass(frozen=True)
class SearchAnswer:
    """A search's answer; `kept` is the share of the query's literal matches that it finds at any
    rank.
    """

    ids: Sequence[str]
    seconds: float
    source: str = ""
    expanding: float = 0.0
    kept: float = 0.0


@dataclass(frozen=True)
class Compared:
    """One query's two answers, and how many literal matches it has: items with every word of it in
    one field that today's search reads.
    """

    searched: Searched
    present: SearchAnswer
    candidate: SearchAnswer
    literal: int = 0

    @property
    def overlap(self) -> float:
        """The share of the longer list that both have; 1 for two empty ones."""
        one, other = self.present.ids, self.candidate.ids
        longest = max(len(one), len(other))
        return len(set(one) & set(other)) / longest if longest else 1.0


@dataclass
class Replayed:
    """The result of a replay; failed queries are set aside, with their reasons."""

    compared: list[Compared] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)


class FailedError(ServiceError):
    """One query got no answer, from the expander or the cluster."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class BadRequestError(UserError):
    """OpenSearch rejects a request. Where other requests pass, the query is the cause."""

    reason = "refused"


class ExpanderClient:
    """Asks a running expander over HTTP, without retries."""

    def __init__(self, url: str, token: str | None = None, patience: float = 10.0) -> None:
        self.url = url.rstrip("/")
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._pool = urllib3.PoolManager(headers=headers, timeout=patience, retries=False)

    def expand(self, query: str) -> Mapping[str, Any]:
        """Keywords of a query. Raises FailedError."""
        try:
            answer = self._pool.request("POST", f"{self.url}/expand", json={"query": query})
        except urllib3.exceptions.HTTPError as error:
            raise FailedError(
                f"No expander answers at {self.url}; start one with cogr-ops serve, or name it "
                "with --expander.",
                "no expander",
            ) from error
        if answer.status != 200:
            raise FailedError(
                f"The expander at {self.url} returned status {answer.status}; check --expander and "
                "serving.token (COGR_SERVING__TOKEN).",
                f"expander {answer.status}",
            )
        try:
            expansion = answer.json()
        except ValueError:
            expansion = None
        if not isinstance(expansion, dict) or not expansion.keys() >= _NEEDED:
            raise FailedError(
                f"The answer from {self.url} is not an expander's; check --expander.", "no expander"
            )
        return expansion


@dataclass(frozen=True)
class Search:
    """One of the two searches. It fetches ids only, so that both are compared without the cost of
    fetching documents.

    Attributes:
        index: what it searches; None for the index that the expander names.
        id_field: the field with the item's id; `_id` for the document's own, as in every index of
            CoGR's.
    """

    cluster: Cluster
    body: Body
    index: str | None
    size: int
    id_field: str = "_id"
    expander: ExpanderClient | None = None
    _own: dict[str, bool] = field(default_factory=dict)

    def literal(self, query: str) -> list[str]:
        """Ids of the items with every word of the query in one field of the body, `MAX_LITERAL` at
        most. Raises as `ask`.
        """
        fields = self.body.fields
        if not fields or self.index is None:
            return []
        words = {"query": query, "fields": fields, "operator": "and", "lenient": True}
        body = {"query": {"multi_match": words}, "size": MAX_LITERAL}
        return self._ids(self.index, body, {})

    def ask(self, query: str, literal: Sequence[str] = ()) -> SearchAnswer:
        """Search for a query, expanded first if there is an expander; also which of the literal
        matches are kept. Raises FailedError, BadRequestError, and UserError where there is no index
        to search or a document has no id.
        """
        started, expansion, source = time.perf_counter(), NOTHING, ""
        index, params = self.index, dict[str, Any]()
        if self.expander:
            expansion, params = self.expander.expand(query), _EXACT
            index, source = index or expansion["index"], expansion["source"]
        expanding = time.perf_counter() - started if self.expander else 0.0
        if index is None:
            raise UserError(
                "The expander has no OpenSearch index to search: set opensearch.url for it and "
                "publish a pair."
            )
        body = self.body.fill(query, expansion)
        if self.body is SERVED:
            body["sort"] = [{"_score": "desc"}, {self._id_field(index): "asc"}]
        ids = self._ids(index, body, params)
        seconds, kept = time.perf_counter() - started, 0.0
        if literal:
            filters = [{"terms": {self._id_field(index): literal}}]
            wanted = {"bool": {"must": [body["query"]], "filter": filters}}
            hits = self._hits(index, {"query": wanted, "size": len(literal)}, {})
            kept = len(hits) / len(literal)
        return SearchAnswer(ids, seconds, source, expanding, kept)

    def _id_field(self, index: str) -> str:
        if index not in self._own:
            doing = f"searching {index}"
            indexes = self.cluster.call("GET", f"/{index}", doing=doing, missing_ok=True) or {}
            states = [IndexState.read(name, answer) for name, answer in indexes.items()]
            self._own[index] = bool(states) and all(state.snapshot for state in states)
        return "_id" if self._own[index] else self.id_field

    def _hits(
        self, index: str, body: Mapping[str, Any], params: dict[str, Any]
    ) -> list[Mapping[str, Any]]:
        id_field = self._id_field(index)
        fetched = False if id_field == "_id" else [id_field]
        asked = {"size": self.size, **body, "_source": fetched}
        answer, refusal = self.cluster.try_once("POST", f"/{index}/_search", asked, params)
        if refusal is not None:
            if refusal.status in (400, 404):
                raise BadRequestError(
                    f"{index} rejected the query of {self.body.source}: {refusal.kind}, "
                    f"{refusal.reason}; correct the request."
                )
            error = service_error(refusal, self.cluster.url, f"searching {index}")
            raise FailedError(str(error), refusal.kind or f"status {refusal.status}")
        if answer["timed_out"] or lost_shards(answer):
            raise FailedError(
                f"The answer from {index} is incomplete; see the cluster's health.", "not whole"
            )
        hits: list[Mapping[str, Any]] = answer["hits"]["hits"]
        return hits

    def _ids(self, index: str, body: Mapping[str, Any], params: dict[str, Any]) -> list[str]:
        name, ids = self._id_field(index), []
        for hit in self._hits(index, body, params):
            value = hit["_id"] if name == "_id" else hit.get("_source", {}).get(name)
            if not isinstance(value, str | int):
                raise UserError(
                    f"A document of {index} has no {name!r}; name the items' id with --id-field."
                )
            ids.append(str(value))
        return ids


def replay(
    queries: Sequence[Searched],
    present: Search,
    candidate: Search,
    rate: float,
    advance: Callable[[int], object] = lambda _: None,
) -> Replayed:
    """Ask every query of both, at most `rate` a second. The two searches alternate in going first,
    since the second one finds warmer caches. Raises BadRequestError, FailedError and UserError.
    """
    done, in_a_row, started = Replayed(), 0, time.monotonic()
    last = min(IN_A_ROW, len(queries))
    for number, searched in enumerate(queries):
        time.sleep(max(0.0, started + number / rate - time.monotonic()))
        try:
            turn = -1 if number % 2 else 1
            literal = present.literal(searched.text)
            both = (present, candidate)[::turn]
            old, new = [search.ask(searched.text, literal) for search in both][::turn]
            done.compared.append(Compared(searched, old, new, len(literal)))
            in_a_row = 0
        except (FailedError, BadRequestError) as error:
            in_a_row += 1
            if in_a_row == last:
                raise
            done.failed[error.reason] += 1
        advance(1)
    return done
