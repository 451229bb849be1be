"""The rows of the demo's table. Each is a way to search the shop, published as in production and
measured on the test queries.

`show` prints a row; `folder` has the shop.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cogr.records import Dataset, ProgressBar, Say, Side, Split
from cogr.snapshots import Snapshot, open_snapshot
from indexers.rebuild.assembly import Rebuilt
from indexers.rebuild.run import RebuildRequest, rebuild_side
from indexers.release import release
from indexers.workspace import Workspace
from trainers import evaluation as comparison
from trainers.demo.folder import Step
from trainers.evaluation import Evaluation, evaluate
from trainers.training.contest import Contender, Rivals, publish_pair, publish_round
from trainers.training.rounds import Round

SPLIT: Split = "test"


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

    def as_dict(self) -> dict[str, Any]:
        """For summary.json."""
        digits = {"seconds": 3, "keywords_per_item": 2, "cached": 3}
        return {
            name: round(value, digits.get(name, 4)) if isinstance(value, float) else value
            for name, value in asdict(self).items()
        }


def _measured(workspace: Workspace, items: Snapshot, queries: Snapshot) -> Evaluation:
    weights = workspace.settings.keywords.weights
    return evaluate(workspace.backend, workspace.dataset, items, queries, SPLIT, weights=weights)


def _quality(figures: Mapping[str, Any]) -> tuple[float, float, float, float, float]:
    p, r, f1, ndcg, mrr = (float(figures[key]) for key in ("p", "r", "f1", "ndcg@10", "mrr@10"))
    return p, r, f1, ndcg, mrr


def bm25_row(dataset: Dataset) -> Row:
    """Plain BM25 over titles and texts, cut at the number of items that serves the training queries
    best.
    """
    found = comparison.bm25_row(dataset, SPLIT)
    return Row("bm25", *_quality(found), found["seconds"])


def generator_row(workspace: Workspace, name: str, bar: ProgressBar, say: Say) -> Row:
    """Rebuild both sides by a generator, publish the pair, and measure it as it serves."""
    started = time.monotonic()
    sides: tuple[Side, ...] = ("item", "query")
    items, queries = (_rebuild(workspace, name, side, bar, say) for side in sides)
    release(workspace, [items.snapshot.id, queries.snapshot.id], say=say)
    say(f"{name}: measuring")
    found = _measured(workspace, items.snapshot, queries.snapshot)
    entities = items.snapshot.manifest.entities + queries.snapshot.manifest.entities
    return Row(
        name,
        *_quality(found.figures),
        time.monotonic() - started,
        found.keywords_per_item,
        1 - (items.generated + queries.generated) / entities,
        items=items.snapshot.id,
        queries=queries.snapshot.id,
    )


def step_row(workspace: Workspace, step: Step, done: Round, *, reused: bool) -> Row:
    """Publish and measure the pair of an accepted round. A rejected round has the figures of its
    own stage.

    Args:
        step: the round's figures and snapshots.
        done: its record in the run.
        reused: an earlier demo had trained it.
    """
    started = time.monotonic()
    figures, accepted = step.figures, done.verdict == "accepted"
    if accepted:
        publish_round(workspace, done, lambda _: None)
        items, queries = (open_snapshot(workspace.store, id_) for id_ in (step.items, step.queries))
        figures = _measured(workspace, items, queries).as_dict()
    return Row(
        step.name,
        *_quality(figures),
        step.seconds + time.monotonic() - started,
        figures["keywords_per_item"],
        cached=float(reused),
        rejected="" if accepted else done.reason,
        items=step.items,
        queries=step.queries,
    )


def distilled_row(workspace: Workspace, beside: Rivals, *, reused: bool) -> Row:
    """Publish the pair of `statistical` that has the rounds as evidence, and measure it.

    Args:
        beside: has it.
        reused: an earlier demo had made it.
    """
    started, pair = time.monotonic(), beside.distilled
    assert pair is not None, "the sample shop has dev queries, and rounds are finished"
    publish_pair(workspace, pair, lambda _: None)
    items, queries = (open_snapshot(workspace.store, id_) for id_ in (pair.items, pair.queries))
    found = _measured(workspace, items, queries)
    return Row(
        pair.name,
        *_quality(found.figures),
        beside.distilled_seconds + time.monotonic() - started,
        found.keywords_per_item,
        cached=float(reused),
        items=pair.items,
        queries=pair.queries,
    )


def serving_row(workspace: Workspace, chosen: Contender) -> Row:
    """The last row: publish the pair that is best on the dev queries, and measure it as
    it serves.
    """
    started = time.monotonic()
    publish_pair(workspace, chosen, lambda _: None)
    items, queries = (workspace.serving(side) for side in ("item", "query"))
    figures = _measured(workspace, items, queries).figures
    seconds = time.monotonic() - started
    keywords = items.manifest.keywords / max(1, items.manifest.entities)
    name = f"serves: {chosen.name}"
    return Row(name, *_quality(figures), seconds, keywords, items=items.id, queries=queries.id)


def _rebuild(workspace: Workspace, name: str, side: Side, bar: ProgressBar, say: Say) -> Rebuilt:
    say(f"{name}: {'items' if side == 'item' else 'queries'}")
    # The two sides are published together below.
    return rebuild_side(
        workspace, RebuildRequest(side, generator=name, publish=False), bar, lambda _: None
    ).rebuilt
