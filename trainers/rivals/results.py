"""The results of a comparison: averages over seeds, significance, advice, and tables for a
terminal, Markdown and LaTeX.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from cogr.errors import UserError
from cogr.metrics import CUTOFFS
from trainers.rivals import Family
from trainers.rivals.measuring import CUTS, MethodRow, favoured, holm, paired_p

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
        rows: the finished rows, one for each seed; or the single row with the reason why there is
            none.
        figures: means over the seeds.
        spread: sample deviation over the seeds; empty for one seed.
        cost: means over the seeds.
        measure: the measure by which it is compared: the metric; for F1, that of its best cut.
        values: of that measure, one a query, the mean over the seeds.
        p: corrected p value of the test against the best method; None for the best method itself,
            and for methods that did not run.
    """

    rows: Sequence[MethodRow]
    figures: Mapping[str, float]
    spread: Mapping[str, float]
    cost: Mapping[str, float]
    measure: str
    values: NDArray[np.float64]
    p: float | None = None

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


@dataclass(frozen=True)
class Results:
    """A comparison on one data set.

    Attributes:
        facts: data set, numbers of queries and items, seeds, budget, command, commit, date, notes.
        metric: what significance and advice go by.
        methods: in the order of the tables.
    """

    facts: Mapping[str, Any]
    metric: str
    methods: Sequence[Summary]

    @property
    def usable(self) -> list[Summary]:
        """The methods that ran and use no test labels, the best on test first."""
        found = [one for one in self.methods if one.done and one.family != "ceiling"]
        return sorted(found, key=lambda one: -one.score)

    @property
    def failed(self) -> list[Summary]:
        return [one for one in self.methods if one.row.state == "failed"]

    def best(self, *, ours: bool) -> Summary | None:
        """The best on test of CoGR's keyword methods, or of the others."""
        return next((one for one in self.usable if (one.family == "keyword") == ours), None)

    def as_dict(self) -> dict[str, Any]:
        """For compare.json and --json."""
        return {
            **self.facts,
            "metric": self.metric,
            "reference": self.usable[0].name if self.usable else None,
            "rows": [_as_dict(one, self.paper) for one in self.methods],
            "advice": advice(self),
        }

    def check(self) -> None:
        """Raise UserError where a method failed: the others' rows are written."""
        if self.failed:
            reasons = "; ".join(f"{one.name}: {one.row.reason}" for one in self.failed)
            raise UserError(
                f"{len(self.failed)} of {len(self.methods)} methods failed, the rows of the others "
                f"are kept: {reasons}"
            )

    @property
    def paper(self) -> Mapping[str, float]:
        """F1 of the paper on this data set."""
        return PAPER.get(str(self.facts["dataset"]), {})


def check_metric(metric: str) -> None:
    """Raise UserError for an unknown metric."""
    if metric not in METRICS:
        raise UserError(f"There is no metric {metric!r}; name one of {', '.join(METRICS)}.")


def put_together(rows: Iterable[MethodRow], metric: str, facts: Mapping[str, Any]) -> Results:
    """Rows of all methods and seeds as results, with the tests of significance.

    Every method is tested against the best one on test, and the p values are corrected together.
    This choice favours the best method a little. By F1 a ranking method is compared with its best
    cut on test, which favours rankings; CoGR's methods have only one set. Nothing else is chosen on
    test queries.
    """
    grouped: dict[str, list[MethodRow]] = {}
    for row in rows:
        grouped.setdefault(row.method, []).append(row)
    methods = [_summary(group, metric) for group in grouped.values()]
    found = Results(facts, metric, methods)
    if not found.usable:
        return found
    best = found.usable[0]
    raw = {
        one.name: paired_p(one.values, best.values)
        for one in methods
        if one.done and one is not best and one.family != "ceiling"
    }
    corrected = holm(raw)
    tested = [replace(one, p=corrected.get(one.name)) for one in methods]
    return Results(facts, metric, tested)


def _summary(rows: Sequence[MethodRow], metric: str) -> Summary:
    if rows[0].state != "done":
        return Summary(rows, {}, {}, {}, metric, np.empty(0))
    means = {name: statistics.fmean(row.figures[name] for row in rows) for name in rows[0].figures}
    spread = {
        name: statistics.stdev(row.figures[name] for row in rows)
        for name in (rows[0].figures if len(rows) > 1 else ())
    }
    cost = {name: statistics.fmean(row.cost[name] for row in rows) for name in rows[0].cost}
    measure = favoured(means, metric)
    values = np.mean([row.per_query[measure] for row in rows], axis=0)
    return Summary(rows, means, spread, cost, measure, values)


def _as_dict(one: Summary, paper: Mapping[str, float]) -> dict[str, Any]:
    row = one.row
    record: dict[str, Any] = {"method": one.name, "family": one.family, "state": row.state}
    if not one.done:
        return {**record, "reason": row.reason}
    return {
        **record,
        "seeds": len(one.rows),
        "figures": _rounded(one.figures),
        "spread": _rounded(one.spread),
        "dev_f1": round(one.dev_f1, 6),
        "compared_by": one.measure,
        "p": one.p,
        "params": dict(row.params),
        "trials": [
            {"params": dict(trial.params), "dev_f1": round(trial.dev_f1, 6)} for trial in row.trials
        ],
        "sets": row.sets,
        **({"reason": row.reason} if row.reason else {}),
        "cutoff": row.cutoff,
        "threshold": row.threshold,
        "dev_cutoff": row.dev_cutoff,
        "dev_threshold": row.dev_threshold,
        "cost": _rounded(one.cost),
        **({"paper_f1": paper[one.name]} if one.name in paper else {}),
    }


def _rounded(values: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 6) for name, value in values.items()}


def from_dict(record: Mapping[str, Any]) -> Results:
    """Results from the output of `as_dict`, without values by query."""
    facts = {k: v for k, v in record.items() if k not in ("metric", "reference", "rows", "advice")}
    return Results(
        facts, record["metric"], [_of_dict(row, record["metric"]) for row in record["rows"]]
    )


def _of_dict(record: Mapping[str, Any], metric: str) -> Summary:
    cuts = ("cutoff", "threshold", "dev_cutoff", "dev_threshold")
    names = ("params", "sets", *cuts, "dev_f1", "figures", "reason")
    more = {name: record[name] for name in names if name in record}
    row = MethodRow(record["method"], record["family"], 0, record["state"], **more)
    figures, spread, cost = (record.get(name, {}) for name in ("figures", "spread", "cost"))
    measure = record.get("compared_by", metric)
    return Summary([row], figures, spread, cost, measure, np.empty(0), record.get("p"))


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
    return f"{other.name} with {other.score:.3f}{_by_cut(other)} ({_told(other)})"


def _by_cut(one: Summary) -> str:
    return f" by the cut that favours it most, {one.cut}" if one.cut else ""


def _told(other: Summary) -> str:
    p = other.p if other.p is not None else 1.0
    said = "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
    return f"{said} after Holm, {'told apart' if p < SIGNIFICANT else 'not told apart'}"


# Tables

_SHOWN = ("p", "r", "f1", "dev_cut_f1", "threshold_f1", "ndcg@10", "perfect_f1")
_MAIN = ("mrr@100", "ndcg@100", "p@100", "r@100", "f1@100", "p", "r", "f1")
_CUTOFFS = tuple(f"{name}@{k}" for k in (10, 1000) for name in ("mrr", "ndcg", "p", "r", "f1"))
_MORE = (
    *(f"{cut}_{name}" for cut in ("dev_cut", "threshold", "dev_threshold") for name in ("p", "r")),
    "perfect_f1",
    "judged_p",
    "judged_r",
    "judged_f1",
    "binary_ndcg@10",
    "binary_ndcg@100",
    "binary_ndcg@1000",
)
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
_WORDS = {
    "f1": "F1",
    "dev_cut_f1": "F1, cut on dev",
    "threshold_f1": "F1 by score",
    "dev_threshold_f1": "F1 by score on dev",
    "perfect_f1": "F1, each best cut",
    "dev_cut_p": "P, cut on dev",
    "dev_cut_r": "R, cut on dev",
    "threshold_p": "P by score",
    "threshold_r": "R by score",
    "dev_threshold_p": "P by score on dev",
    "dev_threshold_r": "R by score on dev",
}


def column(name: str) -> str:
    """A measure as a heading."""
    if name in _WORDS:
        return _WORDS[name]
    plain, at, k = name.partition("@")
    for word in ("judged_", "binary_"):
        if plain.startswith(word):
            return f"{word[:-1]} {column(plain.removeprefix(word) + at + k)}"
    return {"ndcg": "nDCG", "mrr": "MRR"}.get(plain, plain.upper()) + at + k


def cell(one: Summary, name: str) -> str:
    """A figure with four digits, and its spread over the seeds where there are several."""
    if name not in one.figures:
        return ""
    spread = f" ±{one.spread[name]:.4f}" if name == "f1" and one.spread else ""
    return f"{one.figures[name]:.4f}{spread}"


def cost_columns() -> list[str]:
    """Headings of `cost_cells`."""
    return [heading for heading, _ in _COSTS.values()]


def cost_cells(one: Summary) -> list[str]:
    """The costs of `_COSTS`, in order. A method that prepares nothing has equal times for known and
    new queries; unmeasured ones are empty.
    """
    prepares = "known_p50_ms" in one.cost
    found = []
    for name, (_, form) in _COSTS.items():
        value: Any = one.cost.get(name if prepares else name.removeprefix("known_"))
        if value is None:
            found.append("")
            continue
        if name == "model_at_serving":
            value = ("new queries" if prepares else "yes") if value else "no"
        found.append(form.format(value / 1e6 if name == "peak_bytes" else value))
    return found


def p_cell(one: Summary) -> str:
    """The corrected p value."""
    if one.p is None:
        return ""
    return "< 0.001" if one.p < 0.001 else f"{one.p:.3f}"


def show(out: Console, results: Results) -> None:
    """For a terminal: one line a method, then what did not run, then the advice."""
    facts = results.facts
    title = f"{facts['dataset']}: {facts['test_queries']} test queries, {facts['items']:,} items"
    table = Table(title=title, title_justify="left")
    table.add_column("", no_wrap=True)
    for name in (*map(column, _SHOWN), "p (Holm)", "p50, ms", "new query", "model"):
        table.add_column(name)
    family = None
    for one in _ordered(results):
        if family not in (None, one.family):
            table.add_section()
        family = one.family
        _, _, _, p50, _, new, _, model, _ = cost_cells(one)
        cells = [cell(one, name) for name in _SHOWN]
        table.add_row(one.name, *cells, p_cell(one), p50, new, model.removesuffix(" queries"))
    out.print(table)
    for one in results.methods:
        if one.row.reason:
            out.print(f"{one.name}: {_reason(one)}")
    for note in facts["notes"]:
        out.print(note)
    out.print(advice(results))


def _reason(one: Summary) -> str:
    reason = one.row.reason
    return f"failed: {reason}" if one.row.state == "failed" else reason


def _ordered(results: Results) -> list[Summary]:
    """Family by family, as the paper has them."""
    place = {family: at for at, family in enumerate(get_args(Family))}
    return sorted((one for one in results.methods if one.done), key=lambda one: place[one.family])


def markdown(results: Results, level: int = 1) -> str:
    """A table with every column, and notes on the method of the comparison.

    Args:
        level: of the first heading.
    """
    facts, done = results.facts, _ordered(results)
    lines = [f"{'#' * level} {facts['dataset']}", ""]
    lines += [f"{advice(results)}", "", _made(facts), ""]
    more = [name for name in _MORE if any(name in one.figures for one in done)]
    if results.paper:
        more = [*more, "paper's F1"]
    main = (*_MAIN, *[name for name in CUTS if name != "f1"])
    for columns in (main, _CUTOFFS, more):
        heads = ["method", "family", *map(_heading, columns)]
        heads += ["p (Holm)"] if columns is main else []
        lines += _md_row(heads), "|---|---|" + "---:|" * (len(heads) - 2)
        for one in done:
            cells = [one.name, one.family, *(_md_cell(results, one, name) for name in columns)]
            lines.append(_md_row([*cells, *([p_cell(one)] if columns is main else [])]))
        lines.append("")
    heads = ["method", *cost_columns(), "sets", "chosen on dev"]
    lines += [_md_row(heads), "|---|" + "---:|" * len(_COSTS) + "---|---|"]
    for one in done:
        params = ", ".join(f"{name} {value}" for name, value in one.row.params.items())
        lines.append(_md_row([one.name, *cost_cells(one), one.row.sets, params]))
    lines += [""]
    if gone := [one for one in results.methods if one.row.reason]:
        lines += [f"- {one.name}: {_reason(one)}" for one in gone] + [""]
    return "\n".join(lines)


def _made(facts: Mapping[str, Any]) -> str:
    notes = " ".join(facts["notes"])
    if models := facts.get("models"):
        notes += f" Models: {', '.join(f'{name} from {of}' for name, of in models.items())}."
    return (
        f"{facts['train_queries']} training, {facts['dev_queries']} dev and "
        f"{facts['test_queries']} test queries, {facts['items']:,} items; seeds: {facts['seeds']}; "
        f"{facts['trials']} trials and {facts['seconds']:g} s a method. {notes} "
        f"`{facts['command']}`, commit {facts['commit'] or 'unknown'}, {facts['date']}."
    )


def _heading(name: str) -> str:
    return name if name.startswith("paper") else column(name)


def _md_cell(results: Results, one: Summary, name: str) -> str:
    if name.startswith("paper"):
        return f"{results.paper[one.name]:.4f}" if one.name in results.paper else ""
    text = cell(one, name)
    return f"**{text}**" if one.cut and name == one.measure else text


def _md_row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(text.replace("|", "\\|") for text in cells) + " |"


_FAMILIES: Mapping[Family, str] = {
    "sparse": "Sparse",
    "dense": "Dense",
    "generative": r"\shortstack[c]{Generative\\Retrieval}",
    "keyword": "Keywords",
    "floor": "Floor",
    "ceiling": "Ceiling",
}


def latex(results: Results) -> str:
    """The layout of the paper's table: booktabs and multirow; the best of each column in bold,
    ceilings apart.
    """
    done = _ordered(results)
    best = {name: max((one.figures[name] for one in results.usable), default=0.0) for name in _MAIN}
    heads = " & ".join(
        column(name).replace("F1", "$F_1$").replace("nDCG", "NDCG") for name in _MAIN
    )
    lines = [
        r"\begin{tabular}{lclccccc@{\hspace{2em}}ccc}",
        r"\toprule",
        rf"Dataset & Type & Method & {heads} \\",
        r"\midrule",
    ]
    first = rf"\multirow{{{len(done)}}}{{*}}{{{_tex(str(results.facts['dataset']))}}}"
    before: Family | None = None
    for one in done:
        size = sum(other.family == one.family for other in done)
        kind = ""
        if one.family != before:
            lines += [r" \cmidrule(l){2-11}"] if before else []
            kind = rf"\multirow{{{size}}}{{*}}{{{_FAMILIES[one.family]}}}"
        cells = " & ".join(_tex_cell(one, name, best[name]) for name in _MAIN)
        lines.append(rf"{first} & {kind} & {_tex(one.name)} & {cells} \\")
        first, before = "", one.family
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _tex_cell(one: Summary, name: str, best: float) -> str:
    value = f"{one.figures[name]:.4f}"
    top = one.family != "ceiling" and one.figures[name] >= best
    return rf"\textbf{{{value}}}" if top else value


def _tex(text: str) -> str:
    return "".join(f"\\{sign}" if sign in "&%$#_{}" else sign for sign in text)
