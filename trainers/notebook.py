"""The results of `cogr.Project`'s methods: small typed objects that a notebook shows as a table and
that convert to pandas.

`as_dict` is the output of the corresponding command with `--json`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from cogr.records import Side
from indexers.inspection import Report
from indexers.tables import Table

if TYPE_CHECKING:
    from pandas import DataFrame

    from indexers.rebuild.run import Outcome
    from indexers.release import Released as Switched
    from indexers.search import Answered
    from trainers.evaluation import Evaluation
    from trainers.report.figures import Figure
    from trainers.rivals.results import Results
    from trainers.training.driver import Driver, RunStatus
    from trainers.training.rounds import Round

MEASURES = ("p", "r", "f1", "mrr@10", "ndcg@10", "p@10", "r@100")
"""The figures of a pair that are shown, in this order."""
_SHOWN = 20
_UNSHOWN = ("name", "dataset_hash", "advice")


@dataclass(frozen=True, repr=False)
class Result:
    """What a method returns: it shows as a table, and converts to pandas."""

    @property
    def table(self) -> Table:
        """Title, rows and notes."""
        raise NotImplementedError

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The rows of the table, each column -> value."""
        return self.table.rows

    def as_dict(self) -> dict[str, Any]:
        """The output of the command with `--json`."""
        found: dict[str, Any] = getattr(self, fields(self)[0].name).as_dict()
        return found

    def to_pandas(self) -> DataFrame:
        """The table as a frame. Raises MissingExtraError without pandas."""
        return self.table.to_pandas()

    def __repr__(self) -> str:
        return repr(self.table)

    def _repr_html_(self) -> str:
        """For notebooks. Texts of items are escaped."""
        return self.table._repr_html_()


@dataclass(frozen=True, repr=False)
class Inspected(Result):
    """The contents of the data set, its faults, and whether it suits CoGR."""

    report: Report

    @property
    def table(self) -> Table:
        found, shown = self.report, self.as_dict()
        counts = {name: shown[name] for name in shown if name not in _UNSHOWN}
        return Table.of(f"{found.name}: {found.items:,} items", counts, found.advice)

    @property
    def suits(self) -> bool:
        """Whether the data suits CoGR."""
        return self.report.verdict == "train"


@dataclass(frozen=True, repr=False)
class Rebuilt(Result):
    """A rebuild of one side: its snapshot, and whether it serves."""

    outcome: Outcome

    @property
    def snapshot(self) -> str:
        """The new snapshot's id."""
        return self.outcome.rebuilt.snapshot.id

    @property
    def table(self) -> Table:
        """A row for each of the snapshot's first twenty entities, with its keywords."""
        state = "serves" if self.outcome.published else "does not serve"
        rows = [
            {"id": row.id, "text": row.text, "keywords": ", ".join(row.keywords)}
            for row, _ in zip(self.outcome.rebuilt.snapshot.rows(), range(_SHOWN), strict=False)
        ]
        note = (
            "{items:,} entities, {keywords:,} keywords, {failures:,} set aside, {seconds:.1f} s; "
            "{why}."
        )
        return Table(f"{self.snapshot}, which {state}", rows, [note.format_map(self.as_dict())])


@dataclass(frozen=True, repr=False)
class Evaluated(Result):
    """Figures of a pair on one split, of its keywords alone and of what serves, and of baselines if
    asked for.
    """

    evaluation: Evaluation
    serves: Mapping[str, Any]
    baselines: Sequence[Mapping[str, Any]] = ()

    @property
    def table(self) -> Table:
        found = self.evaluation
        beside = [self.serves, *self.baselines]
        every = [{"name": "keywords", **self.evaluation.as_dict()}, *beside]
        sets = "".join(f"; {row['name']}: of {row['sets']}" for row in beside)
        gains = "the labels' grades" if found.graded else "1 for relevant items"
        return Table(
            f"{found.split}: {found.queries:,} queries, {found.backend}",
            [{name: row[name] for name in ("name", *MEASURES)} for row in every],
            [
                f"p, r and f1 are of the whole retrieved set{sets}.",
                f"The others are of the whole ranking, also BM25's; gains in nDCG are {gains}.",
                f"{found.item} has {found.keywords_per_item:.1f} keywords an item, {found.query} "
                f"has {found.keywords_per_query:.1f} a query.",
            ],
        )

    @property
    def f1(self) -> float:
        """F1 of the whole retrieved set, mean over the queries."""
        return float(self.evaluation.figures["f1"])

    def as_dict(self) -> dict[str, Any]:
        beside = {"baselines": list(self.baselines)} if self.baselines else {}
        return {**self.evaluation.as_dict(), "serves": dict(self.serves), **beside}


@dataclass(frozen=True, repr=False)
class Searched(Result):
    """One search: the query's keywords, the best items, and which keyword matched each."""

    answer: Answered

    @property
    def table(self) -> Table:
        found = self.answer
        rows = [
            {
                "score": float(hit.score),
                "id": hit.id,
                "title": hit.text,
                "matched": ", ".join(hit.matched) + (" and its words" if hit.words else ""),
            }
            for hit in found.hits
        ]
        sure = "" if found.confidence is None else f"; confidence {found.confidence:.2f}"
        note = f"Keywords: {', '.join(found.keywords)}{sure}."
        more = f", {found.more:,} more by text" if found.more else ""
        return Table(f"{found.query}: {found.total:,} items{more}", rows, [note])

    @property
    def ids(self) -> list[str]:
        """The items' ids, best first."""
        return [hit.id for hit in self.answer.hits]


@dataclass(frozen=True, repr=False)
class Trained(Result):
    """A training run: its rounds, the pair chosen on dev, the pair that serves."""

    driver: Driver
    last: Round
    status: RunStatus

    @property
    def table(self) -> Table:
        from trainers.training.contest import rounds_table

        found = rounds_table(self.driver.run, self.status.choice, self.status.serves)
        serves = f"Serves now: {self.status.serves or 'nothing'}."
        return replace(found, notes=[*found.notes, serves])

    @property
    def snapshots(self) -> Mapping[Side, str]:
        """The pair that is best on dev, else that of the last round; arguments for
        `Project.release`.
        """
        choice = self.status.choice
        best = self.last if choice is None else choice.chosen
        return {"item": best.items, "query": best.queries}

    def as_dict(self) -> dict[str, Any]:
        run = self.driver.run
        return {"run": run.name, "rounds": run.rows()} | self.status.as_dict()

    def pictures(self) -> Mapping[str, Figure]:
        """The figures of the run's report by name: f1, reward-query and so on.

        Raises MissingExtraError without the extra `report`.
        """
        from trainers.report import Facts, drawn

        made = drawn(Facts(self.driver.workspace, self.driver.run))
        return {one.name: one for section in made.values() for one in section}


@dataclass(frozen=True, repr=False)
class Compared(Result):
    """Methods side by side, and which one to use."""

    results: Results

    @property
    def table(self) -> Table:
        """A row for each method that ran, with what did not run below."""
        from trainers.rivals.results import shown

        return shown(self.results)

    def check(self) -> None:
        """Raise UserError where a method failed."""
        self.results.check()


@dataclass(frozen=True, repr=False)
class Released(Result):
    """The snapshots that serve now and those that served before."""

    switched: Switched

    @property
    def table(self) -> Table:
        before = self.switched.before
        rows = [
            {"side": side, "serves": id_ or "", "before": before.get(side) or ""}
            for side, id_ in self.switched.serving.items()
        ]
        return Table("Serving now", rows)
