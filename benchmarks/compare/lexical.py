"""Methods that match the words of a text: BM25, doc2query, a floor that memorises labels, a ceiling
that uses the labels it is measured by, and synonyms learned from the labels, read and scored as
OpenSearch's filter `synonym_graph` does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.compare import Fitted, Method, Params, Rankings, Sets, Task, best, grid
from benchmarks.compare.keyword import fitted_generator, item_keywords
from benchmarks.compare.measuring import DEPTH, ids_of
from cogr.matching import bm25 as lucene
from cogr.metrics import f1_of_heads
from cogr.records import Item, Query
from indexers.text import Lexical

PARAMETERS = (
    *((1.5, 0.75), (1.2, 0.75), (0.9, 0.4), (0.6, 0.75), (2.5, 0.75), (1.5, 0.4)),
    *((1.5, 0.95), (2.5, 0.95)),
)
"""Pairs (k1, b) to try: the defaults of bm25s, Lucene and Anserini, and others around them."""
_LABEL_BYTES = 8
_MIN_ASKED = 2
_Texts = Sequence[Sequence[str]]
"""Stems of each text, in order."""


def by_words(lexical: Lexical, items: int) -> Fitted:
    """A fitted BM25; items without a word of the query are left out."""

    size = lexical.size_bytes / items
    return Fitted(lambda query, depth: lexical.rank(query.text, depth), size)


class BM25Search(Method):
    """BM25 over title and text."""

    seeded = False
    grid = grid("k1 b", *PARAMETERS)

    def fit(self, task: Task, params: Params) -> Fitted:
        items = task.dataset.items
        lexical = Lexical(items, params["k1"], params["b"], task.texts)
        return by_words(lexical, len(items))


class Doc2Query(Method):
    """BM25 over texts to which an item generator's keywords are added: the queries that an item
    should be found by (Nogueira et al. 2019).
    """

    grid = grid(
        "kinds times",
        *(("all", 1), ("anchors", 1), ("phrases", 1), ("all", 3), ("anchors", 3), ("anchors", 5)),
    )

    def fit(self, task: Task, params: Params) -> Fitted:
        generator = fitted_generator(task)
        items, times = task.dataset.items, params["times"]
        sets = item_keywords(generator, items, params["kinds"])
        texts = [
            " ".join((text, *(word for word in words for _ in range(times))))
            for text, words in zip(task.texts, sets, strict=True)
        ]
        return by_words(Lexical(items, texts=texts), len(items))


class Nearest(Method):
    """The relevant items of the most similar training queries, which vote by their BM25 scores:
    memorised labels. A training query is not its own neighbour.
    """

    family = "floor"
    seeded = False
    grid = grid(
        "nearest share",
        *((10, 0.5), (10, 0.0), (3, 0.5), (5, 0.0), (20, 0.5), (20, 1.0), (50, 0.5), (50, 1.0)),
    )

    def fit(self, task: Task, params: Params) -> Fitted:
        """A neighbour's vote is divided by its number of items to the power `share`."""
        nearest, share, relevant = params["nearest"], params["share"], task.dataset.relevant
        train = task.train
        index = Lexical([Item(query.id, query.text) for query in train])

        def votes(query: Query, depth: int) -> list[tuple[str, float]]:
            ranked = index.rank(query.text, nearest + 1)
            others = [(id_, score) for id_, score in ranked if id_ != query.id]
            counted: dict[str, float] = defaultdict(float)
            for id_, score in others[:nearest]:
                for item in relevant[id_]:
                    counted[item] += score / len(relevant[id_]) ** share
            return sorted(counted.items(), key=lambda pair: (-pair[1], pair[0]))[:depth]

        labels = sum(len(relevant[query.id]) for query in train)
        return Fitted(votes, (_LABEL_BYTES * labels + index.size_bytes) / len(task.dataset.items))


def best_head(ids: Sequence[str], wanted: Collection[str]) -> int:
    """Length of the head of a ranking with the highest F1; 0 where all are 0."""
    f1 = f1_of_heads(ids, wanted)
    return int(np.argmax(f1)) + 1 if f1.any() else 0


class PerfectCutoff(BM25Search):
    """BM25 with the best cutoff for each query, by the labels."""

    family = "ceiling"

    def fit(self, task: Task, params: Params) -> Fitted:
        plain, relevant = super().fit(task, params), task.dataset.relevant

        def sets(run: Rankings) -> Sets:
            heads = ids_of(run, DEPTH)
            return {id_: ids[: best_head(ids, relevant[id_])] for id_, ids in heads.items()}

        return replace(plain, sets=sets)


# Synonyms


def stems_of(texts: Sequence[str]) -> list[list[str]]:
    """English stems without stop words, as BM25 has them."""
    import bm25s
    import Stemmer

    stemmer = Stemmer.Stemmer("english")
    options = {"stopwords": "en", "stemmer": stemmer, "return_ids": False, "show_progress": False}
    return [[stem for stem in one if stem] for one in bm25s.tokenize(list(texts), **options)]


def learned_synonyms(
    asked: _Texts, relevant: Sequence[Sequence[int]], items: _Texts, most: int, least_share: float
) -> dict[str, list[str]]:
    """Stem of a query word -> stems that are frequent in the relevant items of queries with that
    word, best first.

    A query's relevant items share one vote. A stem is a synonym of a word that at least two queries
    have, where `least_share` of their votes have the stem, and more than by chance. Synonyms are
    ordered by that share times the logarithm of its ratio to chance. A word has at most `most`.
    """
    import scipy.sparse as sp

    words = [*dict.fromkeys(stem for stems in (*items, *asked) for stem in stems)]
    vocabulary = {word: at for at, word in enumerate(words)}
    having, said = (_counts(texts, vocabulary) for texts in (items, asked))
    having.data[:] = said.data[:] = 1.0
    shares = [1 / len(wanted) for wanted in relevant for _ in wanted]
    numbers, ends = [one for wanted in relevant for one in wanted], [0, *map(len, relevant)]
    votes = sp.csr_matrix((shares, numbers, np.cumsum(ends)), shape=(len(asked), len(items)))
    counts = np.asarray(said.sum(axis=0)).ravel()
    together = (said.T @ (votes @ having)).tocsr()
    chance = np.asarray(having.sum(axis=0)).ravel() / len(items)
    synonyms = {}
    for word in np.flatnonzero(counts >= _MIN_ASKED).tolist():
        start, end = together.indptr[word], together.indptr[word + 1]
        others, share = together.indices[start:end], together.data[start:end] / counts[word]
        gain = share * np.log(np.maximum(share, 1e-9) / np.maximum(chance[others], 1e-9))
        kept = (others != word) & (share >= least_share) & (gain > 0)
        ranked = sorted(zip(-gain[kept], (words[at] for at in others[kept]), strict=True))[:most]
        if ranked:
            synonyms[words[word]] = [stem for _, stem in ranked]
    return synonyms


def _counts(texts: _Texts, vocabulary: Mapping[str, int]) -> Any:
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
        self, ids: Sequence[str], stems: _Texts, synonyms: Mapping[str, Sequence[str]]
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
        return [pair for pair in best(self._ids, scores, depth) if pair[1] > 0]

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
        stems, ids = stems_of(task.texts), [*task.number]
        asked = stems_of([query.text for query in task.train])
        relevant = [*map(sorted, task.relevant)]
        synonyms = learned_synonyms(asked, relevant, stems, params["most"], params["least_share"])
        lines = [f"{word} => {', '.join((word, *more))}" for word, more in sorted(synonyms.items())]
        (task.work / "synonyms.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
        index = SynonymIndex(ids, stems, synonyms)
        return Fitted(
            index.rank,
            index.size_bytes / len(ids),
            lambda queries: stems_of([query.text for query in queries]),
        )
