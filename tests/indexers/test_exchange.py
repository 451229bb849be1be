"""Files for other programs and from them: judgements in, keyword sets and results out; documents of
an index in, and bad ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ir_measures
import pytest

from cogr.datasets.fields import Columns
from cogr.datasets.reading import Place
from cogr.errors import DataError, StorageError
from cogr.metrics import measure
from cogr.records import Query
from cogr.snapshots import Provenance, Row
from cogr.snapshots.writing import write_snapshot
from cogr.store import Store
from indexers import imports
from indexers.backends.opensearch.client import Cluster
from indexers.exports import export_keywords, queries_of, run_of, write_labels
from indexers.imports import ItemsImported, import_items
from indexers.search import Searcher
from indexers.workspace import Workspace
from tests.commands import Command, done, sets
from tests.indexers.backends.opensearch_worlds import filled, half_there
from tests.shops import frozen, read_jsonl, training_shop, write_shop

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
    own = ("backend=opensearch", f"store={tmp_path}/store", f"dataset.path={tmp_path}/data")
    workspace = Workspace.open(config, own)
    for side, rows in (("item", ITEMS), ("query", QUERIES)):
        snapshot = write_snapshot(workspace.store, side, rows, Provenance())
        workspace.backend.push(snapshot)
        workspace.backend.verify(snapshot, [])
        workspace.backend.publish({side: snapshot.id})
    there = ("-c", config, *sets(*own))
    told = done(cogr_index, "export", "run", tmp_path / "a.run", *there)
    assert (told["queries"], told["hits"]) == (3, 5)
    run = list(ir_measures.read_trec_run(str(tmp_path / "a.run")))
    qrels = tmp_path / "qrels"
    cogr_index("export", "labels", qrels, "--format", "trec", *there)
    found = ir_measures.calc_aggregate(
        [ir_measures.nDCG @ 10, ir_measures.RR @ 10], ir_measures.read_trec_qrels(str(qrels)), run
    )
    dataset = workspace.dataset
    queries = queries_of(dataset, "test")
    hits = run_of(Searcher(workspace), queries, 10)
    ranked = {id_: [hit.id for hit in some] for id_, some in hits.items()}
    ours = measure(dataset, queries, ranked).means
    assert found[ir_measures.nDCG @ 10] == pytest.approx(ours["ndcg@10"], abs=1e-9)
    assert found[ir_measures.RR @ 10] == pytest.approx(ours["mrr@10"], abs=1e-9)


ALIKE = [
    "4. Band",
    "5. Band",
    ".jar",
    "jar",
    "?",
    "...",
    "a, b",
    "a b",
    f"{'x ' * 200}y",
    "x " * 200,
]


def test_judgements_come_in_the_encoding_that_is_named(
    cogr_index: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data set's own files stay UTF-8."""
    write_shop(tmp_path, [{"id": "d", "title": "Łódź"}], [{"id": "q", "text": "Größe"}], [])
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "quepid.csv"
    file.write_bytes("query,docid,rating\nłąka,d,2\n".encode("cp1250"))
    assert cogr_index("import", "labels", file).status == 2
    done(cogr_index, "import", "labels", file, "--encoding", "cp1250")
    assert [one["text"] for one in read_jsonl(tmp_path / "data/queries.jsonl")] == ["Größe", "łąka"]


@pytest.mark.parametrize("format", ["trec", "beir", "quepid"])
def test_queries_that_are_much_alike_go_out_and_come_back(
    cogr_index: Command, tmp_path: Path, format: str
) -> None:
    grades = [
        (f"q{at}", item, (at + n) % 3 * 1.5)
        for at in range(len(ALIKE))
        for n, item in enumerate("ab")
    ]
    shop = write_shop(
        tmp_path / "one",
        [{"id": id_, "title": id_, "text": ""} for id_ in "ab"],
        [{"id": f"q{at}", "text": text} for at, text in enumerate(ALIKE)],
        [{"query": query, "item": item, "grade": grade} for query, item, grade in grades],
    )
    data = tmp_path / "one/data"
    there = ("-c", shop, "--set", f"dataset.path={data}")
    assert cogr_index("export", "labels", tmp_path / "out", "--format", format, *there).status == 0
    texts = ("--queries", tmp_path / "out.queries.tsv") if format != "quepid" else ()
    for folder, new in ((data, 0), (tmp_path / "two", len(ALIKE)), (tmp_path / "two", 0)):
        given = ("-c", shop, "--set", f"dataset.path={folder}")
        told = done(cogr_index, "import", "labels", tmp_path / "out", *texts, *given)
        assert (told["new_queries"], told["changed"]) == (new, 0)
        assert {(text.strip(), *rest) for text, *rest in judged(folder)} == {
            (ALIKE[int(query[1:])].strip(), item, grade) for query, item, grade in grades
        }


def test_an_id_with_white_space_has_no_place_in_qrels(tmp_path: Path) -> None:
    queries = [Query("q 1", "sofa")]
    shop = replace(training_shop([], {}), judged={"q 1": {"a": 1.0}})
    with pytest.raises(DataError, match="'q 1'"):
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


def test_lines_have_every_row(tmp_path: Path) -> None:
    odd = [Row("d", "a, b => c", ("x\\y", "comma, inside", "it's")), Row("e", "no keywords", ())]
    for side, given in (("item", [*ITEMS[:3], *odd]), ("query", QUERIES)):
        snapshot = frozen(Store(tmp_path / "store"), side, given)
        export_keywords(snapshot, tmp_path / "out")
        lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
        found = [(one["id"], one["text"], one["self"], tuple(one["keywords"])) for one in lines]
        rows = list(snapshot.rows())
        assert found == [(row.id, row.text, row.self_keyword, row.keywords) for row in rows]
        assert [tuple(one.get("weights", ())) for one in lines] == [row.weights for row in rows]
    with pytest.raises(StorageError, match="create"):
        export_keywords(snapshot, tmp_path / "no" / "out")


# Documents of an index


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


def test_bad_documents_are_left_out_and_names_that_none_has_refused(
    tmp_path: Path,
) -> None:
    to = tmp_path / "items.jsonl"
    good = [{"_id": number, "title": "x" * 5} for number in range(199)]
    mixed, undated = {"_id": "mixed", "title": {"en": "x"}}, {"_id": "u", "updated": "yesterday"}
    to.write_text("as it was")
    with pytest.raises(DataError, match="3 of 202 documents"):
        imported(to, [*good, mixed, undated, {"title": "no id"}], updated="updated")
    assert [path.name for path in tmp_path.iterdir()] == ["items.jsonl"]
    assert to.read_text() == "as it was"
    found = imported(to, [*good, mixed, {"_id": "bare"}])
    assert (found.written, found.bad) == (200, 1)
    (problem,) = found.problems
    assert "products, document 1: 'title' is not a text" in problem
    documents = [{"_id": 1, "name": "Lamp"}]
    for named, absent in (({}, "title"), ({"title": "name", "text": ("body",)}, "body")):
        with pytest.raises(DataError, match=f"'{absent}'"):
            imported(to, documents, **named)
    assert len(to.read_text().splitlines()) == 200


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
    documents = ((f"p{number}", product(number)) for number in range(250))
    index = filled(cluster, f"{cluster.settings.prefix}-products", documents, **SHARDS, **DATED)
    monkeypatch.setattr(imports, "_PAGE", 100)
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


def test_half_an_index_is_not_imported(file: Path, cogr_index: Command, cluster: Cluster) -> None:
    index = f"{cluster.settings.prefix}-half"
    half_there(cluster, index, {f"p{n}": product(n) for n in range(20)})
    there = ("--set", f"opensearch.url={cluster.url}")
    ended = cogr_index("import", "items", "--index", index, *NAMED, *there)
    ended.check_refused(f"The answer from {index} is incomplete", status=3)
    assert not file.exists()


@pytest.mark.usefixtures("file")
def test_ubi_indexes_become_a_file(cogr_index: Command, cluster: Cluster) -> None:
    day = "2026-11-21T10:00:00.000Z"
    records: list[dict[str, Any]] = [
        {"user_query": "sofa", "query_id": "1", "timestamp": day},
        {"action_name": "click", "user_query": "sofa", "timestamp": day},
        {"action_name": "click", "timestamp": "2026-11-20T10:00:00.000Z"},
        {"user_query": "mail jo@example.com", "query_id": "2", "timestamp": day},
    ]
    documents = ((str(number), record) for number, record in enumerate(records))
    name = filled(cluster, f"{cluster.settings.prefix}-ubi", documents)
    fixed = ("--index", name, "--set", f"opensearch.url={cluster.url}")
    arguments = ("import", "ubi", "ubi.ndjson", *fixed)
    told = done(cogr_index, *arguments)
    assert (told["records"], told["left_out"]) == (3, 1)
    lines = Path("ubi.ndjson").read_text().splitlines()
    assert sorted(lines) == sorted(json.dumps(record) for record in records[:3])
    assert done(cogr_index, *arguments, "--since", "2026-11-21")["records"] == 2
