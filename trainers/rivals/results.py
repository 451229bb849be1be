"""The results of a comparison: averages over seeds, significance, advice, and tables for a
terminal, Markdown, LaTeX and the page.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from cogr.errors import UserError
from cogr.metrics import CUTOFFS
from indexers.tables import Table
from trainers.rivals import Family
from trainers.rivals.measuring import CUTS, favoured, holm, paired_p
from trainers.rivals.rows import MethodRow

SIGNIFICANT = 0.05
METRICS = ("p", "r", "f1", *(f"{name}@{k}" for k in CUTOFFS for name in ("mrr", "ndcg", "r", "f1")))
"""The metrics for comparing methods; each has one value for a query."""
PAPER: Mapping[str, Mapping[str, float]] = {
    "wands": {
        "bm25": 0.4418,
        "splade": 0.4903,
        "embeddings": 0.2634,
        "dpr": 0.4520,
        "ance": 0.4554,
        "dsi": 0.2890,
        "dsi-qg": 0.4023,
        "ripor": 0.3595,
        "deepretrieval": 0.4431,
        "cogr-frozen": 0.4662,
        "cogr": 0.6819,
    }
}
"""F1 in the paper's table 1, by data set. It is shown in a column of its own."""


@dataclass(frozen=True)
class Summary:
    """A method over its seeds.

    Attributes:
        rows: one for each seed; or the single row with the reason why there is none.
        spread: sample deviation over the seeds; empty for one seed.
        measure: the measure by which it is compared: the metric; for F1, that of its best cut.
        values: of that measure, one a query, the mean over the seeds.
        p: corrected p value of the test against the best method; None for the best method itself.
    """

    rows: Sequence[MethodRow]
    figures: Mapping[str, float]
    spread: Mapping[str, float]
    cost: Mapping[str, float]
    measure: str
    values: NDArray[np.float64]
    p: float | None = None

    @classmethod
    def of(cls, rows: Sequence[MethodRow], metric: str) -> Summary:
        """The rows of one method."""
        if rows[0].state != "done":
            return cls(rows, {}, {}, {}, metric, np.empty(0))
        columns = {name: [row.figures[name] for row in rows] for name in rows[0].figures}
        means = {name: statistics.fmean(values) for name, values in columns.items()}
        several = columns.items() if len(rows) > 1 else ()
        spread = {name: statistics.stdev(values) for name, values in several}
        cost = {name: statistics.fmean(row.cost[name] for row in rows) for name in rows[0].cost}
        measure = favoured(means, metric)
        values = np.mean([row.per_query[measure] for row in rows], axis=0)
        return cls(rows, means, spread, cost, measure, values)

    @property
    def row(self) -> MethodRow:
        return self.rows[0]

    @property
    def name(self) -> str:
        return self.row.method

    @property
    def family(self) -> Family:
        return self.row.family

    @property
    def done(self) -> bool:
        return self.row.state == "done"

    @property
    def score(self) -> float:
        """The mean of the measure by which it is compared."""
        return self.figures[self.measure]

    @property
    def cut(self) -> str:
        """The cut by which it is compared, in words; "" for sets of its own."""
        several = sum(name in self.figures for name in CUTS) > 1
        return CUTS[self.measure] if several and self.measure in CUTS else ""

    @property
    def dev_f1(self) -> float:
        return statistics.fmean(row.dev_f1 for row in self.rows)

    @property
    def reason(self) -> str:
        """Why it failed or did not run, or a remark; "" for neither."""
        return f"failed: {self.row.reason}" if self.row.state == "failed" else self.row.reason

    def as_dict(self) -> dict[str, Any]:
        """For compare.json."""
        row = self.row
        record: dict[str, Any] = {"method": self.name, "family": self.family, "state": row.state}
        if not self.done:
            return {**record, "reason": row.reason}
        kept = ("params", "sets", "cutoff", "threshold", "dev_cutoff", "dev_threshold")
        return {
            **record,
            "seeds": len(self.rows),
            "figures": _rounded(self.figures),
            "spread": _rounded(self.spread),
            "dev_f1": round(self.dev_f1, 6),
            "compared_by": self.measure,
            "p": self.p,
            "trials": [{"params": dict(t.params), "dev_f1": t.dev_f1} for t in row.trials],
            **{name: getattr(row, name) for name in kept},
            **({"reason": row.reason} if row.reason else {}),
            "cost": _rounded(self.cost),
        }


@dataclass(frozen=True)
class Results:
    """A comparison on one data set: how it was made (`facts`), the metric that significance and
    advice go by, and the methods in the order of the tables.
    """

    facts: Mapping[str, Any]
    metric: str
    methods: Sequence[Summary]

    @classmethod
    def of(cls, rows: Iterable[MethodRow], metric: str, facts: Mapping[str, Any]) -> Results:
        """Rows of all methods and seeds, with the tests of significance.

        Every method is tested against the best one on test, and the p values are corrected
        together. This choice favours the best method a little. By F1 a ranking method is compared
        with its best cut on test, which favours rankings; CoGR's methods have only one set. Nothing
        else is chosen on test queries.
        """
        grouped: dict[str, list[MethodRow]] = {}
        for row in rows:
            grouped.setdefault(row.method, []).append(row)
        found = cls(facts, metric, [Summary.of(group, metric) for group in grouped.values()])
        usable = found.usable
        p = holm({one.name: paired_p(one.values, usable[0].values) for one in usable[1:]})
        return replace(found, methods=[replace(m, p=p.get(m.name)) for m in found.methods])

    @property
    def usable(self) -> list[Summary]:
        """The methods that ran and use no test labels, the best on test first."""
        found = [one for one in self.methods if one.done and one.family != "ceiling"]
        return sorted(found, key=lambda one: -one.score)

    @property
    def done(self) -> list[Summary]:
        """The methods that ran, family by family, as the paper has them."""
        families = get_args(Family)
        ran = (one for one in self.methods if one.done)
        return sorted(ran, key=lambda one: families.index(one.family))

    @property
    def reasons(self) -> list[str]:
        """A line for each method that did not run, failed, or has a remark."""
        return [f"{one.name}: {one.reason}" for one in self.methods if one.reason]

    def best(self, *, ours: bool) -> Summary | None:
        """The best on test of CoGR's keyword methods, or of the others."""
        return next((one for one in self.usable if (one.family == "keyword") == ours), None)

    def as_dict(self) -> dict[str, Any]:
        """For compare.json and --json."""
        paper = PAPER.get(str(self.facts["dataset"]), {})
        rows = [
            one.as_dict() | ({"paper_f1": paper[one.name]} if one.name in paper else {})
            for one in self.methods
        ]
        best = self.usable[0].name if self.usable else None
        more = {"metric": self.metric, "reference": best, "rows": rows, "advice": advice(self)}
        return {**self.facts, **more}

    def check(self) -> None:
        """Raise UserError where a method failed: the others' rows are written."""
        failed = [one for one in self.methods if one.row.state == "failed"]
        if failed:
            reasons = "; ".join(f"{one.name}: {one.row.reason}" for one in failed)
            raise UserError(
                f"{len(failed)} of {len(self.methods)} methods failed, the rows of the others are "
                f"kept: {reasons}"
            )


def check_metric(metric: str) -> None:
    """Raise UserError for an unknown metric."""
    if metric not in METRICS:
        raise UserError(f"There is no metric {metric!r}; name one of {', '.join(METRICS)}.")


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 6) for name, value in values.items()}


# Advice


def advice(results: Results) -> str:
    """One or two sentences that recommend a method, CoGR or another."""
    if not results.usable:
        return "Nothing was run that could be used."
    best, metric = results.usable[0], results.metric
    text = (
        f"Use {best.name}: {metric} {best.score:.3f} on {results.facts['test_queries']} test "
        f"queries{_by_cut(best)}"
    )
    if len(results.usable) == 1:
        return f"{text}; nothing else was run."
    ours, rival = results.best(ours=True), results.best(ours=False)
    if rival is None or ours is None:
        text += f"; the best other is {_against(results.usable[1])}."
    elif best is ours:
        share = best.score / max(rival.score, 1e-9)
        text += f", {share:.2f} times the best rival, {_against(rival)}."
    else:
        text += f"; CoGR's best here is {_against(ours)}."
    light = [one for one in results.usable[1:] if not one.cost["model_at_serving"]]
    near = [one for one in light if one.p is not None and one.p >= SIGNIFICANT]
    if best.cost["model_at_serving"] and near:
        text += f" {near[0].name} is not told apart from it, and needs no model at serving."
    return text


def _against(other: Summary) -> str:
    p = other.p if other.p is not None else 1.0
    said = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    told = f"{said} after Holm, {'told apart' if p < SIGNIFICANT else 'not told apart'}"
    return f"{other.name} with {other.score:.3f}{_by_cut(other)} ({told})"


def _by_cut(one: Summary) -> str:
    return f" by the cut that favours it most, {one.cut}" if one.cut else ""


# Tables

TERMINAL = ("p", "r", "f1", "dev_cut_f1", "threshold_f1", "ndcg@10", "perfect_f1")
MAIN = ("mrr@100", "ndcg@100", "p@100", "r@100", "f1@100", "p", "r", *CUTS)
_WORDS = {
    "f1": "F1",
    "dev_cut_": "{}, cut on dev",
    "threshold_": "{} by score",
    "dev_threshold_": "{} by score on dev",
    "perfect_": "{}, each best cut",
    "judged_": "judged {}",
    "binary_": "binary {}",
}
_COSTS: Mapping[str, tuple[str, str]] = {
    "train_seconds": ("fit, s", "{:,.1f}"),
    "peak_bytes": ("memory, MB", "{:,.0f}"),
    "index_bytes_per_item": ("bytes an item", "{:,.0f}"),
    "known_p50_ms": ("p50, ms", "{:.2f}"),
    "known_p99_ms": ("p99, ms", "{:.2f}"),
    "p50_ms": ("p50, new query", "{:.2f}"),
    "p99_ms": ("p99, new query", "{:.2f}"),
    "model_at_serving": ("model at serving", "{}"),
    "million_items_price": ("a million items", "{:,.2f}"),
}


def column(name: str) -> str:
    """A measure as a heading."""
    for prefix, words in _WORDS.items():
        if "{}" in words and name.startswith(prefix):
            return words.format(column(name.removeprefix(prefix)))
    plain, at, k = name.partition("@")
    return {"ndcg": "nDCG", "mrr": "MRR"}.get(plain, plain.upper()) + at + k


def quality(results: Results, names: Sequence[str]) -> Table:
    """Figures of every method that ran, with four digits."""
    paper = PAPER.get(str(results.facts["dataset"]), {})
    rows = []
    for one in results.done:
        row = {"method": one.name, "family": one.family}
        row |= {column(name): cell(one, name) for name in names}
        row["p (Holm)"] = "" if one.p is None else "< 0.001" if one.p < 0.001 else f"{one.p:.3f}"
        if paper:
            row["paper's F1"] = f"{paper[one.name]:.4f}" if one.name in paper else ""
        rows.append(row)
    return Table("", rows)


def cell(one: Summary, name: str) -> str:
    """A figure with four digits, and its spread over the seeds where there are several."""
    if name not in one.figures:
        return ""
    spread = f" ±{one.spread[name]:.4f}" if name == "f1" and one.spread else ""
    return f"{one.figures[name]:.4f}{spread}"


def costs(results: Results) -> Table:
    """Time, memory and what serving needs, of every method that ran."""
    rows = []
    for one in results.done:
        params = ", ".join(f"{name} {value}" for name, value in one.row.params.items())
        rows.append(
            {"method": one.name, **cost_cells(one), "sets": one.row.sets, "chosen on dev": params}
        )
    return Table("", rows)


def cost_cells(one: Summary) -> dict[str, str]:
    """Heading -> cost. A method that prepares nothing has equal times for known and new queries;
    unmeasured ones are empty.
    """
    prepares = "known_p50_ms" in one.cost
    found = {}
    for name, (heading, form) in _COSTS.items():
        value: Any = one.cost.get(name if prepares else name.removeprefix("known_"))
        if name == "model_at_serving":
            value = ("new queries" if prepares else "yes") if value else "no"
        elif name == "peak_bytes" and value is not None:
            value /= 1e6
        found[heading] = "" if value is None else form.format(value)
    return found


def show(out: Console, results: Results) -> None:
    """For a terminal: one line a method, then what did not run, then the advice."""
    facts = results.facts
    rows = []
    for one, row in zip(results.done, quality(results, TERMINAL).rows, strict=True):
        cost = cost_cells(one)
        shown = {name: value for name, value in row.items() if name != "family"}
        rows.append({**shown, **{name: cost[name] for name in ("p50, ms", "model at serving")}})
    title = f"{facts['dataset']}: {facts['test_queries']} test queries, {facts['items']:,} items"
    Table(title, rows, [*results.reasons, *facts["notes"], advice(results)]).show(out)


def markdown(results: Results) -> str:
    """Figures and costs, and how they were made."""
    gone = "".join(f"- {line}\n" for line in results.reasons)
    tables = [quality(results, MAIN).markdown(), costs(results).markdown()]
    head = f"# {results.facts['dataset']}"
    return "\n\n".join([head, advice(results), made(results.facts), *tables, gone]).rstrip() + "\n"


def made(facts: Mapping[str, Any]) -> str:
    """How a comparison was made, in two sentences."""
    notes = " ".join(facts["notes"])
    if models := facts.get("models"):
        notes += f" Models: {', '.join(f'{name} from {of}' for name, of in models.items())}."
    return (
        f"{facts['train_queries']} training, {facts['dev_queries']} dev and "
        f"{facts['test_queries']} test queries, {facts['items']:,} items; seeds: {facts['seeds']}; "
        f"{facts['trials']} trials and {facts['seconds']:g} s a method. {notes} "
        f"`{facts['command']}`, commit {facts['commit'] or 'unknown'}, {facts['date']}."
    )


def latex(results: Results) -> str:
    """The layout of the paper's table: booktabs and multirow; the best of each column in bold,
    ceilings apart.
    """
    from pandas import DataFrame, MultiIndex

    names, data = MAIN[:8], str(results.facts["dataset"])
    index = MultiIndex.from_tuples(
        [(data, one.family, one.name) for one in results.done], names=["Dataset", "Type", "Method"]
    )
    figures = [[one.figures[name] for name in names] for one in results.done]
    frame = DataFrame(figures, index, [column(name) for name in names])
    usable = [one.family != "ceiling" for one in results.done]
    styled = frame.style.format(precision=4).format_index(escape="latex")
    styled = styled.highlight_max(subset=(usable, frame.columns), props="textbf:--rwrap;")
    text: str = styled.to_latex(
        hrules=True, clines="skip-last;index", column_format="llc" + "c" * 8
    )
    return text
