"""Labels and texts looked at: near-duplicates, leaks between splits, labels that disagree, relevant
pairs without a common word.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice

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
    """Items with nearly the same text, of those that were looked at (chosen by a hash where there
    are more); groups of ids, the largest first.
    """

    looked_at: int
    items: int
    groups: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Leakage:
    """Queries of dev and test that are known from training: with an equal normalised text, with the
    same stems in any order, with nearly the same characters; and the share of any of the three.
    """

    queries: int
    equal: int
    same_words: int
    near: int
    share: float
    examples: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Disagreement:
    """Label noise: pairs of judgements of one item for near-equal queries, or of near-duplicate
    items for one query, of which some say relevant and not; examples are (query, query, item).
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


def near_duplicates(dataset: Dataset) -> NearDuplicates:
    """Groups of items with nearly the same text, by MinHash and a check of each pair.

    Raises MissingExtraError without the extra `data`.
    """
    rows: Iterable[int] = range(len(dataset.items))
    if len(dataset.items) > _MOST_ITEMS:
        ids = [(place(item.id), row) for row, item in enumerate(dataset.items)]
        rows = sorted(row for _, row in sorted(ids)[:_MOST_ITEMS])
    texts = {}
    for item in (dataset.items[row] for row in rows):
        if runs := _runs(f"{item.title} {item.text}".casefold().split(), 3):
            texts[item.id] = runs
    group_of = {id_: [id_] for id_ in texts}
    for one, other in _alike(texts, texts, LIKE_ITEMS):
        small, large = sorted((group_of[one], group_of[other]), key=len)
        if small is not large:
            large += small
            group_of |= dict.fromkeys(small, large)
    groups = {id(group): sorted(group) for group in group_of.values() if len(group) > 1}
    found = sorted(groups.values(), key=lambda group: (-len(group), group))
    return NearDuplicates(len(texts), sum(map(len, found)), found)


def _alike(
    texts: Mapping[str, frozenset[str]], others: Mapping[str, frozenset[str]], least: float
) -> Iterator[tuple[str, str]]:
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
    starts = range(max(1, len(parts) - size + 1)) if parts else ()
    return frozenset(" ".join(parts[at : at + size]) for at in starts)


def leakage(dataset: Dataset) -> Leakage:
    """Queries of dev and test beside those of training.

    Raises MissingExtraError without the extra `data`.
    """
    train = dataset.queries.get("train", ())
    held = [*dataset.queries.get("dev", ()), *dataset.queries.get("test", ())]
    by_text = {self_keyword(query.text): query.text for query in train}
    by_words = {cluster_key(query.text): query.text for query in train}
    equal = {q.text: by_text[key] for q in held if (key := self_keyword(q.text)) in by_text}
    rest = [query for query in held if query.text not in equal]
    same = {q.text: by_words[key] for q in rest if (key := cluster_key(q.text)) in by_words}
    rest = [query for query in rest if query.text not in same]
    near = dict(_alike(_characters(rest), _characters(train), LIKE_QUERIES))
    one, two, three = (sum(query.text in some for query in held) for some in (equal, same, near))
    share = (one + two + three) / len(held) if held else 0.0
    examples = [*equal.items(), *same.items(), *near.items()]
    return Leakage(len(held), one, two, three, round(share, 4), examples[:_SHOWN])


def _characters(queries: Sequence[Query]) -> dict[str, frozenset[str]]:
    return {query.text: _runs([*f" {self_keyword(query.text)} "], 3) for query in queries}


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
        alike: dict[int, list[bool]] = defaultdict(list)
        for id_ in sorted(dataset.judged[query.id].keys() & group_of.keys()):
            alike[group_of[id_]].append(id_ in dataset.relevant[query.id])
        for answers in alike.values():
            for yes, also in islice(combinations(answers, 2), _MOST_COMPARED):
                compared += 1
                differ += yes != also
    share = differ / compared if compared else 0.0
    return Disagreement(compared, differ, round(share, 4), examples[:_SHOWN])


def vocabulary_gap(dataset: Dataset, language: str = "english") -> Gap:
    """Relevant pairs without a common stem, over a sample of queries."""
    analyser = Analyser(language)
    rows = {item.id: row for row, item in enumerate(dataset.items)}
    stems: dict[str, frozenset[str]] = {}
    pairs = without = alone = 0
    for query in sorted(dataset.all_queries(), key=lambda query: (place(query.text), query.id)):
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
