"""The demo, step by step: each row through the real path, then what serves is searched, and summary
and report are written.

Where it works is `folder`, how a row comes about is `rows` and `training`, what is printed is
`show`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

from cogr.errors import DataError
from cogr.keywords import self_keyword
from cogr.records import Dataset
from cogr.settings import load_settings
from cogr.store import Store
from indexers.cli import console
from indexers.exchange.search import search
from indexers.workspace import Workspace
from trainers.demo.folder import Folder, lay_out
from trainers.demo.rows import SPLIT, Row, bm25_row, generator_row, serving_row
from trainers.demo.server import search_server
from trainers.demo.show import Ended, Progress, next_steps, results
from trainers.demo.training import best_pair, example_entities, report_file, trained_rows
from trainers.report.page import check_extra, write_report
from trainers.training.checks import check_settings
from trainers.training.contest import Choice
from trainers.training.runs import DEFAULT_RUN, Run

GENERATORS = ("extractive", "statistical")
"""Those that train no model, in the order of the table."""
SEARCHES = ("metal bookshelf", "armchair small", "wicker workstation", "Sofa rustikal", "实木 书桌")
"""Test queries to show, in the shop's three languages."""
HITS = 3


def run(
    backend: Literal["memory", "opensearch"], out: Path, json_mode: bool, more: Sequence[str] = ()
) -> None:
    """The whole demo. Raises UserError and ServiceError; what was generated and trained stays in
    the folder.
    """
    folder = lay_out(out, backend, more)
    if backend == "memory":
        demo = Demo(_workspace(folder), folder)
        demo.run(json_mode)
        next_steps(folder.config, demo.summary_file, report_file(folder), server_stopped=False)
        return
    with search_server(folder.settings().opensearch.url) as server:
        demo = Demo(_workspace(folder, server.url), folder)
        demo.run(json_mode)
    next_steps(folder.config, demo.summary_file, report_file(folder), server_stopped=server.ours)


def _workspace(folder: Folder, url: str | None = None) -> Workspace:
    """Where rows are published, measured and searched.

    Every round that is built upon is to serve for a while, also after an untrained row with better
    figures: so the gate is off here, until the best pair takes over. Between rounds, in the run, it
        is as the settings say.
    """
    return Workspace(
        load_settings(folder.config, [*folder.overrides(url), "training.gate.on=false"])
    )


class Demo:
    """One run of the demo on an open workspace."""

    def __init__(self, workspace: Workspace, folder: Folder) -> None:
        self.workspace = workspace
        self.folder = folder
        self.summary_file = folder.path / "summary.json"

    def run(self, json_mode: bool) -> None:
        """Measure every row, search what serves in the end, write summary.json and report.html,
        print.
        """
        # What is missing is better known now than after minutes.
        check_extra()
        check_settings(self.workspace)
        self.workspace.backend.serving()
        rows, choice = self._rows()
        answers = [search(self.workspace, text, size=HITS) for text in SEARCHES]
        texts = next(row for row in rows if row.name == "extractive")
        changed = example_entities(self.workspace, texts, rows[-1])
        write_report(
            self.workspace, Run(self.workspace.store, DEFAULT_RUN), report_file(self.folder)
        )
        summary = self._write_summary(rows, choice)
        payload = {
            **summary,
            "summary": self.summary_file,
            "report": report_file(self.folder),
            "examples": [one.as_dict() for one in changed],
            "searches": [answer.as_dict() for answer in answers],
        }
        relevant = [relevant_items(self.workspace.dataset, answer.query) for answer in answers]
        titles = frozenset(self_keyword(item.title) for item in self.workspace.dataset.items)
        ended = Ended(rows, choice, changed, list(zip(answers, relevant, strict=True)), titles)
        console.emit(json_mode, payload, lambda out: results(out, ended))

    def _rows(self) -> tuple[list[Row], Choice]:
        with Progress() as progress:
            progress.say("bm25")
            progress.add(bm25_row(self.workspace.dataset))
            for name in GENERATORS:
                progress.add(generator_row(self.workspace, name, progress.bar, progress.say))
            with closing(trained_rows(self.workspace, self.folder, progress)) as trained:
                for row in trained:
                    progress.add(row)
            choice = best_pair(self.workspace, progress)
            progress.add(serving_row(self.workspace, choice.chosen))
            return progress.rows, choice

    def _write_summary(self, rows: Sequence[Row], choice: Choice) -> dict[str, Any]:
        summary = {
            "backend": self.workspace.backend.name,
            "split": SPLIT,
            "queries": len(self.workspace.dataset.require(SPLIT)),
            "rows": [row.as_dict() for row in rows],
            "serving": choice.chosen.name,
            "why": choice.reason(),
        }
        Store(self.summary_file.parent).write_json(self.summary_file.name, summary)
        return summary


def relevant_items(dataset: Dataset, text: str) -> frozenset[str]:
    """Ids of the items that are relevant to a test query, by its text.

    Raises DataError when it is none.
    """
    for query in dataset.require(SPLIT):
        if query.text == text:
            return dataset.relevant[query.id]
    raise DataError(
        f"The sample shop has no {SPLIT} query {text!r}; write the catalogue again (docs/demo.md)."
    )
