"""Retrieval methods side by side (`python -m benchmarks.compare`): the protocol of a method, its
inputs, and a list.

A method fits on the training queries' labels and then ranks items for any queries. `runner.py` does
the rest in the same way for all: hyperparameters, cutoffs, metrics, significance, cost. Modules are
imported on demand, so that no method needs another one's libraries.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from cogr.errors import UserError
from cogr.records import Dataset, Item, Query, Say
from cogr.settings import Settings

Family = Literal["sparse", "dense", "generative", "keyword", "floor", "ceiling"]
"""The families of methods, in the order of the tables."""
Rankings = Mapping[str, Sequence[tuple[str, float]]]
"""Query id -> (item id, score), best first, ties by item id."""
Sets = Mapping[str, Sequence[str]]
"""Query id -> ids of the retrieved set."""
Params = Mapping[str, Any]


class NotRunError(UserError):
    """A method can't run here, since weights, labels or an extra are missing. Its row names the
    setting or the command with which it would run.
    """

    def __init__(self, needs: str, how: str) -> None:
        super().__init__(f"not run: needs {needs}; {how}")


@dataclass(frozen=True)
class Task:
    """The inputs of a method, the same for all.

    Attributes:
        dataset: its dev queries are never empty.
        work: a folder of the method's own, which --resume finds again.
        steps: training steps of a fit; None for the method's own number.
        models: method -> the model that it starts from, or the training run that it takes.
    """

    dataset: Dataset
    work: Path
    seed: int
    say: Say
    settings: Settings
    steps: int | None = None
    models: Mapping[str, str] = field(default_factory=dict)

    def text(self, item: Item) -> str:
        """Title and text of an item, as all methods read it."""
        return f"{item.title} {item.text}".strip()

    @property
    def train(self) -> Sequence[Query]:
        """The labelled training queries. Raises DataError when there are none."""
        return self.dataset.require("train")

    @cached_property
    def texts(self) -> Sequence[str]:
        return [*map(self.text, self.dataset.items)]

    @cached_property
    def number(self) -> Mapping[str, int]:
        """Item id -> its position in the data."""
        return {item.id: at for at, item in enumerate(self.dataset.items)}

    @cached_property
    def relevant(self) -> Sequence[frozenset[int]]:
        """For each training query the numbers of its relevant items."""
        wanted = (self.dataset.relevant[query.id] for query in self.train)
        return [frozenset(self.number[id_] for id_ in ids) for ids in wanted]


@dataclass(frozen=True)
class Fitted:
    """A method after its fit.

    Attributes:
        search: a query, or what it is read as, and a depth -> its ranking. A score must not be NaN.
        bytes_an_item: size of a serving index for an item.
        read: queries -> what they are searched by, such as keywords or a vector.
        model: whether serving an unprepared query needs a model.
        sets: of a method with retrieved sets of its own: from its rankings of all items to the
            sets. None: the runner cuts the rankings.
        said: a remark for the table.
    """

    search: Callable[[Any, int], Sequence[tuple[str, float]]]
    bytes_an_item: float
    read: Callable[[Sequence[Query]], Sequence[Any]] = list
    model: bool = False
    sets: Callable[[Rankings], Sets] | None = None
    said: str = ""

    def rank(self, queries: Sequence[Query], depth: int) -> Rankings:
        """The rankings of some queries, by query id."""
        each = zip(queries, self.read(queries), strict=True)
        return {query.id: self.search(one, depth) for query, one in each}


def best(ids: Sequence[str], scores: NDArray[Any], depth: int) -> list[tuple[str, float]]:
    """The best of one row of scores, ties by id; `ids` in order of id."""
    order = np.argsort(-scores, kind="stable")[:depth]
    return [(ids[at], float(scores[at])) for at in order]


def grid(names: str, *rows: Sequence[Any]) -> Sequence[Params]:
    """Sets of hyperparameters: names with spaces between them, and their values."""
    return [dict(zip(names.split(), row, strict=True)) for row in rows]


class Method:
    """A retrieval method before its fit. One seed is enough where it is not `seeded`; `grid` has
    the hyperparameters to choose from, the default first.
    """

    name: str
    family: Family = "sparse"
    seeded = True
    grid: Sequence[Params] = ({},)

    def trials(self, task: Task) -> Sequence[Params]:  # noqa: ARG002
        """Hyperparameters to choose from, at least one."""
        return self.grid

    def fit(self, task: Task, params: Params) -> Fitted:
        """Learn from the training queries' labels with one of the trials.

        Raises NotRunError where weights, labels or an extra are missing.
        """
        raise NotImplementedError


_PLACES: dict[str, str] = {
    "bm25": "lexical:BM25Search",
    "synonyms": "lexical:Synonyms",
    "doc2query": "lexical:Doc2Query",
    "cogr": "keyword:Cogr",
    "statistical": "keyword:StatisticalKeywords",
    "extractive": "keyword:ExtractiveKeywords",
    "splade": "dense:Splade",
    "embeddings": "dense:Embeddings",
    "dpr": "dense:DPR",
    "ance": "dense:ANCE",
    "dsi": "dsi:DSI",
    "dsi-qg": "dsi:DSIQG",
    "ripor": "ripor:RIPOR",
    "deepretrieval": "policies:DeepRetrieval",
    "quester": "policies:Quester",
    "nearest": "lexical:Nearest",
    "oracle-keywords": "keyword:OracleKeywords",
    "perfect-cutoff": "lexical:PerfectCutoff",
}
"""Name -> file of this package and class in it."""


def _make(name: str) -> Method:
    module, _, kind = _PLACES[name].partition(":")
    method: Method = getattr(importlib.import_module(f"{__name__}.{module}"), kind)()
    method.name = name
    return method


METHODS: dict[str, Callable[[], Method]] = {name: partial(_make, name) for name in _PLACES}
"""Every method by its name on the command line, in the order of the tables."""


def selected_names(names: str, known: Iterable[str], what: str) -> list[str]:
    """Names of a command line in the order of all: "all", or some with commas between them.

    Raises UserError for an unknown name.
    """
    asked, known = [name.strip() for name in names.split(",") if name.strip()], list(known)
    if asked == ["all"]:
        return known
    unknown = next((name for name in asked if name not in known), None)
    if unknown is not None or not asked:
        raise UserError(
            f"There is no {what} {unknown or names!r}; name all, or some of {', '.join(known)}."
        )
    return [name for name in known if name in asked]
