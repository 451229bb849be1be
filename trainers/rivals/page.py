"""The comparison as one HTML file: quality against cost, precision and recall, wins and losses
query by query with examples, and where CoGR loses and why.

It looks like the report of a training run, needs no network and has no script. The template escapes
all texts of items and queries.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np

from cogr import __version__
from cogr.errors import MissingExtraError, page_template
from cogr.records import Dataset, Query
from trainers.report.drawing import COLOURS, Canvas, Figure, clean, spell, style
from trainers.rivals import Family
from trainers.rivals.measuring import CUTS, favoured
from trainers.rivals.results import (
    Results,
    Summary,
    advice,
    cell,
    column,
    cost_cells,
    cost_columns,
    p_cell,
)

_EXAMPLES, _SHOWN_ITEMS = 6, 4
_SHOWN = ("p", "r", *CUTS, "mrr@10", "ndcg@10", "r@100", "perfect_f1", "judged_f1")
_TONES: Mapping[Family, tuple[str, str]] = {
    "sparse": ("grey", "o"),
    "dense": ("orange", "s"),
    "generative": ("purple", "D"),
    "keyword": ("blue", "o"),
    "floor": ("teal", "^"),
    "ceiling": ("strong", "*"),
}


def check_extra() -> None:
    """Raise MissingExtraError without the extra `compare`, before any method runs."""
    try:
        import bm25s  # noqa: F401
        import jinja2  # noqa: F401
        import matplotlib as mpl  # noqa: F401
        import psutil  # noqa: F401
        import scipy  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("cogr-train compare", "compare") from error


@dataclass(frozen=True)
class Example:
    """One query on which two methods differ.

    Attributes:
        one, other: F1 of the two.
        why: what is wrong with the first method's result, in a few words.
        missed: titles of relevant items that it does not retrieve.
        wrong: titles of irrelevant items that it retrieves.
    """

    query: Query
    one: float
    other: float
    why: str
    missed: Sequence[str]
    wrong: Sequence[str]


Sets = Mapping[str, Sequence[str]]
"""Query id -> ids of the retrieved set."""


def render(results: Results, dataset: Dataset, sets: Mapping[str, Sets]) -> str:
    """The page.

    Args:
        sets: method -> the retrieved sets of the test queries, of its first seed.
    """
    from markupsafe import Markup

    look = Markup((files("trainers.report") / "page.css").read_text("utf-8"))
    done = [one for one in results.methods if one.done]
    ours, rival = results.best(ours=True), results.best(ours=False)
    duel = None
    if ours is not None and rival is not None:
        duel = _duel(dataset, (ours, sets[ours.name]), rival)
    with style():
        figures = [cost_figure(done), precision_recall_figure(done)]
        if ours is not None and rival is not None:
            figures.append(wins_figure(ours, rival))
    filled: str = page_template("trainers.rivals", clean).render(
        style=look,
        facts=results.facts,
        metric=column(results.metric),
        advice=advice(results),
        figures=figures,
        columns=[column(name) for name in _SHOWN],
        rows=[(one, [cell(one, name) for name in _SHOWN], p_cell(one)) for one in done],
        cost_columns=cost_columns(),
        costs=[(one, cost_cells(one)) for one in done],
        gone=[one for one in results.methods if one.row.reason],
        best=results.usable[0].name if results.usable else "",
        duel=duel,
        version=__version__,
    )
    return filled


# Figures


def cost_figure(done: Sequence[Summary]) -> Figure:
    """F1 against the time of a search."""
    canvas = Canvas("milliseconds a search (p50)", "F1")
    canvas.axes.set_xscale("log")
    canvas.axes.grid(axis="x")
    cuts = [favoured(one.figures, "f1") for one in done]
    taken = [one.cost.get("known_p50_ms") or one.cost["p50_ms"] for one in done]
    points = [
        (max(ms, 1e-3), one.figures[cut]) for one, ms, cut in zip(done, taken, cuts, strict=True)
    ]
    _scatter(canvas, done, points, "ms")
    canvas.from_zero(0.3)
    note = (
        "Single searches on this machine, one after another, of queries that are known: what a "
        "model writes for them is at hand. F1 by the cut that favours a method most."
    )
    return canvas.done("cost", "Quality against cost", note)


def precision_recall_figure(done: Sequence[Summary]) -> Figure:
    """Precision and recall of the retrieved sets."""
    canvas = Canvas("recall", "precision")
    cuts = [favoured(one.figures, "f1").removesuffix("f1") for one in done]
    points = [
        (one.figures[f"{cut}r"], one.figures[f"{cut}p"])
        for one, cut in zip(done, cuts, strict=True)
    ]
    canvas.equal_f1(points)
    _scatter(canvas, done, points, "recall")
    note = (
        "Of the whole retrieved sets, by the cut that favours a method most. Thin lines join "
        "points of equal F1."
    )
    return canvas.done("precision-recall", "Precision and recall", note)


def wins_figure(ours: Summary, rival: Summary) -> Figure:
    """The differences of all queries, sorted."""
    differences = np.sort(ours.values - rival.values)[::-1]
    canvas = Canvas("test query", f"{ours.name} − {rival.name}")
    at = np.arange(1, differences.size + 1)
    for name, tone, kept in (
        (f"{ours.name} wins", "blue", differences > 0),
        (f"{rival.name} wins", "orange", differences < 0),
    ):
        drawn = canvas.axes.fill_between(
            at, np.where(kept, differences, 0), step="mid", color=COLOURS[tone], label=name
        )
        canvas.tip(drawn, name, f"{int(kept.sum())} of {differences.size} queries")
    canvas.axes.axhline(0, color=COLOURS["strong"], lw=1)
    note = f"{int((differences == 0).sum())} queries are equal."
    return canvas.done("wins", "Wins and losses, query by query", note)


def _scatter(
    canvas: Canvas, done: Sequence[Summary], points: Sequence[tuple[float, float]], unit: str
) -> None:
    for one, (x, y) in zip(done, points, strict=True):
        tone, mark = _TONES[one.family]
        (drawn,) = canvas.axes.plot(x, y, ls="", marker=mark, ms=8, color=COLOURS[tone])
        canvas.tip(drawn, one.name, f"{spell(x)} {unit}", spell(y))
    canvas.label(points, [one.name for one in done])


# Query by query


def _duel(dataset: Dataset, ours: tuple[Summary, Sets], rival: Summary) -> dict[str, Any]:
    """Queries on which CoGR's best method wins and loses against the best rival, with examples and
    reasons.
    """
    queries = dataset.require("test")
    titles = {item.id: item.title or item.text for item in dataset.items}
    differences = ours[0].values - rival.values
    order = np.argsort(differences, kind="stable")
    losses = [int(at) for at in order if differences[at] < 0]
    wins = [int(at) for at in order[::-1] if differences[at] > 0]

    def example(at: int) -> Example:
        query = queries[at]
        wanted = dataset.relevant[query.id]
        found = ours[1].get(query.id, ())
        return Example(
            query,
            float(ours[0].values[at]),
            float(rival.values[at]),
            _why(found, wanted),
            _titles(titles, sorted(wanted.difference(found))),
            _titles(titles, [id_ for id_ in found if id_ not in wanted]),
        )

    lost = [queries[at].id for at in losses]
    reasons = Counter(_why(ours[1].get(id_, ()), dataset.relevant[id_]) for id_ in lost)
    return {
        "ours": ours[0].name,
        "rival": rival.name,
        "cut": rival.cut,
        "wins": len(wins),
        "losses": len(losses),
        "equal": len(queries) - len(wins) - len(losses),
        "reasons": reasons.most_common(),
        "won": [example(at) for at in wins[:_EXAMPLES]],
        "lost": [example(at) for at in losses[:_EXAMPLES]],
    }


def _titles(titles: Mapping[str, str], ids: Sequence[str]) -> list[str]:
    shown = [titles[id_] for id_ in ids[:_SHOWN_ITEMS]]
    more = len(ids) - len(shown)
    return [*shown, *([f"and {more:,} more"] if more > 0 else [])]


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
