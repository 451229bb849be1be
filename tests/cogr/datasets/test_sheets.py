"""The format csv, and the names of columns in every format of one's own."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cogr.datasets import load_dataset
from cogr.datasets.builder import DatasetOptions
from cogr.datasets.fields import Columns
from cogr.datasets.judgements import read_judgements
from cogr.datasets.query_logs import AccessLog, read_log
from cogr.datasets.reading import use_encoding
from cogr.errors import DataError, SettingsError
from cogr.records import Dataset, Item
from indexers.inspection import remarks
from tests.shops import write_beir, write_jsonl

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
    return load_dataset("csv", folder, DatasetOptions(columns=columns, fields=fields))


@pytest.mark.parametrize(
    ("encoding", "line_end", "delimiter"),
    [
        ("utf-8", "\n", ";"),
        ("utf-8-sig", "\r\n", ","),
        ("utf-8", "\r", "\t"),
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
    (item,) = load_dataset("jsonl", tmp_path, DatasetOptions(columns=columns)).items
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
    with pytest.raises(DataError, match="line 4: .*'1' .*line 2"):
        load(folder, ("colour",), Columns())


def test_what_is_not_read_and_what_was_mended_is_told(tmp_path: Path) -> None:
    rows = [{"id": f"i{n}", "title": f"T{n} &amp; co", "description": "x"} for n in range(5)]
    branded = [{**row, "brand": "b"} for row in rows[:2]]
    write_jsonl(tmp_path / "items.jsonl", [*branded, *rows[2:], branded[0]])
    dataset = load_dataset("jsonl", tmp_path)
    assert dataset.unread == {"description": 6, "brand": 3}
    assert dataset.notes == {"titles and texts with HTML removed": 6, "rows that repeat an item": 1}
    assert "description (6), brand (3)" in remarks(dataset)[0]
    columns = Columns(text=("description",))
    read = load_dataset("jsonl", tmp_path, DatasetOptions(columns=columns, fields=("brand",)))
    assert (read.items[0].title, read.unread) == ("T0 & co", {})


@pytest.mark.parametrize(
    ("header", "named"), [("Grade", "Grade"), ("comment,Score", "Score"), ("clicks", "clicks")]
)
def test_labels_without_a_grade_but_with_more_are_refused(
    tmp_path: Path, header: str, named: str
) -> None:
    labels = f"query,item,{header}\nq,1,2{',3' * header.count(',')}\n"
    folder = write(tmp_path, "id,title\n1,a\n", queries="id,text\nq,a\n", labels=labels)
    with pytest.raises(DataError, match=f"labels.csv: no field is named 'grade', and '{named}'"):
        load(folder, (), Columns())


def test_what_is_not_read_is_named_in_every_file(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        "id,title,Brand\n1,a,x\n",
        queries="id,text,Split,Weight\nq,a,test,3\nr,b,,2\n",
        labels="query,item,grade,Rating\nq,1,1,4\n",
    )
    write_jsonl(folder / "items.jsonl", [])
    (folder / "items.tsv").write_text("id\ttitle\n2\tb\n")
    (folder / "pairs.csv").write_text("query,item,clicks\nq,1,3\n")
    assert load(folder, (), Columns()).unread == {
        "Brand": 1,
        "items.tsv": 1,
        "items.jsonl": 1,
        "pairs.csv": 1,
        "queries' Split": 1,
        "queries' Weight": 2,
        "labels' Rating": 1,
    }


def test_qrels_of_no_split_are_named(tmp_path: Path) -> None:
    item = {"id": "1", "title": "a", "text": ""}
    asked = [{"id": "q", "text": "a", "split": "test"}, {"id": "r", "text": "b", "split": "train"}]
    labels = [{"query": "q", "item": "1", "grade": 1}, {"query": "r", "item": "1", "grade": 1}]
    folder = write_beir(tmp_path, [item], asked, labels)
    assert load_dataset("beir", folder).unread == {}
    (folder / "qrels/train.tsv").rename(folder / "qrels/validation.tsv")
    assert load_dataset("beir", folder).unread == {"qrels/validation.tsv": 1}


OPEN_QUOTES = {
    "tabs": 'id\ttitle\n1\ta\n2\t"b chair\n3\tc\n4\t"d" table\n5\te\n',
    "tabs, closed by an inch": 'id\ttitle\n1\t"a\n2\tb 3"\n3\tc\n4\td\n5\te\n',
}


@pytest.mark.parametrize("name", OPEN_QUOTES)
def test_a_quote_that_nothing_closes_is_text_in_tables_with_tabs(tmp_path: Path, name: str) -> None:
    rows = OPEN_QUOTES[name]
    found = load(write(tmp_path, rows, name="items.tsv"), (), Columns()).items
    wanted = [line.split("\t")[1] for line in rows.splitlines()[1:]]
    assert [item.title.replace('"', "") for item in found] == [
        title.replace('"', "") for title in wanted
    ]


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ('id,title\n1,a\n2,"b chair\n3,c\n4,"d" table\n', 3),
        ('id,title,text\n1,"a,x\n2,b,y\n3,c 3",z\n', 2),
        ('id|title\n"1|a\n2|"b"\n', 2),
    ],
)
def test_a_quote_that_nothing_closes_is_refused_in_other_tables(
    tmp_path: Path, rows: str, line: int
) -> None:
    folder = write(tmp_path, rows)
    with pytest.raises(DataError, match=f"items.csv, line {line}: .*quote"):
        load(folder, (), Columns())


def test_cells_of_several_lines_are_read(tmp_path: Path) -> None:
    text = 'Soft, warm,\nred: ""M"", ""L""\nNo, thanks\n\nend'
    rows = f'id,title,text\n1,"a\nb","{text}"\n2,"c" d,e\n'
    found = load(write(tmp_path, rows), (), Columns()).items
    assert [*found] == [Item("1", "a\nb", text.replace('""', '"')), Item("2", "c d", "e")]


def test_cells_as_databases_write_them(tmp_path: Path) -> None:
    rows = "id\ttitle\ttext\n1\ta\t\\N\n2\tNULL\tone\\ntwo\n"
    found = load(write(tmp_path, rows, name="items.tsv"), (), Columns()).items
    assert [*found] == [Item("1", "a"), Item("2", "", "one\ntwo")]


SHOPIFY = """Handle,Title,Body (HTML),Option1 Name,Option1 Value,Option2 Value,Variant SKU,Price,Src
tee,Tee,<p>Cotton</p>,Size,S,red,T-S,9,1.jpg
tee,,,,M,red,T-M,11,
tee,,,,,,,,2.jpg
cap,Cap,,Title,Default Title,,C-1,5,
"""


def test_variants_and_images_of_one_product_are_one_item(tmp_path: Path) -> None:
    columns = Columns("Handle", "Title", ("Body (HTML)",), "", {"price": "Price"})
    dataset = load(write(tmp_path, SHOPIFY), columns=columns)
    assert [(one.id, one.title, one.text, dict(one.fields)) for one in dataset.items] == [
        ("tee", "Tee", "Cotton\nS, M, red, T-S, T-M", {"price": "9"}),
        ("cap", "Cap", "C-1", {"price": "5"}),
    ]
    assert dataset.unread == {"Src": 1, "Option1 Name": 2}
    # Whoever names the variant as the item gets variants.
    variants = Columns("Variant SKU", "Option1 Value", ("Option2 Value",), "", {})
    rows = SHOPIFY.replace("tee,,,,,,,,2.jpg\n", "")
    assert [one.id for one in load(write(tmp_path, rows), (), variants).items] == [
        "T-S",
        "T-M",
        "C-1",
    ]


def test_decimal_commas_are_those_of_tables_with_semicolons(tmp_path: Path) -> None:
    items = "id;title;Preis\n1;3,5 mm;59,90\n2;b;1.299,00\n3;c;12.5\n4;d;1,2,3\n"
    parts = {"queries": "id;text\nq;a\n", "labels": "query;item;grade\nq;1;2,5\nq;2;0,125\n"}
    dataset = load(write(tmp_path, items, **parts), columns=Columns(fields={"price": "Preis"}))
    found = {one.id: (one.title, one.fields["price"]) for one in dataset.items}
    assert found == {
        "1": ("3,5 mm", "59.90"),
        "2": ("b", "1299.00"),
        "3": ("c", "12.5"),
        "4": ("d", "1,2,3"),
    }
    assert dataset.judged == {"q": {"1": 2.5, "2": 0.125}}
    folder = write(tmp_path, "id,title\n1,a\n", labels='query,item,grade\nq,1,"2,5"\n')
    with pytest.raises(DataError, match="'grade' .*'2,5'"):
        load(folder, (), Columns())


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_columns_may_be_paths_into_objects(tmp_path: Path, format: str) -> None:
    rows = [
        {"sku": {"id": 7}, "name": {"de": "Hut", "en": "Hat"}, "offers": [{"eur": 3}, {"eur": 4}]},
        {"sku": {"id": 8}, "name": {"de": None, "en": "Cap"}, "offers": []},
    ]
    if format == "jsonl":
        write_jsonl(tmp_path / "items.jsonl", rows)
    else:
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "items.parquet")
    columns = Columns("sku.id", "name.en", ("name.de",), "", {"price": "offers.eur"})
    dataset = load_dataset(format, tmp_path, DatasetOptions(columns=columns, fields=("price",)))
    assert [(one.id, one.title, one.text, dict(one.fields)) for one in dataset.items] == [
        ("7", "Hat", "Hut", {"price": [3, 4]}),
        ("8", "Cap", "", {}),
    ]
    assert dataset.unread == {}
    with pytest.raises(SettingsError, match=r"columns\.title .*'title.en'"):
        load_dataset(format, tmp_path, DatasetOptions(columns=Columns("sku.id", "title.en")))


@pytest.mark.parametrize(
    ("title", "encoding", "read"),
    [
        ("Größe 40 – 5 €", "cp1252", True),
        ("crème brûlée à l’orange", "cp1252", True),
        ("Größe", "utf-8", False),
        ("Привет мир", "cp1251", None),
        ("ramen ÿ", "cp1252", None),
    ],
)
def test_sheets_of_western_windows_are_read_and_said(
    tmp_path: Path,
    title: str,
    encoding: str,
    read: bool | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = write(tmp_path, f"id,title\n1,{title}\n2,plain\n", encoding)
    if read is None:
        with pytest.raises(DataError, match="items.csv, line .: .*UTF-8"):
            load(folder, (), Columns())
        return
    dataset = load(folder, (), Columns())
    assert [item.title for item in dataset.items] == [title, "plain"]
    assert ("items.csv is not UTF-8 and is read as cp1252" in caplog.text) is read


@pytest.fixture
def detects() -> Iterator[None]:
    """Encodings are detected again after a test that names one."""
    yield
    use_encoding("")


@pytest.mark.parametrize(
    ("named", "word", "encoding"),
    [("", "Größe", "utf-8"), ("", "Größe", "cp1252"), ("cp1250", "łąka", "cp1250")],
)
@pytest.mark.usefixtures("detects")
def test_logs_and_judgements_are_read_in_the_named_or_detected_encoding(
    tmp_path: Path, named: str, word: str, encoding: str
) -> None:
    use_encoding(named)

    def file(name: str, text: str) -> Path:
        (tmp_path / name).write_bytes(text.encode(encoding))
        return tmp_path / name

    asked = '1.2.3.4 - - [10/Oct/2026:13:55:36 +0000] "GET /p/7?q=a HTTP/1.1" 200 1 "-" "M"'
    for log in (file("log.csv", f"query,count\n{word},2\n"), file("log.txt", f"{word}\n")):
        assert [one.text for one in read_log([log]).queries] == [word]
    web = read_log([file("access.log", f"{asked} {word}\n{asked}\n")], AccessLog("q", "/p/{item}"))
    assert [one.text for one in web.queries] == ["a"]
    judged = file("quepid.csv", f"query,docid,rating\n{word},d,2\n")
    assert [one.query for one in read_judgements(judged, "quepid")] == [word]


def test_json_is_utf_8_whatever_is_named(tmp_path: Path, detects: None) -> None:
    use_encoding("cp1250")
    log = tmp_path / "log.jsonl"
    log.write_bytes('{"query": "Größe"}\n'.encode())
    assert [one.text for one in read_log([log]).queries] == ["Größe"]
    with pytest.raises(SettingsError, match="'klingon' is unknown"):
        use_encoding("klingon")
