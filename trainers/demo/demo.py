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
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from indexers.workspace import Workspace
from trainers.demo.folder import Folder, lay_out, stages_write_to, train_sample
from trainers.demo.rows import (
    SPLIT,
    Row,
    bm25_row,
    distilled_row,
    generator_row,
    pair_row,
    step_row,
)
from trainers.demo.show import Ended, Progress, results, steps_in
from trainers.report.facts import Changed, changes, examples
from trainers.report.page import check_extra, write_report
from trainers.training.contest import Choice, choose, contenders, known_rivals, rivals
from trainers.training.run_folder import DEFAULT_RUN, Run
from trainers.training.stage import calm_threads
from trainers.training.trainer_config import check_settings

GENERATORS = ("extractive", "statistical")
"""The generators without training, in the order of the table."""
SEARCHES = ("metal bookshelf", "armchair small", "wicker workstation", "Sofa rustikal", "实木 书桌")
"""Test queries to show, in the shop's three languages."""
HITS = 3
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
            setting is wrong.
        CheckFailedError: a training stage has collapsed.
        ServiceError: OpenSearch can't be reached or started.
    """
    folder = lay_out(out, backend, more)
    settings = folder.settings()
    calm_threads(settings.training)
    with search_server(backend, settings.opensearch.url) as server:
        # Every accepted round serves for a while, also after an untrained row with better figures,
        # so the gate is off until the chosen pair is published.
        overrides = [*folder.overrides(server.url), "publish.gate=false"]
        demo = Demo(Workspace(load_settings(folder.config, overrides)), folder)
        demo.run(emit)
    return Written(folder.config, demo.summary_file, demo.report_file, server.ours)


class Demo:
    """One run of the demo on an open workspace."""

    def __init__(self, workspace: Workspace, folder: Folder) -> None:
        self.workspace = workspace
        self.folder = folder
        self.training = Run(workspace.store, DEFAULT_RUN)
        self.summary_file = folder.path / "summary.json"
        self.report_file = folder.path / "report.html"

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
        write_report(self.workspace, self.training, self.report_file)
        dataset = self.workspace.dataset
        summary = {
            "backend": self.workspace.backend.name,
            "split": SPLIT,
            "queries": len(dataset.require(SPLIT)),
            "rows": [row.as_dict() for row in rows],
            "serving": choice.chosen.name,
            "why": choice.reason(),
        }
        Store(self.folder.path).write_json(self.summary_file.name, summary)
        payload = {
            **summary,
            "summary": self.summary_file,
            "report": self.report_file,
            "examples": [vars(one) for one in changed],
            "searches": [answer.as_dict() for answer in answers],
        }
        searches = [(answer, relevant_items(dataset, answer.query)) for answer in answers]
        titles = frozenset(self_keyword(item.title) for item in dataset.items)
        ended = Ended(rows, choice, changed, searches, titles)
        emit(payload, lambda out: results(out, ended))

    def _rows(self) -> tuple[list[Row], Choice]:
        workspace, run = self.workspace, self.training
        before = known_rivals(run)
        with Progress(lambda: training_steps(run)) as progress:
            progress.say("bm25")
            progress.add(bm25_row(workspace.dataset))
            for name in GENERATORS:
                progress.add(generator_row(workspace, name, progress.bar, progress.say))
            for row in trained_rows(workspace, self.folder, progress):
                progress.add(row)
            progress.say("distilled")
            beside = rivals(workspace, run, progress.say)
            same = before is not None and before.distilled == beside.distilled
            progress.add(distilled_row(workspace, beside, reused=same))
            choice = choose(contenders(run.state(), beside))
            assert choice is not None, "the sample shop has dev queries"
            progress.say("what serves")
            name = f"serves: {choice.chosen.name}"
            progress.add(pair_row(workspace, name, choice.chosen, time.monotonic()))
        return progress.rows, choice


def trained_rows(workspace: Workspace, folder: Folder, progress: Progress) -> Generator[Row]:
    """SFT and the rounds, one row after another; what an earlier demo has trained is not trained
    again.

    Raises TrainingError and CheckFailedError as the stages do; their own output is in training.log.
    """
    run = Run(workspace.store, DEFAULT_RUN)
    begun: list[str] = []

    def say(text: str) -> None:
        begun.append(text)
        if not text.startswith(" "):  # The driver's clock; the progress has its own.
            progress.say(text.replace("round 0", "sft"))

    with stages_write_to(folder.path / "training.log"):
        steps = train_sample(folder.config, say, overrides=folder.overrides())
        for number, step in enumerate(steps):
            progress.say(f"{step.name}: publishing")
            yield step_row(workspace, step, run.state().rounds[number], reused=not begun)
            begun.clear()


def training_steps(run: Run) -> int | None:
    """How many steps the training stage under way has done; None where none is under way."""
    now = run.state().unfinished if run.exists else None
    if now is None or now.next_stage is None or not now.next_stage.startswith("train-"):
        return None
    side = now.next_stage.removeprefix("train-")
    return steps_in(run.folder("logs") / f"r{now.number:03d}-{side}.jsonl")


def example_entities(workspace: Workspace, before: Row, after: Row) -> list[Changed]:
    """Five entities whose keywords differ between two rows."""
    pairs = ((before.items, after.items), (before.queries, after.queries))
    opened = [
        (open_snapshot(workspace.store, a), open_snapshot(workspace.store, b)) for a, b in pairs
    ]
    items, queries = (changes(a, b) for a, b in opened)
    return examples(items, queries)


def relevant_items(dataset: Dataset, text: str) -> frozenset[str]:
    """Ids of the items that are relevant to a test query, by its text. Raises DataError."""
    for query in dataset.require(SPLIT):
        if query.text == text:
            return dataset.relevant[query.id]
    raise DataError(f"The sample shop has no {SPLIT} query {text!r}.")


@dataclass(frozen=True)
class Server:
    """The address of OpenSearch. `ours`: it was started for this block and is stopped with it."""

    url: str | None
    ours: bool = False


@contextmanager
def search_server(backend: str, url: str | None) -> Iterator[Server]:
    """An OpenSearch to use inside the block, where the backend needs one: the one with this URL, a
    local one that runs, or one that is started.

    Raises:
        UserError, ServiceError: none can be started; the reason is on standard error already.
    """
    if backend == "memory" or url is not None:
        yield Server(url)
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
        kind = ServiceError if ended.returncode == ServiceError.exit_status else UserError
        raise kind(
            f"cogr-ops opensearch {arguments[0]} ended with status {ended.returncode}, for the "
            "reason above; correct that, or set COGR_OPENSEARCH_URL to a server of yours."
        )
    answer: dict[str, str] = json.loads(ended.stdout)
    return answer
