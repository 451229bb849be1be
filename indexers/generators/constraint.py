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
from typing import Any, NamedTuple

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


class _Node(NamedTuple):
    # A prefix of `depth` tokens that the rows `low` to `high` share.
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
        self.ends, self._limit = sorted(ends), limit
        self._ends = np.array(self.ends, dtype=np.int32)
        self.keywords, first, later = _spellings(list(dict.fromkeys(keywords)), tokenizer)
        if not self.keywords:
            raise GeneratorError(
                "None of the item snapshot's keywords can be written by this model's tokenizer; "
                "set another prompts.query_variant than proposals."
            )
        # One row for each spelling, in lexicographic order: 0 at the head of a list, 1 further on,
        # then its tokens, filled up with -1.
        spelled = [*((0, *tokens) for tokens in first), *((1, *tokens) for tokens in later)]
        rows = np.full((len(spelled), max(map(len, spelled)) + 1), -1, dtype=np.int32)
        for row, tokens in zip(rows, spelled, strict=True):
            row[: len(tokens)] = tokens
        self._order = np.lexsort(rows.T[::-1])
        self._rows: Tokens = np.ascontiguousarray(rows[self._order].T)
        self._place = np.argsort(self._order)
        self._first = _Node(0, len(first), 1)
        self._later = _Node(len(first), len(spelled), 1)
        self._known: dict[_Node, Tokens] = {}

    def start(self) -> Writing:
        """An empty completion."""
        return Writing(self._first)

    def allowed(self, writing: Writing) -> Tokens:
        """The tokens that may come next, in no particular order; none after the end."""
        if writing.ended:
            return _NOTHING
        parts = [self._unused(writing.node, writing.used)]
        keyword = self._keyword_at(writing.node, writing.used)
        if keyword is not None:
            parts.append(self._ends)
            if len(writing.used) + 1 < self._limit:
                parts.append(self._unused(self._later, [*writing.used, keyword]))
        return np.concatenate(parts)

    def advance(self, writing: Writing, token: int) -> None:
        """Put one of the allowed tokens behind a completion. Raises ValueError for any other."""
        ended = self._keyword_at(writing.node, writing.used)
        if ended is not None:
            writing.complete = writing.written
            if token in self._ends:
                writing.ended = True
                return
        following = self._child(writing.node, token)
        if following is None and ended is not None:
            writing.used.append(ended)
            following = self._child(self._later, token)
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
        ended = self._keyword_at(writing.node, writing.used) is not None
        return writing.written if ended else writing.complete

    def _keyword_at(self, node: _Node, used: Sequence[int]) -> int | None:
        # A keyword that ends at a node is the node's first row.
        if self._rows[node.depth, node.low] != -1:
            return None
        keyword = int(self._order[node.low]) % len(self.keywords)
        return None if keyword in used else keyword

    def _child(self, node: _Node, token: int) -> _Node | None:
        column = self._rows[node.depth, node.low : node.high]
        low, high = np.searchsorted(column, [token, token + 1])
        if low == high or token < 0:
            return None
        return _Node(node.low + int(low), node.low + int(high), node.depth + 1)

    def _children(self, node: _Node) -> Tokens:
        if node not in self._known:
            if len(self._known) >= _CACHED_NODES:
                self._known.clear()
            column = self._rows[node.depth, node.low : node.high]
            tokens = column[np.flatnonzero(np.diff(column, prepend=-2))]
            self._known[node] = tokens[tokens >= 0]
        return self._known[node]

    def _unused(self, node: _Node, used: Sequence[int]) -> Tokens:
        # Without the tokens that lead only to keywords that have been written.
        count = len(self.keywords)
        places = self._place[[*used, *(keyword + count for keyword in used)]].tolist()
        inside = [place for place in places if node.low <= place < node.high]
        spent = []
        for token in {int(self._rows[node.depth, place]) for place in inside} - {-1}:
            child = self._child(node, token)
            assert child is not None
            if sum(child.low <= place < child.high for place in inside) == child.high - child.low:
                spent.append(token)
        tokens = self._children(node)
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
