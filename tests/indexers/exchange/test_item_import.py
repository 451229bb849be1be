"""`cogr-index import items`: every kind of source, bad records, what comes later, and kills."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cogr.datasets import load_dataset
from cogr.settings import OpenSearchSettings
from indexers.backends.opensearch.client import Cluster, Version
from indexers.cli import main
from indexers.exchange import index_source as scan
from indexers.exchange import item_import
from indexers.exchange.index_source import IndexSource, documents
from indexers.workspace import Workspace
from tests.commands import Ended, run_here

JACKET = {"id": "1", "title": "Rain jacket", "text": "Waterproof & warm"}
LAMP = {"id": "2", "title": "Lamp", "text": "Oak"}


class Importer:
    """Runs the command in a folder with a configuration."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        capture: pytest.CaptureFixture[str],
    ) -> None:
        self.folder, self._run = folder, (monkeypatch, capture)
        self.file = folder / "shop/items.jsonl"
        monkeypatch.chdir(folder)
        (folder / "cogr.toml").write_text('[dataset]\nloader = "jsonl"\npath = "shop"\n')

    def __call__(self, *arguments: object, status: int = 0) -> Ended:
        ended = run_here(main, *self._run, "cogr-index", "import", "items", *arguments)
        assert ended.status == status, ended.err
        return ended

    @property
    def items(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()]


@pytest.fixture
def importer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Importer:
    return Importer(tmp_path, monkeypatch, capsys)


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


def feed(*products: str) -> str:
    return (
        '<?xml version="1.0"?><rss xmlns:g="http://base.google.com/ns/1.0" version="2.0">'
        f"<channel><title>Shop</title>{''.join(products)}</channel></rss>"
    )


MERCHANT = feed(
    "<item><title>old</title><g:id>1</g:id><g:title>Rain jacket</g:title>"
    "<g:description>&lt;b&gt;Waterproof&lt;/b&gt; &amp;amp; warm</g:description>"
    "<g:shipping><g:price>3 EUR</g:price></g:shipping></item>",
    "<item><g:id>2</g:id><title>Lamp</title><description>Oak</description></item>",
)
ATOM = (
    '<feed xmlns="http://www.w3.org/2005/Atom" xmlns:g="http://base.google.com/ns/1.0">'
    "<title>Shop</title><entry><g:id>1</g:id><g:title>Rain jacket</g:title>"
    "<g:description>Waterproof &amp; warm</g:description></entry>"
    "<entry><id>2</id><title>Lamp</title><g:description>Oak</g:description></entry></feed>"
)
SHOPIFY = (
    "Handle,Title,Body (HTML),Vendor,Variant SKU\n"
    "1,Rain jacket,<b>Waterproof</b> &amp; warm,,A-1\n1,,,,A-2\n2,Lamp,Oak,,B\n"
)
PRODUCTS = {
    "products": [
        {"id": 1, "title": "Rain jacket", "body_html": "<b>Waterproof</b> &amp; warm", "tags": ""},
        {"id": 2, "title": "Lamp", "body_html": "Oak", "tags": ""},
    ]
}


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("feed.xml", MERCHANT),
        ("atom.xml", ATOM),
        ("feed.tsv", "id\ttitle\ttext\n1\tRain jacket\tWaterproof & warm\n2\tLamp\tOak\n"),
        ("products.csv", SHOPIFY),
        (
            "products.csv",
            SHOPIFY.replace("Handle", "URL handle").replace("Body (HTML)", "Description"),
        ),
        ("products.json", json.dumps(PRODUCTS)),
        ("items.json", json.dumps([JACKET, LAMP])),
        ("items.jsonl", "\ufeff" + json.dumps(JACKET) + "\r\n\n" + json.dumps(LAMP) + "\n"),
        ("dump.ndjson", "".join(json.dumps({"_source": one}) + "\n" for one in (JACKET, LAMP))),
    ],
    ids=["merchant", "atom", "tsv", "shopify", "shopify new", "products", "json", "jsonl", "dump"],
)
def test_a_feed_is_told_by_its_look(importer: Importer, name: str, content: str) -> None:
    Path(name).write_text(content, newline="")
    importer(name)
    assert importer.items == [JACKET, LAMP]


def test_a_merchants_table_and_variants_are_asked_for(importer: Importer) -> None:
    Path("feed.txt").write_text("id\ttitle\tdescription\n2\tLamp\tOak\n")
    importer("feed.txt", "--format", "merchant")
    assert importer.items == [LAMP]
    Path("products.csv").write_text(SHOPIFY)
    importer("products.csv", "--id", "Variant SKU", "--text", "Vendor")
    assert [(item["id"], item["title"]) for item in importer.items] == [
        ("A-1", "Rain jacket"),
        ("A-2", "Rain jacket"),
        ("B", "Lamp"),
    ]


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
    ended = importer("items.jsonl", status=2)
    assert "5 of 100 records of items.jsonl are bad, more than the 1% of --bad-share" in ended.err
    assert "items.jsonl, line 96: this is no JSON" in ended.err
    assert not importer.file.exists()
    ended = importer("items.jsonl", "--bad-share", "0.05")
    assert len(importer.items) == 95
    assert "line 97: the record has no 'id'" in ended.err
    assert "line 98: the id '3' was there before" in ended.err
    assert "line 99: the record is no JSON object but list" in ended.err
    assert "line 100: 'title' is no text" in ended.err


def test_a_megabyte_of_text_and_odd_characters_pass(importer: Importer) -> None:
    record = {"id": "1", "title": "a\0b", "text": "ä" * 1_000_000}
    Path("items.jsonl").write_text(json.dumps(record))
    assert importer("items.jsonl", "--json").json["nul"] == 1
    assert importer.items == [{"id": "1", "title": "ab", "text": "ä" * 1_000_000}]


def test_a_database_is_read_in_pages_and_later_only_what_changed(
    importer: Importer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexers.exchange.sources.PAGE", 7)
    with sqlite3.connect("shop.db") as base:
        base.execute("create table items (sku integer primary key, title text, day text)")
        base.executemany(
            "insert into items values (?, ?, ?)",
            [(n, f"item {n}", f"2026-01-{n:02}T12:00:00") for n in range(1, 22)],
        )
    fixed = ("--sql", "sqlite:///shop.db", "--id", "sku", "--updated", "day", "--json")
    ended = importer(*fixed, "--query", "select * from items where sku < 21")
    assert (ended.json["written"], importer.items[0]["updated"]) == (20, "2026-01-01T12:00:00Z")
    with sqlite3.connect("shop.db") as base:
        base.execute("update items set title = 'new', day = '2026-02-01T00:00:00Z' where sku = 5")
    ended = importer(*fixed, "--query", "items", "--since", "last")
    # The newest one is read again: another may have had the same time.
    assert [ended.json[name] for name in ("written", "changed", "items")] == [3, 2, 21]
    assert [item["id"] for item in importer.items if item["title"] == "new"] == ["5"]
    assert len({item["id"] for item in importer.items}) == 21
    ended = importer("--sql", "sqlite:///shop.db", "--query", "gone", status=2)
    assert "refuses the query (no such table: gone)" in ended.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Name what to read"),
        (("gone.csv",), "The file gone.csv is not there"),
        (("cogr.toml", "--index", "x"), "Name what to read"),
        (("cogr.toml", "--format", "xlsx"), "--format 'xlsx' is unknown"),
        (("--sql", "sqlite://"), "--sql needs --query"),
        (("--sql", "no url", "--query", "x"), "--sql names no database"),
        (("bad.xml",), "bad.xml is no feed, or a damaged one, after product 0"),
        (("bomb.xml",), "bomb.xml is no feed"),
        (("bad.json",), "bad.json: the JSON is no array"),
        (("bad.parquet",), "bad.parquet is no parquet file"),
        (("cogr.toml", "--since", "last"), "says when it changed; import all of them first"),
    ],
)
def test_wrong_input_is_one_sentence(
    importer: Importer, arguments: tuple[str, ...], said: str
) -> None:
    Path("bad.xml").write_text("<rss><channel><item>")
    Path("bomb.xml").write_text(
        '<!DOCTYPE x [<!ENTITY a "b">]><rss><item><id>&a;</id></item></rss>'
    )
    Path("bad.json").write_text('{"a": 1}')
    Path("bad.parquet").write_text("no")
    ended = importer(*arguments, status=2)
    assert said in ended.err
    assert len(ended.err.strip().splitlines()) == 1
    assert not importer.file.exists()


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
from indexers.exchange import item_import, sources
from indexers.exchange.item_import import Mapped, import_items
from cogr.datasets.fields import Columns
sources.PAGE, item_import.NOTE_SECONDS = 20, 0.0
draw = random.Random(int(sys.argv[1]))
one, two, to = Path("1.csv"), Path("2.csv"), Path("out.jsonl")
killed = resumed = whole = 0
while killed < int(sys.argv[2]):
    child = os.fork()
    if not child:
        said = []
        import_items(sources.FileSource([one, two]), to, Mapped(Columns()), say=said.append)
        os._exit(3 if said else 0)
    time.sleep(draw.uniform(0, float(sys.argv[3])))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        killed += 1
        assert not to.exists()
        continue
    resumed, whole = resumed + (os.WEXITSTATUS(status) == 3), whole + 1
    found = sorted(to.read_text().splitlines())
    assert found == sorted(Path("wanted.jsonl").read_text().splitlines()), len(found)
    to.unlink()
import_items(sources.FileSource([one, two]), to, Mapped(Columns()))
assert sorted(to.read_text().splitlines()) == sorted(Path("wanted.jsonl").read_text().splitlines())
assert not list(Path().glob(".out*"))
print(killed, resumed, whole)
"""


def killed(folder: Path, kills: int, seed: int) -> tuple[int, int, int]:
    """Import 2,000 rows of two files again and again, and kill it; kills, how many imports went on
    from another, and how many came to their end.
    """
    items = [{"id": str(n), "title": f"item {n}", "text": ""} for n in range(2_000)]
    rows = [f"{item['id']},{item['title']}" for item in items]
    for name, some in (("1.csv", rows[:900]), ("2.csv", rows[900:])):
        (folder / name).write_text("\n".join(["id,title", *some]))
    (folder / "wanted.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(seed), str(kills), "0.25"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr
    found = [int(number) for number in done.stdout.split()]
    return found[0], found[1], found[2]


@pytest.mark.fault
def test_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    kills, resumed, whole = killed(tmp_path, kills=10, seed=1)
    assert kills == 10
    assert resumed <= whole


@pytest.mark.drill
@pytest.mark.fault
def test_a_hundred_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    kills, resumed, _ = killed(tmp_path, kills=100, seed=2)
    assert kills == 100
    assert resumed > 0


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
@pytest.mark.parametrize("order", ["_shard_doc", "_id"])
def test_an_index_is_read_whole(
    importer: Importer,
    index: tuple[Cluster, str],
    order: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, name = index
    monkeypatch.setattr(scan, "PAGE", 40)
    if order == "_id":
        monkeypatch.setattr(Cluster, "version", Version(2, 19, "2.19.0"))
    (importer.folder / "cogr.toml").write_text(
        f'[dataset]\nloader = "jsonl"\npath = "shop"\n[opensearch]\nurl = "{cluster.url}"\n'
    )
    ended = importer("--index", name, *NAMED, "--updated", "changed", "--slices", "4", "--json")
    assert (ended.json["written"], ended.json["html"]) == (250, 250)
    found = {item["id"]: item for item in importer.items}
    assert len(found) == 250
    assert found["p7"] == {
        "id": "p7",
        "title": "product 7",
        "text": "Number 7\na, b",
        "updated": "2026-01-01T00:00:07Z",
        "price": [7, 8],
    }
    again = importer(
        "--index", name, *NAMED, "--updated", "changed", "--since", "2026-01-01T00:04:00", "--json"
    )
    assert (again.json["written"], again.json["changed"], again.json["items"]) == (10, 10, 250)
    assert "There is no index 'nowhere'" in importer("--index", "nowhere", status=2).err


@pytest.mark.server
def test_an_interrupted_reading_goes_on_or_begins_anew(
    importer: Importer, index: tuple[Cluster, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, name = index
    monkeypatch.setattr(item_import, "NOTE_SECONDS", 0.0)
    monkeypatch.setattr(scan, "PAGE", 40)
    read = IndexSource.page
    asked: list[str] = []

    def breaking(self: IndexSource, part: int, cursor: Any) -> Any:
        asked.append(cursor["pit"])
        if len(asked) == 5:
            raise KeyboardInterrupt
        return read(self, part, cursor)

    monkeypatch.setattr(IndexSource, "page", breaking)
    fixed = ("--index", name, *NAMED, "--set", f"opensearch.url={cluster.url}", "--slices", "2")
    importer(*fixed, status=130)
    ended = importer(*fixed, "--json")
    assert "was interrupted; going on after" in ended.err
    assert len(set(asked)) == 1
    assert (len(importer.items), ended.json["resumed"] > 0) == (250, True)
    asked.clear()
    importer(*fixed, status=130)
    pits = cluster.call("DELETE", "/_search/point_in_time/_all", doing="forgetting")
    assert pits
    ended = importer(*fixed, "--json")
    assert "can't be read as it was then; reading it anew." in ended.err
    assert (len(importer.items), ended.json["bad"]) == (250, 0)
    assert len(set(asked)) == 2


@pytest.mark.server
def test_documents_come_with_their_places(index: tuple[Cluster, str]) -> None:
    found = {str(place): record for place, record in documents(IndexSource(*index, slices=2))}
    assert found[f"{index[1]}, document p3"] == {"_id": "p3", **product(3)}


@pytest.mark.server
def test_ubi_indexes_become_a_file(
    importer: Importer,
    opensearch: OpenSearchSettings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster, name = Cluster(opensearch), f"ubi{os.getpid()}"
    day = "2026-11-21T10:00:00.000Z"
    records: list[dict[str, Any]] = [
        {"user_query": "sofa", "query_id": "1", "timestamp": day},
        {"action_name": "click", "user_query": "sofa", "timestamp": day},
        {"action_name": "click", "timestamp": "2026-11-20T10:00:00.000Z"},
        {"action_name": 5, "timestamp": day},
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
    ended = run_here(main, monkeypatch, capsys, "cogr-index", *arguments)
    assert ended.status == 0, ended.err
    assert (ended.json["records"], ended.json["bad"]) == (3, 1)
    assert f"{name}, document 3: 'action_name' is a number" in ended.err
    lines = Path("ubi.ndjson").read_text().splitlines()
    assert sorted(lines) == sorted(json.dumps(record) for record in records[:3])
    since = ("--since", "2026-11-21")
    ended = run_here(main, monkeypatch, capsys, "cogr-index", *arguments, *since)
    assert ended.json["records"] == 2
    cluster.call("DELETE", f"/{name}", doing="cleaning up")
