"""Labels and texts looked at: leaks between splits, labels that disagree, relevant pairs without a
common word; the ceiling of BM25's rankings. Also the retrievers with which labels are examined and
pairs to judge are pooled:

bm25: the items' own text. keywords: the serving pair, where one serves. neighbours: items with the
most similar text to the query's relevant items, or to BM25's first three where none is known.
random: any item.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Literal, TypeVar

import numpy as np

from cogr.datasets.builder import cluster_key, place
from cogr.errors import ServiceError, SnapshotError
from cogr.keywords import self_keyword
from cogr.metrics import best_head, rows_of_queries, sweep_cutoff
from cogr.records import Dataset, Query
from indexers.text import Analyser, Lexical
from indexers.workspace import Workspace

_V = TypeVar("_V")
_MOST_PAIRS = 20_000
_MOST_COMPARED = 200
_SHOWN = 5


@dataclass(frozen=True)
class Leakage:
    """Queries of dev and test that are known from training: with an equal normalised text, or with
    the same stems in any order; the share of either, and (query, training query).
    """

    queries: int
    equal: int
    same_words: int
    share: float
    examples: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Disagreement:
    """Label noise: pairs of judgements of one item for queries with the same stems, or of items
    with equal texts for one query, of which some say relevant and not; examples are (query, query,
    item).
    """

    compared: int
    differ: int
    share: float
    examples: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Gap:
    """Relevant pairs that share no word (stem, without stop words), and queries of which no
    relevant item shares one.
    """

    pairs: int
    without: int
    share: float
    queries: int


def leakage(dataset: Dataset) -> Leakage:
    """Queries of dev and test beside those of training."""
    train = dataset.queries.get("train", ())
    held = [*dataset.queries.get("dev", ()), *dataset.queries.get("test", ())]
    found: list[dict[str, str]] = []
    for key_of in (self_keyword, cluster_key):
        known = {key_of(query.text): query.text for query in train}
        rest = [query.text for query in held if not any(query.text in some for some in found)]
        found.append({text: known[key] for text in rest if (key := key_of(text)) in known})
    equal, same = (sum(query.text in some for query in held) for some in found)
    share = round((equal + same) / len(held), 4) if held else 0.0
    examples = [*found[0].items(), *found[1].items()]
    return Leakage(len(held), equal, same, share, examples[:_SHOWN])


def disagreement(dataset: Dataset) -> Disagreement:
    """Judgements of the same item for queries of the same words, and of items with equal texts for
    the same query.
    """
    pairs = [*_of_queries(dataset), *_of_items(dataset)]
    examples = [(one, other, item) for one, other, item, differ in pairs if differ]
    share = round(len(examples) / len(pairs), 4) if pairs else 0.0
    return Disagreement(len(pairs), len(examples), share, examples[:_SHOWN])


def _of_queries(dataset: Dataset) -> Iterator[tuple[str, str, str, bool]]:
    for queries in _grouped((cluster_key(query.text), query) for query in dataset.all_queries()):
        for one, other in islice(combinations(queries, 2), _MOST_COMPARED):
            for item in dataset.judged[one.id].keys() & dataset.judged[other.id].keys():
                answers = (item in dataset.relevant[query.id] for query in (one, other))
                yield one.text, other.text, item, len({*answers}) == 2


def _of_items(dataset: Dataset) -> Iterator[tuple[str, str, str, bool]]:
    text_of = {
        item.id: hash(" ".join(f"{item.title} {item.text}".casefold().split()))
        for item in dataset.items
    }
    for query in dataset.all_queries():
        for ids in _grouped((text_of[id_], id_) for id_ in sorted(dataset.judged[query.id])):
            for one, other in islice(combinations(ids, 2), _MOST_COMPARED):
                answers = (id_ in dataset.relevant[query.id] for id_ in (one, other))
                yield query.text, query.text, f"{one}, {other}", len({*answers}) == 2


def _grouped(pairs: Iterable[tuple[Hashable, _V]]) -> Iterable[list[_V]]:
    groups = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return groups.values()


def vocabulary_gap(dataset: Dataset) -> Gap:
    """Relevant pairs without a common stem, over a sample of queries."""
    analyser = Analyser()
    rows = {item.id: row for row, item in enumerate(dataset.items)}
    stems: dict[str, frozenset[str]] = {}
    pairs = without = alone = 0
    for query in sample(dataset.all_queries()):
        asked, shared = frozenset(analyser.terms(query.text)), 0
        relevant = dataset.relevant[query.id]
        for id_ in relevant:
            if id_ not in stems:
                item = dataset.items[rows[id_]]
                stems[id_] = frozenset(analyser.terms(f"{item.title} {item.text}"))
            shared += bool(asked & stems[id_])
        pairs += len(relevant)
        without += len(relevant) - shared
        alone += not shared
        if pairs >= _MOST_PAIRS:
            break
    return Gap(pairs, without, round(without / pairs, 4) if pairs else 0.0, alone)


def sample(queries: Iterable[Query], most: int | None = None) -> list[Query]:
    """At most so many queries, the same ones for ever: by a hash of the text."""
    return sorted(queries, key=lambda query: (place(query.text), query.id))[:most]


_LONGEST = 1000


@dataclass(frozen=True)
class Ceiling:
    """The ceiling of BM25's rankings: F1 with the best one number of items for all queries, and
    with the best number of each; the share of the relevant items among the first 1,000.
    """

    bm25: float
    best_cut: float
    reach: float


def ceiling(searches: Searches, dataset: Dataset, queries: Sequence[Query]) -> Ceiling:
    """Of some labelled queries."""
    run = {query.id: searches.bm25(query, _LONGEST) for query in queries}
    relevant = {query.id: dataset.relevant[query.id] for query in queries}
    if not any(run.values()):
        return Ceiling(0.0, 0.0, 0.0)
    best, reach = [], []
    for id_, wanted in relevant.items():
        best.append(best_head(run[id_], wanted)[1])
        reach.append(len(wanted.intersection(run[id_])) / len(wanted))
    found = (sweep_cutoff(run, relevant).f1, np.mean(best), np.mean(reach))
    return Ceiling(*(round(float(one), 4) for one in found))


Retriever = Literal["bm25", "keywords", "neighbours", "random"]
RETRIEVERS: tuple[Retriever, ...] = ("bm25", "keywords", "neighbours", "random")

_LIKE = 3
_TEXT_CHARACTERS = 300


@dataclass(frozen=True)
class Holes:
    """The share of a retriever's first `depth` results that was judged, and of these relevant."""

    queries: int
    depth: int
    judged_share: float
    relevant_share: float


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
    pairs = [(query, id_) for query, ids in run.items() for id_ in ids]
    judged = [pair for pair in pairs if pair[1] in dataset.judged.get(pair[0], {})]
    relevant = sum(id_ in dataset.relevant[query] for query, id_ in judged)
    shares = (len(judged) / max(1, len(pairs)), relevant / max(1, len(judged)))
    return Holes(len(run), depth, *(round(share, 4) for share in shares))
