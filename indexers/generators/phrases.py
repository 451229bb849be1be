"""Phrases that the texts of some items share: pairs of adjacent stems, and stems alone."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from indexers.text import Analyser, Said, SurfaceForms

_Ints = NDArray[np.int64]
_GAP = -1


class Phrases:
    """Phrases that people would say and that at least two items have, since one of a single item
    connects nothing. Deterministic in the texts and their order.

    Args:
        texts: of each item; no phrase reaches from one into the next.
        most: items that a phrase occurs in at most.
        alone: whether single stems are phrases too.

    Attributes:
        ids: the number of each stem.
        tokens: the stems of all texts, -1 after each text.
        starts: where the tokens of each item begin; the last ones end at one more number.
        stems: the stems of each phrase, -1 before one that is alone, (phrases, 2).
        first: orders pairs by where they occur first, (phrases,).
    """

    def __init__(
        self, texts: Sequence[Sequence[str]], analyser: Analyser, most: int, *, alone: bool
    ) -> None:
        self.ids: dict[str, int] = {}
        self._forms = SurfaceForms(analyser)
        self.tokens, self.starts = self._read(texts, analyser)
        self._names, base = list(self.ids), len(self.ids) + 1
        there = self.tokens != _GAP
        places = np.flatnonzero(there[:-1] & there[1:])
        codes = (self.tokens[places].astype(np.int64) + 1) * base + self.tokens[places + 1]
        if alone:
            single = np.flatnonzero(there)
            places, codes = np.r_[single, places], np.r_[self.tokens[single], codes]
        known, first, column = np.unique(codes, return_index=True, return_inverse=True)
        item = np.repeat(np.arange(len(texts), dtype=np.int32), np.diff(self.starts))[places]
        ones, shape = np.ones(item.size, np.float32), (len(texts), known.size)
        counts = sp.coo_matrix((ones, (item, column)), shape=shape).tocsr()
        df = np.bincount(counts.indices, minlength=known.size)
        stems = np.stack(np.divmod(known, base), axis=1) - [1, 0]
        said = Said.of(analyser, map("\n".join, texts))
        usable = np.flatnonzero((df >= 2) & (df <= most))
        usable = usable[[said.keeps(self._named(pair)) for pair in stems[usable]]]
        self.stems, self.first, counts = stems[usable], first[usable], counts[:, usable]
        self._items = np.repeat(np.arange(len(texts)), np.diff(counts.indptr))
        self._phrases = counts.indices
        idf = np.log(len(texts) / df[usable])
        self._scores = (1 + np.log(counts.data.astype(np.float64))) * idf[self._phrases]

    def _read(
        self, texts: Sequence[Sequence[str]], analyser: Analyser
    ) -> tuple[NDArray[np.int32], _Ints]:
        tokens, starts, ids = array("i"), array("q", [0]), self.ids
        for of_item in texts:
            for words in map(analyser.words, of_item):
                self._forms.add(words)
                tokens.extend(ids.setdefault(analyser.stem(word), len(ids)) for word in words)
                tokens.append(_GAP)
            starts.append(len(tokens))
        return np.asarray(tokens, np.int32), np.asarray(starts, np.int64)

    def _named(self, stems: _Ints) -> list[str]:
        return [self._names[stem] for stem in stems.tolist() if stem >= 0]

    def best(self, most: int, order: _Ints) -> tuple[_Ints, _Ints]:
        """Items, ascending, and the `most` best phrases of each by tf-idf, best first; of equals
        the first by `order`, (phrases,).
        """
        by = np.lexsort((order[self._phrases], -self._scores, self._items))
        items, phrases = self._items[by], self._phrases[by]
        kept = np.arange(items.size) - np.searchsorted(items, items) < most
        return items[kept], phrases[kept]

    def spell(self, phrase: int) -> str:
        """A phrase in the words that the texts use most often."""
        return self._forms.spell(self._named(self.stems[phrase]))
