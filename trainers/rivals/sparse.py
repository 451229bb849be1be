"""Rivals that match words: BM25, BM25 with RM3, OpenSearch's own text field, learned synonyms, and
doc2query.

bm25s scores in memory. What a server does is done by the server where `opensearch.url` is set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cogr.errors import MissingExtraError
from cogr.matching import bm25 as lucene
from cogr.records import Item, Query
from indexers.text import Lexical
from trainers.rivals import Cost, Family, NotRunError, Task
from trainers.rivals.keyword import fitted_generator, item_keywords
from trainers.rivals.measuring import Meter, Spent
from trainers.rivals.server import SERVER, Index, Ranked, index_body

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LexicalRanks:
    """A bm25s index after its build."""

    lexical: Lexical
    spent: Spent

    def rank(self, queries: Sequence[Query], depth: int) -> Ranked:
        """By BM25, items without a word of the query left out."""
        return {
            query.id: self.lexical.best(self.lexical.scores(query.text), depth) for query in queries
        }

    def sets(self, queries: Sequence[Query]) -> None:
        """None: a cutoff makes them."""

    def cost(self) -> Cost:
        """No model; the index is an array of postings."""
        size = self.lexical.size_bytes / len(self.lexical.items)
        return Cost(self.spent.seconds, self.spent.peak_bytes, size, False)


PARAMETERS = (
    (1.5, 0.75),
    (1.2, 0.75),
    (0.9, 0.4),
    (0.6, 0.75),
    (2.5, 0.75),
    (1.5, 0.4),
    (1.5, 0.95),
    (2.5, 0.95),
)
"""(k1, b) that are tried: bm25s' own first, then Lucene's, Anserini's, and around them."""


class BM25:
    """BM25 over title and text, by bm25s."""

    name, seeded = "bm25", False
    family: Family = "sparse"

    def trials(self, task: Task) -> Sequence[Mapping[str, Any]]:  # noqa: ARG002
        return [{"k1": k1, "b": b} for k1, b in PARAMETERS]

    def fit(self, task: Task, params: Mapping[str, Any]) -> LexicalRanks:
        Analysis()  # What is imported is no part of the fit.
        with Meter() as meter:
            items = task.dataset.items
            lexical = Lexical(items, params["k1"], params["b"], [*map(task.text, items)])
        return LexicalRanks(lexical, meter.spent)


# RM3


@dataclass(frozen=True)
class Feedback:
    """BM25 whose queries are expanded by the words of their first results (RM3: Abdul-Jaleel et
    al. 2004).
    """

    lexical: Lexical
    spent: Spent
    documents: int
    terms: int
    original: float

    def rank(self, queries: Sequence[Query], depth: int) -> Ranked:
        """By the expanded queries' BM25."""
        found = {}
        for query in queries:
            weights = self.expanded(query.text)
            scores = self.lexical.weighted_scores(weights)
            found[query.id] = self.lexical.best(scores, depth)
        return found

    def expanded(self, text: str) -> dict[int, float]:
        """Word -> weight, of the query and of what it finds first."""
        own = Counter(self.lexical.words_of(text))
        if not own:
            return {}
        query = {word: count / own.total() for word, count in own.items()}
        scores = self.lexical.weighted_scores({word: float(n) for word, n in own.items()})
        first = np.argsort(-scores, kind="stable")[: self.documents]
        first = first[scores[first] > 0]
        if not first.size:
            return query
        rows = self.lexical.shares[first]
        votes = np.repeat(scores[first] / scores[first].sum(), np.diff(rows.indptr))
        words, places = np.unique(rows.indices, return_inverse=True)
        model = np.bincount(places, votes * rows.data)
        best = np.argsort(-model, kind="stable")[: self.terms]
        total = float(model[best].sum())
        weights = {word: self.original * share for word, share in query.items()}
        for word, share in zip(words[best].tolist(), (model[best] / total).tolist(), strict=True):
            weights[word] = weights.get(word, 0.0) + (1 - self.original) * share
        return weights

    def sets(self, queries: Sequence[Query]) -> None:
        """None: a cutoff makes them."""

    def cost(self) -> Cost:
        """The index twice: words by item as well, for the feedback."""
        size = 2 * self.lexical.size_bytes / len(self.lexical.items)
        return Cost(self.spent.seconds, self.spent.peak_bytes, size, False)


class RM3:
    """BM25 with pseudo-relevance feedback."""

    name, seeded = "bm25+rm3", False
    family: Family = "sparse"

    def trials(self, task: Task) -> Sequence[Mapping[str, Any]]:  # noqa: ARG002
        return [
            {"documents": documents, "terms": terms, "original": original}
            for documents, terms, original in (
                (10, 10, 0.5),
                (5, 10, 0.7),
                (10, 20, 0.7),
                (10, 30, 0.5),
                (3, 20, 0.5),
                (5, 30, 0.3),
                (20, 30, 0.5),
                (10, 50, 0.8),
            )
        ]

    def fit(self, task: Task, params: Mapping[str, Any]) -> Feedback:
        with Meter() as meter:
            items = task.dataset.items
            lexical = Lexical(items, texts=[*map(task.text, items)])
            _ = lexical.shares
        return Feedback(lexical, meter.spent, **params)


# On the real server


@dataclass(frozen=True)
class ServerRanks:
    """A text field of the server; `said` turns a query into what is sent."""

    index: Index
    spent: Spent
    items: int
    analyser: Analysis | None = None

    def rank(self, queries: Sequence[Query], depth: int) -> Ranked:
        """As the server ranks."""
        said = (query.text for query in queries)
        texts = [*said] if self.analyser is None else [*map(self.analyser.joined, said)]
        clauses = [{"match": {"text": {"query": text}}} for text in texts]
        return self.index.rank(queries, clauses, depth)

    def sets(self, queries: Sequence[Query]) -> None:
        """None: a cutoff makes them."""

    def cost(self) -> Cost:
        """What the server keeps on its disk."""
        size = self.index.bytes / self.items
        return Cost(self.spent.seconds, self.spent.peak_bytes, size, False)


class OpenSearchText:
    """OpenSearch's own text field: its analyser `english`, its BM25."""

    name, seeded = "opensearch", False
    family: Family = "sparse"

    def trials(self, task: Task) -> Sequence[Mapping[str, Any]]:  # noqa: ARG002
        return [{"k1": k1, "b": b} for k1, b in ((1.2, 0.75), *PARAMETERS[2:6])]

    def fit(self, task: Task, params: Mapping[str, Any]) -> ServerRanks:
        if task.settings.opensearch.url is None:
            raise NotRunError("an OpenSearch", SERVER)
        items = task.dataset.items
        with Meter() as meter:
            body = index_body({"analyzer": "english"}, params["k1"], params["b"], {})
            texts = ((item.id, task.text(item)) for item in items)
            index = Index(task.settings.opensearch, body, texts)
        return ServerRanks(index, meter.spent, len(items))


# Synonyms


class Analysis:
    """English stems without stop words, as BM25 has them: one analysis for the server's index and
    for the one in memory.
    """

    def __init__(self) -> None:
        try:
            import bm25s
            import Stemmer
        except ImportError as error:
            raise MissingExtraError("BM25 over the items' text", "statistical") from error
        self._tokenize, self._stemmer = bm25s.tokenize, Stemmer.Stemmer("english")

    def stems(self, texts: Sequence[str]) -> list[list[str]]:
        """The stems of each text, in order."""
        found: list[list[str]] = self._tokenize(
            list(texts),
            stopwords="en",
            stemmer=self._stemmer,
            return_ids=False,
            show_progress=False,
        )
        return [[stem for stem in one if stem] for one in found]

    def joined(self, text: str) -> str:
        """The stems with spaces between them, for the server's analyser `whitespace`."""
        return " ".join(self.stems([text])[0])


def learned_synonyms(
    asked: Sequence[Sequence[str]],
    relevant: Sequence[Sequence[int]],
    items: Sequence[Sequence[str]],
    most: int,
    least_share: float,
) -> dict[str, list[str]]:
    """Words that stand in what people want who say a word: stem -> other stems, best first.

    A query's relevant items share one vote. A stem is a synonym of a word of at least two queries
    where `least_share` of their votes have it, and more than by chance; the order is by that share
    times the log of how much more.

    Args:
        asked: stems of the training queries.
        relevant: numbers of their relevant items.
        items: stems of the items.
        most: synonyms of a word, at most.
        least_share: of the votes.
    """
    import scipy.sparse as sp

    vocabulary: dict[str, int] = {}
    for stems in (*items, *asked):
        for stem in stems:
            vocabulary.setdefault(stem, len(vocabulary))
    shape = (len(items), len(vocabulary))
    having = sp.csr_matrix(_entries(items, vocabulary), shape=shape)
    having.data[:] = 1.0
    votes = sp.csr_matrix(
        (
            [1 / len(wanted) for wanted in relevant for _ in wanted],
            [item for wanted in relevant for item in wanted],
            np.cumsum([0, *map(len, relevant)]),
        ),
        shape=(len(asked), len(items)),
    )
    said = sp.csr_matrix(_entries(asked, vocabulary), shape=(len(asked), len(vocabulary)))
    said.data[:] = 1.0
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


_LEAST_ASKED = 2


def _entries(texts: Sequence[Sequence[str]], vocabulary: Mapping[str, int]) -> Any:
    """(data, (rows, columns)) of stems in texts, for a sparse matrix."""
    rows = [row for row, stems in enumerate(texts) for _ in stems]
    columns = [vocabulary[stem] for stems in texts for stem in stems]
    return np.ones(len(rows)), (rows, columns)


class SynonymIndex:
    """Lucene's BM25 where each word of a query stands for its synonyms too: a match of any of them
    counts as the word itself (Lucene's SynonymQuery: frequencies added, the largest document
    frequency).

    Args:
        ids: of the items.
        stems: of the items.
        synonyms: stem -> other stems.
    """

    def __init__(
        self,
        ids: Sequence[str],
        stems: Sequence[Sequence[str]],
        synonyms: Mapping[str, Sequence[str]],
        bm25: lucene.BM25,
    ) -> None:
        order = sorted(range(len(ids)), key=ids.__getitem__)
        self._ids, self._synonyms = [ids[at] for at in order], synonyms
        self._postings: dict[str, dict[int, int]] = {}
        for number, at in enumerate(order):
            for stem, times in Counter(stems[at]).items():
                self._postings.setdefault(stem, {})[number] = times
        lengths = np.array([len(stems[at]) for at in order], np.int64)
        holding = int((lengths > 0).sum())
        norms = lucene.norm_table(bm25, lucene.mean_length(int(lengths.sum()), holding))
        self._inverse, self._holding = (
            norms[lucene.length_codes(lengths)].astype(np.float64),
            holding,
        )

    def rank(self, stems: Sequence[str], depth: int) -> list[tuple[str, float]]:
        """The best items of a query."""
        scores = np.zeros(len(self._ids))
        for stem, times in Counter(stems).items():
            scores += times * self._part(stem)
        found = np.flatnonzero(scores > 0)
        best = found[np.argsort(-scores[found], kind="stable")][:depth]
        return [(self._ids[at], float(scores[at])) for at in best.tolist()]

    def _part(self, stem: str) -> Floats:
        having = [
            self._postings[one]
            for one in dict.fromkeys((stem, *self._synonyms.get(stem, ())))
            if one in self._postings
        ]
        scores = np.zeros(len(self._ids))
        if not having:
            return scores
        times = np.zeros(len(self._ids))
        for postings in having:
            times[list(postings)] += list(postings.values())
        weight = float(lucene.idf(self._holding, max(map(len, having))))
        return weight - weight / (1 + times * self._inverse)

    @property
    def size_bytes(self) -> int:
        """Eight bytes a posting: an item and how often."""
        return 8 * sum(map(len, self._postings.values()))


@dataclass(frozen=True)
class SynonymRanks:
    """Learned synonyms in memory."""

    index: SynonymIndex
    analyser: Analysis
    spent: Spent
    items: int

    def rank(self, queries: Sequence[Query], depth: int) -> Ranked:
        """By BM25 with synonyms."""
        stems = self.analyser.stems([query.text for query in queries])
        return {
            query.id: self.index.rank(one, depth) for query, one in zip(queries, stems, strict=True)
        }

    def sets(self, queries: Sequence[Query]) -> None:
        """None: a cutoff makes them."""

    def cost(self) -> Cost:
        size = self.index.size_bytes / self.items
        return Cost(self.spent.seconds, self.spent.peak_bytes, size, False)


class Synonyms:
    """A synonyms file learned from the labels, as OpenSearch's filter `synonym_graph` reads it; by
    the server where one is named, else by the same law in memory. The file is kept in `work`.
    """

    name, seeded = "synonyms", False
    family: Family = "sparse"

    def trials(self, task: Task) -> Sequence[Mapping[str, Any]]:  # noqa: ARG002
        return [
            {"most": most, "least_share": share}
            for most, share in (
                (5, 0.3),
                (2, 0.3),
                (2, 0.5),
                (5, 0.5),
                (10, 0.3),
                (10, 0.15),
                (1, 0.5),
                (0, 1.0),
            )
        ]

    def fit(self, task: Task, params: Mapping[str, Any]) -> SynonymRanks | ServerRanks:
        with Meter() as meter:
            analyser, items = Analysis(), task.dataset.items
            stems = analyser.stems([*map(task.text, items)])
            synonyms = _of_task(task, analyser, stems, params)
            lines = solr_lines(synonyms)
            (task.work / "synonyms.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")
            ids = [item.id for item in items]
            if task.settings.opensearch.url is not None:
                body = index_body(_FIELD, _LUCENE.k1, _LUCENE.b, _graph(lines))
                texts = zip(ids, map(" ".join, stems), strict=True)
                index = Index(task.settings.opensearch, body, texts)
            else:
                memory = SynonymIndex(ids, stems, synonyms, _LUCENE)
        if task.settings.opensearch.url is not None:
            return ServerRanks(index, meter.spent, len(ids), analyser)
        return SynonymRanks(memory, analyser, meter.spent, len(ids))


def _of_task(
    task: Task, analyser: Analysis, stems: Sequence[Sequence[str]], params: Mapping[str, Any]
) -> dict[str, list[str]]:
    if not params["most"]:
        return {}
    numbers = {item.id: number for number, item in enumerate(task.dataset.items)}
    train = task.dataset.require("train")
    asked = analyser.stems([query.text for query in train])
    relevant = [sorted(numbers[id_] for id_ in task.dataset.relevant[one.id]) for one in train]
    return learned_synonyms(asked, relevant, stems, params["most"], params["least_share"])


def solr_lines(synonyms: Mapping[str, Sequence[str]]) -> list[str]:
    """A synonyms file: `word => word, synonym, ...`."""
    return [f"{word} => {', '.join((word, *others))}" for word, others in sorted(synonyms.items())]


_LUCENE = lucene.DEFAULT
_FIELD = {"analyzer": "whitespace", "search_analyzer": "expanding"}


def _graph(lines: Sequence[str]) -> dict[str, Any]:
    """An analyser of stems with a synonym graph; without synonyms, of stems alone."""
    if not lines:
        return {"analyzer": {"expanding": {"type": "custom", "tokenizer": "whitespace"}}}
    return {
        "filter": {"learned": {"type": "synonym_graph", "synonyms": list(lines)}},
        "analyzer": {
            "expanding": {"type": "custom", "tokenizer": "whitespace", "filter": ["learned"]}
        },
    }


# doc2query


class Doc2Query:
    """BM25 over texts to which an item generator's keywords are added: the queries that an item
    should be found by (Nogueira et al. 2019).
    """

    name = "doc2query"
    family: Family = "sparse"

    def trials(self, task: Task) -> Sequence[Mapping[str, Any]]:  # noqa: ARG002
        return [
            {"kinds": kinds, "times": times}
            for kinds, times in (
                ("all", 1),
                ("anchors", 1),
                ("phrases", 1),
                ("all", 3),
                ("anchors", 3),
                ("anchors", 5),
            )
        ]

    def fit(self, task: Task, params: Mapping[str, Any]) -> LexicalRanks:
        generator, spent = fitted_generator(task)
        with Meter() as meter:
            items = task.dataset.items
            keywords = item_keywords(generator, items, params["kinds"])
            texts = [
                _expanded(task, item, words, params["times"])
                for item, words in zip(items, keywords, strict=True)
            ]
            lexical = Lexical(items, texts=texts)
        own = meter.spent
        both = Spent(own.seconds + spent.seconds, max(own.peak_bytes, spent.peak_bytes))
        return LexicalRanks(lexical, both)


def _expanded(task: Task, item: Item, keywords: Sequence[str], times: int) -> str:
    return " ".join((task.text(item), *(word for word in keywords for _ in range(times))))
