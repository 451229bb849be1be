"""The rows that are trained: SFT and two rounds by `trainers.training.sample`, each published as it finishes."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

from cogr.snapshots import open_snapshot
from indexers import console
from indexers.workspace import Workspace
from trainers.demo.folder import Folder
from trainers.demo.following import followed, stage_under_way
from trainers.demo.quiet import stages_write_to
from trainers.demo.rows import Row, step_row
from trainers.demo.show import Progress
from trainers.report.changes import Changed, difference, examples
from trainers.training.runs import DEFAULT_RUN, Run
from trainers.training.sample import train_sample
from trainers.training.state import Round

ROUNDS = 2


def trained_rows(workspace: Workspace, folder: Folder, progress: Progress) -> Generator[Row]:
    """SFT and the rounds, one row after another; what an earlier demo has trained is not trained again.

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
            else:
                console.note(text)

        steps = train_sample(folder.config, say, rounds=ROUNDS, overrides=folder.overrides())
        for number, step in enumerate(steps):
            follow(None)
            progress.say(f"{step.name}: publishing")
            yield step_row(workspace, step, run.state().rounds[number], reused=not begun)
            begun.clear()


def trained_rounds(workspace: Workspace) -> Sequence[Round]:
    """The rounds that the demo shows, SFT first."""
    return Run(workspace.store, DEFAULT_RUN).state().rounds[: ROUNDS + 1]


def served(workspace: Workspace) -> Round:
    """The last of them that is built upon: what serves when the demo ends."""
    return next(done for done in reversed(trained_rounds(workspace)) if done.verdict == "accepted")


def example_entities(workspace: Workspace) -> list[Changed]:
    """Five entities whose keywords are other ones than after SFT; none where no round was built upon."""
    first, last = trained_rounds(workspace)[0], served(workspace)
    pairs = [(open_snapshot(workspace.store, a), open_snapshot(workspace.store, b)) for a, b in _pairs(first, last)]
    items, queries = (difference(before, after) for before, after in pairs)
    return examples(items, queries)


def _pairs(first: Round, last: Round) -> tuple[tuple[str, str], tuple[str, str]]:
    return (first.items, last.items), (first.queries, last.queries)


def report_file(folder: Folder) -> Path:
    """Where the report of the training lies."""
    return folder.path / "report.html"
