"""Shards: their sizes, the files of their requests, and which of their workers are alive."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from cogr.prompts import Prompt
from cogr.records import Item, Query
from cogr.store import Store
from indexers.fleet.run_files import Attempt, RunFolder, entities_of
from indexers.fleet.shards import (
    GROWTH,
    Shard,
    ShardSizer,
    ShardTracker,
    read_requests,
    write_requests,
)
from indexers.generators import Request
from tests.indexers.fleet.in_process import SHARD


def done(items: int, seconds: float) -> Attempt:
    return Attempt(shard="s", worker="w", state="done", items=items, seconds=seconds)


def test_shards_grow_to_the_stated_duration_step_by_step_and_shrink_at_the_end() -> None:
    sizer = ShardSizer(180, 64)
    assert sizer.next_size(10_000, 0) == 64
    sizer.measure(done(64, 0.64))
    assert sizer.next_size(1_000_000, 4) == GROWTH * 64
    sizer.measure(done(18_000, 180))
    assert sizer.next_size(1_000_000, 4) == 18_000
    assert sizer.next_size(8_000, 4) == 1_000
    assert sizer.next_size(10, 4) == 10


@given(
    st.integers(1, 10**7),
    st.integers(0, 500),
    st.lists(st.tuples(st.integers(0, 10**5), st.floats(0, 1e4))),
)
def test_a_size_is_always_possible(
    unplanned: int, workers: int, measured: list[tuple[int, float]]
) -> None:
    sizer = ShardSizer(60, 32)
    for items, seconds in measured:
        sizer.measure(done(items, seconds))
    assert 1 <= sizer.next_size(unplanned, workers) <= unplanned


def test_requests_come_back_as_they_were(store: Store) -> None:
    items = [
        (b"\0" * 16, Request("a", Item("a", "Täble", "x\ny"), Prompt("s", "u", cut=True))),
        (b"\2" * 16, Request("c", Item("c", "", ""), Prompt("", ""))),
    ]
    queries = [(b"\1" * 16, Request("b", Query("b", "sofa", 2.5), Prompt("s", "v")))]
    for side, keyed in (("item", items), ("query", queries)):
        folder = RunFolder(store, side, "r")  # type: ignore[arg-type]
        write_requests(folder, "00007-3", keyed)
        assert folder.names("shards") == ["00007-3"]
        assert read_requests(folder, "00007-3") == keyed
        assert read_requests(folder, "none") is None
    assert entities_of("00007-3") == 3


def test_an_attempt_whose_file_no_longer_changes_is_silent_and_the_next_one_is_due(
    store: Store,
) -> None:
    folder = RunFolder(store, "item", "r")
    tracker = ShardTracker(folder, lost_seconds=0.3)
    shard = tracker.open[SHARD] = Shard(SHARD, [*range(20)])
    attempt = Attempt(shard=SHARD, number=1, worker="w", state="running")
    for beat in range(20):
        # Its clock may say what it wants.
        update = {"updated": float(-beat)}
        folder.write(attempt.model_copy(update=update), f"attempts/{SHARD}.1")
        assert tracker.poll() == ([], [])
        time.sleep(0.02)
    assert tracker.running != []
    deadline = time.monotonic() + 30
    while not (failed := tracker.poll()[1]) and time.monotonic() < deadline:
        time.sleep(0.02)
    ((_, silent),) = failed
    assert (silent.state, silent.reason) == ("silent", "fell silent while running")
    assert (shard.attempt, shard.deaths, shard.running) == (2, 1, None)
