"""Random SIGKILLs over coordinator, workers, Valkey and OpenSearch during rebuilds and updates:
nothing is lost.

`make drill` kills DRILL_KILLS times (1,000); the suite has a short version that leaves the shared
node alone.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from contextlib import closing
from pathlib import Path

import pytest

from cogr.settings.serving import OpenSearchSettings
from tests.drills.fire import Fire
from tests.drills.nursery import Node

KILLS = int(os.environ.get("DRILL_KILLS", "1000"))
SEED = int(os.environ.get("DRILL_SEED", "0"))
WEIGHTS = {"worker": 50, "coordinator": 37, "valkey": 8, "opensearch": 5, "flushall": 2, "term": 3}

pytestmark = pytest.mark.slow


@pytest.mark.timeout(900)
def test_a_few_kills_lose_nothing(tmp_path: Path, opensearch: OpenSearchSettings) -> None:
    weights = {"worker": 5, "coordinator": 5, "valkey": 1, "flushall": 1}
    with Fire(tmp_path, opensearch, items=200, weights=weights, workers=2) as fire:
        fire.first()
        # On a fast machine an edition is done before it has met many.
        while sum(fire.kills.values()) < 5:
            fire.next_edition("rebuild", 4, 0.2)
            fire.next_edition("update", 3, 0.2)
        assert fire.reader is not None
        assert fire.reader.seen["right"] > 0


@pytest.mark.drill
@pytest.mark.timeout(8 * 3600)
def test_a_thousand_kills_lose_nothing(tmp_path: Path) -> None:
    draw = random.Random(SEED)
    with (
        closing(Node()) as node,
        Fire(tmp_path, node.settings, items=2500, weights=WEIGHTS, node=node, seed=SEED) as fire,
    ):
        fire.first()
        started = time.monotonic()
        # Updates are short: three to each rebuild.
        for kind in itertools.cycle(("rebuild", "update", "update", "update")):
            left = KILLS - sum(fire.kills.values())
            if left <= 0:
                break
            # On a slow machine kills may come faster than work is done: after so many, an edition
            # is let through.
            most = draw.randint(5, 30) if kind == "rebuild" else draw.randint(3, 15)
            fire.next_edition(kind, min(left, most), 0.8)
            print(f"{kind}: {dict(fire.kills)} in {time.monotonic() - started:.0f} s", flush=True)
        print(fire.reader and fire.reader.seen)
        assert sum(fire.kills.values()) >= KILLS
