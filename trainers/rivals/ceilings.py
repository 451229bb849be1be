"""Ceilings, which use the labels that they are measured by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cogr.keywords import self_keyword
from cogr.metrics import best_head
from cogr.records import Dataset, Query
from indexers.generators.extractive import Extractive
from indexers.generators.statistical import LEAST_QUERIES
from trainers.rivals import Cost, Family, NotRunError, Task
from trainers.rivals.keyword import (
    KeywordRanks,
    fitted_generator,
    item_keywords,
    mirror_of,
    weighted,
)
from trainers.rivals.measuring import DEPTH, ids_of
from trainers.rivals.sparse import BM25, LexicalRanks


class OracleKeywords:
    """The best choice among the items' keywords for a query, by the true labels."""

    name, seeded = "oracle-keywords", False
    family: Family = "ceiling"

    def trials(self, task: Task) -> Sequence[Mapping[str, Any]]:  # noqa: ARG002
        return [{}]

    def fit(self, task: Task, params: Mapping[str, Any]) -> KeywordRanks:  # noqa: ARG002
        generator, spent = fitted_generator(task)
        if isinstance(generator, Extractive):
            raise NotRunError(
                f"item keywords learned from {LEAST_QUERIES} labelled training queries",
                "bring labels, or pip install 'cogr[statistical]'",
            )
        from indexers.generators.statistical.artefact import K_MAX
        from indexers.generators.statistical.keyword_selection import select_keywords

        items, keywords = task.dataset.items, generator.artefact.keywords
        numbers = {item.id: number for number, item in enumerate(items)}

        def chosen(query: Query) -> dict[str, float]:
            relevant = np.zeros(len(items))
            relevant[[numbers[id_] for id_ in task.dataset.relevant[query.id]]] = 1.0
            own = self_keyword(query.text)
            forced = keywords.owners(own)
            found = select_keywords(relevant, keywords.writable, limit=K_MAX, forced=forced)
            return weighted(query, [keywords.keywords[number] for number in found.keywords], {})

        mirror = mirror_of(items, item_keywords(generator, items))
        return KeywordRanks(mirror, lambda asked: [chosen(query) for query in asked], spent)


@dataclass(frozen=True)
class BestHeads:
    """BM25, cut for each query where its F1 is highest."""

    plain: LexicalRanks
    dataset: Dataset
    depth: int

    def rank(self, queries: Sequence[Query], depth: int) -> dict[str, list[tuple[str, float]]]:
        """As BM25 ranks."""
        return self.plain.rank(queries, depth)

    def sets(self, queries: Sequence[Query]) -> dict[str, list[str]]:
        """The best head of each ranking, by the labels."""
        run = ids_of(self.rank(queries, self.depth))
        return {
            id_: ids[: best_head(ids, self.dataset.relevant[id_])[0]] for id_, ids in run.items()
        }

    def cost(self) -> Cost:
        """BM25's."""
        return self.plain.cost()


class PerfectCutoff:
    """BM25 with the best cutoff for each query, by the labels."""

    name, seeded = "perfect-cutoff", False
    family: Family = "ceiling"

    def trials(self, task: Task) -> Sequence[Mapping[str, Any]]:
        return BM25().trials(task)

    def fit(self, task: Task, params: Mapping[str, Any]) -> BestHeads:
        return BestHeads(BM25().fit(task, params), task.dataset, DEPTH)
