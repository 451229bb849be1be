"""`cogr-index import items` and `import ubi`: documents of an index, and bad ones."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cogr.datasets.fields import Columns
from cogr.datasets.reading import Place
from cogr.errors import DataError
from indexers import imports
from indexers.backends.opensearch.client import Cluster
from indexers.imports import ItemsImported, import_items
from indexers.workspace import Workspace
from tests.commands import Command
from tests.shops import read_jsonl


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The items of the data set that the configuration here names."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cogr.toml").write_text('[dataset]\nloader = "jsonl"\npath = "shop"\n')
    return tmp_path / "shop/items.jsonl"


PLACE = Place("products", 1, "document")
LAMP = {"_id": 1, "title": "Lamp", "text": "Oak", "p": {"eur": 3}}


def imported(to: Path, documents: Iterable[dict[str, Any]], **named: Any) -> ItemsImported:
    """What `import_items` makes of documents."""
    source = Columns("_id", **{"text": (), "updated": "", **named})
    return import_items([(PLACE, one) for one in documents], to, source, Columns())


def test_the_file_has_the_names_that_the_data_set_has(file: Path) -> None:
    config = Path("cogr.toml")
    config.write_text(
        config.read_text() + '[dataset.columns]\nid = "sku"\ntitle = "name"\n'
        'text = ["long", "brand"]\nfields = {price = "Preis"}\n'
        '[publish]\nfields = ["price"]\n'
    )
    workspace = Workspace.open(config, [])
    source = Columns("_id", updated="", fields={"price": "p.eur"})
    import_items([(PLACE, LAMP)], file, source, workspace.reading.columns)
    (item,) = read_jsonl(file)
    assert item == {"sku": "1", "name": "Lamp", "long": "Oak", "brand": "", "Preis": 3}
    assert [(item.id, item.text, dict(item.fields)) for item in workspace.dataset.items] == [
        ("1", "Oak", {"price": 3})
    ]


def test_bad_documents_are_named_and_left_out_below_a_share(tmp_path: Path) -> None:
    to = tmp_path / "items.jsonl"
    good = [{"_id": number, "title": "x" * 5} for number in range(199)]
    mixed, undated = {"_id": "mixed", "title": {"en": "x"}}, {"_id": "u", "updated": "yesterday"}
    to.write_text("as it was")
    with pytest.raises(DataError, match="3 of 202 documents are bad, more than 1%"):
        imported(to, [*good, mixed, undated, {"title": "no id"}], updated="updated")
    assert [path.name for path in tmp_path.iterdir()] == ["items.jsonl"]
    assert to.read_text() == "as it was"
    found = imported(to, [*good, mixed, {"_id": "bare"}])
    assert (found.written, found.bad) == (200, 1)
    (problem,) = found.problems
    assert "products, document 1: 'title' is not a text" in problem
    assert len(to.read_text().splitlines()) == 200


def test_names_that_no_document_has_are_refused(tmp_path: Path) -> None:
    documents, to = [{"_id": 1, "name": "Lamp"}], tmp_path / "items.jsonl"
    for named, absent in (({}, "title"), ({"title": "name", "text": ("body",)}, "body")):
        with pytest.raises(DataError, match=f"No document has '{absent}'; name fields"):
            imported(to, documents, **named)
    assert not to.exists()


def write(cluster: Cluster, name: str, records: Iterable[dict[str, Any]]) -> str:
    """Write records into an index; returns its whole name."""
    index = f"{cluster.settings.prefix}-{name}"
    lines = (line for at, one in enumerate(records) for line in ({"index": {"_id": f"p{at}"}}, one))
    bulk = "".join(json.dumps(line) + "\n" for line in lines)
    there = {"body": bulk, "params": {"refresh": "true"}, "doing": "writing"}
    assert not cluster.call("POST", f"/{index}/_bulk", **there)["errors"]
    return index


def product(number: int) -> dict[str, Any]:
    return {
        "name": f"product {number}",
        "text": {"long": f"<p>Number {number}</p>", "tags": ["a", "b"]},
        "offers": [{"price": number}, {"price": number + 1}],
        "changed": 1_767_225_600_000 + number * 1000,
    }


NAMED = ("--title", "name", "--text", "text.long,text.tags", "--field", "price=offers.price")


SHARDS = {"settings": {"number_of_shards": 3, "number_of_replicas": 0}}
DATED = {"mappings": {"properties": {"changed": {"type": "date"}}}}


def test_an_index_is_read_in_pages(
    file: Path, cogr_index: Command, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/{cluster.settings.prefix}-products"
    cluster.call("PUT", path, body={**SHARDS, **DATED}, doing="creating")
    index = write(cluster, "products", map(product, range(250)))
    monkeypatch.setattr(imports, "PAGE", 100)
    there = ("--set", f"opensearch.url={cluster.url}", "--json")
    fixed = ("--index", index, *NAMED, "--updated", "changed", *there)
    ended = cogr_index("import", "items", *fixed)
    found = {item["id"]: item for item in read_jsonl(file)}
    assert (ended.json["written"], ended.json["html"], len(found)) == (250, 250, 250)
    assert found["p7"] == {
        "id": "p7",
        "title": "product 7",
        "text": "Number 7\na, b",
        "updated": "2026-01-01T00:00:07Z",
        "price": [7, 8],
    }
    ended = cogr_index("import", "items", "--index", "nowhere", *there)
    assert ended.status == 2
    assert "There is no index 'nowhere'" in ended.err
    pits = cluster.call("GET", "/_search/point_in_time/_all", doing="looking", missing_ok=True)
    assert not (pits or {}).get("pits")


@pytest.mark.usefixtures("file")
def test_ubi_indexes_become_a_file(cogr_index: Command, cluster: Cluster) -> None:
    day = "2026-11-21T10:00:00.000Z"
    records: list[dict[str, Any]] = [
        {"user_query": "sofa", "query_id": "1", "timestamp": day},
        {"action_name": "click", "user_query": "sofa", "timestamp": day},
        {"action_name": "click", "timestamp": "2026-11-20T10:00:00.000Z"},
        {"user_query": "mail jo@example.com", "query_id": "2", "timestamp": day},
    ]
    name = write(cluster, "ubi", records)
    fixed = ("--index", name, "--set", f"opensearch.url={cluster.url}", "--json")
    arguments = ("import", "ubi", "ubi.ndjson", *fixed)
    ended = cogr_index(*arguments)
    assert ended.status == 0, ended.err
    assert (ended.json["records"], ended.json["left_out"]) == (3, 1)
    lines = Path("ubi.ndjson").read_text().splitlines()
    assert sorted(lines) == sorted(json.dumps(record) for record in records[:3])
    since = ("--since", "2026-11-21")
    ended = cogr_index(*arguments, *since)
    assert ended.json["records"] == 2
