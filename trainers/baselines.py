"""What generated keywords must beat: BM25 over the items' own text, and the ranker's own cut that `statistical` distils.

Each gives retrieved ids a query; measuring them is `trainers.evaluation`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cogr.metrics import sweep_cutoff
from cogr.records import Dataset, Query, Split
from indexers.lexical import Lexical

if TYPE_CHECKING:
    from indexers.generators.statistical.artefact import Artefact

LONGEST = 1000
"""Longest ranking: what a cutoff is chosen from, and what rank metrics see."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A baseline's rankings and retrieved sets on one split.

    Attributes:
        name: "bm25" or "exact cut".
        runs: query id -> ids of its retrieved items, best first: the head of its ranking.
        rankings: query id -> the whole ranking, 1,000 items at most.
        cutoff: items a query, where one number serves all queries; None where each query has its own.
    """

    name: str
    runs: Mapping[str, Sequence[str]]
    rankings: Mapping[str, Sequence[str]]
    cutoff: int | None = None


def bm25(dataset: Dataset, split: Split, cutoff: int | None = None) -> Baseline:
    """BM25 (bm25s, English stems), its sets cut at the number of items that maximises macro F1 on the training queries.

    Args:
        cutoff: that number, where it is known already.

    Raises DataError when the split or the training split is empty, MissingExtraError without the extra `statistical`.
    """
    train, asked = dataset.require("train"), dataset.require(split)
    lexical = Lexical(dataset.items)

    def rank(queries: Sequence[Query]) -> dict[str, list[str]]:
        return {query.id: [item.id for item, _ in lexical.rank(query.text, LONGEST)] for query in queries}

    if cutoff is None:
        relevant = {query.id: dataset.relevant[query.id] for query in train}
        cutoff = sweep_cutoff(rank(train), relevant, {query.id: query.weight for query in train}).k
    rankings = rank(asked)
    return Baseline("bm25", {id_: ids[:cutoff] for id_, ids in rankings.items()}, rankings, cutoff)


def exact_cut(artefact: Artefact, dataset: Dataset, split: Split) -> Baseline:
    """What the ranker of `statistical` ranks, and retrieves at its own expected-F1 optimum, without any keywords.

    Raises DataError when the split is empty.
    """
    from indexers.generators.statistical.artefact import rankings

    found = list(rankings(artefact, dataset.require(split)))
    sets = {id_: ids[:cut] for id_, ids, cut in found}
    return Baseline("exact cut", sets, {id_: ids[:LONGEST] for id_, ids, _ in found})
