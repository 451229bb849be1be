"""Evaluation of a pair: one F1 by mirror and by backend, and nDCG by the labels' grades."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cogr.errors import SnapshotError
from cogr.metrics import figures_of_pair, rows_of_queries
from cogr.records import Dataset, Item, Query
from cogr.settings import load_settings
from cogr.snapshots import Provenance, Row, Snapshot
from cogr.snapshots.writing import write_snapshot
from cogr.store import Store
from indexers.backends.memory import mirror_of
from indexers.workspace import Workspace
from tests.shops import frozen, training_shop
from trainers.evaluation import evaluate

WORDS = ["sofa", "couch", "lamp", "oak", "rug"]
word_lists = st.lists(st.sampled_from(WORDS), unique=True, max_size=3)
IDS = ["a", "b", "c", "d"]
weights = st.sampled_from([0.25, 1.0, 3.0])


def opened(store: Store, dataset: Dataset, item: Snapshot, *overrides: str) -> Workspace:
    """A workspace of a data set in memory, whose backend has the items."""
    chosen = load_settings(None, overrides, {"dataset": {"loader": "jsonl", "path": "data"}})
    workspace = Workspace(chosen).with_dataset(dataset)
    vars(workspace)["store"] = store
    workspace.backend.push(item)
    return workspace


@settings(max_examples=15, deadline=None)
@given(
    st.dictionaries(st.sampled_from(IDS[:3]), word_lists, min_size=1),
    st.lists(st.tuples(word_lists, st.sets(st.sampled_from(IDS), min_size=1), weights), min_size=1),
)
def test_a_mirror_and_a_backend_give_one_f1(
    items: dict[str, list[str]], asked: list[tuple[list[str], set[str], float]]
) -> None:
    """Item d is in no snapshot; the own text of every third query is another's keyword."""
    queries = [
        Query(f"q{at}", WORDS[at % 3] if at % 3 else f"text {at}", weight)
        for at, (_, _, weight) in enumerate(asked)
    ]
    relevant = {f"q{at}": frozenset(ids) for at, (_, ids, _) in enumerate(asked)}
    dataset = Dataset(
        "drawn",
        [Item(id_, f"title {id_}") for id_ in IDS],
        {"test": queries},
        relevant,
        {query: dict.fromkeys(ids, 1.0) for query, ids in relevant.items()},
        "0",
    )
    store = Store("memory://evaluation")
    rows = [Row(id_, f"title {id_}", tuple(words)) for id_, words in items.items()]
    item = frozen(store, "item", rows)
    words = (tuple(words) for words, _, _ in asked)
    query = frozen(
        store, "query", [Row(q.id, q.text, w) for q, w in zip(queries, words, strict=True)]
    )
    found = evaluate(opened(store, dataset, item), item, query, "test").figures
    assert found["f1"] == figures_of_pair(mirror_of(item), dataset, "test", query).means["f1"]
    assert found["f1"] <= found["judged_f1"]


def test_a_row_is_found_by_the_text_of_a_query() -> None:
    rows = [("a", "5. Rang"), ("b", "6. rang"), ("c", "rang"), ("d", "RANG "), ("e", "seat")]
    query = frozen(
        Store("memory://by-text"), "query", [Row(id_, text, (f"of {id_}",)) for id_, text in rows]
    )
    asked = {"6. Rang": "b", "5. RANG": "a", "Rang": "c", "(rang)": "c", "seat!": "e"}
    queries = [Query(f"e{at}", text) for at, text in enumerate(asked)]
    found = rows_of_queries(queries, query)
    assert [row.keywords for row in found.values()] == [(f"of {id_}",) for id_ in asked.values()]
    assert [row.text for row in found.values()] == [*asked]
    for text in ("7. rang", "?", "rang a"):
        with pytest.raises(SnapshotError, match="'e'"):
            rows_of_queries([Query("e", text)], query)
    unknown = rows_of_queries([Query("e", "7. rang")], query, unknown=True)["e"]
    assert (unknown.keywords, unknown.weighted) == ((), {"7 rang": 1.0})


def test_weights_change_the_ranks_of_a_pair_and_not_its_f1() -> None:
    """By its keywords a comes first, by their weights b, which is the relevant one."""
    store = Store("memory://weighed")
    items = {"a": ("sofa", "rug"), "b": ("couch",), "c": ()}
    item = frozen(store, "item", [Row(id_, f"title {id_}", own) for id_, own in items.items()])
    plain = Row("q", "divan", ("sofa", "rug", "couch"))
    shop = training_shop([Item(id_, f"title {id_}") for id_ in items], {"q": ("divan", ["b"])})
    dataset = replace(shop, queries={"test": shop.queries["train"]}, judged={"q": {"b": 1.0}})
    workspace = opened(store, dataset, item)

    def figures(row: Row) -> dict[str, float]:
        query = write_snapshot(store, "query", [row], Provenance())
        found = evaluate(workspace, item, query, "test").figures
        assert found["f1"] == figures_of_pair(mirror_of(item), dataset, "test", query).means["f1"]
        return dict(found)

    heavy = replace(plain, weights=(1.0, 1.0, 5.5, 1.0))
    before, after = figures(plain), figures(heavy)
    assert all(before[name] == after[name] for name in ("p", "r", "f1"))
    assert (before["mrr@10"], after["mrr@10"]) == (0.5, 1.0)
    assert after["ndcg@10"] == 1.0 > before["ndcg@10"]
    weighed = write_snapshot(store, "query", [heavy], Provenance())
    unweighed = opened(store, dataset, item, "keywords.weights=false")
    plainly = evaluate(unweighed, item, weighed, "test").figures
    assert plainly["mrr@10"] == 0.5
