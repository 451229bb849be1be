"""Labels and texts looked at: leaks between splits, labels that disagree, relevant pairs without a
common word.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import TypeVar

from cogr.datasets.splits import cluster_key, place
from cogr.keywords import self_keyword
from cogr.records import Dataset, Query
from indexers.text import Analyser

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


def vocabulary_gap(dataset: Dataset, language: str = "english") -> Gap:
    """Relevant pairs without a common stem, over a sample of queries."""
    analyser = Analyser(language)
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
