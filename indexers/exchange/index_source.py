"""Every document of an index: a point in time, slices, `search_after`.

All pages show the index as it was when the reading began. A cursor has the point in time, so that
another process can go on within `KEEP_ALIVE`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from cogr.datasets.reading import Place
from cogr.errors import DataError, ServiceError
from cogr.store import replacing
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.errors import service_error
from indexers.exchange.sources import PAGE, GoneError, Page

KEEP_ALIVE = "30m"
"""Time for which the cluster keeps a point in time after the last page."""


class IndexSource:
    """The documents of an index or an alias, as `indexers.exchange.sources.Source`.

    Args:
        index: its name, or a pattern.
        fields: of the documents that are read, such as `attributes.colour`; all when empty.
        slices: how many parts are read side by side.
        since: a date field and a time: only documents that are not older.

    Raises:
        ServiceError: the cluster can't be reached.
    """

    def __init__(
        self,
        cluster: Cluster,
        index: str,
        fields: Sequence[str] = (),
        slices: int = 1,
        since: tuple[str, datetime] | None = None,
        size: int | None = None,
    ) -> None:
        self._cluster, self._index, self._size = cluster, index, size or PAGE
        self.name = f"the index {index}"
        self.parts = slices
        query: dict[str, Any] = {"match_all": {}}
        if since:
            query = {"range": {since[0]: {"gte": since[1].isoformat()}}}
        # `_shard_doc` costs nothing; before 3.3 only the id tells equal documents apart.
        version = cluster.version
        order = "_shard_doc" if (version.major, version.minor) >= (3, 3) else "_id"
        self._body = {"size": self._size, "query": query, "sort": [{order: "asc"}]}
        if fields:
            self._body["_source"] = [name for name in fields if name != "_id"]
        asked = [cluster.url, index, self._body, slices]
        self._key = hashlib.sha256(json.dumps(asked).encode())
        self._pit = ""

    @property
    def key(self) -> str:
        return self._key.hexdigest()

    def begin(self) -> list[dict[str, Any]]:
        """A new point in time. Raises DataError where there is no such index."""
        answer = self._cluster.call(
            "POST",
            f"/{self._index}/_search/point_in_time",
            params={"keep_alive": KEEP_ALIVE},
            doing=f"reading {self._index}",
            missing_ok=True,
        )
        if answer is None:
            raise DataError(
                f"There is no index {self._index!r} at {self._cluster.url}; name one with --index."
            )
        return [{"pit": answer["pit_id"]} for _ in range(self.parts)]

    def page(self, part: int, cursor: Mapping[str, Any]) -> Page:
        """The next documents of a slice.

        Raises:
            GoneError: the cluster has forgotten the point in time.
            ServiceError: it can't be reached or refuses.
        """
        self._pit = cursor["pit"]
        body: dict[str, Any] = {**self._body, "pit": {"id": self._pit, "keep_alive": KEEP_ALIVE}}
        if self.parts > 1:
            body["slice"] = {"id": part, "max": self.parts}
        if "after" in cursor:
            body["search_after"] = cursor["after"]
        for attempt in range(3):
            answer, refusal = self._cluster.try_once("POST", "/_search", body)
            if refusal is None or not refusal.is_transient or attempt == 2:
                break
            self._cluster.wait(attempt)
        if refusal is not None and refusal.status == 404:
            raise GoneError
        if refusal is not None:
            raise service_error(refusal, self._cluster.url, f"reading {self._index}")
        if answer["timed_out"] or answer["_shards"]["failed"]:
            if "search_context_missing_exception" in json.dumps(answer["_shards"]):
                raise GoneError
            raise ServiceError(
                f"The answer of {self._index} is not whole; see the cluster's health, and run the "
                "same command again."
            )
        hits = answer["hits"]["hits"]
        records = [
            (Place(hit["_index"], hit["_id"], "document"), {"_id": hit["_id"], **hit["_source"]})
            for hit in hits
        ]
        more = len(hits) == self._size
        return Page(records, {"pit": self._pit, "after": hits[-1]["sort"]} if more else None)

    def close(self) -> None:
        """Delete the point in time."""
        if self._pit:
            self._cluster.call(
                "DELETE",
                "/_search/point_in_time",
                body={"pit_id": [self._pit]},
                doing=f"closing {self._index}",
                missing_ok=True,
            )
            self._pit = ""


def documents(source: IndexSource) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    """All documents, one part after the other.

    Raises:
        GoneError: the cluster has forgotten the point in time, which is kept for half an hour after
            each page.
    """
    for part, first in enumerate(source.begin()):
        cursor: Any = first
        while cursor is not None:
            page = source.page(part, cursor)
            yield from (record for record in page.records if not isinstance(record, DataError))
            cursor = page.cursor
    source.close()


def copy_records(
    sources: Sequence[IndexSource],
    to: Path,
    check: Callable[[Place, Mapping[str, Any]], object],
) -> tuple[int, int, str]:
    """Documents of indexes as lines of JSON, in a file that is replaced as a whole.

    Args:
        check: raises DataError for a document that is no record of its kind; it is left out.

    Returns:
        documents written, documents left out, and why the first of these was.

    Raises:
        ServiceError: the cluster can't be reached, or has forgotten the point in time.
        StorageError: the disk is full or read-only.
    """
    written, bad, first = 0, 0, ""
    with replacing(to) as file:
        for place, record in _all(sources):
            try:
                check(place, record)
            except DataError as error:
                bad, first = bad + 1, first or str(error)
                continue
            line = {name: value for name, value in record.items() if name != "_id"}
            file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
            written += 1
    return written, bad, first


def _all(sources: Sequence[IndexSource]) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    for source in sources:
        try:
            yield from documents(source)
        except GoneError as error:
            raise ServiceError(
                f"{source.name} can't be read at one point in time any longer; run the same "
                "command again."
            ) from error
