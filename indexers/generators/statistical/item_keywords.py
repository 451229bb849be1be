"""The item side: which keywords an item gets. Anchors, phrases of its own text, and its title.

An anchor is the text of a training query that an item is, or is predicted to be, relevant to; where
training queries are few there are few anchors, and phrases carry the index. The title is matched as
a keyword besides (S ∪ {title}).
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cogr.keywords import loops, normalise, parse, self_keyword
from cogr.mapped import StringIndex, Strings, StringsSpool, arrow_strings
from indexers.generators import batched
from indexers.generators.phrases import Phrases
from indexers.generators.statistical.keyword_selection import Floats64, Ownership
from indexers.generators.statistical.ranking.matrices import (
    Csr,
    Ints,
    with_data,
)
from indexers.text import Analyser, join_words, phrases

ANCHORS, PHRASES = 15, 15
"""Most keywords of each kind that an item gets; together they fill K_max = 30."""

PHRASE_WORDS = 2
"""Words of a phrase. Two, because a single word would also match the one-word query with that text,
which would then retrieve all its owners.
"""

MIN_ANCHOR = 0.25
"""An item owns an anchor when the mean of label and out-of-fold probability reaches this."""

COMMON_SHARE = 0.02
"""Phrases of more than this share of the items (and more than two) are too common."""

SINGLE_COST = 0.25
"""Cost of a title, and of any keyword that finds a single item, as a share of the cost of an
unreadable one.
"""

MIN_SAID = 0.05
"""Unreadable keywords cost something only where at least this share of the items' phrases is
readable: 0.3 % on med, 14 to 59 % on nfcorpus, cacm, chorus and the sample shop.
"""

ANCHOR, PHRASE, TITLE = 0, 1, 2

_PACKED = 8192
"""Batch size: texts that are packed at once."""

_PLAIN = re.compile(r"[a-z0-9]+(?: [a-z0-9]+)*")


def packed(texts: Iterable[str]) -> Strings:
    """Texts as an Arrow array; many of them in a mapped temporary file."""
    spool = StringsSpool()
    for batch in batched(texts, _PACKED):
        spool.append(arrow_strings(batch))
    return Strings(spool.arrow())


@dataclass(frozen=True)
class ItemKeywords:
    """Every item's keywords and title, over one vocabulary.

    Attributes:
        keywords: the vocabulary; normalised, distinct.
        items: item of each pair, ascending; within an item anchors, then phrases (best first), then
            the title.
        owned: keyword of each pair.
        kinds: ANCHOR, PHRASE or TITLE of each pair.
        n_items: size of the item universe.
    """

    keywords: Strings
    items: Ints
    owned: Ints
    kinds: Ints
    n_items: int

    @cached_property
    def ids(self) -> StringIndex:
        return StringIndex(self.keywords)

    @cached_property
    def writable(self) -> Ownership:
        """Ownership of the keywords that a completion can hold: `parse` would drop or split the
        others.
        """
        can = np.fromiter(map(writable, self.keywords), bool, len(self.keywords))
        return self.all if can.all() else self._ownership(can[self.owned])

    @cached_property
    def all(self) -> Ownership:
        """Ownership of all keywords, titles included, as an index holds them."""
        return self._ownership(slice(None))

    def _ownership(self, pairs: Any) -> Ownership:
        return Ownership(self.items[pairs], self.owned[pairs], self.n_items, len(self.keywords))

    @cached_property
    def _beside_anchors(self) -> tuple[NDArray[np.bool_], Ownership]:
        """Which keywords are anchors of some item, and the items that have these keywords from
        their own text.
        """
        anchors = np.zeros(len(self.keywords), dtype=bool)
        anchors[self.owned[self.kinds == ANCHOR]] = True
        return anchors, self._ownership(anchors[self.owned] & (self.kinds != ANCHOR))

    def costs(self, analyser: Analyser, queries: Iterable[str], price: float) -> Floats64:
        """Cost of each keyword when it is chosen for a query (`select_keywords`), (keywords,).

        An unreadable keyword costs `price`: it is neither an anchor nor two words that stand side
        by side in a title or in one of the `queries`, stop words aside. Where hardly any phrase is
        readable (`MIN_SAID`), as without titles and with few queries, there is nothing better to
        choose, and these cost nothing. A title that is not an anchor costs a quarter, and any
        keyword of a single item at least as much: people use it, but it finds no future item.
        """
        costs = np.full(len(self.keywords), price)
        titles = np.unique(self.owned[self.kinds == TITLE])
        for text in chain(queries, (self.keywords[title] for title in titles)):
            for words in phrases(analyser.words(text), PHRASE_WORDS):
                number = self.ids.find(join_words(words))
                if number >= 0:
                    costs[number] = 0
        of_text = np.unique(self.owned[self.kinds == PHRASE])
        if np.count_nonzero(costs[of_text] == 0) < MIN_SAID * of_text.size:
            costs[:] = 0
        else:
            costs[titles] = price * SINGLE_COST
        costs[self.owned[self.kinds == ANCHOR]] = 0
        single = np.diff(self.all.keyword_starts) == 1
        costs[single] = np.maximum(costs[single], SINGLE_COST * price)
        return costs

    def owners(self, keyword: str, *, anchors: bool = True) -> Ints:
        """Items with this keyword or title; with `anchors` off, those that have it from their own
        text only.
        """
        number = self.ids.find(keyword)
        if number < 0:
            return np.zeros(0, dtype=np.int64)
        known, own_text = self._beside_anchors
        return (own_text if known[number] and not anchors else self.all).owners(number)

    def of(self, item: int, kinds: Collection[int] = (ANCHOR, PHRASE)) -> list[str]:
        """S_i: the item's keywords, without its title."""
        first, end = np.searchsorted(self.items, [item, item + 1])
        return [
            self.keywords[w]
            for w, kind in zip(self.owned[first:end], self.kinds[first:end], strict=True)
            if kind in kinds
        ]


def writable(keyword: str) -> bool:
    """Whether a keyword comes out of `parse` as it went in."""
    plain = _PLAIN.fullmatch(keyword) is not None and not loops(keyword)
    return plain or parse(keyword) == (keyword,)


def item_phrases(texts: Sequence[str], analyser: Analyser) -> list[list[str]]:
    """The best phrases of each item's text that people would say, spelled: adjacent stems of 2 <=
    df <= 2 % of the items, by tf-idf.
    """
    most = max(2, int(COMMON_SHARE * len(texts)))
    known = Phrases([(text,) for text in texts], analyser, most, alone=False)
    spelled = [normalise(known.spell(phrase)) for phrase in range(len(known.stems))]
    best: list[list[str]] = [[] for _ in texts]
    items, numbers = known.best(PHRASES, known.first)
    for item, phrase in zip(items.tolist(), numbers.tolist(), strict=True):
        best[item].append(spelled[phrase])
    return best


def best_columns(scores: Csr, k: int) -> list[list[int]]:
    """Columns of the k highest positive values of every row, best first; of equals the lower."""
    rows = []
    for row in range(scores.shape[0]):
        span = slice(scores.indptr[row], scores.indptr[row + 1])
        columns, values = scores.indices[span], scores.data[span]
        order = np.lexsort((columns, -values))[:k]
        rows.append([int(column) for column in columns[order[values[order] > 0]]])
    return rows


def item_anchors(queries: Sequence[str], strength: Csr) -> list[list[str]]:
    """The strongest anchors of each item: queries, normalised; `strength` is (queries, items), in
    [0, 1].
    """
    by_item = strength.T.tocsr()
    by_item = with_data(by_item, np.where(by_item.data >= MIN_ANCHOR, by_item.data, 0))
    return [[queries[query] for query in row] for row in best_columns(by_item, ANCHORS)]


def assemble(
    anchors: Iterable[Sequence[str]], own: Iterable[Sequence[str]], titles: Sequence[str]
) -> ItemKeywords:
    """One vocabulary over anchors, phrases and titles.

    An item's title is not repeated among its keywords.
    """
    ids: dict[str, int] = {}
    items, owned, kinds = array("q"), array("q"), array("q")
    for item, (anchored, spelled, title) in enumerate(
        zip(anchors, own, map(self_keyword, titles), strict=True)
    ):
        taken = {"", title}
        pairs = chain(((k, ANCHOR) for k in anchored), ((k, PHRASE) for k in spelled))
        for keyword, kind in pairs:
            if keyword not in taken and writable(keyword):
                taken.add(keyword)
                items.append(item)
                owned.append(ids.setdefault(keyword, len(ids)))
                kinds.append(kind)
        if title:
            items.append(item)
            owned.append(ids.setdefault(title, len(ids)))
            kinds.append(TITLE)
    return ItemKeywords(
        packed(ids),
        np.asarray(items, np.int64),
        np.asarray(owned, np.int64),
        np.asarray(kinds, np.int64),
        len(titles),
    )
