"""One stage as a process of its own: `python -m trainers.training.stage`. Started by `driver`, not
by hand.

It does the next stage of a run, writes what the stage wrote into the state, and ends; its memory
ends with it. An error that a user can cause is left as one sentence in `error.json` for the driver
to raise.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from cogr.errors import CogrError, LockedError
from cogr.store import Store, storage_errors
from indexers.cli import console
from indexers.cli.options import set_verbosity
from indexers.telemetry import logs
from indexers.workspace import Workspace
from trainers.training.forking import die_with
from trainers.training.holdout import with_dev
from trainers.training.judging import verdict
from trainers.training.options import hide_vllm, is_out_of_memory
from trainers.training.runs import Run, open_run
from trainers.training.scene import Scene
from trainers.training.state import StageRecord
from trainers.training.work import WORK

OUT_OF_MEMORY = 75
"""Exit status of a stage that ran out of memory; the driver tries it once more with half the micro
batch.
"""

_WAIT_FOR_LOCK = 10.0


def main(arguments: list[str] | None = None) -> int:
    """Do the next stage of a run; returns the exit status."""
    options = _parse(arguments)
    die_with(os.getppid())
    set_verbosity(options.verbose)
    error_file: Path | None = None
    try:
        workspace = Workspace.open(options.config, options.set)
        logs.configure(workspace.settings.log)
        run = open_run(workspace, options.run)
        error_file = run.folder() / "error.json"
        with storage_errors(workspace.store.url), _lock(workspace.store, f"stage-{run.name}"):
            do_next(workspace, run, options.halvings)
    except CogrError as error:
        _leave(error_file, str(error), error.exit_status)
        return error.exit_status
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return OUT_OF_MEMORY
    except KeyboardInterrupt:
        return console.INTERRUPTED
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="trainers.training.stage")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--run", required=True)
    parser.add_argument("--halvings", type=int, default=0)
    parser.add_argument("--verbose", action="store_true")
    return parser.parse_args(arguments)


def do_next(workspace: Workspace, run: Run, halvings: int) -> None:
    """Do the stage that is next and put it into the state."""
    if (
        workspace.settings.training.rollouts.by == "transformers"
        and workspace.settings.training.index_by != "vllm"
    ):
        hide_vllm()
    state = run.state()
    scene = Scene.of(with_dev(workspace), run, state, console.note, halvings)
    name = scene.round.next_stage
    assert name is not None
    started = time.monotonic()
    wrote = WORK[name](scene)
    if os.environ.get("RANK", "0") != "0":
        return
    record = StageRecord(
        name=name,
        output=wrote.output,
        seconds=round(time.monotonic() - started, 2),
        notes=wrote.notes,
    )
    judged = (
        verdict(workspace.settings.training.gate, scene, record)
        if name == scene.round.plan[-1]
        else (None, "")
    )
    run.save(state.with_stage(record, *judged))


@contextmanager
def _lock(store: Store, name: str) -> Iterator[None]:
    """The lock of a run's stage. Waits a little: the process that held it may be on its way out."""
    until = time.monotonic() + _WAIT_FOR_LOCK
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(store.lock(name, "a training stage"))
                break
            except LockedError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
        yield


def _leave(file: Path | None, sentence: str, status: int) -> None:
    """Leave an error for the driver; where not even that can be written, for the reader."""
    if file is not None:
        try:
            file.write_text(json.dumps({"message": sentence, "status": status}), "utf-8")
            return
        except OSError:
            file.unlink(missing_ok=True)
    console.note(sentence)


if __name__ == "__main__":
    sys.exit(main())
