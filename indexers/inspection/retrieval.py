"""Ways to search that labels are looked at through, and that pairs to judge are pooled from.

bm25: the items' own text. keywords: what serves, by its keywords, where something serves.
neighbours: items whose text is most like that of the query's relevant items, or of BM25's first
three where none is known. random: any item.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cogr.datasets.splits import place
from cogr.errors import ServiceError, SnapshotError
from cogr.evaluation import rows_of_queries
from cogr.records import Dataset, Query
from indexers.text import Lexical
from indexers.workspace import Workspace

Retriever = Literal["bm25", "keywords", "neighbours", "random"]
RETRIEVERS: tuple[Retriever, ...] = ("bm25", "keywords", "neighbours", "random")

_LIKE = 3
_TEXT_CHARACTERS = 300


@dataclass(frozen=True)
class Holes:
    """How much of what a retriever finds was judged.

    Attributes:
        queries: how many it was asked.
        depth: items looked at, best first.
        judged_share: of the items found, over all queries.
        relevant_share: of the judged ones, those that are relevant.
        holes_per_query: items found that nobody judged, on average.
        blind: queries of which nothing that was found is judged.
    """

    queries: int
    depth: int
    judged_share: float
    relevant_share: float
    holes_per_query: float
    blind: int


class Searches:
    """The retrievers of one workspace.

    Raises MissingExtraError without the extra `statistical`.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.dataset: Dataset = workspace.dataset
        self._workspace = workspace
        self._lexical = Lexical(self.dataset.items)
        self._rows = {item.id: row for row, item in enumerate(self.dataset.items)}
        self.without: dict[str, str] = {}
        """Retrievers that can't be asked, and why."""

    def all(self, queries: Sequence[Query], size: int) -> dict[Retriever, dict[str, list[str]]]:
        """Retriever -> query id -> ids of items, best first, `size` at most.

        Without a pair that serves there are no keywords.
        """
        found: dict[Retriever, dict[str, list[str]]] = {
            "bm25": {query.id: self.bm25(query, size) for query in queries}
        }
        keywords = self.keywords(queries, size)
        if keywords is not None:
            found["keywords"] = keywords
        found["neighbours"] = {query.id: self.neighbours(query, size) for query in queries}
        found["random"] = {query.id: self.random(query, size) for query in queries}
        return found

    def bm25(self, query: Query, size: int) -> list[str]:
        return [item.id for item, _ in self._lexical.rank(query.text, size)]

    def keywords(self, queries: Sequence[Query], size: int) -> dict[str, list[str]] | None:
        """What serves; None where nothing does, or its backend can't be reached."""
        workspace = self._workspace
        try:
            items, snapshot = workspace.serving("item"), workspace.serving("query")
        except (SnapshotError, ServiceError) as error:
            self.without["keywords"] = str(error)
            return None
        rows = rows_of_queries(
            queries, snapshot, unknown=True, weights=workspace.settings.keywords.weights
        )
        backend = workspace.backend
        return {
            id_: [hit.id for hit in backend.retrieved(row.weighted, snapshot=items.id).hits][:size]
            for id_, row in rows.items()
        }

    def neighbours(self, query: Query, size: int) -> list[str]:
        relevant = self.dataset.relevant.get(query.id, frozenset())
        known = sorted(relevant)[:_LIKE] or self.bm25(query, _LIKE)
        found: dict[str, float] = {}
        for id_ in known:
            item = self.dataset.items[self._rows[id_]]
            like = f"{item.title} {item.text[:_TEXT_CHARACTERS]}"
            for near, score in self._lexical.rank(like, size + len(known)):
                found[near.id] = max(found.get(near.id, 0.0), score)
        ordered = sorted(found, key=lambda id_: (-found[id_], id_))
        return [id_ for id_ in ordered if id_ not in known][:size]

    def random(self, query: Query, size: int) -> list[str]:
        """The same ones for a query whenever it is asked."""
        rng = random.Random(place(query.text))
        items = self.dataset.items
        return [items[at].id for at in rng.sample(range(len(items)), min(size, len(items)))]


def holes(
    searches: Searches, queries: Sequence[Query], dataset: Dataset, depth: int
) -> Mapping[str, Holes]:
    """Of each retriever; none where no query is labelled."""
    if not queries:
        return {}
    return {name: _holes(run, dataset, depth) for name, run in searches.all(queries, depth).items()}


def _holes(run: Mapping[str, Sequence[str]], dataset: Dataset, depth: int) -> Holes:
    found = judged = relevant = blind = 0
    for query, ids in run.items():
        known = [id_ for id_ in ids if id_ in dataset.judged.get(query, {})]
        found += len(ids)
        judged += len(known)
        relevant += sum(id_ in dataset.relevant[query] for id_ in known)
        blind += bool(ids) and not known
    return Holes(
        len(run),
        depth,
        round(judged / found, 4) if found else 0.0,
        round(relevant / judged, 4) if judged else 0.0,
        round((found - judged) / len(run), 2),
        blind,
    )
