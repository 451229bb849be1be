"""Synonyms learned from the labels, read and scored as OpenSearch's filter `synonym_graph` does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cogr.errors import MissingExtraError
from cogr.matching import bm25 as lucene
from trainers.rivals import Fitted, Method, Params, Task, grid

_LEAST_ASKED = 2
Texts = Sequence[Sequence[str]]
"""Stems of each text, in order."""


def stems_of(texts: Sequence[str]) -> list[list[str]]:
    """English stems without stop words, as BM25 has them."""
    try:
        import bm25s
        import Stemmer
    except ImportError as error:
        raise MissingExtraError("BM25 over the items' text", "statistical") from error
    stemmer = Stemmer.Stemmer("english")
    options = {"stopwords": "en", "stemmer": stemmer, "return_ids": False, "show_progress": False}
    return [[stem for stem in one if stem] for one in bm25s.tokenize(list(texts), **options)]


def learned_synonyms(
    asked: Texts, relevant: Sequence[Sequence[int]], items: Texts, most: int, least_share: float
) -> dict[str, list[str]]:
    """Stem of a query word -> stems that are frequent in the relevant items of queries with that
    word, best first.

    A query's relevant items share one vote. A stem is a synonym of a word that at least two queries
    have, where `least_share` of their votes have the stem, and more than by chance. Synonyms are
    ordered by that share times the logarithm of its ratio to chance. A word has at most `most`.
    """
    import scipy.sparse as sp

    vocabulary: dict[str, int] = {}
    for stems in (*items, *asked):
        for stem in stems:
            vocabulary.setdefault(stem, len(vocabulary))
    having, said = (_counts(texts, vocabulary) for texts in (items, asked))
    having.data[:] = said.data[:] = 1.0
    shares = [1 / len(wanted) for wanted in relevant for _ in wanted]
    numbers, ends = [one for wanted in relevant for one in wanted], [0, *map(len, relevant)]
    votes = sp.csr_matrix((shares, numbers, np.cumsum(ends)), shape=(len(asked), len(items)))
    counts = np.asarray(said.sum(axis=0)).ravel()
    together = (said.T @ (votes @ having)).tocsr()
    chance = np.asarray(having.sum(axis=0)).ravel() / len(items)
    words, found = list(vocabulary), {}
    for word in np.flatnonzero(counts >= _LEAST_ASKED).tolist():
        start, end = together.indptr[word], together.indptr[word + 1]
        others, share = together.indices[start:end], together.data[start:end] / counts[word]
        gain = share * np.log(np.maximum(share, 1e-9) / np.maximum(chance[others], 1e-9))
        kept = (others != word) & (share >= least_share) & (gain > 0)
        best = sorted(zip(-gain[kept], (words[at] for at in others[kept]), strict=True))[:most]
        if best:
            found[words[word]] = [stem for _, stem in best]
    return found


def _counts(texts: Texts, vocabulary: Mapping[str, int]) -> Any:
    """How often each text has each stem: sparse, (texts, stems)."""
    import scipy.sparse as sp

    rows = [row for row, stems in enumerate(texts) for _ in stems]
    columns = [vocabulary[stem] for stems in texts for stem in stems]
    return sp.csr_matrix((np.ones(len(rows)), (rows, columns)), (len(texts), len(vocabulary)))


class SynonymIndex:
    """Lucene's BM25 with synonyms: a match of any synonym counts as the word itself (Lucene's
    SynonymQuery: the sum of the frequencies, the largest document frequency).
    """

    def __init__(
        self, ids: Sequence[str], stems: Texts, synonyms: Mapping[str, Sequence[str]]
    ) -> None:
        order = sorted(range(len(ids)), key=ids.__getitem__)
        self._ids, self._synonyms = [ids[at] for at in order], synonyms
        words = dict.fromkeys(stem for one in stems for stem in one)
        self._place = {word: at for at, word in enumerate(words)}
        self._times = _counts([stems[at] for at in order], self._place).tocsc()
        self._frequency = np.diff(self._times.indptr)
        lengths = np.array([len(stems[at]) for at in order], np.int64)
        self._holding = int((lengths > 0).sum())
        mean = lucene.mean_length(int(lengths.sum()), self._holding)
        norms = lucene.norm_table(lucene.DEFAULT, mean)
        self._inverse = norms[lucene.length_codes(lengths)].astype(np.float64)
        self.size_bytes = 8 * self._times.nnz  # An item and how often, for each posting.

    def rank(self, stems: Sequence[str], depth: int) -> list[tuple[str, float]]:
        """The best items of a query."""
        scores = np.zeros(len(self._ids))
        for stem, times in Counter(stems).items():
            scores += times * self._part(stem)
        found = np.flatnonzero(scores > 0)
        best = found[np.argsort(-scores[found], kind="stable")][:depth]
        return [(self._ids[at], float(scores[at])) for at in best.tolist()]

    def _part(self, stem: str) -> NDArray[np.float64]:
        every = dict.fromkeys((stem, *self._synonyms.get(stem, ())))
        at = [self._place[one] for one in every if one in self._place]
        if not at:
            return np.zeros(len(self._ids))
        times = np.asarray(self._times[:, at].sum(axis=1)).ravel()
        weight = float(lucene.idf(self._holding, int(self._frequency[at].max())))
        return weight - weight / (1 + times * self._inverse)


class Synonyms(Method):
    """A synonyms file learned from the labels, kept in `work`."""

    seeded = False
    grid = grid(
        "most least_share",
        *((5, 0.3), (2, 0.3), (2, 0.5), (5, 0.5), (10, 0.3), (10, 0.15), (1, 0.5), (0, 1.0)),
    )

    def fit(self, task: Task, params: Params) -> Fitted:
        items = task.dataset.items
        stems, ids = stems_of([*map(task.text, items)]), [item.id for item in items]
        synonyms = _of_task(task, stems, params) if params["most"] else {}
        lines = [f"{word} => {', '.join((word, *more))}" for word, more in sorted(synonyms.items())]
        (task.work / "synonyms.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
        index = SynonymIndex(ids, stems, synonyms)
        return Fitted.by(
            lambda queries: stems_of([query.text for query in queries]),
            index.rank,
            index.size_bytes / len(ids),
        )


def _of_task(task: Task, stems: Texts, params: Params) -> dict[str, list[str]]:
    numbers = {item.id: number for number, item in enumerate(task.dataset.items)}
    train = task.dataset.require("train")
    relevant = [sorted(numbers[id_] for id_ in task.dataset.relevant[one.id]) for one in train]
    asked = stems_of([query.text for query in train])
    return learned_synonyms(asked, relevant, stems, params["most"], params["least_share"])
