"""CoGR's own methods, by the same protocol: keyword sets on both sides, matched exactly, ranked by
BM25 over the keywords. Their retrieved sets are what the keywords match; no cutoff is swept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from cogr.errors import CogrError
from cogr.evaluation import rows_of_queries
from cogr.keywords import parse, query_keywords, self_keyword
from cogr.matching.mirror import Mirror
from cogr.records import Item, Query
from cogr.settings import OpenSearchSettings
from cogr.snapshots import open_snapshot
from cogr.store import Store
from indexers.backends.opensearch.search import query_body
from indexers.generators.extractive import Extractive, ExtractiveOptions
from indexers.generators.statistical import LEAST_QUERIES
from indexers.generators.statistical.generator import Statistical, is_installed
from indexers.generators.statistical.generator import StatisticalOptions as Options
from indexers.workspace import Workspace
from trainers.rivals import Fitted, Method, NotRunError, Params, Search, Sets, Spent, Task
from trainers.rivals.measuring import Meter, ids_of
from trainers.rivals.server import Index, keyword_body
from trainers.training.contest import contenders
from trainers.training.rounds import with_dev
from trainers.training.run_folder import DEFAULT_RUN, Run, open_run

Weights = Mapping[str, float]
"""The keywords of a query with their weights, the query's own text among them."""


def keyword_ranks(
    mirror: Mirror,
    answers: Callable[[Sequence[Query]], Sequence[Weights]],
    server: OpenSearchSettings | None = None,
    **more: Any,
) -> Fitted:
    """Keywords of both sides: the mirror of the items', and the queries'. A server, where its url
    is set, serves prepared queries; it finds and ranks the same.
    """
    known: dict[Query, Weights] = {}

    def once(queries: Sequence[Query]) -> list[Weights]:
        """Computed once, since rankings and sets need the same keywords."""
        new = [query for query in queries if query not in known]
        known.update(zip(new, answers(new), strict=True))
        return [known[query] for query in queries]

    def search(weights: Weights, depth: int) -> list[tuple[str, float]]:
        found = mirror.search(weights, depth)
        return list(zip(found.ids, found.scores.tolist(), strict=True))

    def sets(queries: Sequence[Query]) -> Sets:
        return ids_of(fitted.rank(queries, len(mirror)))

    fitted = Fitted.by(once, search, _size(mirror), sets=sets, **more)
    plain = Fitted.by(answers, search, 0.0).prepared
    if server is not None and server.url is not None:
        indexed = cache(lambda: _index_of(mirror, server))

        def served(queries: Sequence[Query], depth: int) -> Search:
            index, found = indexed(), dict(zip(queries, answers(queries), strict=True))
            clauses = {query.id: query_body(found[query], "text") for query in queries}
            return lambda query: index.rank([query], [clauses[query.id]], depth)[query.id]

        plain = served
    return replace(fitted, prepared=plain)


def _size(mirror: Mirror) -> float:
    """Bytes an item: postings of four bytes, and the keywords once."""
    postings = sum(len(mirror.keywords_of(dense)) for dense in range(len(mirror)))
    words = sum(len(word.encode("utf-8", "replace")) for word in mirror.words)
    return (4 * postings + words) / max(1, len(mirror))


def _index_of(mirror: Mirror, server: OpenSearchSettings) -> Index:
    ids = [mirror.id_of(dense) for dense in range(len(mirror))]
    texts = ((id_, list(mirror.keywords_of(id_))) for id_ in ids)
    return Index(server, keyword_body(server), texts)


def weighted(query: Query, keywords: Sequence[str], weights: Weights) -> dict[str, float]:
    """S ∪ {self} with weights, as a query snapshot has them."""
    return {word: weights.get(word, 1.0) for word in query_keywords(query.text, keywords)}


# Without a language model


def fitted_generator(task: Task) -> tuple[Statistical | Extractive, Spent]:
    """The fitted item generator that is the default for this data set, and what its fit has cost
    before. Methods share a fit; each counts its cost in full.
    """
    if len(task.dataset.require("train")) < LEAST_QUERIES or not is_installed():
        return Extractive(task.dataset.items, task.dataset.dataset_hash), Spent()
    shared, spent = Store(task.work.parents[1] / "shared"), f"spent/{task.seed}.json"
    own = task.settings.generator.statistical.model_dump()
    generator = Statistical(task.dataset, Options(**own, seed=task.seed), shared)
    if generator.is_fitted and shared.exists(spent):
        return generator, Spent(**shared.read_json(spent))
    with Meter() as meter:
        _ = generator.artefact
    shared.write_json(spent, vars(meter.spent))
    return generator, Spent()


def item_keywords(
    generator: Statistical | Extractive, items: Sequence[Item], kinds: str = "all"
) -> list[list[str]]:
    """The keywords that a generator writes for items.

    Args:
        kinds: only "anchors" (texts of training queries) or only "phrases", where the generator
            distinguishes them; else "all".
    """
    if isinstance(generator, Extractive):
        counted = generator.collection
        return [[counted.spell(one) for one in counted.of_item(item).tolist()] for item in items]
    from indexers.generators.statistical.item_keywords import ANCHOR, PHRASE

    chosen = {"all": (ANCHOR, PHRASE), "anchors": (ANCHOR,), "phrases": (PHRASE,)}[kinds]
    keywords = generator.artefact.keywords
    return [keywords.of(number, chosen) for number in range(len(items))]


def mirror_of(items: Sequence[Item], sets: Sequence[Sequence[str]]) -> Mirror:
    """The index of items by their keywords and titles."""
    own = [self_keyword(item.title) for item in items]
    return Mirror.from_sets([item.id for item in items], sets, own)


class StatisticalKeywords(Method):
    """Keywords that retrieve the items which a ranker, learned from the labels, considers relevant;
    without edits.
    """

    family = "keyword"
    edits = False

    def trials(self, task: Task) -> Sequence[Params]:
        price = task.settings.generator.statistical.readability
        return [{"readability": price}, *({"readability": 0.0} for _ in range(price > 0))]

    def fit(self, task: Task, params: Params) -> Fitted:
        generator, before = fitted_generator(task)
        if isinstance(generator, Extractive):
            raise NotRunError(
                f"{LEAST_QUERIES} labelled training queries and the extra statistical",
                "bring labels, or pip install 'cogr[statistical]'",
            )
        fitted = generator.artefact
        editor = fitted.editor if self.edits else None
        artefact = replace(fitted, facts={**fitted.facts, **params}, editor=editor)

        def answers(queries: Sequence[Query]) -> list[dict[str, float]]:
            found = artefact.answers(queries)
            return [weighted(q, a.keywords, a.weights) for q, a in zip(queries, found, strict=True)]

        items = task.dataset.items
        mirror = mirror_of(items, item_keywords(generator, items))
        said = _NO_EDITS if self.edits and fitted.editor is None else ""
        server = task.settings.opensearch
        return keyword_ranks(mirror, answers, server, model=True, said=said, before=before)


_NO_EDITS = "the fit keeps no edits, which don't pay out of fold here: it is statistical"


class EditedKeywords(StatisticalKeywords):
    """The same with edits: the generator `statistical` as it is by default."""

    edits = True


class ExtractiveKeywords(Method):
    """Keywords from the words of the collection, without labels."""

    family = "keyword"
    seeded = False
    grid = ({}, {"cut": 0.5}, {"cut": 0.8}, {"max_df_share": 0.05}, {"keywords": 30})

    def fit(self, task: Task, params: Params) -> Fitted:
        items = task.dataset.items
        generator = Extractive(items, task.dataset.dataset_hash, ExtractiveOptions(**params))
        sets = [parse(", ".join(words)) for words in item_keywords(generator, items)]
        counted = generator.collection

        def answer(query: Query) -> dict[str, float]:
            words = map(counted.spell, counted.of_query(query.text))
            return weighted(query, parse(", ".join(words)), {})

        mirror = mirror_of(items, sets)
        return keyword_ranks(mirror, lambda asked: [*map(answer, asked)], task.settings.opensearch)


# A training run of the store


class Cogr(Method):
    """The finished round of a training run with the highest F1 on dev; `compare.models` names the
    run.
    """

    family = "keyword"
    seeded = False
    variant = ""
    how = f"cogr-train run --run {DEFAULT_RUN} makes one"

    def fit(self, task: Task, params: Params) -> Fitted:  # noqa: ARG002
        """Raises NotRunError without a finished round of a run on these data."""
        workspace, run = Workspace(task.settings), self._run(task)
        state = run.state()
        rounds = [one for one in state.finished if one.number and one.verdict == "accepted"]
        found = contenders(state, None)
        if not rounds or not found:
            raise self._none(run.name)
        best = max(found, key=lambda one: one.dev_f1 or 0.0)
        rows = open_snapshot(workspace.store, best.queries)
        weights = workspace.settings.keywords.weights

        def answers(asked: Sequence[Query]) -> list[Weights]:
            found = rows_of_queries(asked, rows, unknown=True, weights=weights)
            return [found[query.id].weighted for query in asked]

        seconds = sum(stage.seconds for round_ in state.finished for stage in round_.stages)
        return keyword_ranks(
            Mirror.build(open_snapshot(workspace.store, best.items)),
            answers,
            workspace.settings.opensearch,
            model=True,
            known_only=True,
            before=Spent(seconds),
        )

    def _run(self, task: Task) -> Run:
        workspace = Workspace(task.settings)
        name = task.settings.compare.models.get(self.name, DEFAULT_RUN)
        try:
            run = open_run(workspace, name)
            frozen = run.frozen()
        except CogrError as error:
            raise self._none(name) from error
        if self.variant and frozen["settings"].get("training.variant") != self.variant:
            raise self._none(name, f" with training.variant {self.variant}")
        if frozen["dataset_hash"] == task.dataset.dataset_hash:
            return run
        if frozen["dataset_hash"] != with_dev(workspace).dataset.dataset_hash:
            raise self._none(name, " on these data")
        task.say(f"the run {name} has learned from the queries that are set apart as dev, too")
        return run

    def _none(self, name: str, kind: str = "") -> NotRunError:
        return NotRunError(
            f"a finished round of a training run{kind}, which {name} is not",
            f"{self.how}, compare.models.{self.name} names another",
        )


class CogrFrozen(Cogr):
    """The same of a run whose items were never trained: the paper's CoGR-frozen, and the variant
    `frozen` of `cogr-train ablate`.
    """

    variant = "frozen-items"
    how = "cogr-train ablate --variants frozen makes one"
