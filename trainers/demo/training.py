"""The rows that are trained: SFT and two rounds by `trainers.training.sample`, each published as it
finishes.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

from cogr.snapshots import open_snapshot
from indexers.cli import console
from indexers.workspace import Workspace
from trainers.demo.folder import Folder
from trainers.demo.following import followed, stage_under_way
from trainers.demo.quiet import stages_write_to
from trainers.demo.rows import Row, step_row
from trainers.demo.show import Progress
from trainers.report.changes import Changed, changes, examples
from trainers.training.contest import Choice, choose, contenders
from trainers.training.rivals import rivals
from trainers.training.runs import DEFAULT_RUN, Run
from trainers.training.sample import train_sample

ROUNDS = 2


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
            if stage is not None and text.startswith("round "):
                progress.say(stage.name)
            elif text.startswith("measuring "):
                progress.say(text)
            else:
                console.note(text)

        steps = train_sample(folder.config, say, rounds=ROUNDS, overrides=folder.overrides())
        for number, step in enumerate(steps):
            follow(None)
            progress.say(f"{step.name}: publishing")
            yield step_row(workspace, step, run.state().rounds[number], reused=not begun)
            begun.clear()


def best_pair(workspace: Workspace, progress: Progress) -> Choice:
    """The pair that serves when the demo ends: the best of the rounds and of `statistical` on the
    dev queries.
    """
    run = Run(workspace.store, DEFAULT_RUN)
    found = choose(contenders(run.state(), rivals(workspace, run, progress.say).statistical))
    assert found is not None, "the sample shop has dev queries"
    return found


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
