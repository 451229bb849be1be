"""Loading: every format gives the same data set, splits and labels follow the rules of
docs/datasets.md.
"""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import ir_datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cogr.datasets import load_dataset
from cogr.datasets.builder import Builder, DatasetOptions, cluster_key
from cogr.datasets.changes import Changes
from cogr.datasets.reading import Place
from cogr.errors import DataError, MissingExtraError, ServiceError, SettingsError
from cogr.records import SPLITS, Item
from tests.shops import sizes, training_shop, write_beir, write_data

ITEMS = [
    {"id": f"i{n}", "title": f"Title {n}", "text": f"Text of item {n}, größer als {n - 1}."}
    for n in range(20)
]
QUERIES = [{"id": f"q{n}", "text": f"query {n}", "split": SPLITS[n % 3]} for n in range(12)]
LABELS = [
    {"query": f"q{n}", "item": f"i{(n + m) % 20}", "grade": m} for n in range(12) for m in range(4)
]


def write_records(folder: Path, **records: Sequence[dict[str, Any]]) -> Path:
    """Write a jsonl data set; parts that are not given are those above."""
    return write_data(folder, **{"items": ITEMS, "queries": QUERIES, "labels": LABELS} | records)


def write_parquet(folder: Path) -> Path:
    folder.mkdir()
    (folder / "items.parquet").mkdir()
    pq.write_table(pa.Table.from_pylist(ITEMS[:7]), folder / "items.parquet" / "part-0.parquet")
    pq.write_table(pa.Table.from_pylist(ITEMS[7:]), folder / "items.parquet" / "part-1.parquet")
    pq.write_table(pa.Table.from_pylist(QUERIES), folder / "queries.parquet")
    pq.write_table(pa.Table.from_pylist(LABELS), folder / "labels.parquet")
    return folder


def test_every_format_gives_the_same_data_set(tmp_path: Path) -> None:
    jsonl = load_dataset("jsonl", write_records(tmp_path / "jsonl"))
    beir = load_dataset("beir", write_beir(tmp_path / "beir", ITEMS, QUERIES, LABELS))
    parquet = load_dataset("parquet", write_parquet(tmp_path / "parquet"))
    assert sizes(jsonl) == {"train": 4, "dev": 4, "test": 4}
    assert jsonl.relevant["q0"] == {"i1", "i2", "i3"}
    assert jsonl.judged["q0"] == {"i0": 0.0, "i1": 1.0, "i2": 2.0, "i3": 3.0}
    for other in (beir, parquet):
        for name in ("queries", "relevant", "judged"):
            assert getattr(other, name) == getattr(jsonl, name)
        assert [*other.items] == [*jsonl.items]
        assert other.dataset_hash == jsonl.dataset_hash


def test_items_carry_the_fields_that_are_asked_for_in_every_format(tmp_path: Path) -> None:
    expected = {"price": 9.5, "in_stock": True, "sizes": [1, 2], "brand": "Größe"}
    extra = {**expected, "none": None, "more": {"a": 1}}
    items = [*({**item, **extra} for item in ITEMS[:2]), *ITEMS[2:]]
    without = load_dataset("jsonl", write_records(tmp_path / "without"))
    folder = write_records(tmp_path, items=items)
    for name, part in {"items": items, "queries": QUERIES, "labels": LABELS}.items():
        pq.write_table(pa.Table.from_pylist(part), folder / f"{name}.parquet")
    for loader in ("jsonl", "parquet"):
        dataset = load_dataset(loader, folder, DatasetOptions(fields=(*expected, "none")))
        assert [item.fields for item in dataset.items[:3]] == [expected, expected, {}]
        assert dataset.dataset_hash == without.dataset_hash
        assert not any(item.fields for item in load_dataset(loader, folder).items)
        with pytest.raises(SettingsError, match=r"publish\.fields .*'colour'"):
            load_dataset(loader, folder, DatasetOptions(fields=("price", "colour")))
        with pytest.raises(DataError, match="(line|row) 1: 'more'"):
            load_dataset(loader, folder, DatasetOptions(fields=("more",)))


def test_parquet_fields_become_plain_values(tmp_path: Path) -> None:
    day, nan = date(2026, 1, 31), float("nan")
    fields = {"day": day, "price": Decimal("1.50"), "stock": nan, "ids": ["x", None]}
    rows = [{"id": "a", "title": "A", **fields}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "items.parquet")
    (item,) = load_dataset("parquet", tmp_path, DatasetOptions(fields=tuple(fields))).items
    assert item.fields == {"day": "2026-01-31", "price": 1.5, "ids": ["x"]}


def test_hash_depends_on_content_alone(tmp_path: Path) -> None:
    plain = write_records(tmp_path / "plain")
    packed = write_records(
        tmp_path / "packed", items=ITEMS[::-1], queries=QUERIES[::-1], labels=LABELS[::-1]
    )
    for path in list(packed.glob("*.jsonl")):
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    expected = load_dataset("jsonl", plain).dataset_hash
    assert load_dataset("jsonl", packed).dataset_hash == expected
    changes: dict[str, dict[str, Any]] = {
        "title": {"items": [ITEMS[0] | {"title": "Other"}, *ITEMS[1:]]},
        "border": {
            "items": [ITEMS[0] | {"title": "Title 0T", "text": ITEMS[0]["text"][1:]}, *ITEMS[1:]]
        },
        "weight": {"queries": [QUERIES[0] | {"weight": 2}, *QUERIES[1:]]},
        "split": {"queries": [QUERIES[0] | {"split": "test"}, *QUERIES[1:]]},
        "grade": {"labels": [*LABELS[:-1], LABELS[-1] | {"grade": 2}]},
        "item": {"items": [*ITEMS, {"id": "new", "title": "New"}]},
    }
    hashes = {
        name: load_dataset("jsonl", write_records(tmp_path / name, **change)).dataset_hash
        for name, change in changes.items()
    }
    hashes["threshold"] = load_dataset("jsonl", plain, DatasetOptions(threshold=2)).dataset_hash
    assert len({expected, *hashes.values()}) == len(hashes) + 1


def test_threshold_and_queries_without_a_relevant_item(tmp_path: Path) -> None:
    labels = [*LABELS[:4], *({**label, "grade": 1} for label in LABELS[4:])]
    dataset = load_dataset(
        "jsonl", write_records(tmp_path, labels=labels), DatasetOptions(threshold=2)
    )
    assert dataset.relevant == {"q0": {"i2", "i3"}}
    assert [query.id for query in dataset.all_queries()] == ["q0"]
    assert set(dataset.judged) == {"q0"}
    assert dataset.notes == {"queries without a relevant item": 11}
    others = [query.id for query in dataset.unlabelled]
    assert {*others} == {query["id"] for query in QUERIES} - {"q0"}
    assert [query.id for query in dataset.entities("query")] == ["q0", *others]
    assert len(dataset.items) == 20


def test_queries_without_splits_are_split_by_a_seeded_shuffle(tmp_path: Path) -> None:
    queries = [{"id": query["id"], "text": query["text"]} for query in QUERIES]
    folder = write_records(tmp_path, queries=queries)
    dataset = load_dataset("jsonl", folder)
    assert sizes(dataset) == {"train": 11, "dev": 0, "test": 1}
    assert load_dataset("jsonl", folder).queries == dataset.queries
    half = load_dataset("jsonl", folder, DatasetOptions(dev_share=0.5))
    assert sizes(half) == {"train": 6, "dev": 5, "test": 1}
    assert half.queries["test"] == dataset.queries["test"]


@pytest.mark.parametrize("labels", ["absent", "empty"])
def test_queries_without_labels_are_legal_in_every_format(tmp_path: Path, labels: str) -> None:
    jsonl, parquet = write_records(tmp_path / "j", labels=[]), write_parquet(tmp_path / "p")
    beir = write_beir(tmp_path / "b", ITEMS, QUERIES, LABELS)
    pq.write_table(pa.table({"query": [], "item": []}), parquet / "labels.parquet")
    for path in (beir / "qrels").iterdir():
        path.write_text("query-id\tcorpus-id\tscore\n")
    files = (jsonl / "labels.jsonl", parquet / "labels.parquet", *(beir / "qrels").iterdir())
    for path in files if labels == "absent" else ():
        path.unlink()
    catalogue = write_records(tmp_path / "catalogue", queries=[], labels=[])
    expected = load_dataset("jsonl", catalogue).dataset_hash
    for loader, folder in (("jsonl", jsonl), ("beir", beir), ("parquet", parquet)):
        dataset = load_dataset(loader, folder)
        assert [one.id for one in dataset.entities("query")] == [one["id"] for one in QUERIES]
        assert (dataset.all_queries(), dataset.dataset_hash) == ([], expected)
        assert dataset.notes == {"queries without a relevant item": 12}
        with pytest.raises(DataError, match="test split"):
            dataset.require("test")


TEXTS = {
    "docs.tsv": "d1\tred chair\nd2\tblue lamp\n",
    "all.queries": "q1\tchair\nq2\tlamp\n",
    "train.qrels": "q1 0 d1 1\nq1 0 d2 0\n",
    "test.qrels": "q2 0 d2 2\n",
}
REGISTERED = {
    "cogr-shop": {},
    # The parts share one file of queries, and are told apart by their judgements.
    "cogr-shop/train": {"queries_tsv": "all.queries", "qrels_trec": "train.qrels"},
    "cogr-shop/test": {"queries_tsv": "all.queries", "qrels_trec": "test.qrels"},
    "cogr-whole": {"queries_tsv": "all.queries", "qrels_trec": "train.qrels"},
    "cogr-gone": {"docs_tsv": "gone.tsv"},
}
"""Local data sets, registered with ir_datasets as its own are."""


def test_ir_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    for name, files in REGISTERED.items():
        every = {"docs_tsv": "docs.tsv", **files}
        paths = {kind: str(tmp_path / file) for kind, file in every.items()}
        made = ir_datasets.create_dataset(**paths)
        monkeypatch.setitem(ir_datasets.registry._registered, name, made)
    dataset = load_dataset("ir_datasets:cogr-shop")
    assert [*dataset.items] == [Item("d1", "", "red chair"), Item("d2", "", "blue lamp")]
    assert sizes(dataset) == {"train": 1, "dev": 0, "test": 1}
    assert dataset.judged == {"q1": {"d1": 1.0, "d2": 0.0}, "q2": {"d2": 2.0}}
    assert sizes(load_dataset("ir_datasets:cogr-shop/test")) == {"train": 0, "dev": 0, "test": 1}
    assert sizes(load_dataset("ir_datasets:cogr-whole")) == {"train": 1, "dev": 0, "test": 0}
    with pytest.raises(SettingsError, match="'none'.*https://ir-datasets"):
        load_dataset("ir_datasets:none")
    with pytest.raises(ServiceError, match="cogr-gone docs"):
        load_dataset("ir_datasets:cogr-gone")
    with pytest.raises(SettingsError, match=r"dataset\.path"):
        load_dataset("ir_datasets:cogr-shop", tmp_path)
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with pytest.raises(MissingExtraError, match=r"cogr\[datasets\]"):
        load_dataset("ir_datasets:cogr-shop")


@pytest.mark.parametrize(
    ("lineage", "new"),
    [
        ("{}", set()),
        ('{"source": "clicks", "to": "2026-02-03T12:00:00Z", "date": "2026-03-01"}', {"i19"}),
        ('{"source": "judge", "date": "2026-02-25T00:00:00Z"}', set()),
    ],
)
def test_items_younger_than_the_labels_are_new(tmp_path: Path, lineage: str, new: set[str]) -> None:
    dated = [{**item, "updated": f"2026-02-{n + 1:02d}"} for n, item in enumerate(ITEMS)]
    labels = [label for label in LABELS if label["item"] != "i19"] + [
        {"query": "q0", "item": f"i{n}", "grade": 0} for n in range(15, 19)
    ]
    folder = write_records(tmp_path / "shop", items=dated, labels=labels)
    (folder / "lineage.json").write_text(lineage)
    assert load_dataset("jsonl", folder).new == new
    (folder / "lineage.json").write_text('{"to": "yesterday"}')
    with pytest.raises(DataError, match=r"lineage\.json, line 1: .*'yesterday'"):
        load_dataset("jsonl", folder)


def test_a_changed_item_is_new_where_no_label_knows_it() -> None:
    shop = training_shop([Item(id_, "Title") for id_ in "abc"], {"q": ("sofa", ["a"])})
    shop = replace(shop, judged={"q": {"a": 1, "b": 0}})
    changed = {id_: Item(id_, "Another title") for id_ in "abcd"}
    assert Changes("item", changed, frozenset()).applied_to(shop).new == {"c", "d"}
    assert Changes("item", changed, frozenset("c")).applied_to(shop).new == {"d"}


# Splits by a hash: new queries move no old one, and near-equal queries stay together

HERE = Place("here", 1)


def split_of(texts: Iterable[str]) -> dict[str, str]:
    """The split of each query of a shop, by its text."""
    builder = Builder("shop", DatasetOptions(dev_share=0.1, split_by="cluster"))
    builder.item(HERE, "a", "Chair", "")
    for text in texts:
        builder.query(HERE, text, text)
        builder.judgement(HERE, text, "a", 1)
    queries = builder.build().queries
    return {query.text: split for split in SPLITS for query in queries[split]}


def test_new_queries_move_no_old_one() -> None:
    few = split_of(f"chair {n}" for n in range(200))
    many = split_of(f"chair {n}" for n in reversed(range(1000)))
    assert few.items() <= many.items()
    sizes = {split: [*many.values()].count(split) for split in SPLITS}
    assert 70 <= sizes["test"] <= 130
    assert 60 <= sizes["dev"] <= 120


def test_near_equal_queries_are_in_one_split() -> None:
    pairs = [(f"red chairs {n}", f"{n} Chair, RED!") for n in range(100)]
    found = split_of(text for pair in pairs for text in pair)
    assert all(found[one] == found[other] for one, other in pairs)
    assert cluster_key("Running shoes for men") == cluster_key("men shoe for running")
    assert cluster_key("stühle 2") != cluster_key("stühle 3")
