"""Every document of an index, by a point in time and `search_after`: all pages show the index as it
was when the reading began.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from cogr.datasets.reading import Place
from cogr.errors import DataError, ServiceError
from cogr.store import replacing
from indexers.backends.opensearch.client import Cluster

KEEP_ALIVE = "30m"
"""Time for which the cluster keeps a point in time after the last page."""
PAGE = 1_000


def documents(
    cluster: Cluster,
    index: str,
    fields: Sequence[str] = (),
    since: tuple[str, datetime] | None = None,
) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    """The documents of an index, an alias or a pattern, each with its id as `_id`.

    Args:
        fields: of the documents that are read, such as `attributes.colour`; all when empty.
        since: a date field and a time: only documents that are not older.

    Raises DataError and ServiceError.
    """
    doing = f"reading {index}"
    query = {"range": {since[0]: {"gte": since[1].isoformat()}}} if since else {"match_all": {}}
    # `_shard_doc` costs nothing; before 3.3 only the id tells equal documents apart.
    version = cluster.version
    order = "_shard_doc" if (version.major, version.minor) >= (3, 3) else "_id"
    body: dict[str, Any] = {"size": PAGE, "query": query, "sort": [{order: "asc"}]}
    if fields:
        body["_source"] = [name for name in fields if name != "_id"]
    begun = cluster.call(
        "POST",
        f"/{index}/_search/point_in_time",
        params={"keep_alive": KEEP_ALIVE},
        doing=doing,
        missing_ok=True,
    )
    if begun is None:
        raise DataError(f"There is no index {index!r} at {cluster.url}; name one with --index.")
    body["pit"] = {"id": begun["pit_id"], "keep_alive": KEEP_ALIVE}
    try:
        while True:
            answer = cluster.call("POST", "/_search", body=body, doing=doing, missing_ok=True)
            if answer is None or answer["timed_out"] or answer["_shards"]["failed"]:
                raise ServiceError(
                    f"The answer from {index} is incomplete, or its point in time has expired; "
                    "check the cluster's health, and run the same command again."
                )
            hits = answer["hits"]["hits"]
            for hit in hits:
                place = Place(hit["_index"], hit["_id"], "document")
                yield place, {"_id": hit["_id"], **hit["_source"]}
            if len(hits) < PAGE:
                return
            body["search_after"] = hits[-1]["sort"]
    finally:
        cluster.call(
            "DELETE",
            "/_search/point_in_time",
            body={"pit_id": [begun["pit_id"]]},
            doing=f"closing {index}",
            missing_ok=True,
        )


def copy_records(
    cluster: Cluster,
    indexes: Sequence[str],
    to: Path,
    keeps: Callable[[Place, Mapping[str, Any]], bool],
    since: tuple[str, datetime] | None = None,
) -> tuple[int, int, str]:
    """Documents of indexes as lines of JSON, in a file that is replaced as a whole. Raises
    ServiceError and StorageError.
    """
    written, bad, first = 0, 0, ""
    with replacing(to) as file:
        for index in indexes:
            for place, record in documents(cluster, index, since=since):
                try:
                    if not keeps(place, record):
                        continue
                except DataError as error:
                    bad, first = bad + 1, first or str(error)
                    continue
                line = {name: value for name, value in record.items() if name != "_id"}
                file.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                written += 1
    return written, bad, first
