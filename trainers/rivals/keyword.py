"""CoGR's own methods, by the same protocol: keyword sets on both sides, matched exactly, ranked by
BM25 over the keywords.

Their retrieved sets are what the keywords match; no cutoff is swept for them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, cast

from cogr.errors import CogrError
from cogr.evaluation import rows_of_queries
from cogr.keywords import parse, query_keywords, self_keyword
from cogr.matching.mirror import Mirror
from cogr.records import Item, Query
from cogr.settings import OpenSearchSettings
from cogr.snapshots import Row, open_snapshot
from cogr.store import Store
from indexers.backends.opensearch.search import query_body
from indexers.generators.extractive import Extractive, ExtractiveOptions
from indexers.generators.statistical import LEAST_QUERIES
from indexers.generators.statistical.generator import Statistical, is_installed
from indexers.generators.statistical.generator import StatisticalOptions as Options
from indexers.workspace import Workspace
from trainers.rivals import Cost, Family, NotRunError, Search, Task
from trainers.rivals.measuring import Meter, Spent
from trainers.rivals.server import Index, keyword_body
from trainers.training.contest import contenders
from trainers.training.rounds import Round, with_dev
from trainers.training.run_folder import DEFAULT_RUN, Run, open_run

Answers = Callable[[Sequence[Query]], Sequence[Mapping[str, float]]]
"""The keywords of a query with their weights, the query's own text among them."""


@dataclass(frozen=True)
class KeywordRanks:
    """Keywords of both sides.

    Attributes:
        mirror: of the items' keywords.
        answers: the queries' keywords.
        model: whether a model writes a new query's keywords.
        server: the OpenSearch that serves the keywords, where its url is set; else the mirror does.
            Both find and rank the same.
        said: a remark for the table.
        known_only: the queries' keywords come from a snapshot, and no model writes them here.
    """

    mirror: Mirror
    answers: Answers
    spent: Spent
    model: bool = False
    server: OpenSearchSettings | None = None
    said: str = ""
    known_only: bool = False
    _known: dict[Query, Mapping[str, float]] = field(default_factory=dict)

    def rank(self, queries: Sequence[Query], depth: int) -> dict[str, list[tuple[str, float]]]:
        """The retrieved items, by BM25 over the keywords."""
        return {query.id: self._found(weights, depth) for query, weights in self._answered(queries)}

    def _answered(self, queries: Sequence[Query]) -> list[tuple[Query, Mapping[str, float]]]:
        """Each query's answer, computed once, since rankings and sets need the same keywords."""
        new = [query for query in queries if query not in self._known]
        self._known.update(zip(new, self.answers(new), strict=True))
        return [(query, self._known[query]) for query in queries]

    def _found(self, weights: Mapping[str, float], depth: int) -> list[tuple[str, float]]:
        ranking = self.mirror.search(weights, depth)
        return list(zip(ranking.ids, ranking.scores.tolist(), strict=True))

    def prepared(self, queries: Sequence[Query], depth: int) -> Search:
        """A search by prepared keywords, on the server where there is one."""
        known = {
            query.id: weights for query, weights in zip(queries, self.answers(queries), strict=True)
        }
        if self.server is None or self.server.url is None:
            return lambda query: self._found(known[query.id], depth)
        index = self._index

        def served(query: Query) -> list[tuple[str, float]]:
            clause = query_body(known[query.id], "text")
            return index.rank([query], [clause], depth)[query.id]

        return served

    @cached_property
    def _index(self) -> Index:
        assert self.server is not None
        ids = [self.mirror.id_of(dense) for dense in range(len(self.mirror))]
        texts = ((id_, list(self.mirror.keywords_of(id_))) for id_ in ids)
        return Index(self.server, keyword_body(self.server), texts)

    def sets(self, queries: Sequence[Query]) -> dict[str, list[str]]:
        """All that the keywords retrieve."""
        run = self.rank(queries, len(self.mirror))
        return {query: [id_ for id_, _ in pairs] for query, pairs in run.items()}

    def cost(self) -> Cost:
        """Postings of four bytes, and the keywords once."""
        mirror, count = self.mirror, max(1, len(self.mirror))
        postings = sum(len(mirror.keywords_of(dense)) for dense in range(len(mirror)))
        words = sum(len(word.encode("utf-8", "replace")) for word in mirror.words)
        size = (4 * postings + words) / count
        return Cost(self.spent.seconds, self.spent.peak_bytes, size, self.model)


def weighted(
    query: Query, keywords: Sequence[str], weights: Mapping[str, float]
) -> dict[str, float]:
    """S ∪ {self} with weights, as a query snapshot has them."""
    return {word: weights.get(word, 1.0) for word in query_keywords(query.text, keywords)}


# Without a language model


def fitted_generator(task: Task) -> tuple[Statistical | Extractive, Spent]:
    """The fitted item generator that is the default for this data set, and the cost of its fit.

    Methods share a fit; each counts its cost in full.
    """
    train = task.dataset.require("train")
    if len(train) < LEAST_QUERIES or not is_installed():
        return Extractive(task.dataset.items, task.dataset.dataset_hash), Spent(0.0, 0)
    shared = Store(task.work.parents[1] / "shared")
    own = task.settings.generator.statistical.model_dump()
    options = Options(**own, seed=task.seed)
    generator = Statistical(task.dataset, options, shared)
    spent = f"spent/{task.seed}.json"
    if not (generator.is_fitted and shared.exists(spent)):
        with Meter() as meter:
            _ = generator.artefact
        record = {"seconds": meter.spent.seconds, "peak_bytes": meter.spent.peak_bytes}
        shared.write_json(spent, record)
    return generator, Spent(**shared.read_json(spent))


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


class _Statistical:
    """Keywords of the ranker behind `statistical`."""

    name: str
    family: Family = "keyword"
    edits: bool

    def trials(self, task: Task) -> Sequence[Mapping[str, Any]]:
        price = task.settings.generator.statistical.readability
        return [{"readability": price}, *({"readability": 0.0} for _ in range(price > 0))]

    def fit(self, task: Task, params: Mapping[str, Any]) -> KeywordRanks:
        generator, spent = fitted_generator(task)
        if isinstance(generator, Extractive):
            raise NotRunError(
                f"{LEAST_QUERIES} labelled training queries and the extra statistical",
                "bring labels, or pip install 'cogr[statistical]'",
            )
        fitted = generator.artefact
        artefact = replace(
            fitted,
            facts={**fitted.facts, **params},
            editor=fitted.editor if self.edits else None,
        )

        def answers(queries: Sequence[Query]) -> list[dict[str, float]]:
            found = artefact.answers(queries)
            return [
                weighted(query, one.keywords, one.weights)
                for query, one in zip(queries, found, strict=True)
            ]

        items = task.dataset.items
        mirror = mirror_of(items, item_keywords(generator, items))
        said = _NO_EDITS if self.edits and fitted.editor is None else ""
        return KeywordRanks(mirror, answers, spent, True, task.settings.opensearch, said)


_NO_EDITS = "the fit keeps no edits, which don't pay out of fold here: it is statistical"


class StatisticalKeywords(_Statistical):
    """Keywords that retrieve the items which a ranker, learned from the labels,
    considers relevant.
    """

    name, edits = "statistical", False


class EditedKeywords(_Statistical):
    """The same with edits: the generator `statistical` as it is by default."""

    name, edits = "edited", True


class ExtractiveKeywords:
    """Keywords from the words of the collection, without labels."""

    name, seeded = "extractive", False
    family: Family = "keyword"

    def trials(self, task: Task) -> Sequence[Mapping[str, Any]]:  # noqa: ARG002
        return [{}, {"cut": 0.5}, {"cut": 0.8}, {"max_df_share": 0.05}, {"keywords": 30}]

    def fit(self, task: Task, params: Mapping[str, Any]) -> KeywordRanks:
        items = task.dataset.items
        with Meter() as meter:
            options = ExtractiveOptions(**params)
            generator = Extractive(items, task.dataset.dataset_hash, options)
            sets = item_keywords(generator, items)
            mirror = mirror_of(items, [parse(", ".join(words)) for words in sets])
        counted = generator.collection

        def answers(queries: Sequence[Query]) -> list[dict[str, float]]:
            return [
                weighted(
                    query, parse(", ".join(map(counted.spell, counted.of_query(query.text)))), {}
                )
                for query in queries
            ]

        return KeywordRanks(mirror, answers, meter.spent, server=task.settings.opensearch)


# A training run of the store


class _OfRun:
    """A pair of snapshots of a training run; `compare.models` may name the run."""

    name: str
    family: Family = "keyword"
    seeded = False

    def trials(self, task: Task) -> Sequence[Mapping[str, Any]]:  # noqa: ARG002
        return [{}]

    def fit(self, task: Task, params: Mapping[str, Any]) -> KeywordRanks:  # noqa: ARG002
        workspace, run = _run(task, task.settings.compare.models.get("cogr", DEFAULT_RUN))
        items, queries, seconds = self.pair(run)
        rows = open_snapshot(workspace.store, queries)
        mirror = Mirror.build(open_snapshot(workspace.store, items))
        weights = workspace.settings.keywords.weights

        def answers(asked: Sequence[Query]) -> list[Mapping[str, float]]:
            found: Mapping[str, Row] = rows_of_queries(asked, rows, unknown=True, weights=weights)
            return [found[query.id].weighted for query in asked]

        spent = Spent(seconds, 0)
        server = workspace.settings.opensearch
        return KeywordRanks(mirror, answers, spent, True, server, known_only=True)

    def pair(self, run: Run) -> tuple[str, str, float]:
        """Item snapshot, query snapshot, and the seconds of its stages."""
        raise NotImplementedError


class Cogr(_OfRun):
    """The finished round with the highest F1 on dev."""

    name = "cogr"

    def pair(self, run: Run) -> tuple[str, str, float]:
        state = run.state()
        rounds = [one for one in state.finished if one.number and one.verdict == "accepted"]
        found = contenders(state, None)
        best = max(found, key=lambda one: one.dev_f1 or 0.0) if found else None
        if not rounds or best is None:
            raise _no_rounds(run.name)
        return best.items, best.queries, _seconds(state.finished)


class CogrFrozen(_OfRun):
    """The items of SFT with the queries of round 1, which were trained against them: a frozen item
    side.
    """

    name = "cogr-frozen"

    def pair(self, run: Run) -> tuple[str, str, float]:
        rounds = run.state().finished
        if len(rounds) < 2:
            raise _no_rounds(run.name)
        return rounds[0].items, rounds[1].queries, _seconds(rounds[:1])


def _run(task: Task, name: str) -> tuple[Workspace, Run]:
    workspace = Workspace(task.settings)
    try:
        run = open_run(workspace, name)
        frozen = run.frozen()["dataset_hash"]
    except CogrError as error:
        raise _no_rounds(name) from error
    if frozen == task.dataset.dataset_hash:
        return workspace, run
    if frozen == with_dev(workspace).dataset.dataset_hash:
        task.say(f"the run {name} has learned from the queries that are set apart as dev, too")
    else:
        raise NotRunError(
            f"a training run on these data ({name} was begun on others)", _training(name)
        )
    return workspace, run


def _no_rounds(name: str) -> NotRunError:
    return NotRunError(f"a finished round of the training run {name}", _training(name))


def _training(name: str) -> str:
    return f"cogr-train run --run {name} makes one, compare.models.cogr names another"


def _seconds(rounds: Sequence[Round]) -> float:
    return cast(float, sum(stage.seconds for round_ in rounds for stage in round_.stages))
