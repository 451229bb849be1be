"""Every way to retrieve, side by side (`cogr-train compare`): what a method is given, what it
answers, and which methods there are.

A method fits on the training queries' labels and then ranks items for any queries. The runner
(`trainers.rivals.compare`) does the rest the same way for all: hyperparameters, cutoffs, metrics,
significance, cost. A method is a class in the file of its family; it is imported when it is asked
for, so that no method needs another one's libraries.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, cast, runtime_checkable

from cogr.errors import UserError
from cogr.records import Dataset, Item, Query, Say
from cogr.settings import Settings

Family = Literal["sparse", "dense", "generative", "keyword", "floor", "ceiling"]
"""What a method is filed under, in the order of the tables."""


class NotRunError(UserError):
    """A method can't run here: weights, an extra or a server are missing. A row of its own.

    Args:
        needs: what is missing, such as "the weights of naver/splade_v2_max".
        how: the configuration or the command that would run it.
    """

    def __init__(self, needs: str, how: str) -> None:
        super().__init__(f"not run: needs {needs}; {how}")
        self.needs, self.how = needs, how


@dataclass(frozen=True)
class Task:
    """What a method is given. The same for all: fields, texts, splits, relevance.

    Attributes:
        dataset: items, and queries by split with their relevant items; dev is never empty.
        work: a folder of the method's own; what is kept there is found again by --resume.
        seed: of everything that is drawn.
        say: tells a person one line.
        settings: the resolved configuration.
        seconds: wall time that one fit may take (the stated budget).
    """

    dataset: Dataset
    work: Path
    seed: int
    say: Say
    settings: Settings
    seconds: float

    def text(self, item: Item) -> str:
        """Title and text of an item: the one text that all methods see."""
        return f"{item.title} {item.text}".strip()


@dataclass(frozen=True)
class Cost:
    """What a fitted method costs.

    Attributes:
        train_seconds: wall time of the fit.
        peak_bytes: most memory that the fit held above what the process had before.
        index_bytes_per_item: what a serving index keeps for an item.
        model_at_serving: whether a model must be asked for a query, unless it was prepared.
    """

    train_seconds: float
    peak_bytes: int
    index_bytes_per_item: float
    model_at_serving: bool


class Fitted(Protocol):
    """A method after its fit."""

    def rank(
        self, queries: Sequence[Query], depth: int
    ) -> Mapping[str, Sequence[tuple[str, float]]]:
        """Query id -> (item id, score), best first, ties by item id, `depth` at most.

        A score is never NaN: the runner refuses such a run.
        """
        ...

    def sets(self, queries: Sequence[Query]) -> Mapping[str, Sequence[str]] | None:
        """Query id -> ids of the retrieved set, for a method with sets of its own (keywords).

        None: the cutoff that was swept on the training queries makes them.
        """
        ...

    def cost(self) -> Cost:
        """What the fit took, and what serving needs."""
        ...


Search = Callable[[Query], Sequence[tuple[str, float]]]
"""Ranks one query as `Fitted.rank` does."""


@runtime_checkable
class Prepares(Protocol):
    """A fitted method whose side of the queries can be computed before they are asked, as
    production does for the queries that it knows: their keywords, vectors or weights. One whose
    attribute `known_only` is true has no others.
    """

    def prepared(self, queries: Sequence[Query], depth: int) -> Search:
        """A search for these queries, whose keywords, vectors or weights are at hand."""
        ...


class Method(Protocol):
    """One way to retrieve, before its fit.

    Attributes:
        name: as asked for on the command line, such as "bm25" or "splade".
        family: what it is filed under.
    """

    name: str
    family: Family

    def trials(self, task: Task) -> Sequence[Mapping[str, Any]]:
        """Hyperparameters to choose from by dev F1, the default first; at least one."""
        ...

    def fit(self, task: Task, params: Mapping[str, Any]) -> Fitted:
        """Learn from the training queries' labels with one of the trials.

        Raises NotRunError where weights, an extra or a server are missing.
        """
        ...


_PLACES: dict[str, str] = {
    "bm25": "sparse:BM25",
    "bm25+rm3": "sparse:RM3",
    "opensearch": "sparse:OpenSearchText",
    "synonyms": "sparse:Synonyms",
    "doc2query": "sparse:Doc2Query",
    "splade": "trained.splade:Splade",
    "neural-sparse": "trained.splade:NeuralSparse",
    "embeddings": "trained.dense:ZeroShot",
    "dpr": "trained.dense:DPR",
    "ance": "trained.dense:ANCE",
    "dsi": "trained.generative:DSI",
    "dsi-qg": "trained.generative:DSIQG",
    "ripor": "trained.generative:Ripor",
    "deepretrieval": "trained.policies:DeepRetrieval",
    "quester": "trained.policies:Quester",
    "cogr-frozen": "keyword:CogrFrozen",
    "cogr": "keyword:Cogr",
    "statistical": "keyword:StatisticalKeywords",
    "edited": "keyword:EditedKeywords",
    "extractive": "keyword:ExtractiveKeywords",
    "nearest": "bounds:NearestQueries",
    "nearest+bm25": "bounds:Fused",
    "oracle-keywords": "bounds:OracleKeywords",
    "perfect-cutoff": "bounds:PerfectCutoff",
}
"""Name -> file of this package and class in it."""


def _make(place: str) -> Method:
    module, _, name = place.partition(":")
    return cast(Method, getattr(importlib.import_module(f"trainers.rivals.{module}"), name)())


METHODS: dict[str, Callable[[], Method]] = {
    name: partial(_make, place) for name, place in _PLACES.items()
}
"""Every method by its name on the command line, in the order of the tables."""
