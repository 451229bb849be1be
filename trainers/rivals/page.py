"""The comparison as one HTML file: quality against cost, precision and recall, and the queries on
which CoGR loses, with reasons.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cogr.records import Dataset
from indexers.tables import Table, need, page
from trainers.report.drawing import COLOURS, Canvas, Figure, style
from trainers.rivals import Family, Sets
from trainers.rivals.measuring import CUTS, favoured
from trainers.rivals.results import Results, Summary, advice, column, costs, made, quality

_LOSSES, _SHOWN_ITEMS = 12, 4
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
    ours, rival = results.best(ours=True), results.best(ours=False)
    duel = losses(dataset, ours, sets[ours.name], rival) if ours and rival else None
    return page(
        "trainers.rivals",
        facts=results.facts,
        made=made(results.facts),
        metric=column(results.metric),
        advice=advice(results),
        figures=_figures(results.done),
        quality=quality(results, _SHOWN),
        costs=costs(results),
        reasons=results.reasons,
        losses=duel,
    )


def _figures(done: Sequence[Summary]) -> list[Figure]:
    """F1 against the time of a search, and precision and recall of the retrieved sets."""
    with style():
        cost, plane = Canvas("milliseconds a search (p50)", "F1"), Canvas("recall", "precision")
        cost.axes.set_xscale("log")
        points = []
        for one in done:
            cut = favoured(one.figures, "f1").removesuffix("f1")
            p, r, f1 = (one.figures[f"{cut}{name}"] for name in ("p", "r", "f1"))
            points.append((r, p))
            taken = one.cost.get("known_p50_ms") or one.cost["p50_ms"]
            tone, mark = _TONES[one.family]
            for canvas, place in ((cost, (max(taken, 1e-3), f1)), (plane, (r, p))):
                canvas.axes.plot(*place, ls="", marker=mark, ms=7, color=COLOURS[tone])
                canvas.axes.annotate(
                    one.name, place, (6, 4), textcoords="offset points", fontsize=8
                )
        cost.axes.set_ylim(0)
        plane.equal_f1(points)
        known = "Single searches, one after another, of queries that are known."
        lines = "Of the whole retrieved sets. Thin lines join points of equal F1."
        by = " By the cut that favours a method most."
        return [
            cost.done("cost", "Quality against cost", known + by),
            plane.done("precision-recall", "Precision and recall", lines + by),
        ]


def losses(dataset: Dataset, ours: Summary, sets: Sets, rival: Summary) -> Table:
    """The queries on which CoGR's best method loses most against the best rival, with reasons."""
    queries = dataset.require("test")
    titles = {item.id: item.title or item.text for item in dataset.items}
    differences = (ours.values - rival.values).tolist()
    worst = sorted(range(len(queries)), key=differences.__getitem__)[:_LOSSES]
    rows = []
    for query, at in ((queries[at], at) for at in worst if differences[at] < 0):
        wanted, found = dataset.relevant[query.id], sets.get(query.id, ())
        rows.append(
            {
                "query": query.text,
                ours.name: float(ours.values[at]),
                rival.name: float(rival.values[at]),
                "why": _why(found, wanted),
                "missing": _titles(titles, sorted(wanted.difference(found))),
                "wrong": _titles(titles, [id_ for id_ in found if id_ not in wanted]),
            }
        )
    won, lost = (sum(sign * one > 0 for one in differences) for sign in (1, -1))
    counts = f"{won} queries won, {lost} lost, {len(queries) - won - lost} equal."
    return Table(f"Where {ours.name} loses most against {rival.name}, and why", rows, [counts])


def _titles(titles: Mapping[str, str], ids: Sequence[str]) -> str:
    more = f", and {len(ids) - _SHOWN_ITEMS:,} more" if len(ids) > _SHOWN_ITEMS else ""
    return ", ".join(titles[id_] for id_ in ids[:_SHOWN_ITEMS]) + more


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
