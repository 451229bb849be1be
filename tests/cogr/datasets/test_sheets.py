"""The format csv, and the names of columns in every format of one's own."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest

from cogr.datasets import load_dataset
from cogr.datasets.builder import Options
from cogr.datasets.fields import Columns
from cogr.errors import DataError
from cogr.records import Dataset, Item
from indexers.inspection import inspect_dataset, remarks
from tests.shops import write_jsonl

COLUMNS = Columns(
    id="SKU",
    title="Name",
    text=("Description", "Details"),
    updated="",
    fields={"price": "Preis"},
)
ITEMS = """SKU;Name;Description;Details;Preis;Stock
A-1;Größe "M";"Soft; warm
and red";"<b>Wool</b> &amp; silk";9.50;3
A-2;Lamp;;;;
"""


def write(
    folder: Path, items: str = ITEMS, encoding: str = "utf-8", name: str = "items.csv", **more: str
) -> Path:
    folder.mkdir(exist_ok=True)
    for file, text in {name: items, **{f"{part}.csv": rows for part, rows in more.items()}}.items():
        (folder / file).write_bytes(text.encode(encoding))
    return folder


def load(folder: Path, fields: tuple[str, ...] = ("price",), columns: Columns = COLUMNS) -> Dataset:
    return load_dataset("csv", folder, Options(columns=columns, fields=fields))


@pytest.mark.parametrize(
    ("encoding", "line_end", "delimiter"),
    [
        ("utf-8", "\n", ";"),
        ("utf-8-sig", "\r\n", ","),
        ("utf-8", "\r", "\t"),
        ("utf-8", "\n", "|"),
    ],
)
def test_a_sheet_is_read_whatever_wrote_it(
    tmp_path: Path, encoding: str, line_end: str, delimiter: str
) -> None:
    rows = re.sub(r"(?<!Soft|&amp);", lambda _: delimiter, ITEMS).replace("\n", line_end)
    folder = write(tmp_path / "shop", rows, encoding)
    dataset = load(folder)
    assert [(item.id, item.title, item.text) for item in dataset.items] == [
        ("A-1", 'Größe "M"', "Soft; warm\nand red\nWool & silk"),
        ("A-2", "Lamp", ""),
    ]
    assert [dict(item.fields) for item in dataset.items] == [{"price": "9.50"}, {}]
    assert dataset.unread == {"Stock": 1}
    assert dataset.notes == {"titles and texts with HTML removed": 1}


def test_lists_and_numbers_in_texts_are_written_out(tmp_path: Path) -> None:
    record = {"id": "a", "name": "A", "facts": ["red", 42], "year": 2026, "none": None}
    write_jsonl(tmp_path / "items.jsonl", [record])
    columns = Columns(title="name", text=("facts", "year", "none"))
    (item,) = load_dataset("jsonl", tmp_path, Options(columns=columns)).items
    assert item == Item("a", "A", "red, 42\n2026")


def test_excel_pads_rows(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", "id;title;;\n1;a,b;;\n;;;\n2;c;;;;\n", name="items.tsv")
    (folder / "items.tsv.gz").write_bytes(gzip.compress((folder / "items.tsv").read_bytes()))
    (folder / "items.tsv").unlink()
    assert [*load(folder, (), Columns()).items] == [Item("1", "a,b"), Item("2", "c")]


def test_rows_that_repeat_are_left_out_and_counted(tmp_path: Path) -> None:
    items = "id,title,colour\n1,a,red\n2,b,\n1,a,blue\n2,b,\n2,b,\n"
    folder = write(tmp_path / "shop", items, queries="id,text\nq,a\n")
    dataset = load(folder, (), Columns())
    assert [*dataset.items] == [Item("1", "a"), Item("2", "b")]
    assert dataset.notes["rows that repeat an item"] == 3
    assert [query.id for query in dataset.entities("query")] == ["q"]
    # With the colour that is read, the rows are not equal.
    with pytest.raises(DataError, match=r"line 4: the item id '1' is already taken by .*line 2"):
        load(folder, ("colour",), Columns())


def test_what_is_not_read_and_what_was_mended_is_told(tmp_path: Path) -> None:
    rows = [{"id": f"i{n}", "title": f"T{n} &amp; co", "description": "x"} for n in range(5)]
    branded = [{**row, "brand": "b"} for row in rows[:2]]
    write_jsonl(tmp_path / "items.jsonl", [*branded, *rows[2:], branded[0]])
    dataset = load_dataset("jsonl", tmp_path)
    report = inspect_dataset(dataset)
    assert report.unread == {"description": 6, "brand": 3}
    assert report.notes == {"titles and texts with HTML removed": 6, "rows that repeat an item": 1}
    assert remarks(dataset) == [
        "Fields of items that are not read: description (6), brand (3). Name in "
        "dataset.columns.text what describes an item, and in publish.fields what goes into the "
        "index.",
        "6 titles and texts with HTML removed.",
        "1 rows that repeat an item.",
    ]
    columns = Columns(text=("description",))
    read = load_dataset("jsonl", tmp_path, Options(columns=columns, fields=("brand",)))
    assert (read.items[0].title, read.unread) == ("T0 & co", {})
    assert remarks(read)[0] == "6 titles and texts with HTML removed."
