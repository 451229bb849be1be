"""The rows of the demo's table. Each is a way to search the shop, published as in production and
measured on the test queries.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from cogr.metrics import rows_of_queries, search_all
from cogr.records import Advance, Dataset, Say, Side, Split
from cogr.snapshots import open_snapshot
from indexers.rebuild.run import RebuildRequest, rebuild_side
from indexers.release import release
from indexers.workspace import Workspace
from trainers import evaluation
from trainers.evaluation import checked_new, figures, fit_in, of_statistical
from trainers.training.contest import Contender, of_round, publish_pair
from trainers.training.rounds import Round

SPLIT: Split = "test"
_NEW_SHARE = 0.2
_FIGURES = {"p": "p", "r": "r", "f1": "f1", "ndcg": "ndcg@10", "mrr": "mrr@10"}


@dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
        p, r, f1: of the whole retrieved set (BM25: of the best k items), macro-averaged over the
            test queries.
        ndcg, mrr: nDCG@10 (by the labels' grades) and MRR@10 of the whole ranking.
        seconds: duration from the item texts to the figures.
        keywords_per_item: mean size of S_i; None where there are no keywords.
        cached: share of the entities whose keywords an earlier demo had already generated; 1 for
            rounds that it had trained.
        rejected: why a round was rejected; "" for accepted rounds and other rows.
        items, queries: the pair's snapshots; "" where there are no keywords.
    """

    name: str
    p: float
    r: float
    f1: float
    ndcg: float
    mrr: float
    seconds: float
    keywords_per_item: float | None = None
    cached: float = 0.0
    rejected: str = ""
    items: str = ""
    queries: str = ""

    @classmethod
    def of(cls, name: str, figures: Mapping[str, Any], seconds: float, **more: Any) -> Row:
        """A row with the figures of an evaluation."""
        own: dict[str, Any] = {ours: float(figures[of]) for ours, of in _FIGURES.items()}
        return cls(name, **own, seconds=seconds, **more)

    def as_dict(self) -> dict[str, Any]:
        """For summary.json."""
        digits = {"seconds": 3, "keywords_per_item": 2, "cached": 3}
        return {
            name: round(value, digits.get(name, 4)) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


def bm25_row(dataset: Dataset) -> Row:
    """Plain BM25 over titles and texts, cut at the number of items that serves the training queries
    best.
    """
    found = evaluation.bm25_row(dataset, SPLIT)
    return Row.of("bm25", found, found["seconds"])


def generator_row(workspace: Workspace, name: str, say: Say) -> Row:
    """Rebuild both sides by a generator, publish the pair, and measure it as it serves."""
    started, made = time.monotonic(), []
    sides: tuple[Side, ...] = ("item", "query")
    for side in sides:
        say(f"{name}: {'items' if side == 'item' else 'queries'}")
        # The two sides are published together below.
        request = RebuildRequest(side, generator=name, publish=False)
        made.append(rebuild_side(workspace, request, _no_bar, lambda _: None).rebuilt)
    items, queries = made
    release(workspace, [items.snapshot.id, queries.snapshot.id], say=say)
    entities = items.snapshot.manifest.entities + queries.snapshot.manifest.entities
    cached = 1 - (items.generated + queries.generated) / entities
    return _measured(workspace, name, items.snapshot.id, queries.snapshot.id, started, cached)


def _no_bar(_what: str, _total: int) -> AbstractContextManager[Advance]:
    return nullcontext(lambda _: None)


def step_row(workspace: Workspace, done: Round, *, reused: bool) -> Row:
    """Publish and measure the pair of an accepted round. A rejected one has the figures of its own
    stage. `reused`: an earlier demo had trained it.
    """
    pair, seconds = of_round(done), sum(stage.seconds for stage in done.stages)
    if done.verdict == "accepted":
        began = time.monotonic() - seconds
        return pair_row(workspace, pair.name, pair, began, cached=float(reused))
    figures = pair.figures[SPLIT]
    return Row.of(
        pair.name,
        figures,
        seconds,
        keywords_per_item=figures["keywords_per_item"],
        cached=float(reused),
        rejected=done.reason,
        items=pair.items,
        queries=pair.queries,
    )


def pair_row(
    workspace: Workspace, name: str, pair: Contender, began: float, cached: float = 0.0
) -> Row:
    """Publish a pair, and measure it as it serves; `began` is of `time.monotonic()`."""
    publish_pair(workspace, pair, lambda _: None)
    items, queries = workspace.serving("item").id, workspace.serving("query").id
    return _measured(workspace, name, items, queries, began, cached)


def found_of_new(workspace: Workspace, extractive: Row) -> dict[str, float]:
    """The share of their relevant new items that test queries find, by each method without a
    language model.

    A fifth of the shop arrives after the fit, without labels. Nothing is fitted again, and no
    query is rewritten.

    Args:
        extractive: its row. Keywords taken from texts need no labels, and neither does BM25.
    """
    dataset, asked = workspace.dataset, workspace.dataset.require(SPLIT)
    new = checked_new(dataset, _NEW_SHARE)
    queries = rows_of_queries(asked, open_snapshot(workspace.store, extractive.queries))

    def search(keywords: Mapping[str, float]) -> list[str]:
        found = workspace.backend.retrieved(keywords, snapshot=extractive.items)
        return [hit.id for hit in found.hits]

    retrieved = {
        "bm25": evaluation.bm25(dataset, SPLIT).runs,
        "extractive": search_all(search, queries),
    }
    found = {
        name: figures(name, asked, dataset.relevant, new, {q: frozenset(sets[q]) for q in sets})
        for name, sets in retrieved.items()
    }
    found["statistical"] = next(of_statistical(dataset, new, SPLIT, fit_in(workspace)))
    recalls = {name: one.means["r_new"] for name, one in found.items()}
    return {name: round(recall[0], 4) for name, recall in recalls.items() if recall}


def _measured(
    workspace: Workspace, name: str, items: str, queries: str, began: float, cached: float
) -> Row:
    item, query = (open_snapshot(workspace.store, id_) for id_ in (items, queries))
    weights = workspace.settings.keywords.weights
    found = evaluation.evaluate(
        workspace.backend, workspace.dataset, item, query, SPLIT, weights=weights
    ).as_dict()
    own = {"keywords_per_item": found["keywords_per_item"], "items": items, "queries": queries}
    return Row.of(name, found, time.monotonic() - began, cached=cached, **own)
