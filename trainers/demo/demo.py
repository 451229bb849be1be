"""The demo, step by step: each row is published and measured, then example queries are searched,
and summary and report are written.

`folder` prepares the folder, `rows` makes the rows, `show` draws them; the command prints. For
OpenSearch without a URL a server is started by `cogr-ops`, as a command, since trainers don't
import ops; it is stopped at the end.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from cogr.errors import INTERRUPTED, DataError, ServiceError, UserError
from cogr.keywords import self_keyword
from cogr.records import Dataset
from cogr.settings import load_settings
from cogr.snapshots import open_snapshot
from cogr.store import Store
from indexers.exchange.search import search
from indexers.telemetry import logs
from indexers.workspace import Workspace
from trainers.demo.folder import Folder, lay_out, stages_write_to, train_sample
from trainers.demo.rows import (
    SPLIT,
    Row,
    bm25_row,
    distilled_row,
    generator_row,
    serving_row,
    step_row,
)
from trainers.demo.show import Ended, Progress, followed, results, stage_under_way
from trainers.report.facts import Changed, changes, examples
from trainers.report.page import check_extra, write_report
from trainers.training.contest import Choice, choose, contenders, known_rivals, rivals
from trainers.training.run_folder import DEFAULT_RUN, Run
from trainers.training.trainer_config import check_settings

GENERATORS = ("extractive", "statistical")
"""The generators without training, in the order of the table."""
SEARCHES = ("metal bookshelf", "armchair small", "wicker workstation", "Sofa rustikal", "实木 书桌")
"""Test queries to show, in the shop's three languages."""
HITS = 3
ROUNDS = 2
Emit = Callable[[Mapping[str, Any], Callable[[Console], None]], None]


@dataclass(frozen=True)
class Written:
    """The files of a demo that has ended, and whether its own OpenSearch was stopped again."""

    config: Path
    summary: Path
    report: Path
    server_stopped: bool


def run_demo(
    backend: Literal["memory", "opensearch"], out: Path, emit: Emit, more: Sequence[str] = ()
) -> Written:
    """The whole demo. What is finished stays in the folder, also after an error.

    Args:
        backend: where the shop is indexed; for opensearch without a URL a server is started and
            stopped again.
        out: folder for configuration, data, snapshots, the training run, summary.json and
            report.html.
        emit: prints the result: gets it as a payload for JSON, and what prints it for people.
        more: `key=value` settings over the sample's own, such as fewer training steps.

    Raises:
        UserError: the folder belongs to something else or can't be written; a package is missing; a
            setting is none.
        CheckFailedError: a training stage has collapsed.
        ServiceError: OpenSearch can't be reached or started.
    """
    folder = lay_out(out, backend, more)
    if backend == "memory":
        demo = Demo(_workspace(folder), folder)
        demo.run(emit)
        return Written(folder.config, demo.summary_file, report_file(folder), server_stopped=False)
    with search_server(folder.settings().opensearch.url) as server:
        demo = Demo(_workspace(folder, server.url), folder)
        demo.run(emit)
    return Written(
        folder.config, demo.summary_file, report_file(folder), server_stopped=server.ours
    )


def _workspace(folder: Folder, url: str | None = None) -> Workspace:
    """The workspace in which rows are published, measured and searched.

    Every accepted round serves for a while, also after an untrained row with better figures, so the
    gate is off until the chosen pair is published.
    """
    return Workspace(load_settings(folder.config, [*folder.overrides(url), "publish.gate=false"]))


class Demo:
    """One run of the demo on an open workspace."""

    def __init__(self, workspace: Workspace, folder: Folder) -> None:
        self.workspace = workspace
        self.folder = folder
        self.summary_file = folder.path / "summary.json"

    def run(self, emit: Emit) -> None:
        """Measure every row, search what serves in the end, write summary.json and report.html,
        print.
        """
        # Check for missing packages now, not after minutes.
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
        emit(payload, lambda out: results(out, ended))

    def _rows(self) -> tuple[list[Row], Choice]:
        run = Run(self.workspace.store, DEFAULT_RUN)
        before = known_rivals(run)
        with Progress() as progress:
            progress.say("bm25")
            progress.add(bm25_row(self.workspace.dataset))
            for name in GENERATORS:
                progress.add(generator_row(self.workspace, name, progress.bar, progress.say))
            with closing(trained_rows(self.workspace, self.folder, progress)) as trained:
                for row in trained:
                    progress.add(row)
            beside = rivals(self.workspace, run, progress.say)
            same = before is not None and before.distilled == beside.distilled
            progress.add(distilled_row(self.workspace, beside, reused=same))
            choice = choose(contenders(run.state(), beside))
            assert choice is not None, "the sample shop has dev queries"
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


def trained_rows(workspace: Workspace, folder: Folder, progress: Progress) -> Generator[Row]:
    """SFT and the rounds, one row after another; what an earlier demo has trained is not trained
    again.

    Raises TrainingError and CheckFailedError as the stages do; their own output is in training.log.
    """
    run = Run(workspace.store, DEFAULT_RUN)
    begun: list[str] = []
    with stages_write_to(folder.path / "training.log"), followed(progress.tick) as follow:

        def say(text: str) -> None:
            begun.append(text)
            stage = stage_under_way(run, workspace.settings.training)
            follow(stage)
            if text.startswith("round "):
                progress.say(stage.name if stage else text)
            elif text.startswith("measuring "):
                progress.say(text)
            else:
                logs.say(text)

        steps = train_sample(folder.config, say, rounds=ROUNDS, overrides=folder.overrides())
        for number, step in enumerate(steps):
            follow(None)
            progress.say(f"{step.name}: publishing")
            yield step_row(workspace, step, run.state().rounds[number], reused=not begun)
            begun.clear()


def example_entities(workspace: Workspace, before: Row, after: Row) -> list[Changed]:
    """Five entities whose keywords differ between two rows."""
    pairs = ((before.items, after.items), (before.queries, after.queries))
    opened = [
        (open_snapshot(workspace.store, a), open_snapshot(workspace.store, b)) for a, b in pairs
    ]
    items, queries = (changes(a, b) for a, b in opened)
    return examples(items, queries)


def report_file(folder: Folder) -> Path:
    """Where the report of the training lies."""
    return folder.path / "report.html"


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


@dataclass(frozen=True)
class Server:
    """The address of OpenSearch. `ours`: it was started for this block and is stopped with it."""

    url: str
    ours: bool


@contextmanager
def search_server(url: str | None) -> Iterator[Server]:
    """An OpenSearch to use inside the block.

    Args:
        url: one that is set already; None to start one (or to use the local one that runs).

    Raises:
        UserError, ServiceError: none can be started; the reason is on standard error already.
    """
    if url is not None:
        yield Server(url, ours=False)
        return
    started = _cogr_ops("start")
    server = Server(started["url"], ours=not started["already_running"])
    try:
        yield server
    finally:
        if server.ours:
            _cogr_ops("stop", "--name", started["name"])


def _cogr_ops(*arguments: str) -> dict[str, str]:
    """Run `cogr-ops opensearch ... --json`; what it says on the way goes to our standard error."""
    command = [sys.executable, "-m", "ops.cli", "opensearch", *arguments, "--json"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode == INTERRUPTED:
        raise KeyboardInterrupt
    if ended.returncode:
        sentence = (
            f"cogr-ops opensearch {arguments[0]} ended with status {ended.returncode}, for the "
            "reason above; "
            "mend that, or set COGR_OPENSEARCH_URL to a server of yours."
        )
        raise (
            ServiceError(sentence)
            if ended.returncode == ServiceError.exit_status
            else UserError(sentence)
        )
    answer: dict[str, str] = json.loads(ended.stdout)
    return answer
