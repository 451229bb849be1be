"""One holder at a time: leases of rebuilds, on any store, whatever the clocks say."""

from __future__ import annotations

import random
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cogr.errors import LockedError
from cogr.settings import load_settings
from cogr.store import Store
from indexers.backends.memory import MemoryBackend
from indexers.lease import Lease, acquire, lease_to_rebuild
from indexers.rebuild.run import RebuildRequest, RebuildRun
from indexers.rebuild.update import UpdateRequest, update_side
from indexers.telemetry.terminal import progress_bar
from indexers.workspace import Workspace
from tests.damages import HARMS, damage
from tests.shops import rebuild_here, write_thing_shop


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    write_thing_shop(tmp_path, items=20)
    return Workspace(load_settings(tmp_path / "cogr.toml"))


ITEM = lease_to_rebuild("item")


def taken(store: Store, seconds: float = 30.0, **more: Any) -> Lease:
    return acquire(store, ITEM, "rebuild", seconds, **more)


def test_one_of_two_coordinators_is_refused_and_takes_over_after_a_release(store: Store) -> None:
    with taken(store) as first:
        with pytest.raises(LockedError, match="rebuild of items"):
            taken(store)
        with acquire(store, lease_to_rebuild("query"), "rebuild", 30) as other:
            assert other.term == 1
        first.check()
    with taken(store) as second:
        assert second.term == 2


@pytest.mark.parametrize("how", HARMS)
def test_a_damaged_lease_keeps_nobody_out(store: Store, how: str) -> None:
    for number in range(10):
        taken(store, has_file_lock=True).release()
        (name,) = store.list("fleet/item/lease")
        if Path(store.url).is_dir():
            damage(Path(store.url) / "fleet/item/lease" / name, how, random.Random(number))
    taken(store, has_file_lock=True).release()


def test_a_silent_holder_is_replaced_and_notices(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with taken(store, 0.4) as first:
        # It hangs: its thread does not come to write.
        monkeypatch.setattr(first, "write", lambda **_: None)
        time.sleep(0.5)
        with taken(store, 0.4) as second:
            assert second.term == 2
            with pytest.raises(LockedError, match="taken over"):
                first.check()
            second.check()


def test_a_holder_with_a_wrong_clock_is_not_replaced(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with taken(store, 0.4):
        real = time.time
        for wrong in (-3600, 3600):
            monkeypatch.setattr("indexers.lease.time.time", lambda wrong=wrong: real() + wrong)
            with pytest.raises(LockedError):
                taken(store, 0.4)
        monkeypatch.undo()


def test_a_lease_of_a_dead_process_of_this_host_is_free_at_once(store: Store) -> None:
    taken(store, 300).stop_renewing()
    began = time.monotonic()
    with taken(store, 300, has_file_lock=True) as second:
        assert second.term == 2
    assert time.monotonic() - began < 5


def test_a_local_rebuild_waits_for_one_on_workers_of_another_host_and_the_other_way_round(
    workspace: Workspace,
) -> None:
    """Over a shared store; here no lock of this host helps."""
    elsewhere = {"store": f"memory://{uuid.uuid4().hex}"}
    shared = Workspace(workspace.settings.model_copy(update=elsewhere))
    update = UpdateRequest("item", since=datetime.now(UTC))
    with acquire(shared.store, ITEM, "rebuild on another host", 30):
        for workers in ("local", "celery"):
            with pytest.raises(LockedError, match="another host"):
                rebuild_here(shared, workers=workers)
        with pytest.raises(LockedError, match="another host"):
            update_side(shared, update, progress_bar, print)
    assert rebuild_here(shared).published
    holding = RebuildRun(shared, RebuildRequest("item"), progress_bar, print).held()
    with holding, pytest.raises(LockedError, match="rebuild --side item"):
        rebuild_here(shared, workers="celery")


def test_a_rebuild_that_has_lost_its_lease_publishes_nothing(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = MemoryBackend.verify

    def taken_over(self: MemoryBackend, *given: Any, **more: Any) -> Any:
        rivals.append(taken(workspace.store, has_file_lock=True))
        return real(self, *given, **more)

    rivals: list[Lease] = []
    monkeypatch.setattr(MemoryBackend, "verify", taken_over)
    with pytest.raises(LockedError, match="rebuild of items"):
        rebuild_here(workspace)
    rivals[0].release()
    assert workspace.backend.serving()["item"] is None
