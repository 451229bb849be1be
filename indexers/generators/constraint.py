"""Decoding constrained to a vocabulary: at every step only tokens that lead to a list of known
keywords may follow.

A completion is `keyword, keyword, ..., end`: each keyword known, none twice, no more than the
budget. The tokens that may follow are looked up in a sorted table of token sequences with one row
for each keyword, in microseconds a step. Used by `transformers_lm` and `vllm_constraint`.

At each step forbidden tokens get probability 0 and the others are scaled up to a sum of 1. The
completions no longer follow the model's own distribution, so this is for index builds, not for
rollouts: GRPO's importance ratio would belong to another policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cogr.errors import GeneratorError
from cogr.keywords import parse
from cogr.snapshots import Snapshot

Tokens = NDArray[np.int32]

_NOTHING = np.zeros(0, dtype=np.int32)
_CACHED_NODES = 50_000


def known_keywords(items: Snapshot) -> list[str]:
    """Everything that a query may match in an item snapshot: its keywords and its items' own texts,
    sorted.
    """
    found = {word for row in items.rows() for word in (*row.keywords, row.self_keyword)}
    return sorted(found - {""})


@dataclass(frozen=True)
class _Node:
    later: bool
    low: int
    high: int
    depth: int


@dataclass
class Writing:
    """How far one completion has come.

    `complete`: tokens up to the end of its last whole keyword.
    """

    node: _Node
    used: list[int] = field(default_factory=list)
    written: int = 0
    complete: int = 0
    ended: bool = False


class _Table:
    def __init__(self, sequences: Sequence[Sequence[int]]) -> None:
        longest = max(map(len, sequences))
        # One more column, so that every sequence ends with -1.
        rows = np.full((len(sequences), longest + 1), -1, dtype=np.int32)
        for row, sequence in zip(rows, sequences, strict=True):
            row[: len(sequence)] = sequence
        self.order = np.lexsort(rows.T[::-1])
        self.rows: Tokens = np.ascontiguousarray(rows[self.order].T)
        self.place = np.argsort(self.order)

    def ends(self, node: _Node) -> bool:
        return bool(self.rows[node.depth, node.low] == -1)

    def children(self, node: _Node) -> Tokens:
        column = self.rows[node.depth, node.low + self.ends(node) : node.high]
        return column[np.flatnonzero(np.diff(column, prepend=-2))]

    def child(self, node: _Node, token: int) -> _Node | None:
        column = self.rows[node.depth, node.low : node.high]
        low, high = np.searchsorted(column, [token, token + 1])
        if low == high or token < 0:
            return None
        return _Node(node.later, node.low + int(low), node.low + int(high), node.depth + 1)


class KeywordConstraint:
    """What may follow, for one tokenizer.

    Args:
        keywords: normalised keywords. A keyword that the tokenizer or the list's syntax would
            change is left out.
        limit: most keywords of a completion, K_max.

    Raises:
        GeneratorError: none of the keywords can be written.
    """

    def __init__(
        self, keywords: Iterable[str], tokenizer: Any, ends: Iterable[int], limit: int
    ) -> None:
        self.ends = sorted(ends)
        self._ends = np.array(self.ends, dtype=np.int32)
        self._limit = limit
        self.keywords, first, later = _spellings(list(dict.fromkeys(keywords)), tokenizer)
        if not self.keywords:
            raise GeneratorError(
                "None of the item snapshot's keywords can be written by this model's tokenizer; "
                "set generator.constrained to false."
            )
        self._first, self._later = _Table(first), _Table(later)
        self._roots = {kind: _Node(kind, 0, len(self.keywords), 0) for kind in (False, True)}
        self._known: dict[_Node, Tokens] = {}

    def start(self) -> Writing:
        """An empty completion."""
        return Writing(self._roots[False])

    def allowed(self, writing: Writing) -> Tokens:
        """The tokens that may come next, in no particular order; none after the end."""
        if writing.ended:
            return _NOTHING
        node = writing.node
        further = self._unused(node, writing.used)
        if self._keyword_at(node, writing.used) is None:
            return further
        parts = [further, self._ends]
        if len(writing.used) + 1 < self._limit:
            now = [*writing.used, self._keyword_at(node, ())]
            parts.append(self._unused(self._roots[True], now))
        return np.concatenate(parts)

    def advance(self, writing: Writing, token: int) -> None:
        """Put one of the allowed tokens behind a completion. Raises ValueError for any other."""
        ended = self._keyword_at(writing.node, writing.used)
        if ended is not None:
            writing.complete = writing.written
        if ended is not None and token in self._ends:
            writing.ended = True
            return
        following = self._table(writing.node).child(writing.node, token)
        if following is None and ended is not None:
            writing.used.append(ended)
            following = self._later.child(self._roots[True], token)
        if following is None:
            raise ValueError(f"token {token} may not follow")
        writing.node = following
        writing.written += 1

    def whole(self, tokens: Sequence[int]) -> int:
        """How many of a completion's first tokens are whole keywords: all of them, unless a length
        limit cut it.
        """
        writing = self.start()
        for token in tokens:
            self.advance(writing, token)
        return (
            writing.written
            if self._keyword_at(writing.node, writing.used) is not None
            else writing.complete
        )

    def _table(self, node: _Node) -> _Table:
        return self._later if node.later else self._first

    def _keyword_at(self, node: _Node, used: Iterable[int | None]) -> int | None:
        table = self._table(node)
        if not table.ends(node):
            return None
        keyword = int(table.order[node.low])
        return None if keyword in used else keyword

    def _unused(self, node: _Node, used: Sequence[int | None]) -> Tokens:
        table = self._table(node)
        tokens = self._known.get(node)
        if tokens is None:
            if len(self._known) >= _CACHED_NODES:
                self._known.clear()
            tokens = self._known[node] = table.children(node)
        places = [int(table.place[keyword]) for keyword in used if keyword is not None]
        inside = [place for place in places if node.low <= place < node.high]
        spent = []
        for token in {int(table.rows[node.depth, place]) for place in inside} - {-1}:
            child = table.child(node, token)
            assert child is not None
            if sum(child.low <= place < child.high for place in inside) == child.high - child.low:
                spent.append(token)
        return np.setdiff1d(tokens, spent) if spent else tokens


def _spellings(
    keywords: list[str], tokenizer: Any
) -> tuple[list[str], list[list[int]], list[list[int]]]:
    if not keywords:
        return [], [], []

    def ids(texts: list[str]) -> list[list[int]]:
        found: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
        return found

    # The text before a keyword changes its tokens, so they are taken from "a, sofa" without its
    # "a".
    before = ids(["a"])[0]
    first, listed = ids(keywords), ids([f"a, {keyword}" for keyword in keywords])
    read_first = tokenizer.batch_decode(first, skip_special_tokens=True)
    read_listed = tokenizer.batch_decode(listed, skip_special_tokens=True)
    kept, spelled, later = [], [], []
    seen: tuple[set[tuple[int, ...]], set[tuple[int, ...]]] = (set(), set())
    for keyword, own, more, one, two in zip(
        keywords, first, listed, read_first, read_listed, strict=True
    ):
        behind = more[len(before) :]
        new = (
            more[: len(before)] == before
            and tuple(own) not in seen[0]
            and tuple(behind) not in seen[1]
        )
        if new and parse(one) == (keyword,) and parse(two) == tuple(dict.fromkeys(("a", keyword))):
            kept.append(keyword)
            spelled.append(own)
            later.append(behind)
            seen[0].add(tuple(own))
            seen[1].add(tuple(behind))
    return kept, spelled, later


def allowed_tokens(
    vocabulary: KeywordConstraint, prompt_length: int
) -> Callable[[int, Any], list[int]]:
    """The `prefix_allowed_tokens_fn` for one call of transformers' `generate`, whose prompts are
    all padded to one length.
    """
    writings: dict[int, Writing] = {}

    def allowed(row: int, ids: Any) -> list[int]:
        if len(ids) == prompt_length:
            writings[row] = vocabulary.start()
        elif not writings[row].ended:
            vocabulary.advance(writings[row], int(ids[-1]))
        # `generate` itself pads the completions that have ended.
        found: list[int] = (vocabulary.allowed(writings[row])).tolist()
        return found or vocabulary.ends

    return allowed
