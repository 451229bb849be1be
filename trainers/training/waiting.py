"""A word now and then while a stage runs that has no steps to count.

Stages that have some tell their own progress.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from cogr.progress import Say
from indexers.cli.reports import minutes
from trainers.training.state import StageName

EVERY_SECONDS = 30.0


@contextmanager
def waited_for(say: Say, number: int, stage: StageName) -> Iterator[None]:
    """Inside the block `say` hears twice a minute for how long a stage without steps has been under
    way.
    """
    if stage.startswith(("train-", "index-")):
        yield
        return
    began, ended = time.monotonic(), threading.Event()

    def tell() -> None:
        while not ended.wait(EVERY_SECONDS):
            say(f"  {stage} of round {number}: {minutes(time.monotonic() - began)} so far")

    thread = threading.Thread(target=tell, daemon=True, name="waiting")
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
