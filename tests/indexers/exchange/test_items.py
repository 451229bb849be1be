"""`cogr-index import items`: every kind of source, bad records, limits, and what comes later."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cogr.datasets import load_dataset
from cogr.settings.serving import OpenSearchSettings
from indexers.backends.opensearch.client import Cluster
from indexers.exchange import items
from indexers.workspace import Workspace
from tests.commands import Command, Ended

JACKET = {"id": "1", "title": "Rain jacket", "text": "Waterproof & warm"}
LAMP = {"id": "2", "title": "Lamp", "text": "Oak"}


class Importer:
    """Runs the command in a folder with a configuration."""

    def __init__(self, folder: Path, run: Command) -> None:
        self.folder, self.run = folder, run
        self.file = folder / "shop/items.jsonl"
        (folder / "cogr.toml").write_text('[dataset]\nloader = "jsonl"\npath = "shop"\n')

    def __call__(self, *arguments: object, status: int = 0) -> Ended:
        ended = self.run("import", "items", *arguments)
        assert ended.status == status, ended.err
        return ended

    @property
    def items(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()]


@pytest.fixture
def importer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cogr_index: Command) -> Importer:
    monkeypatch.chdir(tmp_path)
    return Importer(tmp_path, cogr_index)


def test_a_spreadsheet_becomes_items(importer: Importer) -> None:
    rows = (
        "\ufeffSKU;Name;Description;Brand;Price\r\n"
        '1;Rain jacket;"<p>Waterproof &amp; warm</p>";Acme;9.5\r\n'
        '2;"Lamp; small";;;3\r\n'
    )
    Path("a.csv").write_text(rows, newline="")
    named = ("--id", "SKU", "--title", "Name", "--text", "Description,Brand")
    ended = importer("a.csv", *named, "--field", "price=Price", "--json")
    assert importer.items == [
        {"id": "1", "title": "Rain jacket", "text": "Waterproof & warm\nAcme", "price": "9.5"},
        {"id": "2", "title": "Lamp; small", "text": "", "price": "3"},
    ]
    assert (ended.json["written"], ended.json["html"], ended.json["bad"]) == (2, 1, 0)
    assert len(load_dataset("jsonl", "shop", fields=["price"]).items) == 2
    ended = importer("a.csv", status=2)
    assert "no column 'id'; set --id to the one that is meant" in ended.err
    ended = importer("a.csv", "--id", "SKU", "--title", "Nam", status=2)
    assert "no column 'Nam'; set --title to the one that is meant, such as 'Name'" in ended.err


def test_the_file_has_the_names_that_the_data_set_has(importer: Importer) -> None:
    config = importer.folder / "cogr.toml"
    config.write_text(
        config.read_text() + '[dataset.columns]\nid = "sku"\ntitle = "name"\n'
        'text = ["long", "brand"]\nupdated = ""\nfields = {price = "Preis"}\n'
        '[publish]\nfields = ["price"]\n'
    )
    Path("a.jsonl").write_text('{"id": 1, "title": "Lamp", "text": "Oak", "p": {"eur": 3}}\n')
    importer("a.jsonl", "--field", "price=p.eur")
    assert importer.items == [{"sku": "1", "name": "Lamp", "long": "Oak", "brand": "", "Preis": 3}]
    importer("a.jsonl", "--field", "price=p.eur", "--to", "other.jsonl")
    assert Path("other.jsonl").read_text() == importer.file.read_text()
    read = Workspace.open(config, []).dataset
    assert [(item.id, item.text, dict(item.fields)) for item in read.items] == [
        ("1", "Oak", {"price": 3})
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("feed.tsv", "id\ttitle\ttext\n1\tRain jacket\tWaterproof & warm\n2\tLamp\tOak\n"),
        ("items.json", json.dumps([JACKET, LAMP])),
        ("items.jsonl", "\ufeff" + json.dumps(JACKET) + "\r\n\n" + json.dumps(LAMP) + "\n"),
        ("dump.ndjson", "".join(json.dumps({"_source": one}) + "\n" for one in (JACKET, LAMP))),
    ],
)
def test_a_file_is_told_by_its_look(importer: Importer, name: str, content: str) -> None:
    Path(name).write_text(content, newline="")
    importer(name)
    assert importer.items == [JACKET, LAMP]


def test_parquet_has_numbers_and_lists(importer: Importer) -> None:
    table = {"sku": [1, 2], "name": ["Rain jacket", "Lamp"], "tags": [["a", "b"], []]}
    pq.write_table(pa.table(table), "items.parquet")
    importer("items.parquet", "--id", "sku", "--title", "name", "--text", "tags")
    assert importer.items[0] == {"id": "1", "title": "Rain jacket", "text": "a, b"}


def test_bad_records_are_named_and_left_out_below_a_share(importer: Importer) -> None:
    good = [json.dumps({"id": number, "title": "x" * 5}) for number in range(95)]
    bad = ['{"id": "torn", "ti', '{"title": "no id"}', '{"id": 3, "title": "again"}', "[]"]
    bad.append('{"id": "mixed", "title": {"en": "x"}}')
    Path("items.jsonl").write_text("\n".join([*good, *bad]))
    importer.file.parent.mkdir()
    importer.file.write_text("as it was")
    ended = importer("items.jsonl", status=2)
    assert "5 of 100 records of items.jsonl are bad, more than the 1% of --bad-share" in ended.err
    assert "items.jsonl, line 96: this is not JSON" in ended.err
    assert [path.name for path in importer.file.parent.iterdir()] == ["items.jsonl"]
    assert importer.file.read_text() == "as it was"
    ended = importer("items.jsonl", "--bad-share", "0.05")
    assert len(importer.items) == 95
    assert "line 97: the record has no 'id'" in ended.err
    assert "line 98: the id '3' appeared earlier with other values" in ended.err
    assert "line 99: the record is not a JSON object but list" in ended.err
    assert "line 100: 'title' is not a text" in ended.err


def test_rows_that_repeat_and_items_without_text_are_kept_and_counted(importer: Importer) -> None:
    rows = [
        *(f"{n},Lamp {n}," for n in range(200)),
        "3,Lamp 3,",
        "3,Lamp 3,",
        "9,Lamp 9,",
        "bare,,",
    ]
    Path("items.csv").write_text("\n".join(["id,title,text", *rows]))
    found = importer("items.csv", "--json").json
    counts = [found[name] for name in ("read", "written", "repeated", "bad", "blank")]
    assert counts == [204, 201, 3, 0, 1]
    assert load_dataset("jsonl", "shop").notes == {"items without title and text": 1}


def test_names_that_no_record_has_are_refused(importer: Importer) -> None:
    Path("items.jsonl").write_text('{"id": 1, "name": "Lamp"}\n{"id": 2, "name": "Sofa"}\n')
    ended = importer("items.jsonl", status=2)
    assert "No record of items.jsonl has any of 'title', 'text'; name its title" in ended.err
    ended = importer("items.jsonl", "--title", "name", "--text", "body", status=2)
    assert "--text names 'body', which no record of items.jsonl has" in ended.err
    assert not importer.file.exists()


def test_one_bad_date_is_one_bad_record(importer: Importer) -> None:
    days = ["2026-01-31", "0001-01-01T00:00:00+14:00", "yesterday", 1e300]
    lines = [json.dumps({"id": n, "title": "x", "day": day}) for n, day in enumerate(days)]
    Path("items.jsonl").write_text("\n".join(lines))
    ended = importer("items.jsonl", "--updated", "day", "--bad-share", "0.9", "--json")
    assert (ended.json["written"], ended.json["bad"]) == (1, 3)


@pytest.mark.parametrize("name", ["items.jsonl", "items.csv", "items.json"])
def test_a_small_file_that_unpacks_to_much_is_refused(importer: Importer, name: str) -> None:
    """80 MiB in one line, cell or array, packed to 80 KiB."""
    head = {"items.jsonl": b'{"id": "', "items.csv": b'id,title\n1,"', "items.json": b"["}[name]
    with gzip.open(f"{name}.gz", "wb") as file:
        file.write(head)
        for _ in range(80):
            file.write((b"x" * 1023 + (b"\n" if name == "items.csv" else b" ")) * 1024)
    ended = importer(f"{name}.gz", status=2)
    said = {
        "items.jsonl": "line 1: the line is longer than 16 MiB",
        "items.csv": "the row can't be read (field larger than field limit",
        "items.json": "one JSON value of more than 64 MiB; write one JSON object a line",
    }
    assert said[name] in ended.err


def test_a_database_is_read(importer: Importer) -> None:
    with sqlite3.connect("shop.db") as base:
        base.execute("create table items (sku integer primary key, title text, day text)")
        base.executemany(
            "insert into items values (?, ?, ?)",
            [(n, f"item {n}", f"2026-01-{n:02}T12:00:00") for n in range(1, 22)],
        )
    fixed = ("--sql", "sqlite:///shop.db", "--id", "sku", "--updated", "day", "--json")
    ended = importer(*fixed, "--query", "select * from items where sku < 21")
    assert (ended.json["written"], importer.items[0]["updated"]) == (20, "2026-01-01T12:00:00Z")
    assert importer(*fixed, "--query", "items").json["written"] == 21
    ended = importer("--sql", "sqlite:///shop.db", "--query", "gone", status=2)
    assert "refuses the query (no such table: gone)" in ended.err
    with sqlite3.connect("shop.db") as base:
        base.execute("create table odd as select x'ff00' as id, 'Lamp' as title")
    ended = importer("--sql", "sqlite:///shop.db", "--query", "odd", status=2)
    assert "sqlite:///shop.db, row 1: 'id' is bytes; write it as a string" in ended.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Name what to read"),
        (("gone.csv",), "The file gone.csv does not exist"),
        (("cogr.toml", "--index", "x"), "Name what to read"),
        (("--sql", "sqlite://"), "--sql needs --query"),
        (("--sql", "no url", "--query", "x"), "--sql is not the URL of a database"),
        (("bad.json",), "bad.json, line 1: the record has no 'id'"),
        (("bad.parquet",), "bad.parquet is not a parquet file"),
    ],
)
def test_wrong_input_is_one_sentence(
    importer: Importer, arguments: tuple[str, ...], said: str
) -> None:
    Path("bad.json").write_text('{"a": 1}')
    Path("bad.parquet").write_text("no")
    ended = importer(*arguments, status=2)
    assert said in ended.err
    assert len(ended.err.strip().splitlines()) == 1
    assert not importer.file.exists()


@pytest.fixture(scope="module")
def index(opensearch: OpenSearchSettings) -> Iterator[tuple[Cluster, str]]:
    """250 products in three shards, with objects, lists and times."""
    cluster, name = Cluster(opensearch), f"import{os.getpid()}"
    body = {
        "settings": {"number_of_shards": 3, "number_of_replicas": 0},
        "mappings": {"properties": {"changed": {"type": "date"}}},
    }
    cluster.call("PUT", f"/{name}", body=body, doing="creating")
    lines: list[Any] = []
    for number in range(250):
        lines += [{"index": {"_id": f"p{number}"}}, product(number)]
    bulk = "".join(json.dumps(line) + "\n" for line in lines)
    answer = cluster.call(
        "POST", f"/{name}/_bulk", body=bulk, params={"refresh": "true"}, doing="writing"
    )
    assert not answer["errors"]
    yield cluster, name
    cluster.call("DELETE", f"/{name}", doing="cleaning up")


def product(number: int) -> dict[str, Any]:
    return {
        "name": f"product {number}",
        "text": {"long": f"<p>Number {number}</p>", "tags": ["a", "b"]},
        "offers": [{"price": number}, {"price": number + 1}],
        "changed": 1_767_225_600_000 + number * 1000,
    }


NAMED = ("--title", "name", "--text", "text.long,text.tags", "--field", "price=offers.price")


@pytest.mark.server
def test_an_index_is_read_in_pages_and_later_only_what_changed(
    importer: Importer, index: tuple[Cluster, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(items, "PAGE", 100)
    cluster, name = index
    there = ("--set", f"opensearch.url={cluster.url}", "--json")
    fixed = ("--index", name, *NAMED, "--updated", "changed", *there)
    ended = importer(*fixed)
    found = {item["id"]: item for item in importer.items}
    assert (ended.json["written"], ended.json["html"], len(found)) == (250, 250, 250)
    assert found["p7"] == {
        "id": "p7",
        "title": "product 7",
        "text": "Number 7\na, b",
        "updated": "2026-01-01T00:00:07Z",
        "price": [7, 8],
    }
    ended = importer("--index", "nowhere", *there, status=2)
    assert "There is no index 'nowhere'" in ended.err
    pits = cluster.call("GET", "/_search/point_in_time/_all", doing="looking", missing_ok=True)
    assert not (pits or {}).get("pits")


@pytest.mark.server
def test_ubi_indexes_become_a_file(importer: Importer, opensearch: OpenSearchSettings) -> None:
    cluster, name = Cluster(opensearch), f"ubi{os.getpid()}"
    day = "2026-11-21T10:00:00.000Z"
    records: list[dict[str, Any]] = [
        {"user_query": "sofa", "query_id": "1", "timestamp": day},
        {"action_name": "click", "user_query": "sofa", "timestamp": day},
        {"action_name": "click", "timestamp": "2026-11-20T10:00:00.000Z"},
        {"user_query": "mail jo@example.com", "query_id": "2", "timestamp": day},
    ]
    for number, record in enumerate(records):
        cluster.call(
            "PUT",
            f"/{name}/_doc/{number}",
            body=record,
            params={"refresh": "true"},
            doing="writing",
        )
    fixed = ("--index", name, "--set", f"opensearch.url={opensearch.url}", "--json")
    arguments = ("import", "ubi", "ubi.ndjson", *fixed)
    ended = importer.run(*arguments)
    assert ended.status == 0, ended.err
    assert (ended.json["records"], ended.json["left_out"]) == (3, 1)
    lines = Path("ubi.ndjson").read_text().splitlines()
    assert sorted(lines) == sorted(json.dumps(record) for record in records[:3])
    since = ("--since", "2026-11-21")
    ended = importer.run(*arguments, *since)
    assert ended.json["records"] == 2
    cluster.call("DELETE", f"/{name}", doing="cleaning up")
