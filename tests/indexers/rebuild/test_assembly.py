"""Answers become a snapshot: the same answers the same one, from the cache alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from cogr.prompts import PAPER, Prompter
from cogr.records import Item, Query
from cogr.snapshots import Row
from cogr.store import Store
from indexers.generators import Answer, Completion, Request
from indexers.rebuild.plan import Carried, Job
from indexers.rebuild.run import generate_and_freeze
from tests.indexers.faulty import Faulty

ITEMS = [Item(f"i{n}", f"Title {n}", "one two three four") for n in range(9)]


class Weighing(Faulty):
    """Gives every query three keywords with weights, and a confidence."""

    def generate(self, requests: Iterable[Request]) -> Iterator[Answer]:
        for request in requests:
            weights = {"sofa": 2.00041, "cut": 7.0, "green couch": 0.333333}
            yield Completion(request.id, "sofa, couch, cut", weights=weights, confidence=0.123456)


def test_a_querys_weights_and_confidence_are_kept_and_an_items_are_not(store: Store) -> None:
    queries = [Query("q1", "Green couch"), Query("q2", "sofa")]
    prompter = Prompter(PAPER["query"])
    weighing = Job("query", queries, Weighing(), prompter, store, "data", k_max=2)
    made = generate_and_freeze(weighing).snapshot
    assert list(made.rows()) == [
        Row("q1", "Green couch", ("sofa", "couch"), "", (2.0, 1.0, 0.3333), 0.1235),
        Row("q2", "sofa", ("couch", "cut"), "", (1.0, 7.0, 2.0), 0.1235),
    ]
    assert made.by_id["q2"].weighted == {"sofa": 2.0, "couch": 1.0, "cut": 7.0}
    assert generate_and_freeze(weighing).snapshot.id == made.id
    unweighted = generate_and_freeze(replace(weighing, weights=False)).snapshot
    assert [(row.weights, row.confidence) for row in unweighted.rows()] == [((), 0.1235)] * 2
    carried = replace(
        weighing, entities=queries[1:], carried=Carried(made, frozenset({"q2"})), weights=False
    )
    assert list(generate_and_freeze(carried).snapshot.rows()) == list(unweighted.rows())
    items = Job("item", ITEMS, Weighing(), Prompter(PAPER["item"]), store, "data")
    row = next(generate_and_freeze(items).snapshot.rows())
    assert (row.weights, row.confidence) == ((), None)
