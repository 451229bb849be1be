"""diff, prune, import and export on a small shop: what they say is what was changed, and nothing in
use is touched.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cogr.snapshots import Provenance, Row
from cogr.snapshots.writing import write_snapshot
from cogr.store import Store
from indexers.exchange.search import diff
from tests.indexers.conftest import Command
from tests.shops import write_jsonl


def frozen(store: Store, side: str, rows: list[Row]) -> str:
    return write_snapshot(store, side, rows, Provenance()).id  # type: ignore[arg-type]


def test_a_diff_names_keywords_and_entities(shop: Path, cogr_index: Command) -> None:
    store = Store(shop / ".cogr")
    old = frozen(
        store, "item", [Row("a", "A", ("x", "y")), Row("b", "B", ("x",)), Row("c", "C", ("z",))]
    )
    new = frozen(
        store,
        "item",
        [Row("a", "A", ("y", "n", "m")), Row("c", "C", ("z",)), Row("d", "D", ("n",))],
    )
    found = cogr_index("diff", old, new, "--json").json
    assert (found["new"], found["gone"], found["changed"]) == (1, 1, 1)
    assert found["gained"] == [["n", 2], ["m", 1]]
    assert found["lost"] == [["x", 2]]
    assert found["entities"][0] == {"id": "a", "text": "A", "gained": ["n", "m"], "lost": ["x"]}
    shown = cogr_index("diff", old, new)
    assert "keywords gained" in shown.out
    assert "n (2), m (1)" in shown.out
    # The other way round, what was gained is lost; a snapshot does not differ from itself.
    back = cogr_index("diff", new, old, "--json").json
    assert (back["gained"], back["lost"]) == (found["lost"], found["gained"])
    assert cogr_index("diff", new, new, "--json").json["changed"] == 0


def test_what_is_exported_is_imported_as_it_was(shop: Path, cogr_index: Command) -> None:
    made = cogr_index("rebuild", "--side", "item", "--json").json["snapshot"]
    for format_ in ("jsonl", "parquet"):
        out = shop / f"out.{format_}"
        assert cogr_index("export", out, "--format", format_).status == 0
        store = ("--set", f"store={shop / format_}")
        assert cogr_index("import", out, "--json", *store).json["snapshot"] == made
        assert cogr_index("publish", made, "--no-switch", *store).status == 0
    files = [
        shop / store / "snapshots" / made / "keywords.parquet"
        for store in (".cogr", "jsonl", "parquet")
    ]
    assert len({file.read_bytes() for file in files}) == 1
    # Somebody edited the file: it is not that snapshot any more.
    lines = (shop / "out.jsonl").read_text().replace("sofa", "couch")
    (shop / "out.jsonl").write_text(lines)
    ended = cogr_index("import", shop / "out.jsonl")
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert "is not what" in ended.err


def test_keywords_from_elsewhere_are_normalised_and_cut(shop: Path, cogr_index: Command) -> None:
    rows = [
        {
            "id": "b",
            "text": "Oak table",
            "keywords": ["OAK  table", "Dining Table", "dining table", ""],
        },
        {"id": "a", "text": "Sofa", "keywords": ["one", "two", "three"]},
    ]
    write_jsonl(shop / "mine.jsonl", rows)
    ended = cogr_index(
        "import", "mine.jsonl", "--side", "query", "--json", "--set", "keywords.k_max=2"
    ).json
    assert ended["side"] == "query"
    assert cogr_index("export", "out.jsonl", "--snapshot", ended["snapshot"]).status == 0
    out = [json.loads(line) for line in (shop / "out.jsonl").read_text().splitlines()]
    assert [(row["id"], row["keywords"]) for row in out] == [
        ("a", ["one", "two"]),
        ("b", ["dining table"]),
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            '{"id": "a", "keywords": "one, two"}',
            "line 1: 'keywords': input should be a valid list;",
        ),
        ('{"id": "a", "keywords": []}\n{"id": "a", "keywords": []}', "has the id 'a' twice"),
        ('{"text": "x", "keywords": []}', "line 1: 'id': field required; correct the record."),
    ],
)
def test_a_bad_file_is_refused_in_one_line(
    shop: Path, cogr_index: Command, text: str, told: str
) -> None:
    (shop / "bad.jsonl").write_text(text)
    ended = cogr_index("import", "bad.jsonl")
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert told in ended.err


def test_prune_never_takes_what_is_in_use(shop: Path, cogr_index: Command) -> None:
    made = []
    for seed in range(5):
        write_jsonl(shop / "one.jsonl", [{"id": "a", "text": "x", "keywords": [f"k{seed}"]}])
        made.append(cogr_index("import", "one.jsonl", "--json").json["snapshot"])
        assert cogr_index("publish", made[-1], "--no-switch").status == 0
    store = Store(shop / ".cogr")
    # Snapshots of one second are in id order, not in the order of this test.
    order = [row["snapshot"] for row in cogr_index("list", "--json").json["snapshots"]]
    serves, trained = order[0], order[1]
    assert cogr_index("publish", serves).status == 0
    store.write_json("runs/mine/state.json", {"rounds": [{"stages": [{"output": trained}]}]})
    planned = cogr_index("prune", "--keep", "1", "--files", "--dry-run", "--json").json
    assert planned["from_backend"] == planned["from_store"] == order[2:4]
    assert planned["in_use"] == {serves: "what serves", trained: "the run mine"}
    assert len(cogr_index("list", "--json").json["snapshots"]) == 5
    pruned = cogr_index("prune", "--keep", "1", "--files", "--json").json
    assert pruned == {**planned, "dry_run": False}
    rows = cogr_index("list", "--json").json["snapshots"]
    assert {row["snapshot"] for row in rows if row["pushed"]} == {serves, trained, order[4]}
    assert sorted(store.list("snapshots")) == sorted([serves, trained, order[4]])
    # Without --files the keyword sets stay, and can be pushed again.
    assert cogr_index("publish", trained).status == 0
    pruned = cogr_index("prune", "--keep", "0", "--json").json
    assert (pruned["from_backend"], pruned["in_use"][serves]) == ([order[4]], "a rollback")
    assert cogr_index("publish", order[4], "--no-switch").status == 0


def test_a_diff_takes_snapshots_of_one_side(tmp_path: Path) -> None:
    store = Store(tmp_path)
    one = write_snapshot(store, "item", [], Provenance())
    other = write_snapshot(store, "query", [], Provenance())
    with pytest.raises(Exception, match="different sides"):
        diff(one, other)
