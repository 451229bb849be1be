"""Bad input: one sentence with file and line and what to do, or accepted and counted.

Nothing lost silently.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cogr.datasets import load_dataset
from cogr.datasets.inspection import inspect_dataset
from cogr.errors import CogrError, DataError, SettingsError
from cogr.records import Dataset

ITEMS = (
    '{"id": "a", "title": "Red chair", "text": "Seat."}\n{"id": "b", "title": "Blue lamp", '
    '"text": "Light."}\n'
)
QUERIES = (
    '{"id": "q1", "text": "chair", "split": "train"}\n{"id": "q2", "text": "lamp", "split": '
    '"test"}\n'
)
LABELS = '{"query": "q1", "item": "a", "grade": 1}\n{"query": "q2", "item": "b", "grade": 1}\n'


def load(
    folder: Path,
    *,
    items: str = ITEMS,
    queries: str = QUERIES,
    labels: str = LABELS,
    **settings: float,
) -> Dataset:
    """Write a jsonl data set and load it."""
    for name, text in (("items", items), ("queries", queries), ("labels", labels)):
        (folder / f"{name}.jsonl").write_bytes(text.encode())
    return load_dataset("jsonl", folder, **settings)  # type: ignore[arg-type]


BAD_LINES = {
    "no json": (
        "items",
        "{id: 3}",
        "items.jsonl, line 3: this is not JSON .*write one JSON object a line",
    ),
    "two objects": (
        "items",
        '{"id": "c"} {"id": "d"}',
        "items.jsonl, line 3: this is not JSON .Extra data",
    ),
    "id is a bool": (
        "items",
        '{"id": true, "title": "x"}',
        "items.jsonl, line 3: 'id' is true or false",
    ),
    "empty id": ("items", '{"id": "", "title": "x"}', "items.jsonl, line 3: 'id' is empty"),
    "long id": (
        "items",
        f'{{"id": "{"ü" * 257}", "title": "x"}}',
        "items.jsonl, line 3: 'id' is longer than 512 bytes",
    ),
    "title is a number": (
        "items",
        '{"id": "c", "title": 3}',
        "items.jsonl, line 3: 'title' is a number; write it as a str",
    ),
    "duplicate item": (
        "items",
        '{"id": "a", "title": "x"}',
        "items.jsonl, line 3: .*'a' is already taken by .*, line 1 and has other",
    ),
    "surrogate in a title": (
        "items",
        r'{"id": "c", "title": "ab\ud800"}',
        r"line 3: 'title' .*\(U\+D800\) at character 3",
    ),
    "duplicate query": (
        "queries",
        '{"id": "q1", "text": "x"}',
        "queries.jsonl, line 3: .*'q1' is already taken by .*line 1",
    ),
    "blank query": (
        "queries",
        '{"id": "q3", "text": " \\t"}',
        "queries.jsonl, line 3: the query 'q3' has no text",
    ),
    "unknown split": (
        "queries",
        '{"id": "q3", "text": "x", "split": "val"}',
        "line 3: the split 'val' is unknown; write one",
    ),
    "negative weight": (
        "queries",
        '{"id": "q3", "text": "x", "weight": -1}',
        "line 3: the weight -1.0 of query 'q3'",
    ),
    "weights whose sum is not a number": (
        "queries",
        '{"id": "q3", "text": "x", "weight": 1.2e308}\n{"id": "q4", "text": "y", "weight": '
        "1.7e308}",
        r"line 4: the weights of the queries add up to more than a number can hold "
        r"\(that of 'q4' is 1.7e\+308\)",
    ),
    "weight is a string": (
        "queries",
        '{"id": "q3", "text": "x", "weight": "a lot"}',
        "line 3: 'weight' is the string 'a lot'; write",
    ),
    "line without end": (
        "items",
        '{"id": "c", "text": "' + "x" * (1 << 24) + '"}',
        "items.jsonl, line 3: the line is longer than 16 MiB",
    ),
    "grade is a string": (
        "labels",
        '{"query": "q1", "item": "b", "grade": "high"}',
        "labels.jsonl, line 3: 'grade' is the s",
    ),
    "grade is huge": (
        "labels",
        f'{{"query": "q1", "item": "b", "grade": 1{"0" * 400}}}',
        "labels.jsonl, line 3: 'grade' is",
    ),
    "label without item": (
        "labels",
        '{"query": "q1"}',
        "labels.jsonl, line 3: the record has no 'item'",
    ),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_bad_line_names_file_and_line(case: str, tmp_path: Path) -> None:
    part, line, message = BAD_LINES[case]
    good = {"items": ITEMS, "queries": QUERIES, "labels": LABELS}[part]
    with pytest.raises(DataError, match=message) as caught:
        load(tmp_path, **{part: f"{good}{line}\n"})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_bytes_that_are_not_utf8(tmp_path: Path) -> None:
    load(tmp_path)
    (tmp_path / "items.jsonl").write_bytes(
        ITEMS.encode() + '{"id": "c", "title": "Stühle"}\n'.encode("latin-1")
    )
    with pytest.raises(
        DataError, match=r"items.jsonl, line 3: the text is not UTF-8 \(byte 25\); convert"
    ):
        load_dataset("jsonl", tmp_path)
    (tmp_path / "items.jsonl").write_bytes(ITEMS.encode("utf-16"))
    with pytest.raises(DataError, match=r"items.jsonl, line 1: the text is not UTF-8"):
        load_dataset("jsonl", tmp_path)


def test_damaged_gzip(tmp_path: Path) -> None:
    load(tmp_path)
    # Random ids, so that the packed file is long enough to cut in the middle.
    many = "".join(
        json.dumps({"id": os.urandom(16).hex(), "title": "x"}) + "\n" for _ in range(20_000)
    )
    packed = gzip.compress(many.encode())
    (tmp_path / "items.jsonl").unlink()
    path = tmp_path / "items.jsonl.gz"
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match=r"items.jsonl.gz is cut off or damaged .*fetch it again"):
        load_dataset("jsonl", tmp_path)
    broken = bytearray(packed)
    broken[len(packed) // 2] ^= 0xFF
    for damaged in (broken, packed + b"more"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"items.jsonl.gz"):
            load_dataset("jsonl", tmp_path)


def test_accepted_and_counted(tmp_path: Path) -> None:
    items = (
        ITEMS
        + '{"id": 3, "title": " ", "text": null}\n{"id": "bare"}\n'
        + r'{"id": "n", "title": "a\u0000b", "text": "\u0000"}'
        + "\n"
    )
    labels = (
        LABELS
        + '{"query": "q1", "item": "a", "grade": 3}\n{"query": "q1", "item": 3, "grade": 0}\n'
    )
    dataset = load(tmp_path, items=items, labels=labels)
    assert [item.id for item in dataset.items] == ["a", "b", "3", "bare", "n"]
    assert (dataset.items[4].title, dataset.items[4].text) == ("ab", "")
    assert dataset.judged["q1"] == {"a": 3.0, "3": 0.0}
    assert dataset.notes == {
        "items without title and text": 2,
        "texts with NUL characters removed": 2,
        "repeated judgements": 1,
        "repeated judgements with another grade, of which the highest counts": 1,
    }


def test_long_text_bom_windows_line_ends_and_empty_lines_are_fine(tmp_path: Path) -> None:
    long = json.dumps({"id": "long", "title": "t", "text": "ä" * (1 << 20)}, ensure_ascii=False)
    items = (
        "\ufeff"
        + ITEMS.replace("\n", "\r\n")
        + "\r\n \n"
        + long
        + '\n{"id": "u", "title": "x\u2028y\x85z"}'
    )
    dataset = load(tmp_path, items=items, queries="\ufeff" + QUERIES.replace("\n", "\r\n"))
    assert [item.id for item in dataset.items] == ["a", "b", "long", "u"]
    assert len(dataset.items[2].text) == 1 << 20
    assert dataset.items[3].title == "x\u2028y\x85z"
    assert dataset.notes == {}


def test_judgements_of_unknown_ids(tmp_path: Path) -> None:
    many = "".join(f'{{"query": "q1", "item": "a", "grade": 0.{n:02}}}\n' for n in range(38))
    labels = LABELS + '{"query": "q1", "item": "gone"}\n{"query": "gone too", "item": "a"}\n'
    dataset = load(tmp_path, labels=labels + many)
    assert dataset.notes["judgements of unknown items"] == 1
    assert dataset.notes["judgements of unknown queries"] == 1
    assert inspect_dataset(dataset).pointing_nowhere == 2
    assert dataset.relevant == {"q1": {"a"}, "q2": {"b"}}
    with pytest.raises(
        DataError,
        match=r"2 of 4 judgements .*5%, the first at .*labels.jsonl, line 3: the item 'gone'; add",
    ):
        load(tmp_path, labels=labels)


def test_no_relevant_items(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"no relevant items: none of its 2 judgements reaches the grade 2; check .*lower",
    ):
        load(tmp_path, threshold=2)


def test_no_items(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"has no items"):
        load(tmp_path, items="", labels="", queries="")


def test_empty_split_is_an_error_when_it_is_needed(tmp_path: Path) -> None:
    dataset = load(tmp_path)
    assert [query.id for query in dataset.require("train")] == ["q1"]
    with pytest.raises(
        DataError,
        match=r"The dev split of .* has no queries with a relevant item "
        r"\(train 1, dev 0, test 1\); set dataset.dev_share",
    ):
        dataset.require("dev")


def test_some_queries_in_splits_and_others_not(tmp_path: Path) -> None:
    queries = QUERIES.replace(', "split": "test"', "")
    with pytest.raises(
        DataError, match=r"queries.jsonl, line 2: the query 'q2' is in no split, but others are"
    ):
        load(tmp_path, queries=queries)


def test_folders_and_files_that_are_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError, match=r"The folder .*nowhere is not there: check dataset.path"):
        load_dataset("beir", tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"The folder .*file is not a folder"):
        load_dataset("beir", tmp_path / "file")
    for loader, name in (
        ("jsonl", "items.jsonl"),
        ("csv", "items.csv"),
        ("beir", "corpus.jsonl"),
        ("parquet", "items.parquet"),
    ):
        with pytest.raises(
            DataError,
            match=rf"{tmp_path} has no {name}.*: write one (record an item|item a line), with",
        ):
            load_dataset(loader, tmp_path)
    with pytest.raises(SettingsError, match=r"The loader jsonl needs a folder: set dataset.path"):
        load_dataset("jsonl")
    (tmp_path / "items.jsonl").write_text(ITEMS)
    (tmp_path / "labels.jsonl").write_text(LABELS)
    with pytest.raises(DataError, match=r"has no queries.jsonl .*labels need queries"):
        load_dataset("jsonl", tmp_path)


def write_raw_beir(folder: Path, **qrels: str) -> None:
    (folder / "qrels").mkdir(exist_ok=True)
    (folder / "corpus.jsonl").write_text(ITEMS.replace('"id"', '"_id"'))
    (folder / "queries.jsonl").write_text(QUERIES.replace('"id"', '"_id"'))
    for split, text in qrels.items():
        (folder / "qrels" / f"{split}.tsv").write_text(text)


HEADER = "query-id\tcorpus-id\tscore\n"


@pytest.mark.parametrize(
    ("qrels", "message"),
    [
        ("q1\ta\t1\n", "train.tsv, line 1: the header has no column 'query-id'"),
        ("", "train.tsv has no header line"),
        (
            HEADER + "q1\ta\t1\nq2\tb\n",
            "train.tsv, line 3: the row has 2 columns where 3 are expected; separate .* by tabs",
        ),
        (HEADER + "q1\ta\thigh\n", "train.tsv, line 2: 'score' is the string 'high'; write it"),
        (HEADER + "q1\ta\tinf\n", "train.tsv, line 2: 'score' is the string 'inf'; write it"),
    ],
)
def test_bad_qrels(qrels: str, message: str, tmp_path: Path) -> None:
    write_raw_beir(tmp_path, train=qrels)
    with pytest.raises(DataError, match=message):
        load_dataset("beir", tmp_path)


def test_query_in_two_splits(tmp_path: Path) -> None:
    write_raw_beir(tmp_path, train=HEADER + "q1\ta\t1\n", test=HEADER + "q2\tb\t1\nq1\tb\t1\n")
    with pytest.raises(
        DataError,
        match=r"test.tsv, line 3: the query 'q1' is in the split test here and in train in "
        r".*line 2",
    ):
        load_dataset("beir", tmp_path)


def test_beir_qrels_without_queries(tmp_path: Path) -> None:
    write_raw_beir(tmp_path, train=HEADER + "q1\ta\t1\n")
    (tmp_path / "queries.jsonl").unlink()
    with pytest.raises(DataError, match=r"has no queries.jsonl .*: qrels need queries"):
        load_dataset("beir", tmp_path)


def test_parquet_that_is_none_and_rows_that_are_bad(tmp_path: Path) -> None:
    path = tmp_path / "items.parquet"
    path.write_text("id,title\n")
    with pytest.raises(DataError, match=r"items.parquet is not a parquet file, or damaged"):
        load_dataset("parquet", tmp_path)
    far = pa.array([0, 1 << 62], pa.timestamp("us"))
    raw = pa.array([b"\xff\xfe"]).cast(pa.binary()).view(pa.string())
    for columns, message in (
        (
            {"id": ["a", "a"], "title": ["x", "y"]},
            r"items.parquet, row 2: the item id 'a' is already taken by .*row 1",
        ),
        ({"name": ["a"], "id": ["1"]}, r"No item .* has a title or a text .*there are: name, id"),
        (
            {"id": ["a"], "title": raw},
            r"items.parquet is not a parquet file, or damaged after row 0",
        ),
        ({"id": ["a", "b"], "title": ["x", "y"], "updated": far}, r"row 2: a value can't be read"),
    ):
        pq.write_table(pa.table(columns), path)
        with pytest.raises(DataError, match=message):
            load_dataset("parquet", tmp_path)


def test_flipped_bytes_of_parquet_are_an_error_or_the_same_data(tmp_path: Path) -> None:
    path = tmp_path / "items.parquet"
    table = {"id": [f"i{n}" for n in range(300)], "title": ["Lamp", "Sofa", "Rug"] * 100}
    pq.write_table(pa.table(table), path)
    good, draw = path.read_bytes(), random.Random(5)
    for _ in range(60):
        broken = bytearray(good)
        broken[draw.randrange(len(good))] ^= 1 << draw.randrange(8)
        path.write_bytes(broken)
        with contextlib.suppress(CogrError):
            load_dataset("parquet", tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file(tmp_path: Path) -> None:
    load(tmp_path)
    (tmp_path / "items.jsonl").chmod(0)
    with pytest.raises(DataError, match=r"items.jsonl can't be read \(Permission denied\)"):
        load_dataset("jsonl", tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threshold": float("nan")}, "dataset.threshold is nan"),
        ({"dev_share": -0.1}, "dataset.dev_share is -0.1"),
    ],
)
def test_bad_settings(settings: dict[str, float], message: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=message):
        load(tmp_path, **settings)


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (
            "nfcorups",
            "The loader 'nfcorups' is unknown; set dataset.loader to nfcorpus, the nearest of "
            "jsonl, csv",
        ),
        ("ir_dataset:x", "set dataset.loader to ir_datasets:NAME, the nearest of"),
        ("", "set dataset.loader to one of jsonl"),
        ("ir_datasets:", "names no data set"),
    ],
)
def test_unknown_loader(loader: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load_dataset(loader, ".")


def pairs(folder: Path, lines: str, names: tuple[str, ...] = ("clicks",)) -> Dataset:
    (folder / "pairs.jsonl").write_text(lines)
    return load(folder, pair_signals=names)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('"clicks": "7 of"', "line 2: 'clicks' is the string '7 of'; write it as a number"),
        ('"clicks": -1', "line 2: 'clicks' is -1, below 0; write 0 or more"),
        ('"clicks": NaN', "line 2: 'clicks' is nan; write it as a number"),
        ('"clicks": true', "line 2: 'clicks' is true or false; write it as a number"),
    ],
)
def test_bad_numbers_of_pairs(line: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"pairs.jsonl, {message}"):
        pairs(tmp_path, f'{{"query": "q1", "item": "a"}}\n{{"query": "q1", "item": "b", {line}}}\n')


def test_a_pair_without_ids(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"pairs.jsonl, line 1: the record has no 'item'"):
        pairs(tmp_path, '{"query": "q1", "clicks": 3}\n')


def test_numbers_of_unknown_ids_are_counted_and_the_highest_of_a_pair_stays(tmp_path: Path) -> None:
    lines = (
        '{"query": "q1", "item": "b", "clicks": 3}\n{"query": "q1", "item": "b", "clicks": 9}\n'
        '{"query": "q1", "item": "b", "clicks": 0}\n{"query": "new", "item": "b", "clicks": 1}\n'
        '{"query": "q2", "item": "gone", "clicks": 1}\n{"query": "q2", "item": "a", "other": 1}\n'
    )
    found = pairs(tmp_path, lines)
    assert found.pair_signals == {"clicks": {"q1": {"b": 9}}}
    assert found.notes == {"signals of unknown queries or items": 2}
    assert found.dataset_hash == load(tmp_path).dataset_hash


@pytest.mark.parametrize("name", ["grade", "query", "item"])
def test_a_label_is_no_signal(name: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"pair_signals names '{name}', which is the label"):
        pairs(tmp_path, "", (name,))
