"""CoGR's own methods, by the same protocol: keyword sets on both sides, matched exactly, ranked by
BM25 over the keywords. Their retrieved sets are what the keywords match; no cutoff is swept. One
is a ceiling, which knows the labels that it is measured by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.compare import Fitted, Method, NotRunError, Params, Task
from benchmarks.compare.measuring import ids_of
from cogr.errors import CogrError
from cogr.keywords import parse, query_keywords, self_keyword
from cogr.matching.mirror import Mirror
from cogr.metrics import rows_of_queries
from cogr.records import Item, Query
from cogr.snapshots import open_snapshot
from cogr.store import Store
from indexers.generators import Context
from indexers.generators.extractive import Extractive, ExtractiveOptions
from indexers.generators.statistical import MIN_QUERIES, READABILITY
from indexers.generators.statistical.generator import Statistical, StatisticalOptions
from indexers.workspace import Workspace
from trainers.training.contest import Contender, contenders
from trainers.training.rounds import DEFAULT_RUN, open_run, with_dev

_Weights = Mapping[str, float]
"""The keywords of a query with their weights, the query's own text among them."""


def keyword_ranks(
    mirror: Mirror, answers: Callable[[Sequence[Query]], Sequence[_Weights]], **more: Any
) -> Fitted:
    """Keywords of both sides: the mirror of the items', and the queries'."""

    def search(weights: _Weights, depth: int) -> list[tuple[str, float]]:
        result = mirror.search(weights, depth)
        return list(zip(result.ids, result.scores.tolist(), strict=True))

    postings = sum(len(mirror.keywords_of(dense)) for dense in range(len(mirror)))
    words = sum(len(word.encode("utf-8", "replace")) for word in mirror.words)
    size = (4 * postings + words) / max(1, len(mirror))
    return Fitted(search, size, answers, sets=ids_of, **more)


def weighted(query: Query, keywords: Sequence[str], weights: _Weights) -> dict[str, float]:
    """S ∪ {self} with weights, as a query snapshot has them."""
    return {word: weights.get(word, 1.0) for word in query_keywords(query.text, keywords)}


# Without a language model


def fitted_generator(task: Task) -> Statistical:
    """The generator `statistical`. Methods share a fit, whose time is that of the first of them.

    Raises NotRunError without enough labels, MissingExtraError without the extra.
    """
    if len(task.train) < MIN_QUERIES:
        raise NotRunError(f"{MIN_QUERIES} labelled training queries", "bring labels")
    own = task.settings.generator.statistical.model_dump()
    context = Context("query", task.dataset, Store(task.work.parents[1] / "shared"))
    return StatisticalOptions(**own, seed=task.seed).make(context)


def item_keywords(
    generator: Statistical, items: Sequence[Item], kinds: str = "all"
) -> list[list[str]]:
    """The keywords that a generator writes for items. `kinds` is "all", "anchors" (texts of
    training queries) or "phrases".
    """
    from indexers.generators.statistical.item_keywords import ANCHOR, PHRASE

    chosen = {"all": (ANCHOR, PHRASE), "anchors": (ANCHOR,), "phrases": (PHRASE,)}[kinds]
    keywords = generator.artefact.keywords
    return [keywords.of(number, chosen) for number in range(len(items))]


def _mirror_of(items: Sequence[Item], sets: Sequence[Sequence[str]]) -> Mirror:
    """The index of items by their keywords and titles."""
    own = [self_keyword(item.title) for item in items]
    return Mirror.from_sets([item.id for item in items], sets, own)


class StatisticalKeywords(Method):
    """The generator `statistical`: keywords that retrieve the items which a ranker, learned from
    the labels, considers relevant.
    """

    family = "keyword"
    grid = ({"readability": READABILITY}, {"readability": 0.0})

    def fit(self, task: Task, params: Params) -> Fitted:
        generator = fitted_generator(task)
        artefact = generator.artefact
        artefact = replace(artefact, facts={**artefact.facts, **params})

        def answers(queries: Sequence[Query]) -> list[dict[str, float]]:
            answered = zip(queries, artefact.answers(queries), strict=True)
            return [weighted(query, parse(one.text), one.weights) for query, one in answered]

        items = task.dataset.items
        mirror = _mirror_of(items, item_keywords(generator, items))
        return keyword_ranks(mirror, answers, model=True)


class OracleKeywords(Method):
    """The best choice among the items' keywords for a query, by the true labels."""

    family = "ceiling"
    seeded = False

    def fit(self, task: Task, params: Params) -> Fitted:  # noqa: ARG002
        from indexers.generators.statistical.artefact import K_MAX
        from indexers.generators.statistical.keyword_selection import select_keywords

        generator = fitted_generator(task)
        items, keywords = task.dataset.items, generator.artefact.keywords

        def chosen(query: Query) -> dict[str, float]:
            relevant = np.zeros(len(items))
            relevant[[task.number[id_] for id_ in task.dataset.relevant[query.id]]] = 1.0
            forced = keywords.owners(self_keyword(query.text))
            selection = select_keywords(relevant, keywords.writable, limit=K_MAX, forced=forced)
            return weighted(query, [keywords.keywords[number] for number in selection.keywords], {})

        mirror = _mirror_of(items, item_keywords(generator, items))
        return keyword_ranks(mirror, lambda asked: [*map(chosen, asked)])


class ExtractiveKeywords(Method):
    """Keywords from the words of the collection, without labels."""

    family = "keyword"
    seeded = False

    def fit(self, task: Task, params: Params) -> Fitted:  # noqa: ARG002
        items = task.dataset.items
        generator = Extractive(items, task.dataset.dataset_hash, ExtractiveOptions())
        counted = generator.collection

        def spelled(words: Iterable[int]) -> list[str]:
            return list(parse(", ".join(map(counted.phrases.spell, words))))

        def answer(query: Query) -> dict[str, float]:
            return weighted(query, spelled(counted.of_query(query.text)), {})

        sets = [spelled(counted.of_item(item).tolist()) for item in items]
        return keyword_ranks(_mirror_of(items, sets), lambda asked: [*map(answer, asked)])


# A training run of the store


class Cogr(Method):
    """The finished round of a training run with the highest F1 on dev; --model names the run."""

    family = "keyword"
    seeded = False
    how = f"cogr-train run --run {DEFAULT_RUN} makes one"

    def fit(self, task: Task, params: Params) -> Fitted:  # noqa: ARG002
        workspace, best = Workspace(task.settings), self._best(task)
        rows = open_snapshot(workspace.store, best.queries)
        weights = workspace.settings.keywords.weights

        def answers(asked: Sequence[Query]) -> list[_Weights]:
            by_id = rows_of_queries(asked, rows, unknown=True, weights=weights)
            return [by_id[query.id].weighted for query in asked]

        mirror = Mirror.build(open_snapshot(workspace.store, best.items))
        return keyword_ranks(mirror, answers, model=True)

    def _best(self, task: Task) -> Contender:
        workspace = Workspace(task.settings)
        name = task.models.get(self.name, DEFAULT_RUN)
        nothing = NotRunError(
            f"a finished round of a training run on these data, which {name} is not",
            f"{self.how}, --model {self.name}=RUN names another",
        )
        try:
            run = open_run(workspace, name)
            frozen, finished = run.frozen(), contenders(run.state(), None)
        except CogrError as error:
            raise nothing from error
        learned, ours = frozen["dataset_hash"], task.dataset.dataset_hash
        # One pair is that of SFT.
        if len(finished) < 2:
            raise nothing
        if learned not in (ours, with_dev(workspace).dataset.dataset_hash):
            raise nothing
        if learned != ours:
            task.say(f"the run {name} was also trained on the queries that are set apart as dev")
        return max(finished, key=lambda one: one.dev_f1 or 0.0)
