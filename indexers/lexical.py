"""Plain BM25 over titles and texts, by bm25s: the baseline of every comparison, and a source of a prompt's search results.

It ranks words of the items' own text. It has nothing to do with generated keywords; those are `cogr.mirror`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cogr.errors import MissingExtraError
from cogr.records import Item

K1 = 1.5
B = 0.75


class Lexical:
    """A BM25 index over title and text of every item (English stems and stop words, k1 1.5, b 0.75).

    Raises MissingExtraError without the extra `statistical`.
    """

    def __init__(self, items: Sequence[Item]) -> None:
        try:
            import bm25s
            import Stemmer
        except ImportError as error:
            raise MissingExtraError("BM25 over the items' text", "statistical") from error
        self._bm25s = bm25s
        self._stemmer = Stemmer.Stemmer("english")
        self.items = items
        # Ties are broken by position, so the items are put into id order first: score descending, then id.
        self._order = sorted(range(len(items)), key=lambda i: items[i].id)
        tokens = self._tokens([f"{items[i].title} {items[i].text}" for i in self._order])
        self._index = bm25s.BM25(k1=K1, b=B)
        self._index.index(tokens, show_progress=False)

    def _tokens(self, texts: Sequence[str]) -> object:
        return self._bm25s.tokenize(list(texts), stopwords="en", stemmer=self._stemmer, show_progress=False)

    def rank(self, text: str, size: int) -> list[tuple[Item, float]]:
        """The best items of one text with scores above 0, best first, ties in id order."""
        tokens = self._bm25s.tokenize(
            [text], stopwords="en", stemmer=self._stemmer, show_progress=False, return_ids=False
        )[0]
        if not tokens:
            return []
        scores = np.asarray(self._index.get_scores(tokens))
        found = np.flatnonzero(scores > 0)
        best = found[np.argsort(-scores[found], kind="stable")][:size]
        return [(self.items[self._order[i]], float(scores[i])) for i in best]
