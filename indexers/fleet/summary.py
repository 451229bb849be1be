"""What a fleet did in one run, from its files: the part of `report.json` that tells of shards and
workers.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from indexers.fleet.records import Attempt, Done, GivenUp, R, RunFolder


def summarise(folder: RunFolder) -> dict[str, Any]:
    """Shards, attempts by how they ended, and what each worker did; `tokens` and `items` are those
    of finished shards.
    """
    done = _all(folder, Done, "done")
    attempts = _all(folder, Attempt, "attempts")
    given_up = _all(folder, GivenUp, "given_up")
    workers: dict[str, dict[str, float]] = {}
    for one in done:
        its = workers.setdefault(one.worker, {"shards": 0, "items": 0, "tokens": 0, "seconds": 0.0})
        for name, value in (
            ("shards", 1),
            ("items", one.items),
            ("tokens", one.tokens),
            ("seconds", one.seconds),
        ):
            its[name] = round(its[name] + value, 3)
    return {
        "run": folder.run,
        "shards": {"done": len(done), "split": sum(bool(record.parts) for record in given_up)},
        "attempts": dict(Counter(attempt.state for attempt in attempts)),
        "items": sum(one.items for one in done),
        "tokens": sum(one.tokens for one in done),
        "set_aside": sum(len(record.set_aside) for record in given_up),
        "workers": workers,
    }


def _all(folder: RunFolder, kind: type[R], name: str) -> list[R]:
    found = (folder.read(kind, f"{name}/{one}") for one in folder.names(name))
    return [record for record in found if record is not None]
