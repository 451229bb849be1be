"""Query logs: what was asked, how often, and which items were clicked for it. Sends nothing.

Three formats. `jsonl`: objects with `query`, perhaps `count` and `clicked` (ids). `ubi`: records of User Behavior Insights
as its two indexes hold them (`user_query`; `action_name` with `event_attributes.object.object_id`), in one file or several,
bare or as search hits with `_source`. `access`: a web server's log whose request lines carry the query as a URL parameter.
Files may be packed by gzip. Memory: the distinct queries and clicked ids.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from cogr.datasets.fields import id_field, number_field, text_field
from cogr.datasets.reading import Place, json_records, lines
from cogr.errors import DataError
from ops.shadow.formats import CLICKS, LogFormat

_REQUEST_LINE = re.compile(r'"(?:GET|HEAD|POST) [^ ?"]*\?([^ "]*)[^"]*"')


@dataclass(frozen=True)
class Searched:
    """A query of the log.

    Attributes:
        text: as it was typed, without surrounding white space.
        count: how often.
        clicked: ids of items that were clicked for it.
    """

    text: str
    count: int
    clicked: frozenset[str] = frozenset()


@dataclass
class _Log:
    counts: Counter[str] = field(default_factory=Counter)
    clicked: dict[str, set[str]] = field(default_factory=dict)

    def add(self, text: str, count: int, clicked: Iterable[str] = ()) -> None:
        if text := text.strip():
            self.counts[text] += count
            self.clicked.setdefault(text, set()).update(clicked)


def read_log(
    paths: Sequence[Path], format_: LogFormat, *, parameter: str = "q", clicks: Sequence[str] = CLICKS
) -> list[Searched]:
    """The distinct queries of a log, the most frequent ones first.

    Args:
        parameter: of the URL in an access log.
        clicks: UBI actions that count as clicks.

    Raises:
        DataError: a file is not there, a record is bad (names file and line), or no query is in the log.
    """
    for path in paths:
        if not path.is_file():
            raise DataError(f"The log {path} is not there; name a file of queries.")
    log = _Log()
    match format_:
        case LogFormat.jsonl:
            _read_jsonl(paths, log)
        case LogFormat.ubi:
            _read_ubi(paths, log, frozenset(clicks))
        case LogFormat.access:
            _read_access(paths, log, parameter)
    if not log.counts:
        raise DataError(f"No query is in {', '.join(map(str, paths))}; {_ADVICE[format_]}.")
    ordered = sorted(log.counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return [Searched(text, count, frozenset(log.clicked[text])) for text, count in ordered]


_ADVICE = {
    LogFormat.jsonl: "write one object a line, with query",
    LogFormat.ubi: "export ubi_queries, whose records have a user_query",
    LogFormat.access: "name the URL parameter that holds the query with --parameter",
}


def sample(queries: Sequence[Searched], most: int, seed: int) -> list[Searched]:
    """A log of at most so many searches: these are drawn at random, so that a query's chance is its share of the traffic.

    A log of no more distinct queries than that is kept whole, with its counts.
    """
    if len(queries) <= most:
        return list(queries)
    drawn = Counter(random.Random(seed).sample(queries, most, counts=[query.count for query in queries]))
    return [Searched(query.text, count, query.clicked) for query, count in drawn.most_common()]


def _read_jsonl(paths: Sequence[Path], log: _Log) -> None:
    for path in paths:
        for place, record in json_records(path):
            if "query" not in record:
                raise DataError(f"{place}: the record has no 'query'; give every record one.")
            log.add(text_field(record, "query", place), _count(record, place), _clicked(record, place))


def _count(record: Mapping[str, Any], place: Place) -> int:
    count = number_field(record, "count", place, default=1.0)
    if count < 1 or count != int(count):
        raise DataError(f"{place}: 'count' is {record['count']!r}; write how often it was asked, 1 or more.")
    return int(count)


def _clicked(record: Mapping[str, Any], place: Place) -> list[str]:
    clicked = record.get("clicked", [])
    if not isinstance(clicked, list):
        raise DataError(f"{place}: 'clicked' is no list; write the ids of the clicked items as a list.")
    return [id_field({"clicked": id_}, "clicked", place) for id_ in clicked]


def _read_ubi(paths: Sequence[Path], log: _Log, clicks: frozenset[str]) -> None:
    """Events may stand before the query that they belong to."""
    texts: dict[str, str] = {}
    events: list[tuple[str, str]] = []
    for path in paths:
        for place, line in json_records(path):
            record = _inner(line, "_source", place) or line
            if "action_name" in record:
                if record["action_name"] in clicks and (object_ := _clicked_object(record, place)):
                    events.append((id_field(record, "query_id", place), object_))
            elif "user_query" in record:
                text = text_field(record, "user_query", place)
                log.add(text, 1)
                texts[str(record.get("query_id"))] = text
    for query, object_ in events:
        if text := texts.get(query, "").strip():
            log.clicked[text].add(object_)


def _clicked_object(record: Mapping[str, Any], place: Place) -> str | None:
    """The id of what was clicked; None for an event about no item, such as a click on a filter."""
    object_ = _inner(_inner(record, "event_attributes", place), "object", place)
    return id_field(object_, "object_id", place) if object_.get("object_id") is not None else None


def _inner(record: Mapping[str, Any], key: str, place: Place) -> Mapping[str, Any]:
    value = record.get(key)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise DataError(f"{place}: {key!r} is no object; export the records as UBI writes them.")
    return value


def _read_access(paths: Sequence[Path], log: _Log, parameter: str) -> None:
    """Lines without a request for a search are of other pages, and left out."""
    for path in paths:
        for _, line in lines(path):
            if found := _REQUEST_LINE.search(line):
                for text in parse_qs(found[1], errors="replace").get(parameter, [])[:1]:
                    log.add(text, 1)
