"""Every example of docs/datasets.md is loaded as it stands there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.published import LOADERS as PUBLISHED
from cogr.datasets import LOADERS, load_dataset
from cogr.datasets.builder import DatasetOptions
from cogr.records import Item
from indexers.workspace import Workspace
from tests.documents import DOCS, examples

PAGE = (DOCS / "datasets.md").read_text()
BLOCK = re.compile(r'^```\w+ title="([^"]+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)


def section(loader: str) -> str:
    return PAGE.partition(f"\n### {loader}\n")[2].partition("\n### ")[0]


def write_example(loader: str, folder: Path) -> None:
    for name, text in BLOCK.findall(section(loader)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(("loader", "items"), [("jsonl", 3), ("csv", 3), ("beir", 2)])
def test_example_of_the_page_loads(
    loader: str, items: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_example(loader, tmp_path)
    dataset = load_dataset(loader, tmp_path)
    assert len(dataset.items) == items
    sizes = {split: len(queries) for split, queries in dataset.queries.items()}
    assert sizes == {"train": 1, "dev": 0, "test": 1}
    assert dataset.notes == {}


def test_the_walk_from_a_spreadsheet_leads_to_items_with_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk = PAGE.partition("\n### From a spreadsheet to a search\n")[2].partition("\n### ")[0]
    sheet, configuration = (
        re.sub("^    ", "", text, flags=re.MULTILINE)
        for text in re.findall(
            r"^    ```(?:text|toml)\n(.*?)^    ```$", walk, re.MULTILINE | re.DOTALL
        )
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-shop").mkdir()
    (tmp_path / "my-shop/items.csv").write_text(sheet)
    (tmp_path / "cogr.toml").write_text(configuration)
    dataset = Workspace.open(None).dataset
    assert [(item.id, item.title, item.text) for item in dataset.items] == [
        ("A-1", "Rain jacket, blue", "Waterproof & warm\nAcme"),
        ("A-2", "Umbrella", "Folding umbrella for two.\nAcme"),
    ]
    assert dataset.items[0].fields == {"brand": "Acme", "price": "59.90", "in_stock": "true"}
    assert dataset.unread == {}
    # The same by way of the environment and of a flag.
    monkeypatch.setenv("COGR_DATASET__COLUMNS__TEXT", '["Brand"]')
    overrides = ["dataset.columns.title=Description", 'publish.fields=["price"]']
    (jacket, _) = Workspace.open(None, overrides).dataset.items
    assert jacket == Item("A-1", "Waterproof & warm", "Acme", '{"price":"59.90"}')


def test_every_loader_and_setting_is_on_the_page() -> None:
    for word in (*LOADERS, *PUBLISHED, "ir_datasets:NAME", "threshold", "dev_share"):
        assert f"`{word}`" in PAGE


def test_nested_json_becomes_items_by_duckdb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = examples("exchange.md", "python")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my-shop").mkdir()
    product = {"sku": 7, "name": "Lamp", "copy": {"long": "<p>Oak</p>"}, "brand": "Acme"}
    (tmp_path / "catalogue1.json").write_text(json.dumps([{**product, "price": 9.5}]))
    exec(code, {})
    (item,) = load_dataset("parquet", tmp_path / "my-shop", DatasetOptions(fields=["price"])).items
    assert item == Item("7", "Lamp", "Oak\nAcme", '{"price":9.5}')
