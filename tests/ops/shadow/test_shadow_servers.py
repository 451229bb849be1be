"""`cogr-ops shadow` over a live OpenSearch and a running expander: an index of today's, a log of
each format, a report.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cogr.settings.serving import OpenSearchSettings
from indexers.backends.opensearch.client import Cluster
from tests.commands import Command, Ended
from tests.indexers.backends.opensearch_worlds import (
    filled,
    flags_of,
    half_there,
    overrides_of,
    prefix_of,
)
from tests.ops.expander.expander_worlds import ITEMS, running, serve_pair, workspace
from tests.shops import write_jsonl

pytestmark = pytest.mark.slow
LOG = [
    {"query": "Green COUCH", "count": 3, "clicked": ["a"]},
    {"query": "velvet", "clicked": ["a"]},
    {"query": "oak table"},
    {"query": "nothing like it"},
]


@dataclass
class World:
    """A shop that serves, by a text index `products` and by an expander over a published pair."""

    folder: Path
    index: str
    expander: str
    arguments: list[str]


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory, opensearch: OpenSearchSettings
) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("shadow")
    with prefix_of(opensearch) as cluster:
        opened = workspace(folder, *overrides_of(cluster.settings), "serving.deadline=20")
        serve_pair(opened)
        index = f"{cluster.settings.prefix}-products"
        fill(cluster, index)
        (folder / "today.json").write_text('{"query": {"match": {"title": "{{query}}"}}}')
        arguments = ["-c", str(folder / "cogr.toml"), *flags_of(cluster.settings)]
        with running(opened, hot_queries=0) as expander:
            expander.until("green couch", "index")
            yield World(folder, index, expander.url, arguments)


def fill(cluster: Cluster, index: str) -> None:
    """Titles as text, the items' ids in a field, and the keywords beside them as `publish --into`
    has them.
    """
    properties = {"title": {"type": "text"}, "sku": {"type": "keyword"}, "own": {"type": "keyword"}}
    documents = (
        (str(number), {"title": row.text, "sku": row.id, "own": list(row.keywords)})
        for number, row in enumerate(ITEMS)
    )
    filled(cluster, index, documents, mappings={"properties": properties})


@pytest.fixture
def shadow(world: World, cogr_ops: Command) -> Command:
    """Runs the command over the world, with a log of these records."""

    def run(*arguments: object, records: list[dict[str, Any]] = LOG) -> Ended:
        log = write_jsonl(world.folder / "log.jsonl", records)
        present = ("--present", world.folder / "today.json", "--index", world.index)
        named = ("--rate", 1000, "--expander", world.expander, "--id-field", "sku", *arguments)
        return cogr_ops("shadow", log, *world.arguments, *present, *named)

    return run


def test_an_answer_without_a_shard_is_a_failure(
    shadow: Command, opensearch: OpenSearchSettings
) -> None:
    with prefix_of(opensearch) as cluster:
        half = f"{cluster.settings.prefix}-half"
        half_there(cluster, half, {row.id: {"title": row.text, "sku": row.id} for row in ITEMS})
        ended = shadow("--index", half, "--json")
    assert (ended.status, "is incomplete" in ended.err) == (3, True)


def test_a_log_is_replayed_against_both(shadow: Command) -> None:
    ended = shadow("--json")
    assert ended.status == 0, ended.err
    found = ended.json
    assert (found["searches"], found["queries"], found["failed"]) == (6, 4, {})
    clicked = found["clicked"]
    assert (clicked["present"]["mean"], clicked["candidate"]["mean"]) == (0.25, 1.0)
    # Of "velvet" and "oak table", which titles have; no keyword finds the first.
    literal = found["literal"]
    assert literal["queries"] == 2
    assert literal["present"]["mean"] == literal["candidate"]["mean"] == 1.0
    zero = found["zero_results"]
    assert (zero["gained"], zero["gained_searches"]) == (["Green COUCH"], 3)
    assert (zero["lost"], zero["lost_searches"]) == ([], 0)
    assert found["sources"] == {"index": 3, "none": 3}
    # All but "Green COUCH" find the same by their titles, or nothing by either.
    assert found["overlap"]["mean"] == pytest.approx(3 / 6, abs=1e-6)
    times = found["milliseconds"]
    assert 0 < times["expanding"]["p50"] < times["candidate"]["p50"] <= times["candidate"]["p95"]
    rows = {row["query"]: row for row in found["rows"]}
    assert rows["Green COUCH"]["candidate"] == ["a"]
    assert rows["oak table"]["present"] == rows["oak table"]["candidate"] == ["b"]
    shown = shadow().out
    assert "6 searches, 4 queries" in shown
    assert "literal matches kept" in shown
    assert "new results for: Green COUCH" in " ".join(shown.split())


def test_a_combination_is_a_body_of_the_same_index(shadow: Command, world: World) -> None:
    """Text or keywords, in the field of the team's own index: nothing is lost, and ids come from
    its field.
    """
    body = {"query": {"bool": {"should": [{"match": {"title": "{{query}}"}}, "{{clause own}}"]}}}
    (world.folder / "both.json").write_text(json.dumps(body))
    ended = shadow(
        "--candidate", world.folder / "both.json", "--candidate-index", world.index, "--json"
    )
    assert ended.status == 0, ended.err
    assert ended.json["zero_results"]["lost_searches"] == 0
    assert ended.json["clicked"]["candidate"]["mean"] == 1.0
    # Keywords alone lose what titles name.
    (world.folder / "alone.json").write_text('{"query": "{{clause}}"}')
    alone = shadow("--candidate", world.folder / "alone.json", "--json").json
    assert alone["literal"]["difference"]["mean"] < 0


@pytest.mark.parametrize(
    ("arguments", "status", "part"),
    [
        (("--index", "nowhere"), 2, "nowhere rejected the query of"),
        (("--id-field", "isbn"), 2, "has no 'isbn'; name the items' id with --id-field."),
        (
            ("--expander", "http://127.0.0.1:9"),
            3,
            "No expander answers at http://127.0.0.1:9; start one with cogr-ops serve",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(
    shadow: Command, arguments: tuple[str, ...], status: int, part: str
) -> None:
    ended = shadow(*arguments)
    assert ended.status == status
    assert part in ended.sentence


def test_a_query_that_the_present_search_refuses_is_left_out(shadow: Command, world: World) -> None:
    """As `query_string` does for a lone bracket: shoppers get an error for it today."""
    raw = world.folder / "raw.json"
    raw.write_text('{"query": {"query_string": {"query": "{{query}}"}}}')
    ended = shadow("--present", raw, "--json", records=[*LOG, {"query": "(sofa"}])
    assert ended.status == 0, ended.err
    assert ended.json["failed"] == {"refused": 1}
    assert ended.json["queries"] == 4


def test_a_field_of_ids_that_are_no_items_is_told(shadow: Command, world: World) -> None:
    """Recall of 0 would look like a finding."""
    wrong = shadow("--id-field", "_id", "--size", 1)
    assert wrong.status == 1
    assert "No hit of the search today has the id of an item" in wrong.sentence
