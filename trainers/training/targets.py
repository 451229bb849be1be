"""SFT targets from labels: the paper's algorithm 1.

Pure; who writes the first item keywords is the caller's business.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence


def item_targets(sets: Mapping[str, Sequence[str]], budget: int) -> dict[str, tuple[str, ...]]:
    """S_i: the first M keywords of each item, in the order in which they were written.

    Items without any are left out.
    """
    return {id_: tuple(words[:budget]) for id_, words in sets.items() if words}


def query_targets(
    items: Mapping[str, Sequence[str]], relevant: Mapping[str, Collection[str]], budget: int
) -> dict[str, tuple[str, ...]]:
    """S_q: the N most frequent keywords of the multiset union of S_i over the query's relevant
    items.

    Equal counts: the keyword that fewer items of the whole universe have comes first (it brings
    fewer others along), then code-point order. Queries whose relevant items have no keywords are
    left out.
    """
    df = Counter(word for words in items.values() for word in set(words))
    found: dict[str, tuple[str, ...]] = {}
    for query, ids in relevant.items():
        pooled = Counter(_pool(items, ids))
        best = sorted(pooled, key=lambda word: (-pooled[word], df[word], word))[:budget]
        if best:
            found[query] = tuple(best)
    return found


def _pool(items: Mapping[str, Sequence[str]], ids: Iterable[str]) -> Iterable[str]:
    return (word for id_ in ids for word in items.get(id_, ()))
