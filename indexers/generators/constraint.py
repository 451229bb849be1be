"""Decoding constrained to a vocabulary: at every step only tokens that lead to a list of known
keywords may follow.

A completion is `keyword, keyword, ..., end`: each keyword known, none twice, no more than the
budget. A keyword is spelled otherwise at the head of a list than further on. Used by
`transformers_lm` and `vllm_constraint`.

At each step forbidden tokens get probability 0 and the others are scaled up to a sum of 1. The
completions no longer follow the model's own distribution, so this is for index builds, not for
rollouts: GRPO's importance ratio would belong to another policy. Of a completion that the length
limit cuts, the last keyword may be a part of one, and is dropped (`without_last`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from cogr.errors import GeneratorError
from cogr.keywords import parse
from cogr.snapshots import Snapshot


def known_keywords(snapshot: Snapshot) -> list[str]:
    """Everything that the other side may match in a snapshot: its keywords and its entities' own
    texts, sorted.
    """
    keywords = {word for row in snapshot.rows() for word in (*row.keywords, row.self_keyword)}
    return sorted(keywords - {""})


def without_last(text: str) -> str:
    """A list of keywords without the last one."""
    return text.rpartition(",")[0]


Tokens = tuple[int, ...]


class _Spellings:
    """The spellings of keywords, by what they begin with."""

    def __init__(self, spellings: Sequence[Tokens]) -> None:
        self._spellings = spellings
        self.whole = {tokens: keyword for keyword, tokens in enumerate(spellings)}
        self.next: dict[Tokens, Counter[int]] = defaultdict(Counter)
        for tokens in spellings:
            for at, token in enumerate(tokens):
                self.next[tokens[:at]][token] += 1

    def unused(self, begun: Tokens, used: Sequence[int]) -> list[int]:
        """The tokens behind `begun` that lead to a keyword that has not been written."""
        size, spent = len(begun), (self._spellings[keyword] for keyword in used)
        gone = Counter(t[size] for t in spent if len(t) > size and t[:size] == begun)
        return [*(self.next[begun] - gone)] if begun in self.next else []


@dataclass
class Writing:
    """How far one completion has come: the tokens of the keyword that it is at, the keywords
    before.
    """

    spellings: _Spellings
    begun: Tokens = ()
    used: list[int] = field(default_factory=list)
    ended: bool = False

    @property
    def keyword(self) -> int | None:
        """The keyword that ends here, unless it was written before."""
        keyword = self.spellings.whole.get(self.begun)
        return None if keyword in self.used else keyword


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
        self.keywords, first, later = _spellings(list(dict.fromkeys(keywords)), tokenizer)
        if not self.keywords:
            raise GeneratorError(
                "None of the item snapshot's keywords can be written by this model's tokenizer; "
                "set another prompts.query_variant than proposals."
            )
        self._first, self._later = _Spellings(first), _Spellings(later)

    def start(self) -> Writing:
        """The state before the first token."""
        return Writing(self._first)

    def allowed(self, writing: Writing) -> list[int]:
        """The tokens that may come next, in no particular order; none after the end."""
        if writing.ended:
            return []
        used, later = writing.used, self._later
        tokens = writing.spellings.unused(writing.begun, used)
        if (keyword := writing.keyword) is not None:
            tokens += self.ends
            if len(used) + 1 < self._limit:
                tokens += later.unused((), [*used, keyword])
        return tokens

    def advance(self, writing: Writing, token: int) -> None:
        """Put one of the allowed tokens behind a completion. Raises ValueError for any other."""
        keyword = writing.keyword
        if keyword is not None and token in self.ends:
            writing.ended = True
            return
        if token in writing.spellings.next.get(writing.begun, ()):
            writing.begun += (token,)
        elif keyword is not None and token in self._later.next[()]:
            writing.used.append(keyword)
            writing.spellings, writing.begun = self._later, (token,)
        else:
            raise ValueError(f"token {token} may not follow")


def _spellings(keywords: list[str], tokenizer: Any) -> tuple[list[str], list[Tokens], list[Tokens]]:
    if not keywords:
        return [], [], []

    def ids(texts: list[str]) -> list[list[int]]:
        token_ids: list[list[int]] = tokenizer(texts, add_special_tokens=False)["input_ids"]
        return token_ids

    # The text before a keyword changes its tokens, so they are taken from "a, sofa" without its
    # "a".
    before = ids(["a"])[0]
    first, listed = ids(keywords), ids([f"a, {keyword}" for keyword in keywords])
    read_first = tokenizer.batch_decode(first, skip_special_tokens=True)
    read_listed = tokenizer.batch_decode(listed, skip_special_tokens=True)
    kept: list[str] = []
    heads: dict[Tokens, None] = {}
    tails: dict[Tokens, None] = {}
    for keyword, own, more, one, two in zip(
        keywords, first, listed, read_first, read_listed, strict=True
    ):
        head, tail = tuple(own), tuple(more[len(before) :])
        whole = parse(one) == (keyword,) and parse(two) == tuple(dict.fromkeys(("a", keyword)))
        if whole and more[: len(before)] == before and head not in heads and tail not in tails:
            kept.append(keyword)
            heads[head] = tails[tail] = None
    return kept, [*heads], [*tails]


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
        return vocabulary.allowed(writings[row]) or vocabulary.ends

    return allowed
