"""Rebuilds: resume as a set difference, byte-identical snapshots after kills, set-aside entities,
thresholds, weights.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cogr.errors import ServiceError
from cogr.records import Entity, Item, Query, Side
from cogr.settings import Settings
from cogr.snapshots import Row
from indexers.generators import Answer, Completion, Failure, Request
from indexers.rebuild.assembly import Rebuilt
from indexers.rebuild.plan import Carried, Job, make_plan
from indexers.workspace import Workspace
from tests.indexers.faulty import Faulty
from tests.indexers.rebuild.fleet.fleet_worlds import listening
from tests.shops import SCRIPTED, generate_and_freeze, read_jsonl, training_shop, write_thing_shop

ITEMS = [Item(f"i{n:03d}", f"Title {n}", f"text of {n % 7} words") for n in range(100)]


class Reader(Faulty):
    """One that reads prompts, as language models do."""

    reads = "prompt"


def job_of(
    store: Path | str, generator: Faulty, entities: Sequence[Entity] = ITEMS, **keywords: Any
) -> Job:
    settings = Settings(dataset={"loader": "jsonl"}, store=str(store), keywords=keywords)  # type: ignore[arg-type]
    workspace = Workspace(settings).with_dataset(training_shop([], {}))
    side: Side = "item" if isinstance(entities[0], Item) else "query"
    return Job(workspace, side, entities, generator, workspace.prompter(side))


def rebuilt(store: Path | str, generator: Faulty, *more: Any, **keywords: Any) -> Rebuilt:
    return generate_and_freeze(job_of(store, generator, *more, **keywords))


def test_only_what_changed_is_generated(tmp_path: Path) -> None:
    rebuilt(tmp_path, Faulty())
    items = [*ITEMS[:7], *ITEMS[8:], Item("i007", "Title 7", "another text"), Item("new", "New")]
    generator = Faulty()
    assert rebuilt(tmp_path, generator, items).snapshot.manifest.entities == 101
    assert generator.answered == 2


def test_a_service_that_goes_away_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexers.generators.cache.FLUSH_ANSWERS", 10)
    with pytest.raises(ServiceError):
        rebuilt(tmp_path, Faulty(away_after=37))
    staying = Faulty()
    undisturbed = rebuilt("memory://undisturbed", Faulty())
    assert rebuilt(tmp_path, staying).snapshot.id == undisturbed.snapshot.id
    assert staying.answered == 63


def test_what_becomes_of_answers(tmp_path: Path) -> None:
    """Those without keywords are set aside with their reason, and keep their title; keywords beyond
    the budget are cut and counted.
    """
    answers = {
        "i001": Failure("i001", "too long"),
        "i002": Failure("i002", "endpoint gave up", permanent=False),
        "i003": Completion("i003", "<think>\nmaybe sofas, lamps", truncated=True),
        "i004": Completion("i004", ""),
        "i005": ", ".join(f"k{n}" for n in range(50)),
        "i006": "a, a, b",
        "i007": "TITLE 7, other",
    }
    made = rebuilt(tmp_path, Reader(answers=answers), k_max=30)
    reasons = {
        "i001": "too long",
        "i002": "endpoint gave up",
        "i003": "no keywords in the output, which generator.sampling.max_tokens cut",
        "i004": "no keywords in the output",
    }
    assert made.set_aside == reasons
    manifest, rows = made.snapshot.manifest, made.snapshot.by_id
    assert (manifest.set_aside, manifest.cut_to_budget, made.cut_to_budget) == (4, 1, 1)
    assert (rows["i001"].keywords, rows["i001"].self_keyword) == ((), "title 1")
    words = [rows[id_].keywords for id_ in ("i005", "i006", "i007")]
    assert words == [tuple(f"k{n}" for n in range(30)), ("a", "b"), ("other",)]
    lines = read_jsonl(tmp_path / f"snapshots/{made.snapshot.id}/set_aside.jsonl")
    assert {line["id"]: line["reason"] for line in lines} == reasons
    # A permanent failure is remembered, a passing one is tried again.
    plan = make_plan(job_of(tmp_path, Reader(answers=answers)))
    assert [plan.entities[i].id for i in plan.missing] == ["i002"]


def test_a_generator_that_forgets_a_request_is_a_bug(tmp_path: Path) -> None:
    class Forgetful(Faulty):
        def generate(self, requests: Iterable[Request]) -> Iterator[Answer]:
            yield from list(super().generate(requests))[1:]

    with pytest.raises(RuntimeError, match="1 .*i000"):
        rebuilt(tmp_path, Forgetful())


class Weighing(Faulty):
    """Gives every query three keywords with weights, and a confidence."""

    def generate(self, requests: Iterable[Request]) -> Iterator[Answer]:
        for request in requests:
            weights = {"sofa": 2.00041, "cut": 7.0, "green couch": 0.333333}
            yield Completion(request.id, "sofa, couch, cut", weights=weights, confidence=0.123456)


def test_a_querys_weights_and_confidence_are_kept_and_an_items_are_not(tmp_path: Path) -> None:
    queries = [Query("q1", "Green couch"), Query("q2", "sofa")]
    made = rebuilt(tmp_path, Weighing(), queries, k_max=2).snapshot
    assert list(made.rows()) == [
        Row("q1", "Green couch", ("sofa", "couch"), "", (2.0, 1.0, 0.3333), 0.1235),
        Row("q2", "sofa", ("couch", "cut"), "", (1.0, 7.0, 2.0), 0.1235),
    ]
    assert made.by_id["q2"].weighted == {"sofa": 2.0, "couch": 1.0, "cut": 7.0}
    assert rebuilt(tmp_path, Weighing(), queries, k_max=2).snapshot.id == made.id
    without = job_of(tmp_path, Weighing(), queries, k_max=2, weights=False)
    unweighted = list(generate_and_freeze(without).snapshot.rows())
    assert [(row.weights, row.confidence) for row in unweighted] == [((), 0.1235)] * 2
    carried = replace(without, entities=queries[1:], carried=Carried(made, frozenset({"q2"})))
    assert list(generate_and_freeze(carried).snapshot.rows()) == unweighted
    row = next(rebuilt(tmp_path, Weighing()).snapshot.rows())
    assert (row.weights, row.confidence) == ((), None)


@pytest.mark.drill
def test_fifty_kills_at_random_moments_leave_the_snapshot_of_an_undisturbed_run(
    tmp_path: Path,
) -> None:
    altered = json.dumps({"indexers.generators.cache.FLUSH_ANSWERS": 16})
    faulty = ("tests.indexers.faulty", json.dumps({"delay": 0.002}))
    rebuild = ("rebuild", "--side", "item", "--json")
    config = ("-c", str(write_thing_shop(tmp_path, 300, SCRIPTED)))
    command = [sys.executable, "-m", "tests.altered", altered, *faulty, "indexers.cli", *rebuild]
    command += config
    calm = [*command, "--set", f"store={tmp_path / 'calm'}"]
    id_ = json.loads(subprocess.check_output(calm))["snapshot"]
    draw, kills = random.Random(0), 0
    store, environment = tmp_path / ".cogr", {**os.environ, "OMP_NUM_THREADS": "1"}
    while kills < 50:
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            preexec_fn=listening,
        )
        try:
            process.wait(timeout=draw.uniform(0.05, 1.6))
            # It came to its end before the kill: begin again from nothing but half of the cache.
            for segment in sorted((store / "cache").rglob("*.parquet"))[1::2]:
                segment.unlink()
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL if draw.random() < 0.7 else signal.SIGINT)
            process.wait(timeout=30)
            kills += 1
    assert json.loads(subprocess.check_output(command))["snapshot"] == id_
    paths = [
        folder / "snapshots" / id_ / "keywords.parquet" for folder in (tmp_path / "calm", store)
    ]
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert [folder.name for folder in (store / "snapshots").iterdir()] == [id_]
