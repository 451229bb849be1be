"""The processes that train a stage together, one a GPU; without GPUs they share the CPU, by gloo.

The first of them (rank 0) locks the run, saves and records; the others train with it and wait for
it. `python -m trainers.training.ranks` is `accelerate launch`, but ends as the first process that
failed did; accelerate's own command turns every status into 1. Where one process ends with an error
or is killed, torch's launcher ends the others, at the latest after 30 seconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from cogr.errors import TrainingError

ERROR = "error.json"
"""File in a run's folder: the failure of the first process of a stage that failed."""
STAGE = "trainers.training.stage"
_PR_SET_PDEATHSIG = 1


def is_first() -> bool:
    """Whether this is the process that locks, saves and records: the only one, or rank 0."""
    return os.environ.get("RANK", "0") == "0"


def count() -> int:
    """How many processes do the stage."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def share(positions: Iterable[int]) -> list[int]:
    """This process's share of the positions; it does not depend on the progress of the others."""
    rank = int(os.environ.get("RANK", "0"))
    return [position for position in positions if position % count() == rank]


def barrier(folder: Path, what: str) -> None:
    """Report that this process has done its share of some work. In the first process, wait until
    all have reported.

    It works by files in a folder of the run, because the collective operations of training have a
    time limit. What a killed stage reported still holds: its share is written.

    Raises TrainingError where another process of the stage has failed.
    """
    marks = [folder / f"{what}-{rank}-of-{count()}" for rank in range(count())]
    marks[int(os.environ["RANK"])].touch()
    if is_first():
        while not all(mark.exists() for mark in marks):
            time.sleep(0.1)
            check_others(folder.parent)
        for mark in marks:
            mark.unlink()


def check_others(run: Path) -> None:
    """Raise TrainingError where a process of the stage has failed; `run` is the run's folder."""
    if (run / ERROR).exists():
        raise TrainingError("Another process of this stage has failed.")


def take_one_gpu() -> None:
    """Make only this process's own GPU visible to it. Call it before torch is imported."""
    if count() > 1:
        local = int(os.environ["LOCAL_RANK"])
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        os.environ["CUDA_VISIBLE_DEVICES"] = seen.split(",")[local] if seen else str(local)


def launch_options(count: int, file: str | None) -> list[str]:
    """Options of `accelerate launch`; `file` is its configuration, such as FSDP's, or None for
    copies of all weights. They override everything that `accelerate config` may have set on this
    machine. `--multi_gpu` is its name for several processes; without GPUs they use gloo.
    """
    how = ["--config_file", file] if file else ["--multi_gpu", "--dynamo_backend", "no"]
    how += ["--num_machines", "1", "--main_process_port", "0", "--mixed_precision", "no"]
    return [*how, "--num_processes", str(count), "--gpu_ids", "all"]


def die_with(parent: int) -> None:
    """End this process when its parent (of that id) ends, however that happens (Linux)."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def main() -> int:
    """Start processes by the command line of `accelerate launch`, and end like the first one that
    failed: with its exit status, or by the signal that killed it.
    """
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        launch_command(launch_command_parser().parse_args())
    except ChildFailedError as error:
        status = int(error.get_first_failure()[1].exitcode)
        if status < 0:
            os.kill(os.getpid(), -status)
        return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
