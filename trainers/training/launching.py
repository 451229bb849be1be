"""How a stage becomes a process of its own: forked from one that has imported everything, or a
fresh interpreter.

Forking saves the imports of every stage, most of the time of a small run. It is for machines
without a GPU: a forked process can't use CUDA that its parent has touched, and beside real training
the imports are nothing. Either way the stage's memory ends with its process, and it is killed when
the command that started it is.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cogr.settings.training import TrainingSettings
from trainers.training.forking import Forker, start

MODULE = "trainers.training.stage"
# Ctrl-C ends a stage at once, and without a word, while it imports; `main` then takes it over.
_QUIETLY = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
    f"from {MODULE} import main; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "sys.exit(main(sys.argv[1:]))"
)
_GPU_DEVICES = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
_FORKER = Forker()


@dataclass(frozen=True)
class Launcher:
    """Starts stages with the configuration that this command was given.

    Attributes:
        config: the configuration file, None for the default one.
        overrides: `--set` values.
    """

    config: Path | None
    overrides: Sequence[str]

    def arguments(self, run: str, halvings: int) -> list[str]:
        """The stage's own arguments."""
        config = ["--config", str(self.config)] if self.config else []
        overrides = [part for override in self.overrides for part in ("--set", override)]
        return [*config, *overrides, "--run", run, "--halvings", str(halvings)]

    def start(
        self, run: str, settings: TrainingSettings, *, trains: bool, halvings: int = 0
    ) -> int:
        """Do the run's next stage in a process of its own and wait for it; its exit status,
        negative for a signal.
        """
        arguments = self.arguments(run, halvings)
        if settings.processes > 1 and trains:
            launch = [
                "-m",
                "accelerate.commands.launch",
                "--num_processes",
                str(settings.processes),
                "-m",
                MODULE,
            ]
            return _interpreter([*launch, *arguments])
        if can_fork(settings):
            return _FORKER.run(arguments)
        return _interpreter(["-c", _QUIETLY, *arguments])


def can_fork(settings: TrainingSettings) -> bool:
    """Whether stages may be forked from a process with everything imported."""
    own_engine = settings.rollouts.by == "transformers" and settings.index_by == "transformers"
    return (
        sys.platform.startswith("linux")
        and own_engine
        and not any(device.exists() for device in _GPU_DEVICES)
    )


def _interpreter(arguments: Sequence[str]) -> int:
    process = start(arguments)
    try:
        return process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
