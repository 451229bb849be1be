"""All labelled queries with how the pairs do, to be searched and sorted: where to look first.

By the keywords of the pair's query snapshot, or the query alone where it holds none; no model is
asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pyroaring import BitMap

from cogr.keywords import normalise, query_keywords
from cogr.metrics import full_set
from cogr.records import Query
from indexers.backends.opensearch.search import MAX_CLAUSES
from ops.playground.world import Catalogue, Opened, World

if TYPE_CHECKING:
    from ops.playground.app import QueriesRequest

F1 = tuple[float, ...]


class Listing:
    """Figures of every labelled query, computed once for a pair. Threads may share it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._figures = lru_cache(8)(self._compute)

    def answer(self, ask: QueriesRequest) -> dict[str, Any]:
        """The queries that match, sorted, and how many there are.

        Raises DataError or SettingsError without a data set.
        """
        catalogue = self._world.catalogue
        queries = catalogue.all_labelled()
        figures = [self._figures(one.item, one.query) for one in ask.pairs]
        wanted = normalise(ask.match)
        places = [at for at, query in enumerate(queries) if wanted in normalise(query.text)]
        places.sort(key=_key(ask, figures, queries))
        rows = [_row(at, queries[at], figures, catalogue) for at in places[: ask.size]]
        # Of queries that nothing was learned from, where there are any.
        test = [at for at, query in enumerate(queries) if catalogue.split_of(query) == "test"]
        over = test or range(len(queries))
        means = [sum(one[at] for at in over) / len(over) if over else None for one in figures]
        return {
            "queries": rows,
            "total": len(places),
            "mean": means,
            "split": "test" if test else None,
        }

    def _compute(self, item: str, query: str | None) -> F1:
        catalogue, items = self._world.catalogue, self._world.opened(item)
        stored = self._world.opened(query) if query else None
        queries = catalogue.all_labelled()
        found = {one.id: _found(one.text, items, stored) for one in queries}
        relevant = {one.id: items.numbers_of(catalogue.dataset.relevant[one.id]) for one in queries}
        return tuple(full_set(found, relevant).values["f1"].tolist())


def _found(text: str, items: Opened, stored: Opened | None) -> BitMap:
    """The retrieved set, dense ids."""
    own = stored.keywords_of(text) if stored else None
    return items.mirror.retrieved(query_keywords(text, own or ())[:MAX_CLAUSES])


def _key(
    ask: QueriesRequest, figures: Sequence[F1], queries: Sequence[Query]
) -> Callable[[int], tuple[Any, ...]]:
    of = figures[min(ask.shown, len(figures) - 1)]
    beside = figures[1 - ask.shown] if len(figures) > 1 else of
    ways: dict[str, Callable[[int], float]] = {
        "worst": lambda at: of[at],
        "best": lambda at: -of[at],
        "change": lambda at: -abs(of[at] - beside[at]),
        "text": lambda _: 0.0,
    }
    return lambda at: (ways[ask.sort](at), normalise(queries[at].text), at)


def _row(at: int, query: Query, figures: Sequence[F1], catalogue: Catalogue) -> dict[str, Any]:
    relevant = len(catalogue.dataset.relevant[query.id])
    figures_of_it = [of[at] for of in figures]
    return {
        "text": query.text,
        "split": catalogue.split_of(query),
        "relevant": relevant,
        "f1": figures_of_it,
    }
