"""Keeps what training stages print out of the demo's live table: their standard error goes to a
file while they run.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_TAIL = 20


@contextmanager
def stages_write_to(log: Path) -> Iterator[None]:
    """Inside the block, the standard error that child processes inherit leads to `log`, begun anew;
    ours stays where it was.

    When the block ends with an error, the log's last lines are printed, since the error's sentence
    may point to them.
    """
    sys.stderr.flush()
    ours, kept = sys.stderr, os.dup(2)
    with (
        log.open("wb") as file,
        os.fdopen(kept, "w", encoding="utf-8", errors="backslashreplace", buffering=1) as out,
    ):
        os.dup2(file.fileno(), 2)
        sys.stderr = out
        try:
            yield
        except Exception:
            print(*_last_lines(log), sep="\n", file=out)
            raise
        finally:
            sys.stderr = ours
            os.dup2(kept, 2)


def _last_lines(log: Path) -> list[str]:
    """What a terminal would show of the log in the end: progress bars overwrite their own line."""
    lines = log.read_bytes().decode("utf-8", "replace").split("\n")
    return [line.rpartition("\r")[2] for line in lines if line.strip()][-_TAIL:]
