"""The demo, step by step: each row is published and measured, then example queries are searched,
and summary and report are written.

`folder` prepares the folder, `rows` makes the rows, `show` draws them; the command prints.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from cogr.errors import CogrError, DataError
from cogr.keywords import self_keyword
from cogr.records import Dataset
from cogr.settings import load_settings
from cogr.snapshots import open_snapshot
from cogr.store import Store
from indexers.exchange.search import search
from indexers.telemetry import logs
from indexers.workspace import Workspace
from trainers.demo.folder import Folder, lay_out, train_sample
from trainers.demo.rows import (
    SPLIT,
    Row,
    bm25_row,
    found_of_new,
    generator_row,
    pair_row,
    step_row,
)
from trainers.demo.show import Ended, Progress, results
from trainers.report import Changed, changes, check_extra, examples, write_report
from trainers.training.contest import Choice, choose, contenders, known_rivals, rivals
from trainers.training.rounds import DEFAULT_RUN, Run
from trainers.training.stage import calm_threads
from trainers.training.trainer_config import check_settings

GENERATORS = ("extractive", "statistical")
"""The generators without training, in the order of the table."""
SEARCHES = ("metal bookshelf", "armchair small", "wicker workstation", "Sofa rustikal", "实木 书桌")
"""Test queries to show, in the shop's three languages."""
HITS = 3
_TAIL = 20
Emit = Callable[[Mapping[str, Any], Callable[[Console], None]], None]


@dataclass(frozen=True)
class Written:
    """The files of a demo that has ended."""

    config: Path
    summary: Path
    report: Path


def run_demo(
    backend: Literal["memory", "opensearch"], out: Path, emit: Emit, more: Sequence[str] = ()
) -> Written:
    """The whole demo: measure every row, search what serves in the end, write summary.json and
    report.html, print. What is finished stays in the folder, also after an error.

    Args:
        backend: where the shop is indexed.
        out: folder for configuration, data, snapshots, the training run, summary.json and
            report.html.
        emit: prints the result: gets it as a payload for JSON, and what prints it for people.
        more: `key=value` settings over the sample's own, such as fewer training steps.

    Raises:
        UserError: the folder belongs to something else or can't be written; a package is missing; a
            setting is wrong.
        CheckFailedError: a training stage has collapsed.
        ServiceError: OpenSearch can't be reached.
    """
    folder = lay_out(out, backend, more)
    # Every accepted round serves for a while, also after an untrained row with better figures, so
    # the gate is off until the chosen pair is published.
    workspace = Workspace(
        load_settings(folder.config, [*folder.overrides(), "publish.tolerance=1"])
    )
    calm_threads(workspace.settings.training)
    # Check for missing packages now, not after minutes.
    check_extra()
    check_settings(workspace)
    workspace.backend.serving()
    run = Run(workspace.store, DEFAULT_RUN)
    with Progress() as progress:
        rows, choice = _rows(workspace, folder, run, progress)
        progress.say("new items")
        new = found_of_new(workspace, next(row for row in rows if row.name == "extractive"))
    written = Written(folder.config, out / "summary.json", out / "report.html")
    write_report(workspace, run, written.report)
    summary = {
        "backend": workspace.backend.name,
        "split": SPLIT,
        "queries": len(workspace.dataset.require(SPLIT)),
        "rows": [row.as_dict() for row in rows],
        "new_items": new,
        "serving": choice.chosen.name,
        "why": choice.reason(),
    }
    Store(out).write_json(written.summary.name, summary)
    _show(workspace, rows, choice, emit, {**summary, **vars(written)})
    return written


def _show(
    workspace: Workspace, rows: list[Row], choice: Choice, emit: Emit, summary: Mapping[str, Any]
) -> None:
    dataset = workspace.dataset
    answers = [search(workspace, text, size=HITS) for text in SEARCHES]
    texts = next(row for row in rows if row.name == "extractive")
    changed = example_entities(workspace, texts, rows[-1])
    payload = {
        **summary,
        "examples": [vars(one) for one in changed],
        "searches": [answer.as_dict() for answer in answers],
    }
    searches = [(answer, relevant_items(dataset, answer.query)) for answer in answers]
    titles = frozenset(self_keyword(item.title) for item in dataset.items)
    ended = Ended(rows, choice, changed, searches, summary["new_items"], titles)
    emit(payload, lambda out: results(out, ended))


def _rows(
    workspace: Workspace, folder: Folder, run: Run, progress: Progress
) -> tuple[list[Row], Choice]:
    before = known_rivals(run)
    progress.say("bm25")
    progress.add(bm25_row(workspace.dataset))
    for name in GENERATORS:
        progress.add(generator_row(workspace, name, progress.say))
    for row in trained_rows(workspace, folder, progress):
        progress.add(row)
    progress.say("distilled")
    began = time.monotonic()
    beside = rivals(workspace, run, progress.say)
    pair = beside.distilled
    assert pair is not None, "the sample shop has dev queries, and rounds are finished"
    same = float(before is not None and before.distilled == pair)
    progress.add(pair_row(workspace, pair.name, pair, began, cached=same))
    choice = choose(contenders(run.state(), beside))
    assert choice is not None, "the sample shop has dev queries"
    name = f"serves: {choice.chosen.name}"
    progress.add(pair_row(workspace, name, choice.chosen, time.monotonic()))
    return progress.rows, choice


def trained_rows(workspace: Workspace, folder: Folder, progress: Progress) -> Iterator[Row]:
    """SFT and the rounds, one row after another; what an earlier demo has trained is not trained
    again.

    Raises TrainingError and CheckFailedError as the stages do; their own output is in training.log.
    """
    log, begun = folder.path / "training.log", list[str]()

    def say(text: str) -> None:
        begun.append(text)
        progress.say(text.replace("round 0", "sft"))

    log.unlink(missing_ok=True)
    try:
        for done in train_sample(folder.config, say, overrides=folder.overrides(), log=log):
            yield step_row(workspace, done, reused=not begun)
            begun.clear()
    except CogrError:
        lines = log.read_text("utf-8", "replace").splitlines() if log.exists() else []
        logs.say("\n".join([line for line in lines if line.strip()][-_TAIL:]))
        raise


def example_entities(workspace: Workspace, before: Row, after: Row) -> list[Changed]:
    """Five entities whose keywords differ between two rows."""
    pairs = ((before.items, after.items), (before.queries, after.queries))
    items, queries = (
        changes(open_snapshot(workspace.store, a), open_snapshot(workspace.store, b))
        for a, b in pairs
    )
    return examples(items, queries)


def relevant_items(dataset: Dataset, text: str) -> frozenset[str]:
    """Ids of the items that are relevant to a test query, by its text. Raises DataError."""
    for query in dataset.require(SPLIT):
        if query.text == text:
            return dataset.relevant[query.id]
    raise DataError(f"The sample shop has no {SPLIT} query {text!r}.")
