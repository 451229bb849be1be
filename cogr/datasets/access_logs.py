"""Access logs of web servers, in the common or combined format or as JSON, read as UBI records."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qs, unquote_to_bytes

from cogr.datasets.fields import time_field
from cogr.datasets.reading import Place, lines
from cogr.errors import DataError, SettingsError
from cogr.keywords import query_key

# A virtual host may stand before the client, and X-Forwarded-For, as a balancer logs it, after the
# agent.
_REQUEST = re.compile(
    r"(?:[\w.-]+(?::\d+)? (?=\S*[.:]\S* \S+ \S+ \[))?"
    r'(?P<client>\S+) [^"[]*\[(?P<time>[^]]+)\] "(?P<request>[^"]*)"'
    r'(?: (?P<status>\d+) \S+(?: "(?P<referrer>[^"]*)" "(?P<agent>(?:[^"\\]|\\.)*)"'
    r'(?: "(?P<forwarded>[^"]*)")?)?)?'
)
_NAMES = {
    "client": ("remote_addr", "client_ip", "clientip", "remote_ip", "client", "remote_host"),
    "forwarded": ("http_x_forwarded_for", "x_forwarded_for", "xff"),
    "time": ("time_local", "time_iso8601", "time", "timestamp", "@timestamp", "msec", "ts"),
    "request": ("request", "request_line"),
    "url": ("request_uri", "uri", "url", "path"),
    "method": ("request_method", "method", "verb"),
    "status": ("status", "status_code", "response"),
    "referrer": ("http_referer", "http_referrer", "referer", "referrer"),
    "agent": ("http_user_agent", "user_agent", "useragent", "agent"),
}
"""What web servers call the fields of a log with a JSON object a line."""
_ASKS = ("GET", "HEAD", "POST")
_CRAWLER = re.compile("bot|crawl|spider", re.IGNORECASE)
_CLICK = timedelta(minutes=30)


def is_request(line: str) -> bool:
    """Whether a line is of a web server's log, in the common or combined format."""
    return _REQUEST.match(line) is not None


@dataclass(frozen=True)
class AccessLog:
    """How to find searches and clicks in a web server's log (common or combined format, or JSON).

    A search is a request with the parameter. A click is one for the path of an item; it belongs to
    the search in its own URL or its referrer, otherwise to the client's last one, at most half an
    hour before. The client is the address. Crawlers that say so, refused requests and other lines
    are skipped.

    Attributes:
        parameter: the URL parameter with the query.
        item_path: the path of an item, with {item} for its id, such as /p/{item}.
    """

    parameter: str
    item_path: str

    @contextmanager
    def as_ubi(self, paths: Sequence[Path]) -> Iterator[list[Path]]:
        """The logs as a file of UBI records, for as long as the context lasts.

        Such a log does not say what was shown. So each item that was ever clicked for a query
        counts as shown (`query_response_hit_ids`) whenever the query was asked. Memory: the clicked
        items of each query, and each query of a client on a day.

        Raises DataError where no click belongs to a search, SettingsError for a bad pattern.
        """
        clicked: dict[str, set[str]] = defaultdict(set)
        for _, _, text, item in self._requests(paths):
            clicked[query_key(text)] |= {item} if item else set()
        if not any(clicked.values()):
            raise DataError(
                f"No click in {', '.join(map(str, paths))} belongs to a search; check --parameter "
                f"({self.parameter}) and --item-path ({self.item_path})."
            )
        asked = set[str]()
        with TemporaryDirectory(prefix=".access-") as folder:
            path = Path(folder) / "records.jsonl"
            with path.open("w", encoding="utf-8") as file:
                for client, time, text, item in self._requests(paths):
                    id_ = f"{client} {time:%F} {text}"
                    record = {"query_id": id_, "client_id": client, "timestamp": time.isoformat()}
                    if not item or id_ not in asked:
                        asked.add(id_)
                        hits = sorted(clicked[query_key(text)])
                        search = {**record, "user_query": text, "query_response_hit_ids": hits}
                        file.write(f"{json.dumps(search)}\n")
                    if item:
                        what = {"object": {"object_id": item}}
                        click = {**record, "action_name": "click", "event_attributes": what}
                        file.write(f"{json.dumps(click)}\n")
            yield [path]

    def _requests(self, paths: Sequence[Path]) -> Iterator[tuple[str, datetime, str, str]]:
        """Client, time, query, and the clicked item, "" for a search."""
        before, placeholder, after = map(re.escape, self.item_path.partition("{item}"))
        if not placeholder:
            raise SettingsError(
                f"--item-path is {self.item_path!r}; write the path of an item with {{item}} for "
                "its id, such as /p/{item}."
            )
        item = re.compile(f"{before}([^/?#&]+){after or '(?=[/?#&]|$)'}")
        last: dict[str, tuple[datetime, str]] = {}
        for client, time, url, referrer in chain.from_iterable(map(_requests_of_people, paths)):
            text, clicked = self._text(url), item.search(url)
            if clicked:
                text = text or self._text(referrer)
                if not text and client in last and time - last[client][0] <= _CLICK:
                    text = last[client][1]
            elif text:
                last[client] = time, text
            if text:
                yield client, time, text, _unquoted(clicked[1]) if clicked else ""

    def _text(self, url: str) -> str:
        query = url.partition("?")[2].partition("#")[0]
        given = parse_qs(query, encoding="latin-1").get(self.parameter, [""])[0]
        return _unquoted(given.encode("latin-1", "replace")).strip()


def _unquoted(text: str | bytes) -> str:
    """Percent signs decoded as UTF-8, or as cp1252 where they are none: caf%E9."""
    raw = unquote_to_bytes(text) if isinstance(text, str) else text
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw.decode("cp1252", "replace")


def _requests_of_people(path: Path) -> Iterator[tuple[str, datetime, str, str]]:
    """Client, time, URL and referrer. What is no request, or has no time, is left out."""
    for _, line in lines(path):
        request = _fields_of_json(line) if line.startswith("{") else _REQUEST.match(line)
        if not request:
            continue
        method, _, url = (request["request"] or "").partition(" ")
        status = request["status"] or "200"
        if method not in _ASKS or status >= "400" or _CRAWLER.search(request["agent"] or ""):
            continue
        if time := _time_of(request["time"] or ""):
            yield _client(request), time, url.partition(" ")[0], request["referrer"] or ""


def _client(request: Mapping[str, Any] | re.Match[str]) -> str:
    """The address that asked. Behind a balancer: the last public address of X-Forwarded-For, since
    a client can forge the earlier ones.
    """
    known = []
    for part in (request["forwarded"] or "").split(",")[::-1]:
        with suppress(ValueError):
            known.append(ip_address(part.strip()))
    public = [one for one in known if one.is_global]
    return str(next(iter(public or known), request["client"] or "")).strip(",")


def _fields_of_json(line: str) -> Mapping[str, str] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if isinstance(inner := record.get("request"), dict):
        record = {**record, **inner, "request": None}
    fields = {
        name: next((str(value) for key in keys if (value := record.get(key)) is not None), "")
        for name, keys in _NAMES.items()
    }
    if not fields["request"]:
        fields["request"] = f"{fields['method'] or 'GET'} {fields['url']}"
    return fields


def _time_of(text: str) -> datetime | None:
    try:
        return datetime.strptime(text, "%d/%b/%Y:%H:%M:%S %z")
    except ValueError:
        with suppress(DataError):
            return time_field({"time": text}, "time", Place("", 1))
    return None
