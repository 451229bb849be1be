"""Query logs in every format: queries, counts, clients, clicks; personal data is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cogr.datasets.access_logs import AccessLog
from cogr.datasets.changes import changes_of_log
from cogr.datasets.query_logs import QueryLog, Searched, sample
from cogr.datasets.query_logs import read_log as read_whole_log
from cogr.datasets.ubi import database, load
from cogr.errors import DataError
from tests.shops import write_jsonl


def event(query: str | None, action: str, item: object) -> dict[str, Any]:
    attributes = {"object": None if item is None else {"object_id": item}}
    return {"query_id": query, "action_name": action, "event_attributes": attributes}


UBI = [
    {"query_id": "1", "user_query": "green couch ", "client_id": "x"},
    {"_source": {"query_id": "2", "user_query": "green couch"}},
    {"query_id": "3", "user_query": "lamp"},
    event("1", "click", "a"),
    event("2", "add_to_cart", 7),
    event("3", "hover", "c"),
    event("3", "click", None),
    event(None, "click", "d"),
    event("of another day", "click", "b"),
]


def read_log(paths: list[Path]) -> list[Searched]:
    return list(read_whole_log(paths).queries)


def test_jsonl_counts_and_clicks_add_up(tmp_path: Path) -> None:
    records = [
        {"query": " sofa", "count": 3},
        {"query": "lamp", "clicked": ["c", 4]},
        {"query": "sofa", "clicked": ["a"]},
    ]
    found = read_log([write_jsonl(tmp_path / "log", records)])
    assert found == [
        Searched("sofa", 4, {"a"}),
        Searched("lamp", 1, {"c", "4"}),
    ]


def test_ubi_joins_events_to_queries(tmp_path: Path) -> None:
    events, queries = tmp_path / "events", tmp_path / "queries"
    write_jsonl(events, UBI[3:])
    write_jsonl(queries, UBI[:3])
    couch, lamp = read_log([events, queries])
    assert (couch.text, couch.count, couch.known, len(couch.clients)) == ("green couch", 2, 1, 1)
    assert (couch.clicked, lamp) == ({"a", "7"}, Searched("lamp", 1))


ACCESS = "".join(
    f'1.2.3.4 - - [21/Nov/2026:{at} +0000] "GET {url} HTTP/1.1" {status} 5 "{referrer}" "{by}"\n'
    for at, url, status, referrer, by in (
        ("10:00:00", "/s?q=green+couch&page=1", 200, "-", "x"),
        ("10:00:01", "/style.css", 200, "-", "x"),
        ("10:05:00", "/p/a%2F1?ref=list", 200, "-", "x"),
        ("10:05:00", "/p/b?q=lamp", 200, "-", "x"),
        ("10:05:00", "/p/c", 200, "https://shop.example/s?q=lamp", "x"),
        ("10:05:00", "/p/gone", 404, "-", "x"),
        ("10:05:00", "/p/d", 200, "-", "Googlebot/2.1"),
        ("10:45:00", "/p/late", 200, "-", "x"),
        ("10:45:99", "/s?q=when", 200, "-", "x"),
        ("10:50:00", "/s?q=ann%40example.com", 200, "-", "x"),
    )
)


def test_an_access_log_gives_searches_and_clicks(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(f"no line of ours\n{ACCESS}")
    found = read_whole_log([log], AccessLog("q", "/p/{item}"))
    assert {one.text: (one.count, one.clicked) for one in found.queries} == {
        "green couch": (1, {"a/1"}),
        "lamp": (1, {"b", "c"}),
    }
    assert found.left_out == {"queries with an e-mail address": 1}
    log.write_text(ACCESS)
    with pytest.raises(DataError, match="web server"):
        read_whole_log([log])


VISITS = [
    ("203.0.114.1", "/s?q=caf%E9", "-"),
    ("203.0.114.1", "/p/a", "https://shop.example/s?q=caf%C3%A9"),
    ("203.0.114.2", "/s?q=caf%C3%A9", "-"),
    ("203.0.114.3", "/s?q=tea", "-"),
]
LINE = '{client} - - [21/Nov/2026:10:00:00 +0000] "GET {url} HTTP/2" 200 5 "{referrer}" "x"'
FORMS = {
    "plain": LINE,
    "host and port": f"www.shop.example:443 {LINE}",
    "balancer": LINE.replace("{client}", "10.1.1.1") + ' "1.1.1.1, {client}, 10.0.0.9"',
    "balancer, nginx": {
        "remote_addr": "10.1.1.1",
        "http_x_forwarded_for": "{client}, 192.168.0.1",
        "time_iso8601": "2026-11-21T10:00:00+00:00",
        "request_method": "GET",
        "request_uri": "{url}",
        "http_referer": "{referrer}",
        "status": "200",
    },
    "seconds": {
        "ts": 1795255200.5,
        "request": {"client_ip": "{client}", "method": "GET", "uri": "{url}"},
        "referer": "{referrer}",
        "status": 200,
    },
}


@pytest.mark.parametrize("name", FORMS)
def test_logs_of_every_web_server_tell_the_same(tmp_path: Path, name: str) -> None:
    form, lines = FORMS[name], []
    for client, url, referrer in VISITS:
        text = form if isinstance(form, str) else json.dumps(form)
        for key, value in (("client", client), ("url", url), ("referrer", referrer)):
            text = text.replace(f"{{{key}}}", value)
        lines.append(f"{text}\n")
    (tmp_path / "log").write_text("".join(lines))
    found = read_whole_log([tmp_path / "log"], AccessLog("q", "/p/{item}")).queries
    assert {one.text: (one.clicked, len(one.clients), one.known) for one in found} == {
        "café": ({"a"}, 2, 2),
        "tea": (set(), 1, 1),
    }


def test_times_of_ubi_may_be_seconds(tmp_path: Path) -> None:
    times = [1_795_255_200, "1795255200", 1_795_255_200.25, 1_795_255_200_000, "2026-11-21T10:00Z"]
    path = write_jsonl(
        tmp_path / "log.ndjson",
        [{"query_id": f"{n}", "user_query": "a", "timestamp": t} for n, t in enumerate(times)],
    )
    with database() as con:
        load(con, [path], {}, ())
        found = {row[0] // 1000 for row in con.execute("select t from ev").fetchall()}
    assert found == {1_795_255_200}


def test_auto_reads_each_file_as_it_looks(tmp_path: Path) -> None:
    texts = {
        "log.txt": "sofa\n\ngreen, soft sofa\ngreen, soft sofa\nquery\n",
        "log.jsonl": (
            '{"query": "sofa"}\n{"query": "green, soft sofa", "count": 2}\n{"query": "query"}\n'
        ),
        "ubi.ndjson": "".join(
            json.dumps({"query_id": None, "user_query": text}) + "\n"
            for text in ("sofa", "green, soft sofa", "green, soft sofa", "query")
        ),
        "log.csv": '\ufeffid;query;count\n1;sofa;\n2;"green, soft sofa";2\n;;\n3;query;1\n',
    }
    expected = [("green, soft sofa", 2), ("query", 1), ("sofa", 1)]
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        found = read_log([tmp_path / name])
        assert [(one.text, one.count) for one in found] == expected, name
    everything = read_whole_log([tmp_path / name for name in texts])
    assert [searched.count for searched in everything.queries] == [8, 4, 4]
    # Blank lines and rows are no lines.
    assert (everything.lines, everything.without) == (4 + 3 + 4 + 3, 0)


def test_a_sample_follows_the_traffic() -> None:
    log = [
        Searched("often", 9000, {"a"}),
        *(Searched(f"rare {number}", 1) for number in range(1000)),
    ]
    drawn = sample(log, 500)
    assert sum(query.count for query in drawn) == 500
    assert drawn[0].text == "often"
    assert drawn[0].clicked == {"a"}
    assert 420 < drawn[0].count < 480
    assert sample(log[:3], 3) == log[:3]


@pytest.mark.parametrize("field", ["query", "user_query"])
def test_personal_data_is_left_out_and_counted(tmp_path: Path, field: str) -> None:
    texts = ("sofa", "ann@example.com", "0049 170 1234567")
    log = write_jsonl(tmp_path / "log", [{field: text} for text in texts])
    found = read_whole_log([log])
    assert [one.text for one in found.queries] == ["sofa"]
    assert found.left_out == {
        "queries with an e-mail address": 1,
        "queries with a telephone number": 1,
    }


def counts(log: QueryLog, least: int) -> tuple[int, int, int]:
    found = changes_of_log(log, least, (), ()).counts
    return found["rare"], found["taken"], found["left_out"]


def test_frequent_means_asked_by_many_clients_where_the_log_says_who(tmp_path: Path) -> None:
    one = [{"user_query": "me again", "client_id": "one"}] * 50
    many = [
        {"user_query": text, "client_id": f"c{n}"} for n in range(9) for text in ("Sofa", "sofa")
    ]
    log = write_jsonl(tmp_path / "log", [*one, *many, {"user_query": "sofa"}])
    assert counts(read_whole_log([log]), 10) == (1, 1, 0)
    assert counts(read_whole_log([log]), 11) == (2, 0, 0)
    lines = ["query,client_id", *["me,a"] * 5, *(f"sofa,{n}" for n in range(5))]
    (tmp_path / "log.csv").write_text("\n".join(lines))
    assert counts(read_whole_log([tmp_path / "log.csv"]), 5) == (1, 1, 0)


def test_lines_that_are_no_records_of_ubi_are_named(tmp_path: Path) -> None:
    log = write_jsonl(tmp_path / "log", [{"user_query": "sofa"}, {"query": "x"}])
    with pytest.raises(DataError, match="1 of 2 .*UBI"):
        read_whole_log([log])
