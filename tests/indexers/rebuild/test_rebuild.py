"""Rebuilds: resume as a set difference, byte-identical snapshots after kills, set-aside entities,
thresholds.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from cogr.errors import ServiceError
from cogr.prompts import PAPER, Prompter
from cogr.records import Item
from cogr.store import Store
from indexers.generators import Failure
from indexers.rebuild.plan import Job, make_plan
from indexers.rebuild.run import generate_and_freeze
from tests.indexers.faulty import Faulty
from tests.shops import SCRIPTED, write_thing_shop

ITEMS = [Item(f"i{n:03d}", f"Title {n}", f"text of {n % 7} words") for n in range(100)]


def make_job(store: Store, generator: Faulty, items: list[Item] = ITEMS, **more: int) -> Job:
    return Job("item", items, generator, Prompter(PAPER["item"]), store, "data", **more)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_only_what_changed_is_generated(store: Store) -> None:
    generate_and_freeze(make_job(store, Faulty()))
    changed = [Item("i007", "Title 7", "another text"), Item("new", "New", "thing")]
    items = [item for item in ITEMS if item.id != "i007"] + changed
    generator = Faulty()
    assert generate_and_freeze(make_job(store, generator, items)).snapshot.manifest.entities == 101
    assert generator.answered == 2


def test_a_service_that_goes_away_loses_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexers.rebuild.cache.FLUSH_ANSWERS", 10)
    leaving = Faulty(away_after=37)
    with pytest.raises(ServiceError):
        generate_and_freeze(make_job(store, leaving))
    staying = Faulty()
    rebuilt = generate_and_freeze(make_job(store, staying))
    assert staying.answered == 63
    assert (
        rebuilt.snapshot.id
        == generate_and_freeze(make_job(Store("memory://undisturbed"), Faulty())).snapshot.id
    )


def test_failures_are_set_aside_with_their_reason_and_keep_their_title(store: Store) -> None:
    answers: Mapping[str, str | Failure] = {
        "i001": Failure("i001", "too long"),
        "i002": Failure("i002", "endpoint gave up", permanent=False),
    }
    rebuilt = generate_and_freeze(make_job(store, Faulty(answers=answers)))
    assert rebuilt.set_aside == {"i001": "too long", "i002": "endpoint gave up"}
    assert rebuilt.snapshot.manifest.set_aside == 2
    assert rebuilt.snapshot.by_id["i001"].keywords == ()
    assert rebuilt.snapshot.by_id["i001"].self_keyword == "title 1"
    lines = store.read(f"snapshots/{rebuilt.snapshot.id}/set_aside.jsonl").decode().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["i001", "i002"]
    # A permanent failure is remembered, a passing one is tried again.
    assert [
        make_plan(make_job(store, Faulty(answers=answers))).entities[i].id
        for i in make_plan(make_job(store, Faulty(answers=answers))).missing
    ] == ["i002"]


def test_more_keywords_than_the_budget_are_cut_and_counted(store: Store) -> None:
    answers = {"i001": ", ".join(f"k{n}" for n in range(50)), "i002": "a, a, b"}
    rebuilt = generate_and_freeze(make_job(store, Faulty(answers=answers), k_max=30))
    assert rebuilt.cut_to_budget == rebuilt.snapshot.manifest.cut_to_budget == 1
    assert rebuilt.snapshot.by_id["i001"].keywords == tuple(f"k{n}" for n in range(30))
    assert rebuilt.snapshot.by_id["i002"].keywords == ("a", "b")


def test_the_own_text_is_not_repeated_as_a_keyword(store: Store) -> None:
    rebuilt = generate_and_freeze(make_job(store, Faulty(answers={"i001": "TITLE 1, other"})))
    assert rebuilt.snapshot.by_id["i001"].keywords == ("other",)


def test_a_generator_that_forgets_a_request_is_a_bug(store: Store) -> None:
    class Forgetful(Faulty):
        def generate(self, requests):  # type: ignore[no-untyped-def]
            yield from list(super().generate(requests))[1:]

    with pytest.raises(RuntimeError, match="left 1 requests unanswered"):
        generate_and_freeze(make_job(store, Forgetful()))


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A folder with a jsonl data set of 300 items and a configuration with the scripted
    generator.
    """
    return write_thing_shop(tmp_path, 300, SCRIPTED).parent


def listening() -> None:
    """Ctrl-C is heard again where this suite was started in the background, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def command(shop: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "tests.altered",
        json.dumps({"indexers.rebuild.cache.FLUSH_ANSWERS": 16}),
        "tests.indexers.faulty",
        json.dumps({"delay": 0.002}),
        "indexers.cli",
        "rebuild",
        "--side",
        "item",
        "-c",
        str(shop / "cogr.toml"),
        "--json",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("most", [2, pytest.param(50, marks=pytest.mark.drill)])
def test_kills_at_random_moments_leave_the_snapshot_of_an_undisturbed_run(
    shop: Path, most: int
) -> None:
    undisturbed = json.loads(
        subprocess.run(
            [*command(shop), "--set", f"store={shop / 'calm'}"], capture_output=True, check=True
        ).stdout
    )
    draw = random.Random(0)
    kills = finished = 0
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    while kills < most:
        process = subprocess.Popen(
            command(shop),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            preexec_fn=listening,
        )
        try:
            process.wait(timeout=draw.uniform(0.05, 1.6))
            # It came to its end before the kill: begin again from nothing but half of the cache.
            finished += 1
            for n, segment in enumerate(sorted((shop / ".cogr/cache").rglob("*.parquet"))):
                if n % 2:
                    segment.unlink()
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL if draw.random() < 0.7 else signal.SIGINT)
            process.wait(timeout=30)
            kills += 1
    last = subprocess.run(command(shop), capture_output=True, check=True)
    assert json.loads(last.stdout)["snapshot"] == undisturbed["snapshot"]
    paths = [
        shop / folder / "snapshots" / undisturbed["snapshot"] / "keywords.parquet"
        for folder in ("calm", ".cogr")
    ]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert list((shop / ".cogr" / "snapshots").iterdir()) == [
        shop / ".cogr" / "snapshots" / undisturbed["snapshot"]
    ]
