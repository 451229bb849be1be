"""Full disks and full memories: each stops with the reason, and goes on when there is
room again.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cogr.settings.serving import OpenSearchSettings
from indexers.backends.opensearch.client import Cluster
from tests.drills.fire import Fire
from tests.drills.nursery import Nursery
from tests.drills.servers import BALLAST, Broker, Node

pytestmark = [pytest.mark.server, pytest.mark.drill, pytest.mark.timeout(1800)]

LEVELS = {"low": 3, "high": 2, "flood_stage": 1}
"""Watermarks, and so many bytes as they must leave free at least on a disk that has room."""


def under(fire: Fire, seconds: float, free: Callable[[], None]) -> str:
    """One more edition, with room again after some time; how commands ended, and what the last one
    that failed said.
    """
    started = time.monotonic()
    timer = threading.Timer(seconds, free)
    timer.start()
    try:
        fire.next_edition("rebuild", 0, 0)
    finally:
        timer.join()
    ends = ", ".join(f"{count} with status {status}" for status, count in fire.statuses.items())
    return f"done in {time.monotonic() - started:.0f} s, nothing lost; commands ended: {ends}"


def fill(path: Path) -> None:
    """Write zeros until the disk is full. Raises OSError then."""
    with path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if not mounted or mounted.returncode:
        pytest.skip("only root can make a small disk")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_the_disk_of_coordinator_and_workers(
    tmp_path: Path,
    nursery: Nursery,
    broker: Broker,
    opensearch: OpenSearchSettings,
    small_disk: Path,
    drill_table: list[str],
) -> None:
    more = {"store": str(small_disk / "store")}
    with Fire(
        tmp_path, nursery, broker, opensearch, items=300, weights={}, workers=2, more=more
    ) as fire:
        fire.first()
        fire.accepted.add(2)
        ballast = small_disk / "ballast"
        with pytest.raises(OSError, match="No space left"):
            fill(ballast)
        said = under(fire, 20, ballast.unlink)
        assert fire.statuses[2] > 0
        assert "the disk is full; free some space and run the same command again" in fire.said
        drill_table.append(f"full: disk of the store for 20 s, {said}")


def test_the_memory_of_the_broker(
    tmp_path: Path, nursery: Nursery, opensearch: OpenSearchSettings, drill_table: list[str]
) -> None:
    broker = Broker(memory="4mb")
    try:
        with Fire(tmp_path, nursery, broker, opensearch, items=300, weights={}, workers=2) as fire:
            fire.first()
            broker.fill()
            said = under(fire, 20, lambda: broker.call("DEL", BALLAST))
            assert "used memory > 'maxmemory'" in fire.said
            drill_table.append(f"full: memory of Valkey for 20 s, {said}")
    finally:
        broker.stop()


def test_the_disk_of_opensearch(
    tmp_path: Path, nursery: Nursery, broker: Broker, node: Node, drill_table: list[str]
) -> None:
    cluster = Cluster(node.settings)
    watermarks = "cluster.routing.allocation.disk"
    full = {
        f"{watermarks}.threshold_enabled": True,
        **{f"{watermarks}.watermark.{name}": "900tb" for name in LEVELS},
        "cluster.info.update.interval": "10s",
    }

    # Not the defaults, which are shares of a disk that others may have filled.
    roomy = full | {f"{watermarks}.watermark.{name}": f"{size}b" for name, size in LEVELS.items()}

    def set_watermarks(values: dict[str, object]) -> None:
        cluster.call(
            "PUT", "/_cluster/settings", body={"transient": values}, doing="moving the watermarks"
        )

    with Fire(tmp_path, nursery, broker, node.settings, items=300, weights={}, workers=2) as fire:
        fire.first()
        set_watermarks(full)
        deadline = time.monotonic() + 300
        # Frozen indexes are read-only as they are; what the cluster does is to create no new ones.
        blocked = "/_cluster/settings?flat_settings=true"
        while (
            "cluster.blocks.create_index"
            not in cluster.call("GET", blocked, doing="looking")["persistent"]
        ):
            assert time.monotonic() < deadline, "the cluster did not notice"
            time.sleep(0.5)
        said = under(fire, 40, lambda: set_watermarks(roomy))
        assert fire.statuses[3] > 0
        assert "creates no indexes" in fire.said
        drill_table.append(f"full: flood-stage watermark of OpenSearch for 40 s, {said}")
    cluster.close()
