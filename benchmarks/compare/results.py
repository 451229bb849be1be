"""The results of a comparison: rows as its folder keeps them, averages over seeds, significance,
advice, and tables for a terminal and Markdown.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from benchmarks.compare import Family, Rankings
from benchmarks.compare.measuring import CUTS, holm, paired_p
from cogr.errors import UserError
from cogr.metrics import MEASURES
from cogr.records import SPLITS, Dataset
from cogr.settings import Settings
from cogr.store import Store
from indexers.tables import Table

SIGNIFICANT = 0.05
_MARK = "comparison.json"
MethodState = Literal["done", "not run", "failed"]


@dataclass(frozen=True)
class MethodRow:
    """The result of a method with one seed.

    Attributes:
        reason: why it failed or did not run; of a finished row a remark, such as random weights.
        params: the hyperparameters that were chosen.
        cuts: measure of `CUTS` -> number of items; empty for sets of the method's own.
        dev_f1: F1 on the dev queries, of a ranking by the cut that is best for them.
        figures: measure -> mean over the test queries.
        per_query: measure of `CUTS` -> one value a test query.
        cost: name -> number.
    """

    method: str
    family: Family
    seed: int
    state: MethodState
    reason: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    cuts: Mapping[str, int] = field(default_factory=dict)
    dev_f1: float = 0.0
    figures: Mapping[str, float] = field(default_factory=dict)
    per_query: Mapping[str, Sequence[float]] = field(default_factory=dict)
    cost: Mapping[str, float] = field(default_factory=dict)


class Kept:
    """The finished rows of one comparison, a file for each method and seed, so that a killed one
    goes on. Rows with another key are not reused; `anew` removes those of an earlier comparison.

    Raises UserError where the folder has other things in it.
    """

    def __init__(self, folder: Store, key: str, *, anew: bool) -> None:
        self.folder, self.key = folder, key
        there = folder.list("")
        if there and _MARK not in there:
            raise UserError(
                f"The folder {folder.url} has other files than a comparison's; name another one "
                "with --out."
            )
        for name in ("rows", "runs", "work") if anew else ():
            folder.remove(name)
        folder.write_json(_MARK, {"key": key})

    def row(self, method: str, seed: int) -> MethodRow | None:
        """A finished row; None where there is none of this key."""
        path = f"rows/{method}.{seed}.json"
        if not self.folder.exists(path):
            return None
        record = self.folder.read_json(path, "remove it, and its method runs again")
        if record.pop("key", None) != self.key or record["state"] != "done":
            return None
        return MethodRow(**record)

    def keep(self, row: MethodRow) -> None:
        """Write a finished row to its file. Raises StorageError."""
        path = f"rows/{row.method}.{row.seed}.json"
        self.folder.write_json(path, {"key": self.key, **asdict(row)})

    def keep_run(self, row: MethodRow, run: Rankings) -> None:
        """Write a run as TREC has it: query, Q0, item, rank, score, name. Raises StorageError."""
        name = f"{row.method}.{row.seed}"
        lines = [
            f"{_word(query)} Q0 {_word(id_)} {rank} {score!r} {name}\n"
            for query, pairs in run.items()
            for rank, (id_, score) in enumerate(pairs, 1)
        ]
        self.folder.write(f"runs/{name}.trec", "".join(lines).encode("utf-8", "replace"))


def key_of(dataset: Dataset, settings: Settings, budget: Sequence[Any]) -> str:
    """A hash of everything that decides a row."""
    parts = {"dataset", "keywords", "prompts", "generator", "training"}
    decisive = settings.model_dump(mode="json", include=parts)
    text = json.dumps([dataset.dataset_hash, decisive, budget], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _word(id_: str) -> str:
    """An id without white space, which divides a run file's columns."""
    return "_".join(id_.split()) or "_"


# Over seeds


@dataclass(frozen=True)
class Summary:
    """A method over its seeds.

    Attributes:
        row: of the first seed, its figures, values and costs the means over the seeds; or the row
            with the reason why there is none.
        seeds: how many rows there are.
        spread: sample deviation over the seeds; empty for one seed.
        p: corrected p value of the test against the best method; None for the best method itself.
    """

    row: MethodRow
    seeds: int = 1
    spread: Mapping[str, float] = field(default_factory=dict)
    p: float | None = None

    @classmethod
    def of(cls, rows: Sequence[MethodRow]) -> Summary:
        """The means over one method's rows, of which there is one a seed."""
        first = rows[0]
        if first.state != "done":
            return cls(first)
        values = {
            name: np.mean([row.per_query[name] for row in rows], axis=0).tolist()
            for name in first.per_query
        }
        mean = replace(
            first,
            dev_f1=statistics.fmean(row.dev_f1 for row in rows),
            figures=_over([row.figures for row in rows], statistics.fmean),
            cost=_over([row.cost for row in rows], statistics.fmean),
            per_query=values,
        )
        spread = _over([row.figures for row in rows], statistics.stdev) if len(rows) > 1 else {}
        return cls(mean, len(rows), spread)

    @property
    def name(self) -> str:
        return self.row.method

    @property
    def done(self) -> bool:
        return self.row.state == "done"

    @property
    def measure(self) -> str:
        """The measure by which it is compared: F1 of its best cut, the first of equals."""
        return max(filter(self.row.figures.__contains__, CUTS), key=self.row.figures.__getitem__)

    @property
    def values(self) -> NDArray[np.float64]:
        """Of that measure, one a query, the mean over the seeds."""
        return np.array(self.row.per_query[self.measure])

    @property
    def score(self) -> float:
        """The mean of the measure by which it is compared."""
        return self.row.figures[self.measure]

    def as_dict(self) -> dict[str, Any]:
        row = self.row
        record: dict[str, Any] = {"method": self.name, "family": row.family, "state": row.state}
        record |= {"reason": row.reason} if row.reason else {}
        if not self.done:
            return record
        named = {"figures": row.figures, "spread": self.spread, "cost": row.cost}
        for name, values in named.items():
            record[name] = {measure: round(value, 6) for measure, value in values.items()}
        record |= {"seeds": self.seeds, "dev_f1": round(row.dev_f1, 6), "p": self.p}
        return {**record, "compared_by": self.measure, "params": row.params, "cuts": row.cuts}


def _over(rows: Sequence[Mapping[str, float]], mean: Any) -> dict[str, float]:
    return {name: mean([row[name] for row in rows]) for name in rows[0]}


@dataclass(frozen=True)
class Results:
    """A comparison on one data set: how it was made (`facts`), and the methods in the order of the
    tables.
    """

    facts: Mapping[str, Any]
    methods: Sequence[Summary]

    @classmethod
    def of(cls, rows: Iterable[MethodRow], facts: Mapping[str, Any]) -> Results:
        """Rows of all methods and seeds, method by method, with the tests of significance.

        Every method is tested against the best one on test, and the p values are corrected
        together. This choice favours the best method a little. A ranking method is compared by its
        best cut on test, which favours rankings; CoGR's methods have only one set. Nothing
        else is chosen on test queries.
        """
        grouped = groupby(rows, key=lambda row: row.method)
        results = cls(facts, [Summary.of([*group]) for _, group in grouped])
        usable = results.usable
        p = holm({one.name: paired_p(one.values, usable[0].values) for one in usable[1:]})
        return replace(results, methods=[replace(m, p=p.get(m.name)) for m in results.methods])

    @property
    def usable(self) -> list[Summary]:
        """The methods that ran and use no test labels, the best on test first."""
        usable = [one for one in self.methods if one.done and one.row.family != "ceiling"]
        return sorted(usable, key=lambda one: -one.score)

    @property
    def done(self) -> list[Summary]:
        return [one for one in self.methods if one.done]

    @property
    def reasons(self) -> list[str]:
        """A line for each method that did not run, failed, or has a remark."""
        rows = [one.row for one in self.methods if one.row.reason]
        return [f"{row.method}: {'failed: ' * (row.state == 'failed')}{row.reason}" for row in rows]

    def as_dict(self) -> dict[str, Any]:
        rows = [one.as_dict() for one in self.methods]
        best = self.usable[0].name if self.usable else None
        more = {"reference": best, "rows": rows, "advice": advice(self)}
        return {**self.facts, **more}

    def check(self) -> None:
        """Raise UserError where a method failed: the others' rows are written."""
        failed = [one.row for one in self.methods if one.row.state == "failed"]
        if failed:
            reasons = "; ".join(f"{row.method}: {row.reason}" for row in failed)
            counted = f"{len(failed)} of {len(self.methods)} methods failed"
            raise UserError(f"{counted}, the rows of the others are kept: {reasons}")


def advice(results: Results) -> str:
    """The best method on test, CoGR or another, and what is as good or lighter."""
    if not results.usable:
        return "Nothing was run that could be used."
    best, *others = results.usable
    text = f"Use {best.name}: F1 {best.score:.3f} on {results.facts['test_queries']} test queries"
    near = [one for one in others if one.p is not None and one.p >= SIGNIFICANT]
    if near:
        text += f"; not told apart from it: {', '.join(one.name for one in near)}"
    light = [one.name for one in near if not one.row.cost["model_at_serving"]]
    if best.row.cost["model_at_serving"] and light:
        text += f"; {light[0]} needs no model at serving"
    return f"{text}."


# Tables

TERMINAL = ("p", "r", *CUTS, "ndcg@10")
MAIN = ("p", "r", "r@100", "mrr@100", "ndcg@100", "p@100", "f1@100", *CUTS)
_AT_100 = {f"{name.lower()}@100": f"{name}@100" for name in ("MRR", "nDCG", "P", "F1")}
_HEADINGS = {name: one.heading for name, one in MEASURES.items()} | _AT_100


def column(name: str) -> str:
    """The heading of a measure's column in a table."""
    return "F1, cut on dev" if name == CUTS[1] else _HEADINGS[name]


def quality(results: Results, names: Sequence[str]) -> Table:
    """Figures of every method that ran, with four digits, and the spread of F1 over the seeds."""
    rows = []
    for one in results.done:
        row, figures = {"method": one.name, "family": one.row.family}, one.row.figures
        for name in names:
            row[column(name)] = f"{figures[name]:.4f}" if name in figures else ""
        if one.spread:
            row["F1"] += f" ±{one.spread['f1']:.4f}"
        row["p (Holm)"] = "" if one.p is None else "< 0.001" if one.p < 0.001 else f"{one.p:.3f}"
        rows.append(row)
    return Table("", rows)


def costs(results: Results) -> Table:
    """Time, size and what serving needs, of every method that ran."""
    rows = []
    for one in results.done:
        cost, k = one.row.cost, one.row.cuts
        rows.append(
            {
                "method": one.name,
                "fit, s": f"{cost['train_seconds']:,.1f}",
                "bytes an item": f"{cost['index_bytes_per_item']:,.0f}",
                "p50, ms": f"{cost['p50_ms']:.2f}",
                "p99, ms": f"{cost['p99_ms']:.2f}",
                "model at serving": "yes" if cost["model_at_serving"] else "no",
                "sets": f"the best {k['f1']} items; by dev {k['dev_cut_f1']}" if k else "its own",
                "chosen on dev": ", ".join(f"{n} {value}" for n, value in one.row.params.items()),
            }
        )
    return Table("", rows)


def shown(results: Results) -> Table:
    """For a terminal: a row for each method, what did not run, the advice."""
    facts = results.facts
    title = f"{facts['dataset']}: {facts['test_queries']} test queries, {facts['items']:,} items"
    rows = [
        {**row, **{name: cost[name] for name in ("p50, ms", "model at serving")}}
        for row, cost in zip(quality(results, TERMINAL).rows, costs(results).rows, strict=True)
    ]
    return Table(title, rows, [*results.reasons, *facts["notes"], advice(results)])


def markdown(results: Results) -> str:
    """Figures and costs, and how they were made."""
    gone = "".join(f"- {line}\n" for line in results.reasons)
    tables = [in_markdown(quality(results, MAIN)), in_markdown(costs(results))]
    head = f"# {results.facts['dataset']}"
    return "\n\n".join([head, advice(results), made(results.facts), *tables, gone]).rstrip() + "\n"


def in_markdown(table: Table) -> str:
    """The table in Markdown, without title and notes; figures to the right."""
    figures = {
        n for row in table.rows for n, value in row.items() if isinstance(value, int | float)
    }
    marks = ["---:" if name in figures else "---" for name in table.columns]
    lines = [table.columns, marks, *table.cells()]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines
    )


def made(facts: Mapping[str, Any]) -> str:
    """How a comparison was made, in two sentences."""
    notes = " ".join(facts["notes"])
    if models := facts.get("models"):
        notes += f" Models: {', '.join(f'{name} from {of}' for name, of in models.items())}."
    queries = ", ".join(f"{facts[f'{split}_queries']} {split}" for split in SPLITS)
    return (
        f"Queries: {queries}; {facts['items']:,} items; seeds: {facts['seeds']}; "
        f"{facts['trials']} trials a method. {notes} cogr {facts['version']}, {facts['date']}."
    )
