"""Asks a log's queries of both searches and takes the time. What is asked is in `bodies`, what the
answers say in `comparison`.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import urllib3

from cogr.datasets.query_logs import Searched
from cogr.errors import ServiceError, UserError
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.errors import service_error
from ops.shadow.bodies import Body, Expansion

IN_A_ROW = 10
"""Failed queries in a row after which a replay ends: that is an outage and no bad luck."""
_EXACT = {"search_type": "dfs_query_then_fetch"}
_HARMLESS = "a"


@dataclass(frozen=True)
class Answer:
    """A search's answer.

    Attributes:
        ids: of the hits, best first.
        seconds: until it was here and read.
        source: where the keywords came from, as the expander says; "" for a search without.
        expanding: seconds of `seconds` that the expander took.
    """

    ids: Sequence[str]
    seconds: float
    source: str = ""
    expanding: float = 0.0


@dataclass(frozen=True)
class Compared:
    """One query's two answers."""

    searched: Searched
    present: Answer
    candidate: Answer


@dataclass
class Replayed:
    """What came of a replay; queries that failed are set aside, with their reasons."""

    compared: list[Compared] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)


class Search(Protocol):
    """One of the two searches."""

    def ask(self, query: str) -> Answer:
        """Search. Raises ServiceError, or UserError when the request is at fault."""
        ...


class FailedError(ServiceError):
    """One query has no answer.

    Attributes:
        reason: in a word or two, to be counted.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class BadRequestError(UserError):
    """OpenSearch rejects a request. Where others pass, that is this query's fault."""

    reason = "refused"


@dataclass(frozen=True)
class Reader:
    """Searches an index for the ids of hits alone, so that both sides are compared by their
    searching.

    Attributes:
        size: hits.
        id_field: of the documents; `_id` for their own ids.
    """

    cluster: Cluster
    size: int
    id_field: str = "_id"

    def search(
        self, index: str, body: Mapping[str, Any], whose: str, params: dict[str, Any]
    ) -> list[str]:
        """Ids of the best hits.

        Raises FailedError, BadRequestError, and UserError for a document without an id.
        """
        own = self.id_field == "_id"
        asked = {**body, "size": self.size, "_source": False if own else [self.id_field]}
        answer, refusal = self.cluster.try_once("POST", f"/{index}/_search", asked, params)
        if refusal is not None:
            if refusal.status in (400, 404):
                raise BadRequestError(
                    f"{index} refuses {whose}: {refusal.kind}, {refusal.reason}; correct the "
                    "request."
                )
            error = service_error(refusal, self.cluster.url, f"searching {index}")
            raise FailedError(str(error), refusal.kind or f"status {refusal.status}")
        if answer["timed_out"] or answer["_shards"]["failed"]:
            raise FailedError(
                f"The answer of {index} is not whole; see the cluster's health.", "not whole"
            )
        return [self._id(hit, index) for hit in answer["hits"]["hits"]]

    def _id(self, hit: Mapping[str, Any], index: str) -> str:
        value = hit["_id"] if self.id_field == "_id" else hit.get("_source", {}).get(self.id_field)
        if not isinstance(value, str | int):
            raise UserError(
                f"A document of {index} has no {self.id_field!r}; name the items' id with "
                "--id-field."
            )
        return str(value)


@dataclass(frozen=True)
class Present:
    """The search that serves today."""

    reader: Reader
    index: str
    body: Body

    def ask(self, query: str) -> Answer:
        started = time.perf_counter()
        ids = self.reader.search(
            self.index, self.body.fill(query), f"the query of {self.body.source}", {}
        )
        return Answer(ids, time.perf_counter() - started)


class Expander:
    """A running expander.

    Args:
        url: its address.
        token: its bearer token.
        patience: seconds to wait for an answer.
    """

    def __init__(self, url: str, token: str | None = None, patience: float = 10.0) -> None:
        self.url = url.rstrip("/")
        headers = {"content-type": "application/json"} | (
            {"authorization": f"Bearer {token}"} if token else {}
        )
        self._pool = urllib3.PoolManager(headers=headers, timeout=patience, retries=False)

    def expand(self, query: str) -> Mapping[str, Any]:
        """Keywords of a query. Raises FailedError, UserError."""
        try:
            answer = self._pool.request(
                "POST", f"{self.url}/expand", body=json.dumps({"query": query})
            )
        except urllib3.exceptions.LocationValueError as error:
            raise UserError(
                f"--expander {self.url!r} is no URL; write it as http://localhost:8600."
            ) from error
        except urllib3.exceptions.HTTPError as error:
            raise FailedError(
                f"No expander answers at {self.url}; start one with cogr-ops serve, or name it "
                "with --expander.",
                "no expander",
            ) from error
        if answer.status in (401, 403, 404):
            raise UserError(
                f"{self.url} refuses with status {answer.status}; check --expander and "
                "serving.token (COGR_SERVING__TOKEN)."
            )
        if answer.status != 200:
            raise FailedError(
                f"The expander at {self.url} answers {answer.status}.", f"expander {answer.status}"
            )
        found: Mapping[str, Any] = answer.json()
        return found


@dataclass(frozen=True)
class Candidate:
    """The search with keywords: expanded, then searched in the index that the expander names.

    Attributes:
        index: search this one instead.
    """

    reader: Reader
    expander: Expander
    body: Body
    index: str | None = None

    def ask(self, query: str) -> Answer:
        started = time.perf_counter()
        expansion = self.expander.expand(query)
        expanding = time.perf_counter() - started
        index = self.index or expansion["index"]
        if index is None:
            raise UserError(
                f"The expander at {self.expander.url} serves no index of a cluster; give it "
                "opensearch.url, and publish a pair."
            )
        body = self.body.fill(query, Expansion.read(expansion))
        ids = self.reader.search(index, body, f"the query of {self.body.source}", _EXACT)
        return Answer(ids, time.perf_counter() - started, expansion["source"], expanding)


def check(*searches: Search) -> None:
    """Ask a first, harmless query, which also opens the connections.

    Raises UserError for a bad request, ServiceError.
    """
    for search in searches:
        search.ask(_HARMLESS)


def replay(
    queries: Sequence[Searched],
    present: Search,
    candidate: Search,
    rate: float,
    advance: Callable[[int], object] = lambda _: None,
) -> Replayed:
    """Ask every query of both, at most `rate` a second. Which of the two goes first takes turns:
    the second one finds warmer caches.

    Raises:
        BadRequestError, FailedError: that happened to 10 queries in a row.
        UserError: documents without ids, a wrong token.
    """
    done, in_a_row = Replayed(), 0
    for number, searched in _paced(queries, rate):
        try:
            done.compared.append(
                _ask(searched, present, candidate, candidate_first=number % 2 == 1)
            )
            in_a_row = 0
        except (FailedError, BadRequestError) as error:
            in_a_row += 1
            if in_a_row == IN_A_ROW:
                raise
            done.failed[error.reason] += 1
        advance(1)
    return done


def _ask(
    searched: Searched, present: Search, candidate: Search, *, candidate_first: bool
) -> Compared:
    if candidate_first:
        new = candidate.ask(searched.text)
        return Compared(searched, present.ask(searched.text), new)
    old = present.ask(searched.text)
    return Compared(searched, old, candidate.ask(searched.text))


def _paced(queries: Sequence[Searched], rate: float) -> Iterator[tuple[int, Searched]]:
    started = time.monotonic()
    for number, searched in enumerate(queries):
        time.sleep(max(0.0, started + number / rate - time.monotonic()))
        yield number, searched
