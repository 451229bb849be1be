"""Rival retrieval methods (`cogr-train compare`): the protocol of a method, its inputs and results,
and the list of methods.

A method fits on the training queries' labels and then ranks items for any queries. The runner
(`trainers.rivals.compare`) does the rest in the same way for all: hyperparameters, cutoffs,
metrics, significance, cost. A method is a class in the module of its family, which is imported on
demand, so that no method needs another one's libraries.
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
"""The families of methods, in the order of the tables."""


class NotRunError(UserError):
    """A method can't run here, since weights, an extra or a server are missing. It still gets a
    row.

    Args:
        needs: what is missing, such as "the weights of naver/splade_v2_max".
        how: the setting or the command with which it would run.
    """

    def __init__(self, needs: str, how: str) -> None:
        super().__init__(f"not run: needs {needs}; {how}")
        self.needs, self.how = needs, how


@dataclass(frozen=True)
class Task:
    """The inputs of a method, the same for all: fields, texts, splits, relevance.

    Attributes:
        dataset: items, and queries by split with their relevant items; dev is never empty.
        work: a folder of the method's own, which --resume finds again.
        seed: seed of all random draws.
        say: prints one line for a person.
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
        """Title and text of an item, as all methods read it."""
        return f"{item.title} {item.text}".strip()


@dataclass(frozen=True)
class Cost:
    """The cost of a fitted method.

    Attributes:
        train_seconds: wall time of the fit.
        peak_bytes: peak memory of the fit above that of the process before.
        index_bytes_per_item: size of a serving index for an item.
        model_at_serving: whether serving an unprepared query needs a model.
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

        A score must not be NaN: the runner refuses such a run.
        """
        ...

    def sets(self, queries: Sequence[Query]) -> Mapping[str, Sequence[str]] | None:
        """Query id -> ids of the retrieved set, for a method with sets of its own (keywords). None:
        the runner cuts the rankings by the cutoff that is best on the training queries.
        """
        ...

    def cost(self) -> Cost:
        """The cost of the fit and of serving."""
        ...


Search = Callable[[Query], Sequence[tuple[str, float]]]
"""Ranks one query as `Fitted.rank` does."""


@runtime_checkable
class Prepares(Protocol):
    """A fitted method that can prepare queries (their keywords, vectors or weights) before they are
    asked, as production does for known queries. With `known_only` it has only prepared queries.
    """

    def prepared(self, queries: Sequence[Query], depth: int) -> Search:
        """A search for these queries, with their keywords, vectors or weights prepared."""
        ...


class Method(Protocol):
    """A retrieval method before its fit.

    Attributes:
        name: as asked for on the command line, such as "bm25" or "splade".
        family: its family.
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
    "nearest": "nearest:Nearest",
    "nearest+bm25": "nearest:Fused",
    "oracle-keywords": "ceilings:OracleKeywords",
    "perfect-cutoff": "ceilings:PerfectCutoff",
}
"""Name -> file of this package and class in it."""


def _make(place: str) -> Method:
    module, _, name = place.partition(":")
    return cast(Method, getattr(importlib.import_module(f"trainers.rivals.{module}"), name)())


METHODS: dict[str, Callable[[], Method]] = {
    name: partial(_make, place) for name, place in _PLACES.items()
}
"""Every method by its name on the command line, in the order of the tables."""
