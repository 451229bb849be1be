"""Labels and texts looked at: near-duplicates, leaks between splits, labels that disagree, relevant
pairs without a common word.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

from cogr.datasets.splits import cluster_key, place
from cogr.errors import MissingExtraError
from cogr.keywords import self_keyword
from cogr.records import Dataset, Query
from indexers.text import Analyser

LIKE_ITEMS = 0.8
"""Jaccard similarity of their runs of three words from which two items are near-duplicates."""
LIKE_QUERIES = 0.7
"""The same of two queries, by their runs of three characters."""

_MOST_ITEMS = 20_000
_MOST_PAIRS = 20_000
_MOST_COMPARED = 200
_PERMUTATIONS = 64
_SHOWN = 5


@dataclass(frozen=True)
class NearDuplicates:
    """Items with nearly the same text.

    Attributes:
        looked_at: items that were compared, chosen by a hash where there are more.
        items: of these, how many have a near-duplicate.
        groups: ids, a group each, the largest first.
    """

    looked_at: int
    items: int
    groups: Sequence[Sequence[str]]

    def as_dict(self) -> dict[str, Any]:
        """Counts, and the first groups."""
        return {
            "looked_at": self.looked_at,
            "items": self.items,
            "groups": len(self.groups),
            "examples": [list(ids[:_SHOWN]) for ids in self.groups[:_SHOWN]],
        }


@dataclass(frozen=True)
class Leakage:
    """Queries of dev and test that are known from training.

    Attributes:
        queries: queries of dev and test.
        equal: with the same normalised text as a training query.
        same_words: with the same stems, in any order.
        near: with nearly the same characters.
        share: of any of the three.
        examples: (query, training query) texts.
    """

    queries: int
    equal: int
    same_words: int
    near: int
    share: float
    examples: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Disagreement:
    """Label noise: the same question, answered twice.

    Attributes:
        compared: pairs of judgements of one item for near-equal queries, or of near-duplicate items
            for one query.
        differ: of these, one says relevant and the other not.
        share: differ / compared.
        examples: (query, query, item) of near-equal queries.
    """

    compared: int
    differ: int
    share: float
    examples: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Gap:
    """Relevant pairs that share no word (stem, without stop words).

    Attributes:
        pairs: relevant pairs that were looked at.
        without: of these, without a common stem.
        share: without / pairs.
        queries: queries of which no relevant item shares a word.
    """

    pairs: int
    without: int
    share: float
    queries: int


def near_duplicates(dataset: Dataset) -> NearDuplicates:
    """Groups of items with nearly the same text, by MinHash and a check of each pair.

    Raises MissingExtraError without the extra `data`.
    """
    rows: Iterable[int] = range(len(dataset.items))
    if len(dataset.items) > _MOST_ITEMS:
        ids = [(place(item.id), row) for row, item in enumerate(dataset.items)]
        rows = sorted(row for _, row in sorted(ids)[:_MOST_ITEMS])
    texts = {}
    for row in rows:
        item = dataset.items[row]
        texts[item.id] = _runs(f"{item.title} {item.text}".casefold().split(), 3)
    texts = {id_: runs for id_, runs in texts.items() if runs}
    parent = {id_: id_ for id_ in texts}

    def root(id_: str) -> str:
        while parent[id_] != id_:
            parent[id_] = parent[parent[id_]]
            id_ = parent[id_]
        return id_

    for one, other in _alike(texts, texts, LIKE_ITEMS):
        parent[root(one)] = root(other)
    groups: dict[str, list[str]] = defaultdict(list)
    for id_ in texts:
        groups[root(id_)].append(id_)
    found = sorted((ids for ids in groups.values() if len(ids) > 1), key=lambda ids: -len(ids))
    return NearDuplicates(len(texts), sum(map(len, found)), found)


def _alike(
    texts: dict[str, frozenset[str]], others: dict[str, frozenset[str]], least: float
) -> Iterable[tuple[str, str]]:
    """Pairs of different keys whose sets have at least this Jaccard similarity."""
    try:
        from datasketch import MinHash, MinHashLSH
    except ImportError as error:
        raise MissingExtraError("Looking for near-duplicates", "data") from error
    index = MinHashLSH(threshold=least, num_perm=_PERMUTATIONS)
    hashes = {}

    def sketch(runs: frozenset[str]) -> MinHash:
        made = MinHash(num_perm=_PERMUTATIONS)
        made.update_batch([run.encode("utf-8", "surrogatepass") for run in runs])
        return made

    for id_, runs in others.items():
        hashes[id_] = sketch(runs)
        index.insert(id_, hashes[id_], check_duplication=False)
    for id_, runs in texts.items():
        known = hashes.get(id_) if texts is others else None
        for near in index.query(known or sketch(runs)):
            if texts is others and near <= id_:
                continue
            union = len(runs | others[near])
            if union and len(runs & others[near]) / union >= least:
                yield id_, near


def _runs(parts: Sequence[str], size: int) -> frozenset[str]:
    if len(parts) <= size:
        return frozenset([" ".join(parts)]) if parts else frozenset()
    return frozenset(" ".join(parts[at : at + size]) for at in range(len(parts) - size + 1))


def leakage(dataset: Dataset) -> Leakage:
    """Queries of dev and test beside those of training.

    Raises MissingExtraError without the extra `data`.
    """
    train = dataset.queries.get("train", ())
    held = [*dataset.queries.get("dev", ()), *dataset.queries.get("test", ())]
    by_text = {self_keyword(query.text): query.text for query in train}
    by_words = {cluster_key(query.text): query.text for query in train}
    equal, same, rest, examples = 0, 0, [], []
    for query in held:
        if self_keyword(query.text) in by_text:
            equal += 1
            examples.append((query.text, by_text[self_keyword(query.text)]))
        elif cluster_key(query.text) in by_words:
            same += 1
            examples.append((query.text, by_words[cluster_key(query.text)]))
        else:
            rest.append(query)
    near = _near_queries(rest, train)
    examples += near.items()
    share = (equal + same + len(near)) / len(held) if held else 0.0
    return Leakage(len(held), equal, same, len(near), round(share, 4), examples[:_SHOWN])


def _near_queries(held: Sequence[Query], train: Sequence[Query]) -> dict[str, str]:
    """Text -> a training query's text with nearly the same characters."""

    def runs(queries: Sequence[Query]) -> dict[str, frozenset[str]]:
        return {query.text: _runs([*f" {self_keyword(query.text)} "], 3) for query in queries}

    return dict(_alike(runs(held), runs(train), LIKE_QUERIES))


def disagreement(dataset: Dataset, duplicates: NearDuplicates | None) -> Disagreement:
    """Judgements of the same item for queries of the same words, and of near-duplicate items for
    the same query.
    """
    clusters: dict[str, list[Query]] = defaultdict(list)
    for query in dataset.all_queries():
        clusters[cluster_key(query.text)].append(query)
    compared, examples, differ = 0, [], 0
    for queries in clusters.values():
        for one, other in islice(combinations(queries, 2), _MOST_COMPARED):
            for item in dataset.judged[one.id].keys() & dataset.judged[other.id].keys():
                compared += 1
                if (item in dataset.relevant[one.id]) != (item in dataset.relevant[other.id]):
                    differ += 1
                    examples.append((one.text, other.text, item))
    groups = duplicates.groups if duplicates else ()
    group_of = {id_: number for number, ids in enumerate(groups) for id_ in ids}
    for query in dataset.all_queries():
        relevant = dataset.relevant[query.id]
        for ids in _grouped(dataset.judged[query.id], group_of):
            for one_, other_ in islice(combinations(ids, 2), _MOST_COMPARED):
                compared += 1
                differ += (one_ in relevant) != (other_ in relevant)
    share = differ / compared if compared else 0.0
    return Disagreement(compared, differ, round(share, 4), examples[:_SHOWN])


def _grouped(judged: Iterable[str], group_of: Mapping[str, int]) -> Iterable[Sequence[str]]:
    """Judged items by their group of near-duplicates."""
    groups: dict[int, list[str]] = defaultdict(list)
    for id_ in judged:
        if id_ in group_of:
            groups[group_of[id_]].append(id_)
    return map(sorted, groups.values())


def vocabulary_gap(dataset: Dataset, language: str = "english") -> Gap:
    """Relevant pairs without a common stem, over a sample of queries."""
    analyser = Analyser(language)
    rows = {item.id: row for row, item in enumerate(dataset.items)}
    stems: dict[str, frozenset[str]] = {}
    pairs = without = alone = 0
    for query in sorted(dataset.all_queries(), key=lambda query: (place(query.text), query.id)):
        asked = frozenset(analyser.terms(query.text))
        shared = 0
        relevant = sorted(dataset.relevant[query.id])
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
