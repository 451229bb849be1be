"""Bad input: one sentence with file and line and what to do, or accepted and counted.

Nothing lost silently.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.published import LOADERS as PUBLISHED
from cogr.datasets import load_dataset
from cogr.datasets.builder import DatasetOptions
from cogr.datasets.fields import Columns
from cogr.errors import CogrError, DataError, SettingsError
from cogr.records import Dataset
from tests.cogr.datasets.test_published import SAMPLES

ITEMS = '{"id": "a", "title": "Red chair"}\n{"id": "b", "title": "Blue lamp", "text": "Light."}\n'
QUERIES = (
    '{"id": "q1", "text": "chair", "split": "train"}\n'
    '{"id": "q2", "text": "lamp", "split": "test"}\n'
)
LABELS = '{"query": "q1", "item": "a", "grade": 1}\n{"query": "q2", "item": "b", "grade": 1}\n'
HEADER = "query-id\tcorpus-id\tscore\n"
GOOD = {
    "jsonl": {"items.jsonl": ITEMS, "queries.jsonl": QUERIES, "labels.jsonl": LABELS},
    "csv": {"items.csv": "id,title\n1,a\n"},
    "beir": {
        "corpus.jsonl": ITEMS.replace('"id"', '"_id"'),
        "queries.jsonl": QUERIES.replace('"id"', '"_id"'),
        "qrels/train.tsv": f"{HEADER}q1\ta\t1\n",
    },
} | SAMPLES

# A loader, one of its files, lines at the end of that file (after a good part) or its whole
# content (behind a =), and what is said.
BAD = [
    ("jsonl", "items", "{id: 3}", "line 3: .*JSON"),
    ("jsonl", "items", '{"id": true, "title": "x"}', "line 3: 'id'"),
    ("jsonl", "items", '{"id": "", "title": "x"}', "line 3: 'id' .*empty"),
    ("jsonl", "items", f'{{"id": "{"ü" * 257}"}}', "line 3: 'id' .*512 bytes"),
    ("jsonl", "items", '{"id": "c", "title": 3}', "line 3: 'title' .*number"),
    ("jsonl", "items", '{"id": "a", "title": "x"}', "line 3: .*'a' .*line 1"),
    ("jsonl", "items", r'{"id": "c", "title": "ab\ud800"}', r"3: .*\(U\+D800\) at character 3"),
    ("jsonl", "items", b'{"id": "c", "title": "St\xffhle"}', "3: .*UTF-8 .byte 25"),
    ("jsonl", "items", b"=\xff\xfe{\x00", "items.jsonl, line 1: .*UTF-8"),
    ("jsonl", "queries", '{"id": "q1", "text": "x"}', "line 3: .*'q1' .*1"),
    ("jsonl", "queries", '{"id": "q3", "text": " \\t"}', "line 3: .*'q3' .*text"),
    ("jsonl", "queries", '{"id": "q3", "text": "x", "split": "val"}', "line 3: .*'val'"),
    (
        "jsonl",
        "queries",
        '={"id": "q1", "text": "x", "split": "train"}\n{"id": "q2", "text": "y"}',
        "line 2: the query 'q2' is in no split, but others are",
    ),
    ("jsonl", "queries", '{"id": "q3", "text": "x", "weight": -1}', "weight -1 "),
    ("jsonl", "labels", '{"query": "q1", "item": "b", "grade": "high"}', "line 3: 'grade'"),
    ("jsonl", "labels", '{"query": "q1", "item": "x"}', "1 of 3 .*5%, the first at .*item 'x'; "),
    ("jsonl", "pairs", '={"query": "q1", "item": "b", "n": "7 of"}', "1: 'n' .*'7 of'"),
    ("jsonl", "pairs", '={"query": "q1", "item": "b", "n": -1}', "line 1: 'n' .*-1"),
    ("jsonl", "pairs", '={"query": "q1", "n": 3}', "line 1: .*no 'item'"),
    ("csv", "items", "=", "items.csv .*header"),
    ("csv", "items", "=id,title,title\n1,a,b", "line 1: .*'title' twice"),
    ("jsonl", "items", "=", "items"),
    ("csv", "items", "=id,Titel\n1,a", r"No item .* has a title or a text .*there are: id, Titel"),
    ("csv", "items", "2,b,c", "line 3: .*3 columns .*2 .*commas"),
    ("csv", "items", b"2,St\xffhle", r"items.csv, line 3: .* .byte 5"),
    ("csv", "items", gzip.compress(b"id\n")[:-6], "items.csv.gz .*damaged"),
    ("beir", "qrels/train", "=q1\ta\t1", "line 1: .*'query-id'"),
    ("beir", "qrels/train", "q1\ta\tinf", "line 3: 'score' .*'inf'"),
    ("beir", "qrels/test", f"={HEADER}q1\tb\t1", "test.tsv, line 2: .*test .*train"),
    ("chorus", "products", "=[{]", "products.json, line 1: .*JSON"),
    ("chorus", "products", "=" + "[" * 100_000, "nested"),
    ("msrd", "movies-judgments", "=a\tb\tc\td", "line 1: .*header"),
    ("nfcorpus", "dev.docs", "=MED-1 no tab", "dev.docs, line 1: .*1 columns.* 2"),
]  # fmt: skip


def write(folder: Path, loader: str) -> Path:
    for name, text in GOOD[loader].items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(text.encode())
    return folder


def load(folder: Path, more: dict[str, str] | None = None, **settings: Any) -> Dataset:
    """A jsonl data set, with lines added to its parts."""
    write(folder, "jsonl")
    for part, lines in (more or {}).items():
        with (folder / f"{part}.jsonl").open("a", newline="") as file:
            file.write(lines)
    return load_dataset("jsonl", folder, DatasetOptions(**settings))


@pytest.mark.parametrize(("loader", "part", "text", "said"), BAD, ids=[row[3][:30] for row in BAD])
def test_bad_input_is_one_sentence_that_names_file_and_line(
    tmp_path: Path, loader: str, part: str, text: str | bytes, said: str
) -> None:
    write(tmp_path, loader)
    file = next((tmp_path / name for name in GOOD[loader] if name.startswith(part)), None)
    file = file or tmp_path / (f"{part}.tsv" if "/" in part else f"{part}.jsonl")
    added = text if isinstance(text, bytes) else text.encode("utf-8")
    if added.startswith(b"\x1f\x8b"):
        file.unlink()
        file = file.with_name(f"{file.name}.gz")
    before = b"" if added[:1] in (b"=", b"\x1f") else file.read_bytes()
    file.write_bytes(before + added.removeprefix(b"=") + b"\n" * (added != b"="))
    with pytest.raises(DataError, match=said) as caught:
        load_dataset(
            loader, tmp_path, DatasetOptions(pair_signals=("n",) if part == "pairs" else ())
        )
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith((".", "there"))


SETTINGS: list[tuple[str, dict[str, Any], str]] = [
    ("jsonl", {"pair_signals": ("grade",)}, "pair_signals .*'grade'"),
    ("jsonl", {"columns": Columns(text=("txt",))}, "columns.text .*'txt', .*'text'"),
    ("jsonl", {"fields": ("titl",)}, r"publish.fields .*'titl', .*'title'"),
    ("jsonl", {"split_by": "cluster"}, r"own splits; remove dataset.split_by"),
    ("beir", {"columns": Columns(id="i")}, "beir .*columns"),
    ("nfcorups", {}, "'nfcorpus' .*jsonl, csv"),
    ("ir_datasets:", {}, "data set"),
    ("Excel", {}, "dataset.loader .*jsonl, csv"),
]


@pytest.mark.parametrize(("loader", "settings", "said"), SETTINGS)
def test_bad_settings_are_one_sentence(
    tmp_path: Path, loader: str, settings: dict[str, Any], said: str
) -> None:
    write(tmp_path, "jsonl")
    with pytest.raises(SettingsError, match=said):
        load_dataset(loader, tmp_path, DatasetOptions(**settings))


def test_folders_and_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"dataset\.path"):
        load_dataset("jsonl")
    (tmp_path / "file").write_text("")
    for folder, said in (("nowhere", "dataset.path"), ("file", "folder")):
        with pytest.raises(DataError, match=rf"{folder} .*{said}"):
            load_dataset("beir", tmp_path / folder)
    for loader, name in (("csv", "items.csv"), ("beir", "corpus.jsonl")):
        with pytest.raises(DataError, match=name):
            load_dataset(loader, tmp_path)
    for loader, said in (("jsonl", "labels need queries"), ("beir", "qrels need queries")):
        folder = write(tmp_path / loader, loader)
        (folder / "queries.jsonl").unlink()
        with pytest.raises(DataError, match=rf"queries\.jsonl .*{said}"):
            load_dataset(loader, folder)


@pytest.mark.parametrize("name", PUBLISHED)
def test_missing_data_say_what_to_fetch_and_where_it_goes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COGR_DATA_DIR", raising=False)
    with pytest.raises(SettingsError, match=rf"{name}/.*https://"):
        load_dataset(name)
    monkeypatch.setenv("COGR_DATA_DIR", str(tmp_path))
    with pytest.raises(DataError, match=rf"{name} .*fetch"):
        load_dataset(name)
    (tmp_path / name).mkdir()
    with pytest.raises(DataError, match=rf"{name} .*https://"):
        load_dataset(name)
    # As where the package is installed without its repository.
    monkeypatch.setitem(sys.modules, "benchmarks.published", None)
    with pytest.raises(SettingsError, match="repository"):
        load_dataset(name)


def test_damaged_gzip(tmp_path: Path) -> None:
    write(tmp_path, "jsonl")
    # Random ids, so that the packed file is long enough to cut in the middle.
    ids = (os.urandom(16).hex() for _ in range(20_000))
    packed = gzip.compress("".join(f'{{"id": "{id_}"}}\n' for id_ in ids).encode())
    (tmp_path / "items.jsonl").unlink()
    broken = bytearray(packed)
    broken[len(packed) // 2] ^= 0xFF
    for damaged in (packed[: len(packed) // 2], broken, packed + b"more"):
        (tmp_path / "items.jsonl.gz").write_bytes(damaged)
        with pytest.raises(DataError, match=r"items.jsonl.gz"):
            load_dataset("jsonl", tmp_path)


def test_accepted_and_counted(tmp_path: Path) -> None:
    items = '{"id": 3, "title": " ", "text": null}\n{"id": "bare"}\n' + (
        r'{"id": "n", "title": "a\u0000b", "text": "\u0000"}'
    )
    labels = '{"query": "q1", "item": "a", "grade": 3}\n{"query": "q1", "item": 3, "grade": 0}\n'
    dataset = load(tmp_path, {"items": items, "labels": labels})
    assert [item.id for item in dataset.items] == ["a", "b", "3", "bare", "n"]
    assert (dataset.items[4].title, dataset.items[4].text) == ("ab", "")
    assert dataset.judged["q1"] == {"a": 3.0, "3": 0.0}
    assert dataset.notes == {
        "items without title and text": 2,
        "texts with NUL characters removed": 2,
        "repeated judgements, of which the highest grade counts": 1,
    }


def test_long_text_bom_windows_line_ends_and_empty_lines_are_fine(tmp_path: Path) -> None:
    long = json.dumps({"id": "long", "title": "t", "text": "ä" * (1 << 20)}, ensure_ascii=False)
    whole = ITEMS.replace("\n", "\r\n") + f'\r\n \n{long}\n{{"id": "u", "title": "x\u2028y\x85z"}}'
    (tmp_path / "items.jsonl").write_text(f"\ufeff{whole}", "utf-8", newline="")
    dataset = load_dataset("jsonl", tmp_path)
    assert [item.id for item in dataset.items] == ["a", "b", "long", "u"]
    assert len(dataset.items[2].text) == 1 << 20
    assert dataset.items[3].title == "x\u2028y\x85z"
    assert dataset.notes == {}


def test_a_few_judgements_of_unknown_ids_are_counted(tmp_path: Path) -> None:
    many = "".join(f'{{"query": "q1", "item": "a", "grade": 0.{n:02}}}\n' for n in range(38))
    unknown = '{"query": "q1", "item": "gone"}\n{"query": "gone too", "item": "a"}\n'
    dataset = load(tmp_path, {"labels": many + unknown})
    assert dataset.notes["judgements of unknown items"] == 1
    assert dataset.notes["judgements of unknown queries"] == 1
    assert dataset.relevant == {"q1": {"a"}, "q2": {"b"}}
    with pytest.raises(DataError, match="42 .*grade 2"):
        load_dataset("jsonl", tmp_path, DatasetOptions(threshold=2))
    said = r"The dev split .* no queries .* \(train 1, dev 0, test 1\); set dataset.dev_share"
    with pytest.raises(DataError, match=said):
        dataset.require("dev")


def test_parquet_that_is_none_and_rows_that_are_bad(tmp_path: Path) -> None:
    path = tmp_path / "items.parquet"
    path.write_text("id,title\n")
    with pytest.raises(DataError, match=r"items\.parquet"):
        load_dataset("parquet", tmp_path)
    far = pa.array([0, 1 << 62], pa.timestamp("us"))
    raw = pa.array([b"\xff\xfe"]).cast(pa.binary()).view(pa.string())
    for columns, message in (
        ({"id": ["a", "a"], "title": ["x", "y"]}, r"row 2: the item id 'a' is already .*row 1"),
        ({"id": ["a"], "title": raw}, r"items.parquet is not a parquet file, or damaged after"),
        ({"id": ["a", "b"], "title": ["x", "y"], "updated": far}, r"after row 0 .date value"),
    ):
        pq.write_table(pa.table(columns), path)
        with pytest.raises(DataError, match=message):
            load_dataset("parquet", tmp_path)
    table = {"id": [f"i{n}" for n in range(300)], "title": ["Lamp", "Sofa", "Rug"] * 100}
    pq.write_table(pa.table(table), path)
    good, draw = path.read_bytes(), random.Random(5)
    for _ in range(40):  # flipped bits are an error, or nothing
        broken = bytearray(good)
        broken[draw.randrange(len(good))] ^= 1 << draw.randrange(8)
        path.write_bytes(broken)
        with contextlib.suppress(CogrError):
            load_dataset("parquet", tmp_path)


def test_numbers_of_unknown_ids_are_counted_and_the_highest_of_a_pair_stays(tmp_path: Path) -> None:
    lines = (
        '{"query": "q1", "item": "b", "clicks": 3}\n{"query": "q1", "item": "b", "clicks": 9}\n'
        '{"query": "q1", "item": "b", "clicks": 0}\n{"query": "new", "item": "b", "clicks": 1}\n'
        '{"query": "q2", "item": "gone", "clicks": 1}\n{"query": "q2", "item": "a", "other": 1}\n'
    )
    found = load(tmp_path, {"pairs": lines}, pair_signals=("clicks",))
    assert found.pair_signals == {"clicks": {"q1": {"b": 9}}}
    assert found.notes == {"signals of unknown queries or items": 2}
    assert found.dataset_hash == load_dataset("jsonl", tmp_path).dataset_hash
