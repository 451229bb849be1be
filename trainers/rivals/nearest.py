"""Rivals that learn nothing: the relevant items of the nearest training queries, alone and fused
with BM25. Every learned method should beat these floors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cogr.records import Dataset, Item, Query
from indexers.text import Lexical
from trainers.rivals import Cost, Family, Fitted, Task
from trainers.rivals.measuring import Meter, Spent, ids_of
from trainers.rivals.sparse import BM25

_BYTES = 8
"""Bytes of a stored label: a query and an item."""


@dataclass(frozen=True)
class NeighbourRanks:
    """The relevant items of the most similar training queries, which vote by their BM25 scores. A
    training query is not its own neighbour.
    """

    queries: Lexical
    dataset: Dataset
    spent: Spent
    nearest: int
    share: float

    def rank(self, queries: Sequence[Query], depth: int) -> dict[str, list[tuple[str, float]]]:
        """By votes; a neighbour's count divided by its number of items to the power `share`."""
        return {query.id: self._votes(query)[:depth] for query in queries}

    def _votes(self, query: Query) -> list[tuple[str, float]]:
        votes: dict[str, float] = {}
        found = self.queries.rank(query.text, self.nearest + 1)
        others = [(one.id, score) for one, score in found if one.id != query.id]
        for id_, score in others[: self.nearest]:
            wanted = self.dataset.relevant[id_]
            for item in wanted:
                votes[item] = votes.get(item, 0.0) + score / len(wanted) ** self.share
        return sorted(votes.items(), key=lambda pair: (-pair[1], pair[0]))

    def sets(self, queries: Sequence[Query]) -> None:
        """None: rankings are cut."""

    def cost(self) -> Cost:
        """The labels, and an index of the training queries."""
        labels = sum(len(self.dataset.relevant[one.id]) for one in self.queries.items)
        size = (_BYTES * labels + self.queries.size_bytes) / len(self.dataset.items)
        return Cost(self.spent.seconds, self.spent.peak_bytes, size, False)


class Nearest:
    """The items of the nearest training queries: memorised labels without learning."""

    name, seeded = "nearest", False
    family: Family = "floor"

    def trials(self, task: Task) -> Sequence[Mapping[str, Any]]:  # noqa: ARG002
        return [
            {"nearest": nearest, "share": share}
            for nearest, share in (
                (10, 0.5),
                (10, 0.0),
                (3, 0.5),
                (5, 0.0),
                (20, 0.5),
                (20, 1.0),
                (50, 0.5),
                (50, 1.0),
            )
        ]

    def fit(self, task: Task, params: Mapping[str, Any]) -> NeighbourRanks:
        with Meter() as meter:
            train = task.dataset.require("train")
            index = Lexical([Item(query.id, query.text) for query in train])
        return NeighbourRanks(index, task.dataset, meter.spent, **params)


@dataclass(frozen=True)
class Fusion:
    """Reciprocal rank fusion (Cormack, Clarke and Büttcher 2009) of two rankings."""

    one: Fitted
    other: Fitted
    constant: int
    weight: float

    def rank(self, queries: Sequence[Query], depth: int) -> dict[str, list[tuple[str, float]]]:
        """By the sum of 1 / (constant + rank), the first ranking's times `weight`."""
        found: dict[str, dict[str, float]] = {query.id: {} for query in queries}
        for fitted, weight in ((self.one, self.weight), (self.other, 1.0)):
            for query, ids in ids_of(fitted.rank(queries, depth)).items():
                for rank, id_ in enumerate(ids, 1):
                    votes = found[query]
                    votes[id_] = votes.get(id_, 0.0) + weight / (self.constant + rank)
        return {
            query: sorted(votes.items(), key=lambda pair: (-pair[1], pair[0]))[:depth]
            for query, votes in found.items()
        }

    def sets(self, queries: Sequence[Query]) -> None:
        """None: rankings are cut."""

    def cost(self) -> Cost:
        """Both."""
        one, other = self.one.cost(), self.other.cost()
        return Cost(
            one.train_seconds + other.train_seconds,
            one.peak_bytes + other.peak_bytes,
            one.index_bytes_per_item + other.index_bytes_per_item,
            False,
        )


class Fused:
    """The nearest training queries' items, fused with BM25."""

    name, seeded = "nearest+bm25", False
    family: Family = "floor"

    def trials(self, task: Task) -> Sequence[Mapping[str, Any]]:  # noqa: ARG002
        return [
            {"nearest": nearest, "share": 0.5, "constant": constant, "weight": weight}
            for nearest, constant, weight in (
                (10, 60, 1.0),
                (10, 60, 2.0),
                (10, 10, 2.0),
                (20, 60, 1.0),
                (20, 10, 1.0),
                (50, 60, 2.0),
                (50, 10, 2.0),
                (50, 10, 4.0),
            )
        ]

    def fit(self, task: Task, params: Mapping[str, Any]) -> Fusion:
        own = {name: params[name] for name in ("nearest", "share")}
        bm25 = BM25()
        plain = bm25.fit(task, bm25.trials(task)[0])
        near = Nearest().fit(task, own)
        return Fusion(near, plain, params["constant"], params["weight"])
