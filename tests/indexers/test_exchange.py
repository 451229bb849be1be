"""Files for other programs and from them: judgements in, keyword sets and results out."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import ir_measures
import pytest

from cogr.errors import DataError, StorageError
from cogr.metrics import measure
from cogr.records import Query
from cogr.snapshots import Provenance, Row, open_snapshot
from cogr.snapshots.writing import write_snapshot
from cogr.store import Store
from indexers.backends.opensearch.client import Cluster
from indexers.exports import export_keywords, queries_of, run_of, write_labels
from indexers.workspace import Workspace
from tests.indexers.backends.backend_worlds import SHOP, SHOPPERS, frozen
from tests.indexers.conftest import Command
from tests.shops import training_shop, write_shop

ITEMS = [
    Row("a", "Velvet sofa", ("sofas", "green couch", 'a "quoted" \\ word')),
    Row("b", "Oak table", ("tables", "green couch")),
    Row("c", "Velvet chair", ("seat", "sofas")),
    Row("d", "Lamp", ("light",)),
]
QUERIES = [
    Row("q1", "couch", ("green couch", "sofas"), "", (2.0, 0.5, 1.0), 0.7),
    Row("q2", '=odd "one"', ('a "quoted" \\ word', "seat"), "", (1.0, 3.0, 1.0), 0.7),
    Row("q3", "nothing", ("unknown",), "", (), 0.7),
]
GRADES = {"q1": {"a": 3, "b": 1, "d": 0}, "q2": {"c": 2, "b": 2}, "q3": {"d": 1}}


def write(folder: Path, url: str, prefix: str) -> Path:
    return write_shop(
        folder,
        [{"id": row.id, "title": row.text} for row in ITEMS],
        [{"id": row.id, "text": row.text, "split": "test"} for row in QUERIES],
        [
            {"query": query, "item": item, "grade": grade}
            for query, grades in GRADES.items()
            for item, grade in grades.items()
        ],
        f'[opensearch]\nurl = "{url}"\nprefix = "{prefix}"\n',
    )


def test_a_run_is_what_ir_measures_reads(
    cluster: Cluster, cogr_index: Command, tmp_path: Path
) -> None:
    config = write(tmp_path, cluster.url, cluster.settings.prefix)
    sets = ("backend=opensearch", f"store={tmp_path}/store", f"dataset.path={tmp_path}/data")
    workspace = Workspace.open(config, sets)
    for side, rows in (("item", ITEMS), ("query", QUERIES)):
        snapshot = write_snapshot(workspace.store, side, rows, Provenance())
        workspace.backend.push(snapshot)
        workspace.backend.verify(snapshot, [])
        workspace.backend.publish({side: snapshot.id})
    there = ("-c", config, *(part for one in sets for part in ("--set", one)))
    ended = cogr_index("export", "run", tmp_path / "a.run", *there, "--json")
    assert ended.status == 0, ended.err
    assert (ended.json["queries"], ended.json["hits"]) == (3, 5)
    run = list(ir_measures.read_trec_run(str(tmp_path / "a.run")))
    qrels = tmp_path / "qrels"
    cogr_index("export", "labels", qrels, "--format", "trec", *there)
    found = ir_measures.calc_aggregate(
        [ir_measures.nDCG @ 10, ir_measures.RR @ 10], ir_measures.read_trec_qrels(str(qrels)), run
    )
    dataset = workspace.dataset
    queries = queries_of(dataset, "test")
    hits = run_of(workspace, queries, 10).hits
    sets = {id_: [hit.id for hit in some] for id_, some in hits.items()}
    ours = measure(dataset, queries, sets).means
    assert found[ir_measures.nDCG @ 10] == pytest.approx(ours["ndcg@10"], abs=1e-9)
    assert found[ir_measures.RR @ 10] == pytest.approx(ours["mrr@10"], abs=1e-9)


@pytest.mark.parametrize("format", ["trec", "beir", "quepid"])
def test_judgements_go_out_and_come_back(cogr_index: Command, tmp_path: Path, format: str) -> None:
    shop = write(tmp_path / "one", "http://localhost:1", "x")
    with (tmp_path / "one/data/labels.jsonl").open("a") as file:
        file.write('{"query": "q1", "item": "c", "grade": 1.5}')
    there = ("-c", shop, "--set", f"dataset.path={tmp_path}/one/data", "--set", "backend=memory")
    to = tmp_path / "judged"
    ended = cogr_index("export", "labels", to, "--format", format, *there)
    assert ended.status == 0, ended.err
    other = ("-c", shop, "--set", f"dataset.path={tmp_path}/two")
    texts = ("--queries", tmp_path / "judged.queries.tsv") if format != "quepid" else ()
    ended = cogr_index("import", "labels", to, *texts, *other, "--json")
    assert ended.status == 0, ended.err
    assert [ended.json[name] for name in ("read", "new_queries", "new_labels")] == [7, 3, 7]
    assert judged(tmp_path / "two") == judged(tmp_path / "one/data")
    before = (tmp_path / "two/labels.jsonl").read_bytes()
    again = cogr_index("import", "labels", to, *texts, *other, "--json").json
    assert [again[name] for name in ("new_queries", "new_labels", "changed")] == [0, 0, 0]
    assert (tmp_path / "two/labels.jsonl").read_bytes() == before


def test_an_id_with_white_space_has_no_place_in_qrels(tmp_path: Path) -> None:
    queries = [Query("q 1", "sofa")]
    shop = replace(training_shop([], {}), judged={"q 1": {"a": 1.0}})
    with pytest.raises(DataError, match="'q 1' has white space, which separates columns"):
        write_labels(shop, queries, tmp_path / "qrels", "trec")


def judged(folder: Path) -> set[tuple[str, str, float]]:
    """Judgements by the queries' texts."""
    queries, labels = (
        [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        for name in ("queries", "labels")
    )
    texts = {query["id"]: query["text"] for query in queries}
    return {(texts[one["query"]], one["item"], one["grade"]) for one in labels}


def test_the_highest_grade_stays_and_a_newer_import_counts_more(
    cogr_index: Command, tmp_path: Path
) -> None:
    shop = write(tmp_path, "http://localhost:1", "x")
    there = ("-c", shop, "--set", f"dataset.path={tmp_path}/data")
    path = tmp_path / "ratings.csv"
    path.write_text("query,docid,rating\nCOUCH,a,1\ncouch,a,2\nnew one,b,1\nunrated,,\n")
    found = cogr_index("import", "labels", path, *there, "--json").json
    names = ("read", "unrated", "new_queries", "new_labels", "changed")
    assert [found[name] for name in names] == [3, 1, 2, 1, 1]
    assert ("couch", "a", 2) in judged(tmp_path / "data")
    (tmp_path / "qrels").write_text("q1 0 a 1\nq9 0 a 1\n")
    ended = cogr_index("import", "labels", tmp_path / "qrels", *there)
    assert ended.status == 2
    assert "qrels, line 2: the query 'q9' has no text here; name a file of ids" in ended.err
    (tmp_path / "texts").write_text("q9 no tab\n")
    ended = cogr_index(
        "import", "labels", tmp_path / "qrels", "--queries", tmp_path / "texts", *there
    )
    assert "texts, line 1: the line is not an id, a tab and a text" in ended.err


# Keyword sets

ODD = [Row("o1", "a, b => c", ("x\\y", "comma, inside", "it's")), Row("o2", "no keywords", ())]


def test_lines_have_every_row(tmp_path: Path) -> None:
    for side, given in (("item", SHOP), ("query", [*SHOPPERS, *ODD])):
        snapshot = frozen(Store(tmp_path / "store"), side, given)
        export_keywords(snapshot, tmp_path / "out")
        lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
        found = [(one["id"], one["text"], one["self"], tuple(one["keywords"])) for one in lines]
        rows = list(snapshot.rows())
        assert found == [(row.id, row.text, row.self_keyword, row.keywords) for row in rows]
        assert [tuple(one.get("weights", ())) for one in lines] == [row.weights for row in rows]
    with pytest.raises(StorageError, match="does not exist; create it"):
        export_keywords(snapshot, tmp_path / "no" / "out")


def test_a_snapshot_moves_to_another_store_as_a_folder(tmp_path: Path) -> None:
    """As docs/exchange.md says."""
    items, other = frozen(Store(tmp_path / "store"), "item", SHOP), tmp_path / "other"
    shutil.copytree(tmp_path / "store/snapshots" / items.id, other / "snapshots" / items.id)
    moved = open_snapshot(Store(other), items.id)
    assert list(moved.rows()) == list(items.rows())
