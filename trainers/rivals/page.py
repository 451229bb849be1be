"""The comparison as one HTML file: quality against cost, precision and recall, wins and losses
query by query with examples, and where CoGR loses and why.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cogr.records import Dataset
from indexers.tables import need, page
from trainers.report.drawing import COLOURS, Canvas, Figure, style
from trainers.rivals import Family, Sets
from trainers.rivals.measuring import CUTS, favoured
from trainers.rivals.results import Results, Summary, advice, column, costs, quality

_EXAMPLES, _SHOWN_ITEMS = 6, 4
_SHOWN = ("p", "r", *CUTS, "mrr@10", "ndcg@10", "r@100", "perfect_f1", "judged_f1")
_TONES: Mapping[Family, tuple[str, str]] = {
    "sparse": ("grey", "o"),
    "dense": ("orange", "s"),
    "generative": ("purple", "D"),
    "keyword": ("blue", "o"),
    "floor": ("teal", "^"),
    "ceiling": ("red", "*"),
}


def check_extra() -> None:
    """Raise MissingExtraError without the extra `compare`, before any method runs."""
    need("cogr-train compare", "compare", ("bm25s", "jinja2", "matplotlib", "pandas", "scipy"))


def render(results: Results, dataset: Dataset, sets: Mapping[str, Sets]) -> str:
    """The page; `sets` are of each method's first seed."""
    done = results.done
    ours, rival = results.best(ours=True), results.best(ours=False)
    with style():
        figures = [cost_figure(done), precision_recall_figure(done)]
        duel = None
        if ours is not None and rival is not None:
            figures.append(wins_figure(ours, rival))
            duel = _duel(dataset, ours, sets[ours.name], rival)
    return page(
        "trainers.rivals",
        facts=results.facts,
        metric=column(results.metric),
        advice=advice(results),
        figures=figures,
        quality=quality(results, _SHOWN),
        costs=costs(results),
        reasons=results.reasons,
        duel=duel,
    )


def cost_figure(done: Sequence[Summary]) -> Figure:
    """F1 against the time of a search."""
    canvas = Canvas("milliseconds a search (p50)", "F1")
    canvas.axes.set_xscale("log")
    for one in done:
        taken = one.cost.get("known_p50_ms") or one.cost["p50_ms"]
        _dot(canvas, one, max(taken, 1e-3), one.figures[favoured(one.figures, "f1")])
    canvas.axes.set_ylim(0)
    note = (
        "Single searches on this machine, one after another, of queries that are known: what a "
        "model writes for them is at hand. F1 by the cut that favours a method most."
    )
    return canvas.done("cost", "Quality against cost", note)


def precision_recall_figure(done: Sequence[Summary]) -> Figure:
    """Precision and recall of the retrieved sets."""
    canvas, points = Canvas("recall", "precision"), []
    for one in done:
        cut = favoured(one.figures, "f1").removesuffix("f1")
        points.append((one.figures[f"{cut}r"], one.figures[f"{cut}p"]))
        _dot(canvas, one, *points[-1])
    canvas.equal_f1(points)
    note = (
        "Of the whole retrieved sets, by the cut that favours a method most. Thin lines join "
        "points of equal F1."
    )
    return canvas.done("precision-recall", "Precision and recall", note)


def wins_figure(ours: Summary, rival: Summary) -> Figure:
    """The differences of all queries, sorted."""
    differences = np.sort(ours.values - rival.values)[::-1]
    canvas, at = Canvas("test query", f"{ours.name} − {rival.name}"), np.arange(differences.size)
    for name, tone, kept in (
        (ours.name, "blue", differences > 0),
        (rival.name, "orange", differences < 0),
    ):
        label = f"{name} wins: {int(kept.sum())} of {differences.size}"
        shown = np.where(kept, differences, 0)
        canvas.axes.fill_between(at, shown, step="mid", color=COLOURS[tone], label=label)
    note = f"{int((differences == 0).sum())} queries are equal."
    return canvas.done("wins", "Wins and losses, query by query", note)


def _dot(canvas: Canvas, one: Summary, x: float, y: float) -> None:
    tone, mark = _TONES[one.family]
    canvas.axes.plot(x, y, ls="", marker=mark, ms=7, color=COLOURS[tone])
    canvas.axes.annotate(one.name, (x, y), (6, 4), textcoords="offset points", fontsize=8)


# Query by query


def _duel(dataset: Dataset, ours: Summary, sets: Sets, rival: Summary) -> dict[str, Any]:
    """Queries on which CoGR's best method wins and loses against the best rival, with examples and
    reasons.
    """
    queries = dataset.require("test")
    titles = {item.id: item.title or item.text for item in dataset.items}
    differences = ours.values - rival.values
    order = np.argsort(differences, kind="stable").tolist()
    losses = [at for at in order if differences[at] < 0]
    wins = [at for at in order[::-1] if differences[at] > 0]

    def example(at: int) -> dict[str, Any]:
        query, wanted = queries[at], dataset.relevant[queries[at].id]
        found = sets.get(query.id, ())
        return {
            "text": query.text,
            "one": float(ours.values[at]),
            "other": float(rival.values[at]),
            "why": _why(found, wanted),
            "missing": _titles(titles, sorted(wanted.difference(found))),
            "wrong": _titles(titles, [id_ for id_ in found if id_ not in wanted]),
        }

    lost = [queries[at].id for at in losses]
    reasons = Counter(_why(sets.get(id_, ()), dataset.relevant[id_]) for id_ in lost)
    return {
        "ours": ours.name,
        "rival": rival.name,
        "cut": rival.cut,
        "counts": (len(wins), len(losses), len(queries) - len(wins) - len(losses)),
        "reasons": reasons.most_common(),
        "won": [example(at) for at in wins[:_EXAMPLES]],
        "lost": [example(at) for at in losses[:_EXAMPLES]],
    }


def _titles(titles: Mapping[str, str], ids: Sequence[str]) -> list[str]:
    more = [f"and {len(ids) - _SHOWN_ITEMS:,} more"] if len(ids) > _SHOWN_ITEMS else []
    return [titles[id_] for id_ in ids[:_SHOWN_ITEMS]] + more


def _why(found: Sequence[str], wanted: frozenset[str]) -> str:
    """What is wrong with a retrieved set, in a few words."""
    hits = len(wanted.intersection(found))
    if not found:
        return "no keyword matches an item"
    if not hits:
        return "its keywords lead to other items"
    precision, recall = hits / len(found), hits / len(wanted)
    if math.isclose(precision, recall, rel_tol=0.2):
        return "some are wrong and some are missing"
    return "too many items" if precision < recall else "too few items"
