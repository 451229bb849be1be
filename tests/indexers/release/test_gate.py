"""The gate: each reason keeps a snapshot from serving, what serves stays, and a pair that fits
together passes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cogr.records import Side
from cogr.settings import load_settings
from cogr.snapshots import Row
from cogr.store import Store
from indexers.release.gate import choose_split
from indexers.workspace import Workspace
from tests.indexers.backends.backend_worlds import frozen
from tests.indexers.conftest import Command

TITLES = {"a": "Velvet sofa", "b": "Oak table", "c": "Floor lamp", "d": "Leather sofa"}
TEXTS = {"q1": "green couch", "q2": "living room sofa", "q3": "floor lamp"}
GOOD_ITEMS = {"a": ["sofas", "couch"], "b": ["tables", "oak"]}
GOOD_ITEMS |= {"c": ["lamps", "light"], "d": ["sofas", "seat"]}
GOOD_QUERIES = {"q1": ["couch"], "q2": ["sofas"], "q3": ["lamps", "oak"]}
FOREIGN_ITEMS = {"a": ["s1", "s2"], "b": ["t1", "t2"], "c": ["l1", "l2"], "d": ["s1", "s3"]}
FOREIGN_QUERIES = {"q1": ["s2"], "q2": ["s1"], "q3": ["l1", "t1"]}


class Shop:
    """Snapshots with chosen keywords."""

    def __init__(self, folder: Path, cogr_index: Command) -> None:
        self.folder, self.run = folder, cogr_index

    def pushed(self, side: Side, sets: dict[str, list[str]]) -> str:
        texts = TITLES if side == "item" else TEXTS
        rows = [Row(id_, texts[id_], tuple(words)) for id_, words in sets.items()]
        made = frozen(Store(self.folder / ".cogr"), side, rows).id
        assert self.run("publish", made, "--no-switch").status == 0
        return made

    def serving(self) -> set[str]:
        rows = self.run("list", "--json").json["snapshots"]
        return {row["snapshot"] for row in rows if row["serving"]}


@pytest.fixture
def served(shop: Path, cogr_index: Command) -> Shop:
    """A shop whose good pair serves."""
    made = Shop(shop, cogr_index)
    pair = made.pushed("item", GOOD_ITEMS), made.pushed("query", GOOD_QUERIES)
    ended = cogr_index("publish", *pair, "--json")
    assert ended.json["gate"]["f1"] == pytest.approx((1 + 2 / 3) / 2)
    assert ended.json["gate"]["f1_before"] is None
    return made


ONE_EMPTY = {**GOOD_ITEMS, "b": []}
FEW_WORDS = {id_: ["sofas", "lamps"] for id_ in TITLES}
FIGURES = [
    ("tolerance", FOREIGN_ITEMS, "F1 on test would go from 0.8333 to 0.5000 (publish.tolerance is"),
    ("MOST_GROWTH", FOREIGN_ITEMS, "items that no query reaches would go from 0.0% to 75.0%"),
    ("MOST_GROWTH", ONE_EMPTY, "empty keyword sets (item side) would go from 0.0% to 25.0%"),
    ("LEAST_VOCABULARY", FEW_WORDS, "vocabulary of the item side would go from 7 to 2 keywords"),
]


@pytest.mark.parametrize(("limit", "items", "reason"), FIGURES)
def test_each_figure_stops_a_publish_and_its_limit_lets_it_pass(
    served: Shop,
    limit: str,
    items: dict[str, list[str]],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = served.serving()
    worse = served.pushed("item", items)
    ended = served.run("publish", worse)
    assert (ended.status, ended.err.count("\n")) == (1, 1)
    assert reason in ended.err
    assert served.serving() == before
    # This figure alone: the others let everything pass, then so does this one.
    flags = [] if limit == "tolerance" else ["--set", "publish.tolerance=0.99"]
    for name, value in (("LEAST_VOCABULARY", 0.0), ("MOST_GROWTH", 1.0)):
        if name != limit:
            monkeypatch.setattr(f"indexers.release.gate.{name}", value)
    ended = served.run("publish", worse, *flags)
    assert (ended.status, reason in ended.err) == (1, True)
    monkeypatch.undo()
    monkeypatch.chdir(served.folder)
    for name, value in (("LEAST_VOCABULARY", 0.0), ("MOST_GROWTH", 1.0)):
        monkeypatch.setattr(f"indexers.release.gate.{name}", value)
    assert served.run("publish", worse, "--set", "publish.tolerance=1").status == 0
    # Rolling back is never kept; the gate can be overruled.
    assert served.run("rollback").status == 0
    assert served.serving() == before
    assert served.run("publish", worse, "--no-gate").status == 0


def test_a_pair_that_belongs_together_passes_where_each_alone_does_not(served: Shop) -> None:
    pair = served.pushed("item", FOREIGN_ITEMS), served.pushed("query", FOREIGN_QUERIES)
    assert [served.run("publish", one).status for one in pair] == [1, 1]
    ended = served.run("publish", *pair, "--json")
    assert ended.json["gate"]["f1"] == ended.json["gate"]["f1_before"]
    assert served.serving() == set(pair)


def test_f1_is_measured_on_dev_queries_else_on_test_queries(shop: Path) -> None:
    workspace = Workspace(load_settings(None))
    queries = workspace.dataset.queries
    assert choose_split(workspace.dataset) == "test"
    with_dev = replace(workspace.dataset, queries={**queries, "dev": queries["test"]})
    assert choose_split(with_dev) == "dev"
    assert choose_split(replace(with_dev, queries={"train": queries["train"]})) is None
