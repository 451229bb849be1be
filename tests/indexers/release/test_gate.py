"""The gate: each reason keeps a snapshot from serving, what serves stays, and a pair that fits
together passes.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cogr.records import Side
from cogr.snapshots import Row
from cogr.store import Store
from indexers.generators.statistical import fitting
from indexers.generators.statistical.generator import FIGURES
from indexers.generators.statistical.ranking.ranker import Ranker
from indexers.release.history import History
from indexers.workspace import Workspace
from tests.commands import Command
from tests.shops import ITEMS, forum_records, frozen, write_data, write_shop
from trainers.project import Project

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
LIMITS = [
    ("tolerance", FOREIGN_ITEMS, "F1 on test would go from 0.8333 to 0.5000 (publish.tolerance is"),
    ("MAX_GROWTH", FOREIGN_ITEMS, "items that no query reaches would go from 0.0% to 75.0%"),
    ("MAX_GROWTH", ONE_EMPTY, "empty keyword sets (item side) would go from 0.0% to 25.0%"),
    ("MIN_VOCABULARY", FEW_WORDS, "vocabulary of the item side would go from 7 to 2 keywords"),
]


@pytest.mark.parametrize(("limit", "items", "reason"), LIMITS)
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
    # This figure alone: the others let everything pass.
    flags = [] if limit == "tolerance" else ["--set", "publish.tolerance=0.99"]
    for name, value in (("MIN_VOCABULARY", 0.0), ("MAX_GROWTH", 1.0)):
        if name != limit:
            monkeypatch.setattr(f"indexers.release.gate.{name}", value)
    ended = served.run("publish", worse, *flags)
    assert (ended.status, reason in ended.err) == (1, True)
    # The gate can be overruled, and a rollback asks none.
    assert served.run("publish", worse, "--no-gate").status == 0
    assert served.run("rollback").status == 0
    assert served.serving() == before
    assert served.run("publish", worse, "--set", "publish.tolerance=1").status == 0


@pytest.fixture
def with_dev(shop: Path, cogr_index: Command) -> Shop:
    """A shop with dev queries in which nothing serves yet. BM25 finds all that is relevant."""
    queries = [{"id": id_, "text": TITLES[id_].casefold(), "split": "dev"} for id_ in TITLES]
    queries += [{"id": "q1", "text": "green couch", "split": "train"}]
    labels = [{"query": id_, "item": id_, "grade": 1} for id_ in TITLES]
    labels += [{"query": "q1", "item": "a", "grade": 1}]
    write_data(shop / "data", items=ITEMS, queries=queries, labels=labels)
    return Shop(shop, cogr_index)


WORDS = {**{id_: ("key " + id_,) for id_ in TITLES}, "q1": ("key a",)}
ALL = {id_: tuple(f"key {one}" for one in TITLES) for id_ in WORDS}


@pytest.mark.parametrize("one_by_one", [True, False])
def test_the_first_pair_is_refused_where_text_search_finds_more(
    with_dev: Shop, one_by_one: bool
) -> None:
    store = Store(with_dev.folder / ".cogr")
    texts = {**{id_: title.casefold() for id_, title in TITLES.items()}, "q1": "green couch"}

    def pair(sets: dict[str, tuple[str, ...]]) -> tuple[str, str]:
        items = [Row(id_, TITLES[id_], WORDS[id_]) for id_ in TITLES]
        queries = [Row(id_, texts[id_], sets[id_]) for id_ in sets]
        return frozen(store, "item", items).id, frozen(store, "query", queries).id

    worse, good = pair(ALL), pair(WORDS)
    if one_by_one:
        assert with_dev.run("publish", worse[0]).status == 0
        worse, before = worse[1:], {worse[0]}
    else:
        before = set()
    ended = with_dev.run("publish", *worse)
    reason = "F1 would be 0.4000 where text search (BM25) has 1.0000, 0.6000 more, on dev queries"
    assert ended.status == 1
    assert all(one in ended.sentence for one in (reason, "label more queries", "--no-gate"))
    assert with_dev.serving() == before
    for flag in (["--no-gate"], ["--set", "publish.tolerance=1"]):
        assert with_dev.run("publish", *worse, *flag).status == 0
    # What a person let through is followed by its equals, until it is better than that.
    tonight = pair({**ALL, "q1": ("key a", "key b")})
    equal = with_dev.run("publish", *tonight)
    assert equal.status == 0, equal.err
    assert "Warning, still worse than text search, as what serves is; beside" in equal.err
    passed = with_dev.run("publish", *good, "--json")
    compared = passed.json["gate"]["beside_text"]
    assert [(one["measure"], one["serves"], one["text"]) for one in compared] == [
        ("F1", 1, 1),
        ("nDCG@10", 1, 1),
        ("R@100", 1, 1),
    ]
    assert reason in with_dev.run("publish", *tonight).sentence


def test_text_search_is_cut_as_is_best_for_the_training_queries_by_their_weights(
    with_dev: Shop,
) -> None:
    """The one that wants an item alone weighs more than two that want both sofas."""
    lone = {"id": "one", "text": "velvet sofa bed", "split": "train", "weight": 9}
    both = [{"id": text, "text": text, "split": "train"} for text in ("sofa", "sofa bed")]
    dev = [{"id": "dev", "text": "leather sofa", "split": "dev"}]
    relevant = [("one", "a"), ("dev", "d"), *((one["id"], id_) for one in both for id_ in "ad")]
    labels = [{"query": query, "item": item, "grade": 1} for query, item in relevant]
    write_data(with_dev.folder / "data", queries=[lone, *both, *dev], labels=labels)
    items = with_dev.pushed("item", GOOD_ITEMS)
    queries = frozen(Store(with_dev.folder / ".cogr"), "query", [Row("dev", "leather sofa", ())])
    compared = with_dev.run("publish", items, queries.id, "--json").json["gate"]["beside_text"]
    assert (compared[0]["measure"], compared[0]["text"]) == ("F1", 1)


def test_it_compares_with_titles_alone_where_texts_are_not_searched(
    tmp_path: Path, cogr_index: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Words of a query that no title has, and that the keywords of both sides lack."""
    words = ("brass", "walnut", "linen", "oak", "steel", "glass")
    items = [{"id": w, "title": f"Thing {n}", "text": f"of {w}"} for n, w in enumerate(words)]
    queries = [{"id": f"q{w}", "text": f"all {w}", "split": "dev"} for w in words]
    labels = [{"query": f"q{w}", "item": w, "grade": 1} for w in words]
    write_shop(tmp_path, items, queries, labels, "[publish]\nsearch_text = false\n")
    monkeypatch.chdir(tmp_path)
    store = Store(tmp_path / ".cogr")
    assert cogr_index("rebuild", "--side", "item", "--generator", "extractive").status == 0
    asked = [Row(one["id"], one["text"], ("none",)) for one in queries]
    ended = cogr_index("publish", frozen(store, "query", asked).id, "--json")
    compared = ended.json["gate"]["beside_text"]
    assert {(one["text"], one["on"]) for one in compared} == {(0, "dev queries, by titles alone")}


def test_without_dev_queries_and_a_fit_it_says_that_nothing_is_compared(served: Shop) -> None:
    ended = served.run("publish", *served.serving(), "--json")
    assert ended.json["gate"]["beside_text"] == []
    made = served.pushed("item", {**GOOD_ITEMS, "b": ["tables", "oak", "wood"]})
    assert "can't be compared with text search: there are no dev" in served.run("publish", made).err


@pytest.mark.slow
def test_topics_without_labels_are_compared_by_the_fit(
    tmp_path: Path, cogr_index: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A ranker that trusts votes that are not there is refused, though it is right wherever the
    labels know a topic.
    """
    write_shop(tmp_path, *forum_records(), '[generator]\nname = "statistical"\n')
    monkeypatch.chdir(tmp_path)
    right = fitting.fit_hidden

    def trusting(*parts: Any) -> Ranker:
        return replace(right(*parts), hidden=None)

    monkeypatch.setattr(fitting, "fit_hidden", trusting)
    ended = cogr_index("rebuild", "--side", "item", "--set", 'store="trusting"')
    assert ended.status == 1
    assert re.search(r"F1 would be 0\.\d+ where text search .* on topics without labels", ended.err)
    assert History(Store(tmp_path / "trusting"), "memory").entries == []
    told = cogr_index("inspect", "--json", "--set", 'store="trusting"').json
    assert told["verdict"] == "label more"
    assert "Text search finds more than CoGR on topics without labels" in told["advice"][0]
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    assert not any("suits" in advice for advice in cogr_index("inspect", "--json").json["advice"])
    for side in ("item", "query"):
        ended = cogr_index("rebuild", "--side", side)
        assert ended.status == 0
        line = re.search(
            r"expected F1 (.+) where the labels .+, (.+) where .+ has (.+) on", ended.err
        )
        assert line
    told = cogr_index("inspect", "--json").json
    assert told["verdict"] == "train"
    assert told["advice"][0].startswith("The data suits CoGR: expected F1")
    fit = Project(Workspace.open(tmp_path / "cogr.toml")).evaluate().payload["fit"]
    assert [f"{fit[name]:.3f}" for name in FIGURES] == [*line.groups()]
    assert fit["f1_of_text"] - 0.01 <= fit["f1_hidden_topics"] < fit["f1_out_of_fold"]


def test_a_pair_that_belongs_together_passes_where_each_alone_does_not(served: Shop) -> None:
    pair = served.pushed("item", FOREIGN_ITEMS), served.pushed("query", FOREIGN_QUERIES)
    assert [served.run("publish", one).status for one in pair] == [1, 1]
    ended = served.run("publish", *pair, "--json")
    assert ended.json["gate"]["f1"] == ended.json["gate"]["f1_before"]
    assert served.serving() == set(pair)
