"""Stable splits of queries: by a hash of the text, by a hash shared by near-equal queries, or by
time.

A seeded shuffle changes when a query is added, so that yesterday's test queries are trained on
today; a hash does not. Queries that differ only in word order or number ("red chairs", "chair red")
are one cluster and stay in one split; otherwise training would know a test query.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Literal

from cogr.errors import DataError
from cogr.keywords import self_keyword
from cogr.records import Query, Split

SplitBy = Literal["shuffle", "query", "cluster", "time"]
"""shuffle: by the seed. query: by a hash of the normalised text. cluster: by a hash of its stems.
time: the newest queries are the test split.
"""

_WORD = re.compile(r"\w+")
_LETTERS = re.compile(r"[^\W\d_]+")


def cluster_key(text: str) -> str:
    """The key that near-equal queries share: the stems of their distinct words in alphabetical
    order (English Snowball stems; other scripts keep their words).
    """
    words = {_stem(word) for word in _WORD.findall(self_keyword(text))}
    return " ".join(sorted(words))


@cache
def _stemmer() -> object:
    import snowballstemmer

    return snowballstemmer.stemmer("english")


def _stem(word: str) -> str:
    if not word.isascii() or not _LETTERS.fullmatch(word):
        return word
    return str(_stemmer().stemWord(word)) or word  # type: ignore[attr-defined]


def place(key: str, seed: int = 0) -> float:
    """A number in [0, 1) that depends on text and seed alone."""
    digest = hashlib.blake2b(f"{seed}\0{key}".encode("utf-8", "surrogatepass"), digest_size=8)
    return int.from_bytes(digest.digest(), "big") / 2**64


DEV_SHARE = 0.2
"""Share of the training queries that is set apart as dev where the data have none, by the hash of
their ids: enough to judge by, and most are left to learn from. Training sets them apart, and
`statistical` learns from earlier pairs on them, which must not have learned from them.
"""


def by_hash(ids: Iterable[str], share: float) -> frozenset[str]:
    """A share of ids, rounded down: those whose sha256 comes first."""
    ordered = sorted(
        ids, key=lambda id_: hashlib.sha256(id_.encode("utf-8", "surrogatepass")).digest()
    )
    return frozenset(ordered[: math.floor(len(ordered) * share + 1e-9)])


def hashed(
    queries: Iterable[Query], by: SplitBy, test_share: float, dev_share: float
) -> dict[str, Split]:
    """The split of each query by its id, for `query` and `cluster`.

    Args:
        dev_share: share of the queries that are not in test.
    """
    found: dict[str, Split] = {}
    for query in queries:
        key = self_keyword(query.text) if by == "query" else cluster_key(query.text)
        at = place(key)
        if at < test_share:
            found[query.id] = "test"
        else:
            found[query.id] = "dev" if at < test_share + (1 - test_share) * dev_share else "train"
    return found


def by_time(
    queries: Sequence[Query],
    times: Mapping[str, datetime],
    test_share: float,
    dev_share: float,
) -> dict[str, Split]:
    """The newest queries are test, those before them dev, the others train.

    Raises DataError where a query has no time.
    """
    lacking = next((query.id for query in queries if query.id not in times), None)
    if lacking is not None:
        raise DataError(
            f"The query {lacking!r} has no time to split by: give every query an 'updated' field, "
            "or set dataset.split_by to query or cluster."
        )
    ordered = sorted(queries, key=lambda query: (times[query.id], query.id), reverse=True)
    test = int(len(ordered) * test_share + 1e-9)
    dev = test + int((len(ordered) - test) * dev_share + 1e-9)
    return {
        query.id: "test" if at < test else "dev" if at < dev else "train"
        for at, query in enumerate(ordered)
    }
