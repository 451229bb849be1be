"""Both ends of the pipe to a process that has imported everything, from which training stages are
forked (Linux).

`Forker` is the command's end; `serve` is the other, in the process that `preload` starts. Nothing
of it lies on disk, and every process is killed by the kernel with the one that started it, so a
killed command leaves nothing behind.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

PRELOAD = "trainers.training.preload"
_PR_SET_PDEATHSIG = 1
_GONE = -signal.SIGKILL


def die_with(parent: int) -> None:
    """End this process when its parent, of that id, ends, however that ends (Linux)."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def start(
    arguments: Sequence[str], stdin: int | None = None, stdout: int = 2
) -> subprocess.Popen[str]:
    """A Python process that is killed when this one ends.

    Its standard output is this one's standard error.
    """
    parent = os.getpid()
    command = [sys.executable, *arguments]
    return subprocess.Popen(
        command, text=True, preexec_fn=lambda: die_with(parent), stdin=stdin, stdout=stdout
    )


class Forker:
    """Runs stages one after another, each forked from one process that is started with
    the first.
    """

    def __init__(self) -> None:
        self._server: subprocess.Popen[str] | None = None

    def run(self, arguments: Sequence[str]) -> int:
        """Do a stage and wait for it; its exit status, negative for a signal.

        The stage ends when this is interrupted.
        """
        if self._server is None or self._server.poll() is not None:
            self._server = start(["-m", PRELOAD], subprocess.PIPE, subprocess.PIPE)
        server = self._server
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            server.stdin.write(json.dumps(_request(arguments)) + "\n")
            server.stdin.flush()
            answer = server.stdout.readline()
        except BrokenPipeError:
            answer = ""
        except BaseException:
            server.kill()
            server.wait()
            raise
        if answer:
            return int(answer)
        return server.wait() or _GONE


def _request(arguments: Sequence[str]) -> dict[str, Any]:
    return {"arguments": list(arguments), "cwd": str(Path.cwd()), "environ": dict(os.environ)}


def serve(stage: Callable[[list[str]], int]) -> None:
    """Fork a stage for each line of standard input; write its exit status when it has ended.

    Ends with its input.
    """
    requests, answers = (
        os.fdopen(os.dup(0), encoding="utf-8"),
        os.fdopen(os.dup(1), "w", encoding="utf-8"),
    )
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = os.getpid()
    for line in requests:
        if (child := os.fork()) == 0:
            die_with(server)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            requests.close()
            answers.close()
            sys.exit(_stage(stage, json.loads(line)))
        _, status = os.waitpid(child, 0)
        answers.write(f"{os.waitstatus_to_exitcode(status)}\n")
        answers.flush()


def _stage(stage: Callable[[list[str]], int], request: dict[str, Any]) -> int:
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environ"])
    return stage(request["arguments"])
