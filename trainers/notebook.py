"""The results of `cogr.Project`'s methods: small typed objects that a notebook shows as a table and
that convert to pandas; some draw a picture.

`as_dict` is the output of the corresponding command with `--json`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from cogr.datasets.inspection import Report
from cogr.errors import MissingExtraError, visible
from cogr.records import Side

if TYPE_CHECKING:
    from pandas import DataFrame

    from indexers.exchange.search import Answered
    from indexers.rebuild.run import Outcome
    from indexers.release import Released as Switched
    from trainers.evaluation import Evaluation
    from trainers.report.drawing import Canvas, Figure
    from trainers.rivals.results import Results
    from trainers.training.driver import Driver, RunStatus
    from trainers.training.rounds import Round

MEASURES = ("p", "r", "f1", "mrr@10", "ndcg@10", "p@10", "r@100")
"""The figures of a pair that are shown, in this order."""


class Result(ABC):
    """A table with a title, for people and for pandas."""

    @property
    @abstractmethod
    def title(self) -> str:
        """The title, one line."""

    @property
    @abstractmethod
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """The rows of the table, each column -> value."""

    @property
    def notes(self) -> Sequence[str]:
        """Sentences below the table."""
        return ()

    def to_pandas(self) -> DataFrame:
        """The table as a frame. Raises MissingExtraError without pandas."""
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise MissingExtraError("A table for pandas", "notebook") from error
        return DataFrame(list(self.rows))

    def __repr__(self) -> str:
        lines = [", ".join(f"{name} {_spell(row[name])}" for name in row) for row in self.rows]
        return "\n".join([self.title, *lines, *self.notes])

    def _repr_html_(self) -> str:
        """For notebooks. Texts of items are escaped."""
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        head = "".join(f"<th>{_html(name)}</th>" for name in names)
        body = "".join(
            f"<tr>{''.join(f'<td>{_html(row.get(name))}</td>' for name in names)}</tr>"
            for row in self.rows
        )
        below = "".join(f"<p>{_html(note)}</p>" for note in self.notes)
        return (
            f"<table><caption>{_html(self.title)}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{below}"
        )


@dataclass(frozen=True, repr=False)
class Inspected(Result):
    """The contents of the data set, its faults, and whether it suits CoGR."""

    report: Report

    @property
    def title(self) -> str:
        return f"{self.report.name}: {self.report.items:,} items"

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        found = self.report
        counts = {
            "items": found.items,
            **{f"{split} queries": count for split, count in found.queries.items()},
            **{
                f"relevant items a {split} query": spread.mean
                for split, spread in found.relevant_per_query.items()
            },
            "judgements": found.judgements,
            "judgements of unknown items or queries": found.pointing_nowhere,
            "items without a text": found.textless_items,
            "items that no query has as relevant": found.never_relevant,
            **found.notes,
        }
        return [{"what": name, "value": value} for name, value in counts.items()]

    @property
    def notes(self) -> Sequence[str]:
        return self.report.advice

    @property
    def suits(self) -> bool:
        """Whether the data suits CoGR."""
        return self.report.verdict == "train"

    def as_dict(self) -> dict[str, Any]:
        """As `cogr-index inspect --json`."""
        return self.report.as_dict()


@dataclass(frozen=True, repr=False)
class Rebuilt(Result):
    """A rebuild of one side: its snapshot, and whether it serves."""

    outcome: Outcome

    @property
    def snapshot(self) -> str:
        """The new snapshot's id."""
        return self.outcome.rebuilt.snapshot.id

    @property
    def title(self) -> str:
        state = "serves" if self.outcome.published else "does not serve"
        return f"{self.snapshot}, which {state}"

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """A row for each of the snapshot's first twenty entities, with its keywords."""
        found = self.outcome.rebuilt.snapshot.rows()
        return [
            {"id": row.id, "text": row.text, "keywords": ", ".join(row.keywords)}
            for row, _ in zip(found, range(_SHOWN), strict=False)
        ]

    @property
    def notes(self) -> Sequence[str]:
        found = self.as_dict()
        return [
            f"{found['items']:,} entities, {found['keywords']:,} keywords, "
            f"{found['failures']:,} set aside, {found['seconds']:.1f} s; {found['why']}."
        ]

    def as_dict(self) -> dict[str, Any]:
        """As `cogr-index rebuild --json`."""
        return self.outcome.as_dict()


@dataclass(frozen=True, repr=False)
class Evaluated(Result):
    """Figures of a pair on one split, and of baselines if asked for."""

    evaluation: Evaluation
    baselines: Sequence[Mapping[str, Any]] = ()

    @property
    def title(self) -> str:
        found = self.evaluation
        return f"{found.split}: {found.queries:,} queries, {found.item} with {found.query}"

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        every = [{"name": "keywords", **self.evaluation.as_dict()}, *self.baselines]
        return [{"name": row["name"], **{name: row[name] for name in MEASURES}} for row in every]

    @property
    def notes(self) -> Sequence[str]:
        return ["p, r and f1 are of the whole retrieved set, the others of the ranking."]

    @property
    def f1(self) -> float:
        """F1 of the whole retrieved set, mean over the queries."""
        return float(self.evaluation.figures["f1"])

    def as_dict(self) -> dict[str, Any]:
        """As `cogr-train evaluate --json`."""
        beside = {"baselines": list(self.baselines)} if self.baselines else {}
        return self.evaluation.as_dict() | beside

    def picture(self) -> Figure:
        """Precision, recall and F1 of the pair and its baselines. Raises MissingExtraError without
        matplotlib.
        """
        canvas, styled = _canvas("", "mean over the queries")
        with styled:
            kinds = [
                (row["name"], tone, [row[name] for name in MEASURES[:3]])
                for row, tone in zip(self.rows, _TONES, strict=False)
            ]
            canvas.bars(["precision", "recall", "F1"], kinds)
            return canvas.done(f"{self.evaluation.split}-figures", self.title)


@dataclass(frozen=True, repr=False)
class Searched(Result):
    """One search: the query's keywords, the best items, and which keyword matched each."""

    answer: Answered

    @property
    def title(self) -> str:
        return f"{self.answer.query}: {self.answer.total:,} items"

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        return [
            {
                "score": float(hit.score),
                "id": hit.id,
                "title": hit.text,
                "matched": ", ".join(hit.matched) + (" and its words" if hit.words else ""),
            }
            for hit in self.answer.hits
        ]

    @property
    def notes(self) -> Sequence[str]:
        sure = self.answer.confidence
        asked = f"Keywords: {', '.join(self.answer.keywords)}"
        known = "" if sure is None else f"; confidence {sure:.2f}"
        return [f"{asked}{known}; answered by {self.answer.mode}."]

    @property
    def ids(self) -> list[str]:
        """The items' ids, best first."""
        return [hit.id for hit in self.answer.hits]

    def as_dict(self) -> dict[str, Any]:
        """As `cogr-index search --json`."""
        return self.answer.as_dict()


@dataclass(frozen=True, repr=False)
class Trained(Result):
    """A training run: its rounds, the pair chosen on dev, the pair that serves."""

    driver: Driver
    last: Round
    status: RunStatus

    @property
    def title(self) -> str:
        return f"run {self.driver.run.name}; serves: {self.status.serves or 'nothing'}"

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """A round and split a row."""
        return [
            {
                "round": row["round"],
                "split": split,
                **{name: figures[name] for name in ("p", "r", "f1")},
                "verdict": row["verdict"],
                "seconds": row["seconds"],
            }
            for row in self.driver.run.rows()
            for split, figures in (row["figures"] or {}).items()
        ]

    @property
    def notes(self) -> Sequence[str]:
        choice = self.status.choice
        return [f"Best on dev: {choice.chosen.name}, {choice.reason()}."] if choice else []

    @property
    def snapshots(self) -> Mapping[Side, str]:
        """The pair that is best on dev, else that of the last round; arguments for
        `Project.release`.
        """
        choice = self.status.choice
        best = self.last if choice is None else choice.chosen
        return {"item": best.items, "query": best.queries}

    def as_dict(self) -> dict[str, Any]:
        """As `cogr-train run --json`."""
        run = self.driver.run
        return {"run": run.name, "rounds": run.rows()} | self.status.as_dict()

    def pictures(self) -> Mapping[str, Figure]:
        """The figures of the run's report by name: f1, precision-recall, reward-query and so on.

        Raises MissingExtraError without the extra `report`.
        """
        from trainers.report.facts import Facts
        from trainers.report.figures import draw
        from trainers.report.page import check_extra

        check_extra()
        drawn = draw(Facts(self.driver.workspace, self.driver.run)).values()
        return {one.name: one for section in drawn for one in section}


@dataclass(frozen=True, repr=False)
class Compared(Result):
    """Methods side by side, and which one to use."""

    results: Results

    @property
    def title(self) -> str:
        facts = self.results.facts
        return f"{facts['dataset']}: {facts['test_queries']:,} test queries"

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        """A row for each method; one that did not run has a reason instead of figures."""
        return [
            {
                "method": one.name,
                "family": one.family,
                **one.figures,
                "dev F1": one.dev_f1 if one.done else None,
                "p": one.p,
                "reason": one.row.reason,
            }
            for one in self.results.methods
        ]

    @property
    def notes(self) -> Sequence[str]:
        return [self.as_dict()["advice"]]

    def check(self) -> None:
        """Raise UserError where a method failed."""
        self.results.check()

    def as_dict(self) -> dict[str, Any]:
        """As `cogr-train compare --json`."""
        return self.results.as_dict()

    def picture(self) -> Figure:
        """F1 of every method that ran. Raises MissingExtraError without matplotlib."""
        canvas, styled = _canvas("", "F1 on test queries")
        ran = [one for one in self.results.methods if one.done]
        with styled:
            canvas.bars([one.name for one in ran], [("F1", "blue", [o.figures["f1"] for o in ran])])
            drawn: Figure = canvas.done("compared", self.title)
            return drawn


@dataclass(frozen=True, repr=False)
class Released(Result):
    """The snapshots that serve now and those that served before."""

    switched: Switched

    @property
    def title(self) -> str:
        return "Serving now"

    @property
    def rows(self) -> Sequence[Mapping[str, Any]]:
        before = self.switched.before
        return [
            {"side": side, "serves": id_ or "", "before": before.get(side) or ""}
            for side, id_ in self.switched.serving.items()
        ]

    def as_dict(self) -> dict[str, Any]:
        """As `cogr-index publish --json`."""
        return self.switched.as_dict()


_SHOWN = 20
_TONES = ("blue", "orange", "grey", "teal", "purple", "green")


def _canvas(x: str, y: str) -> tuple[Canvas, AbstractContextManager[None]]:
    """A canvas of the report, and the style to draw on it in."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("A picture", "notebook") from error
    from trainers.report.drawing import Canvas, style

    with style():
        return Canvas(x, y), style()


def _spell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else visible(str(value))


def _html(value: Any) -> str:
    return "" if value is None else escape(_spell(value))
