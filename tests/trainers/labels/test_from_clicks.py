"""Labels from clicks: click models on simulated shoppers, the rules of reading, bad input."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from cogr.datasets import load_dataset
from cogr.datasets.builder import DatasetOptions
from cogr.errors import DataError
from cogr.privacy import QueryFilter
from tests.commands import Command
from tests.shops import read_jsonl, write_jsonl
from tests.trainers.labels.users import DAY, START, event, write_log
from trainers.labels import events
from trainers.labels.events import ClickCounts, ClickRules, read_click_counts
from trainers.labels.from_clicks import grade, labels_from_clicks, weigh

FOREVER = 1e18
"""A half-life, in days, by which every visit counts the same."""


def search(
    id_: str, text: str = "lamp", hits: Any = ("a", "b"), time: Any = START, **more: Any
) -> dict[str, Any]:
    return {
        "query_id": id_,
        "user_query": text,
        "timestamp": time,
        "query_response_hit_ids": hits,
        "client_id": f"c{id_}",
        **more,
    }


def click_at(id_: str, item: Any, ordinal: int) -> dict[str, Any]:
    return event("click", id_, item, ordinal, START + 5)


def on_days(records: list[dict[str, Any]], number: int) -> list[dict[str, Any]]:
    """The records, on one of ten days."""
    return [{**one, "timestamp": one["timestamp"] + number % 10 * DAY} for one in records]


Counted = Callable[..., ClickCounts]


@pytest.fixture
def counted(tmp_path: Path) -> Counted:
    """The counts of a log of these records."""
    return lambda *records: read(write_jsonl(tmp_path / "log.ndjson", records))


def read(*paths: Path, **rules: Any) -> ClickCounts:
    return read_click_counts(paths, ClickRules(half_life=FOREVER, **rules), QueryFilter())


def clicked(click_counts: ClickCounts) -> dict[tuple[str, str, int], tuple[float, float]]:
    """(query, item, position) -> times shown, clicks."""
    shown = click_counts.shown
    return {
        (click_counts.asked.texts[q], shown.items[i], int(p)): (float(n), float(c))
        for q, i, p, n, c in zip(
            shown.query, shown.item, shown.position, shown.shown, shown.clicked, strict=True
        )
    }


def test_the_model_finds_the_known_relevance_and_how_positions_are_looked_at(
    tmp_path: Path,
) -> None:
    """By the AUC at 1,000 impressions an item, better than the raw click rate."""
    paths, truth = write_log(tmp_path, 4, queries=12)
    click_counts = read(*paths)
    query = np.array([int(text.split()[-1]) for text in click_counts.asked.texts])
    item = np.array([int(id_[1:]) for id_ in click_counts.shown.items])
    pairs, shown = weigh(click_counts), click_counts.shown
    relevant = truth[query[pairs.query], item[pairs.item]]
    of = np.unique(shown.query * len(item) + shown.item, return_inverse=True)[1]
    raw = np.bincount(of, shown.clicked) / np.bincount(of, shown.shown)
    least = max(0.95, roc_auc_score(relevant, raw) + 0.02)
    assert roc_auc_score(relevant, grade(pairs).rate) >= least
    for position in (2, 3, 5, 8):
        assert pairs.bias[position] == pytest.approx(position**-0.8, abs=0.08)


def test_a_log_becomes_a_data_set(tmp_path: Path, cogr_train: Command) -> None:
    paths, truth = write_log(tmp_path, 2, queries=12, searches=300)
    ended = cogr_train("labels", "from-clicks", *paths, "--out", tmp_path / "data", "--json")
    items = [{"id": f"i{number}", "title": f"item {number}"} for number in range(15)]
    write_jsonl(tmp_path / "data" / "items.jsonl", items)
    dataset = load_dataset(
        "jsonl", tmp_path / "data", DatasetOptions(threshold=2, split_by="cluster")
    )
    assert ended.json["labels"] == sum(map(len, dataset.judged.values()))
    right = total = 0
    for query in dataset.all_queries():
        row = truth[int(query.text.split()[-1])]
        right += sum(row[int(item[1:])] for item in dataset.relevant[query.id])
        total += len(dataset.relevant[query.id])
    assert right / total > 0.85
    assert dataset.lineage["source"] == "clicks"
    assert dataset.lineage["rules"]["k"] == 5
    weights = {query.weight for query in dataset.all_queries()}
    assert max(weights) <= 300
    again = cogr_train("labels", "from-clicks", *paths, "--out", tmp_path / "data")
    assert again.status == 2
    assert "--replace" in again.sentence


def test_records_of_any_shape_are_read_alike(tmp_path: Path) -> None:
    shown = [event("impression", "1", item, at, START) for at, item in enumerate("ab", start=1)]
    click = event("click", "1", "b", 2, START + 5)
    asked = {"query_id": "1", "user_query": " Red  Chair", "timestamp": START, "client_id": "c1"}
    no_id = {"query_id": None, "user_query": "red chair"}
    bare = {"event_attributes": {"object": {"object_id": "b"}, "position": None}}
    from_zero = [event("impression", "1", item, at, START) for at, item in enumerate("ab")]
    shapes = {
        "plain": (asked, *shown, click),
        "hits": ({"_index": "ubi", "_source": one} for one in (asked, *shown, click)),
        "named": ({**record, **no_id} for record in (*shown, click)),
        "listed": (
            {**asked, "query_response_hit_ids": ["a", "b"]},
            {**click, **bare, "timestamp": "2026-06-01T00:00:00+02:00"},
        ),
        "zero": (asked, *from_zero, event("purchase", "1", "b", 1, START)),
    }
    paths = [write_jsonl(tmp_path / f"{name}.ndjson", rows) for name, rows in shapes.items()]
    packed = tmp_path / "packed.ndjson.gz"
    packed.write_bytes(gzip.compress(paths[0].read_bytes()))
    for path in (*paths, packed):
        found = {(item, at): counts for (_, item, at), counts in clicked(read(path)).items()}
        assert found == {("a", 1): (1, 0), ("b", 2): (1, 1)}, path


def test_one_session_that_asks_again_is_one_visit_and_one_client_counts_a_few_times(
    counted: Counted,
) -> None:
    repeats = [search(f"r{n}", time=START + n * 60_000, client_id="same") for n in range(8)]
    days = [search(f"d{n}", time=START + n * DAY, client_id="daily") for n in range(1, 9)]
    found = counted(*repeats, *days)
    assert found.asked.visits.tolist() == [1 + 5]
    assert found.asked.clients.tolist() == [2]
    assert found.counts[events.REPEATS] == 3


def test_a_conversion_without_a_query_belongs_to_the_last_click_on_the_item(
    counted: Counted,
) -> None:
    bought = {**event("purchase", "x", "b", 1, START + 9000), "query_id": None, "client_id": "c1"}
    click, stray = event("click", "1", "b", 2, START + 1000), {**bought, "client_id": "nobody"}
    found = counted(search("1"), click, bought, stray)
    assert found.counts[events.ATTRIBUTED] == 1
    assert found.counts[events.NO_QUERY] == 1
    assert sorted(found.shown.value.tolist()) == [0, 3]
    assert found.best_value == 3


def test_old_visits_count_less(tmp_path: Path) -> None:
    two = [search(f"{days}", hits=["a"], time=START + days * DAY) for days in (0, 90)]
    log = write_jsonl(tmp_path / "log.ndjson", two)
    found = read_click_counts([log], ClickRules(), QueryFilter())
    assert found.asked.visits.tolist() == [1.5]
    assert found.shown.raw.tolist() == [2]


def test_bots_are_left_out_however_much_they_ask_and_click(counted: Counted) -> None:
    people = [search(f"p{n}") for n in range(10)]
    flood = [
        search(f"f{n}", f"lamp {n}", ["b"], START + n * 1000, client_id="bot") for n in range(400)
    ]
    eager = [
        {**one, "client_id": "all"}
        for n in range(60)
        for one in (
            search(f"z{n}", time=START + n * DAY),
            *(event("click", f"z{n}", item, 1, START + n * DAY) for item in "ab"),
        )
    ]
    found = counted(*people, *flood, *eager)
    assert found.counts[events.BOTS] == 2
    assert found.counts[events.BOT_VISITS] == 460
    assert set(clicked(found).values()) == {(10, 0)}


def test_odd_records_are_counted_and_do_no_harm(counted: Counted) -> None:
    good = [search(str(n)) for n in range(100)]
    odd = [
        search("late", "lamp", ["a"], "2999-01-01T00:00:00Z"),
        search("when", "lamp", ["a"], "yesterday"),
        search("long", "x" * 1_000_000, ["a"]),
        search("odd", "lamp", {"not": "a list"}),
        event("click", "unknown query", "a", 1, START),
        event("scroll", "1", "a", 1, START),
        {"action_name": "login", "timestamp": START},
        {**event("click", "7", "a", 1, START), "event_attributes": "gone"},
        event("click", "8", "a", 1, START - 60_000),
        {"action_name": {"a": 1}, "query_id": 8, "timestamp": str(START)},
    ]
    found = counted(*good, *odd)
    assert found.counts[events.AHEAD] == 1
    assert found.counts[events.NO_TIME] == 1
    assert found.counts[events.NO_QUERY] == 2
    assert clicked(found) == {("lamp", "a", 1): (100, 1), ("lamp", "b", 2): (100, 0)}


NOWHERE = {"event_attributes": {"object": {"object_id": "a"}}}
BAD: dict[str, tuple[list[Any] | bytes | None, str]] = {
    "other.ndjson": ([{"level": "info"}], "lines are not UBI records"),
    "torn.ndjson": (
        b'{"query_id": "x"}\n' * 5 + b'{"query_id": "x',
        "n.ndjson: 1 of 6 lines are not",
    ),
    "no.parquet": (b"PAR1 this is none", "no.parquet can't be read"),
    "cut.ndjson.gz": (gzip.compress(b"{}\n" * 5000)[:30], "cut.ndjson.gz"),
    "c.ndjson": (None, "c.ndjson can't be read"),
    "b.ndjson": (
        [event("click", "1", "a", 1, START)],
        r"no searches with a text \(.*events that belong to no",
    ),
    "old.ndjson": (
        [{**search("1", hits=None), "query_response_object_ids": ["a"]}, click_at("1", "a", 1)],
        "clicks alone don't say",
    ),
    "text.ndjson": ([search("1", hits="a,b"), click_at("1", "a", 1)], "clicks alone don't say"),
    "unshown.ndjson": ([search("1"), click_at("1", "x", 1)], "no clicks on what was shown"),
    "e.ndjson": (
        [search("1", "lamp", None), {**event("impression", "1", "a", 1, START), **NOWHERE}],
        "Labels need the positions .* and the log has none",
    ),
}


def test_ids_are_those_that_a_catalogue_writes_and_clicks_on_what_was_not_shown_are_left_out(
    counted: Counted,
) -> None:
    for shown, clicked_id in ((["7", "8"], 7), ([7.0, 8.0], 7), (["7", "7.50"], "7")):
        found = clicked(counted(search("1", hits=shown), click_at("1", clicked_id, 1)))
        assert {item for (_, item, _), (_, clicks) in found.items() if clicks} == {"7"}
        assert len(found) == 2
    records = [search("1"), click_at("1", "a", 1), click_at("1", "c", 3)]
    counts = counted(*records, search("2", hits=None), click_at("2", "a", 1))
    assert {item: of for (_, item, _), of in clicked(counts).items()} == {"a": (1, 1), "b": (1, 0)}
    assert counts.counts[events.NOT_SHOWN] == 2


@pytest.mark.parametrize("name", BAD)
def test_a_log_that_says_nothing_is_refused(tmp_path: Path, name: str) -> None:
    content, sentence = BAD[name]
    if isinstance(content, bytes):
        (tmp_path / name).write_bytes(content)
    elif content is not None:
        write_jsonl(tmp_path / name, content)
    with pytest.raises(DataError, match=sentence):
        labels_from_clicks([tmp_path / name], tmp_path / "out", ClickRules())


def test_personal_and_rare_queries_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = []
    for number in range(40):
        asked = search(f"a{number}")
        personal = search(f"b{number}", "bob@example.com", ["a", "b"])
        rows += on_days([asked, personal, event("click", f"a{number}", "a", 1, START)], number)
    rows += [search(f"rare{number}", "secret lamp", ["a", "b"]) for number in range(4)]
    log = write_jsonl(tmp_path / "log.ndjson", rows)
    made = labels_from_clicks([log], tmp_path / "out", ClickRules())
    assert made.queries == 1
    assert made.counts["queries with an e-mail address"] == 1
    assert made.counts["queries asked by fewer than k clients"] == 1
    written = (tmp_path / "out" / "queries.jsonl").read_text()
    assert "bob" not in written
    assert "secret" not in written
    assert labels_from_clicks([log], tmp_path / "all", ClickRules(k=0, min_days=1)).queries == 2


def honest() -> list[dict[str, Any]]:
    """120 visits on 30 days, the items in changing order: every second visit clicks item a."""
    rows = []
    for number in range(120):
        day = START + number % 30 * DAY
        for query in ("lamp", "rug"):
            id_, shown = f"{query}{number}", [*"abc"[number % 3 :], *"abc"[: number % 3]]
            rows.append(search(id_, query, shown, day))
            item = "a" if number % 2 else "b" if number % 20 == 0 else "c"
            if number % 2 or number % 20 in (0, 10):
                rows.append(event("click", id_, item, shown.index(item) + 1, day))
    return rows


def attack(days: int) -> list[dict[str, Any]]:
    """50 clients that search "lamp" 5 times each, and click the third item alone."""
    rows = []
    for client in range(50):
        for turn in range(5):
            time = START + DAY * (20 + turn % days) + (turn // days) * 2_400_000
            id_ = f"x{client}-{turn}"
            rows.append(search(id_, "lamp", ["a", "b", "c"], time, client_id=f"bad{client}"))
            rows.append({**event("click", id_, "c", 3, time), "client_id": f"bad{client}"})
    return rows


def sides(folder: Path) -> dict[tuple[str, str], bool]:
    """(query, item) -> whether its label says relevant."""
    queries, labels = (read_jsonl(folder / name) for name in ("queries.jsonl", "labels.jsonl"))
    texts = {row["id"]: row["text"] for row in queries}
    return {(texts[row["query"]], row["item"]): row["grade"] >= 2 for row in labels}


@pytest.mark.parametrize("days", [1, 2, 5])
def test_fifty_clients_overturn_no_label_in_two_days(tmp_path: Path, days: int) -> None:
    log = write_jsonl(tmp_path / "log.ndjson", honest())
    labels_from_clicks([log], tmp_path / "out", ClickRules())
    before = sides(tmp_path / "out")
    assert before == {(query, item): item == "a" for query in ("lamp", "rug") for item in "abc"}
    write_jsonl(log, [*honest(), *attack(days)])
    labels_from_clicks([log], tmp_path / "out", ClickRules(), replace=True)
    after = sides(tmp_path / "out")
    rugs, rugs_before = ({k: v for k, v in one.items() if k[0] == "rug"} for one in (after, before))
    assert rugs == rugs_before
    if days < 3:
        assert ("lamp", "c") not in after
        assert after.items() <= before.items()
    else:
        assert after["lamp", "c"]


def access_log(path: Path, *rows: dict[str, Any]) -> Path:
    """The records as a web server's log."""
    lines = []
    for row in rows:
        at = datetime.fromtimestamp(row["timestamp"] / 1000, UTC).strftime("%d/%b/%Y:%H:%M:%S %z")
        client, url = row.get("client_id", f"c{row['query_id']}"), f"/s?q={row.get('user_query')}"
        if "action_name" in row:
            url = f"/p/{row['event_attributes']['object']['object_id']}"
        lines.append(f'{client} - - [{at}] "GET {url} HTTP/1.1" 200 9 "-" "Mozilla"\n')
    path.write_text("".join(lines))
    return path


def test_access_logs_give_labels_that_hold_without_the_busiest_days(
    tmp_path: Path, cogr_train: Command
) -> None:
    out = ("--out", tmp_path / "out", "--replace", "--item-path", "/p/{item}")
    personal = search("mail", "bob@example.com", [])
    log = access_log(tmp_path / "access.log", *honest(), personal, *attack(1))
    ended = cogr_train("labels", "from-clicks", log, "--json", *out)
    assert ended.status == 0, ended.err
    kept = [*(("lamp", item) for item in "ab"), *(("rug", item) for item in "abc")]
    assert sides(tmp_path / "out") == {pair: pair[1] == "a" for pair in kept}
    lineage = json.loads((tmp_path / "out/lineage.json").read_text())
    assert lineage["access"] == {"parameter": "q", "item_path": "/p/{item}"}
    assert lineage["counts"]["queries with an e-mail address"] == 1
    for flags, sentence in (
        (("--item-path", "/p/"), "with {item} for its id"),
        (("--parameter", "query"), "belongs to a search; check --parameter (query)"),
    ):
        refused = cogr_train("labels", "from-clicks", log, *out, *flags)
        assert (refused.status, sentence in refused.sentence) == (2, True)


def test_a_query_of_one_day_gets_no_label_unless_it_is_asked_for(tmp_path: Path) -> None:
    rows = [{**one, "timestamp": START} for one in honest()]
    log = write_jsonl(tmp_path / "log.ndjson", rows)
    with pytest.raises(DataError, match="2.*--min-days"):
        labels_from_clicks([log], tmp_path / "out", ClickRules())
    made = labels_from_clicks([log], tmp_path / "out", ClickRules(min_days=1))
    assert made.labels > 0
