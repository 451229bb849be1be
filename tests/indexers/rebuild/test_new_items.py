"""Items that come after a fit of `statistical`: an update writes them alone, known and new queries
find them, and a later rebuild knows that the labels can't know them.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cogr.keywords import self_keyword
from cogr.matching.mirror import Mirror
from cogr.metrics import rows_of_queries
from cogr.records import Dataset, Query
from cogr.settings import load_settings
from cogr.snapshots import Snapshot, open_snapshot
from indexers.generators.statistical import judge_evidence
from indexers.generators.statistical.generator import KeptFit, Statistical, new_ids
from indexers.inspection import examine
from indexers.workspace import Workspace
from tests.commands import Command, done, rebuilt_pair, sets
from tests.indexers.generators.fake_endpoint import FakeEndpoint, Misbehave
from tests.indexers.generators.statistical.retrieval import f1 as f1_of_sets
from tests.indexers.generators.test_judging import listed
from tests.shops import catalogue_records, read_jsonl, sample_shop, write_jsonl, write_shop
from tests.web_server import Answer
from trainers.demo import CATALOGUE

CONFIGURATION = "[publish]\ntolerance = 1\n"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, frozenset[str]]:
    """The sample shop without a fifth of its items, and their ids."""
    folder = tmp_path_factory.mktemp("shop")
    items, queries, labels = catalogue_records()
    new = frozenset(item["id"] for number, item in enumerate(items) if number % 5 == 2)
    kept = [item for item in items if item["id"] not in new]
    known = [label for label in labels if label["item"] not in new]
    asked = {label["query"] for label in known}
    queries = [query for query in queries if query["id"] in asked]
    write_shop(folder, kept, queries, known, CONFIGURATION)
    write_jsonl(folder / "new.jsonl", [item for item in items if item["id"] in new])
    return folder, new


def workspace_of(folder: Path) -> Workspace:
    return Workspace(load_settings(folder / "cogr.toml"))


def recall(dataset: Dataset, new: frozenset[str], found: Mapping[str, frozenset[str]]) -> float:
    """Of new items, by the labels of the whole shop."""
    wanted = {q.id: dataset.relevant[q.id] & new for q in dataset.queries["test"]}
    shares = [len(found[id_] & ids) / len(ids) for id_, ids in wanted.items() if ids]
    return sum(shares) / len(shares)


def retrieved_ids(mirror: Mirror, asked: Mapping[str, Sequence[str]]) -> dict[str, frozenset[str]]:
    return {
        id_: frozenset(map(mirror.ids.__getitem__, mirror.retrieved(some)))
        for id_, some in asked.items()
    }


def by_known(items: Snapshot, queries: Snapshot, dataset: Dataset) -> Mapping[str, frozenset[str]]:
    rows = rows_of_queries(dataset.queries["test"], queries)
    asked = {id_: list(row.weighted) for id_, row in rows.items()}
    return retrieved_ids(Mirror.build(items), asked)


ASKED = re.compile(r"Item: (.*)\nDescription: .*\n\nSearch: (.*)", re.DOTALL)


def knowing(dataset: Dataset) -> Misbehave:
    """A judge who knows the labels, and errs in a tenth of the pairs."""
    ids = {item.title: item.id for item in dataset.items}
    queries = {self_keyword(query.text): query.id for query in dataset.all_queries()}

    def answer(_: int, body: dict[str, Any]) -> Answer:
        found = ASKED.search(body["messages"][-1]["content"])
        known = ids[found[1]] in dataset.relevant[queries[found[2]]]
        wrong = zlib.crc32(found[0].encode()) % 10 == 0
        return listed({"Yes": 0.9, "No": 0.1} if known != wrong else {"No": 0.7, "Yes": 0.3})

    return answer


def at(endpoint: FakeEndpoint) -> list[str]:
    return sets("generator.statistical.judge=openai", *endpoint.settings)


UPDATE = ("update", "--side", "item", "--no-publish", "--changed")


@pytest.mark.slow
def test_new_items_join_a_fit(
    shop: tuple[Path, frozenset[str]], cogr_index: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, new = shop
    monkeypatch.chdir(folder)
    monkeypatch.setattr(judge_evidence, "MAX_PAIRS", 1500)
    monkeypatch.setattr(judge_evidence, "MAX_FITTED", 300)
    rebuilt_pair(cogr_index)
    whole, old = sample_shop(), workspace_of(folder)
    first = old.serving("item")
    write_jsonl(folder / "data" / "items.jsonl", read_jsonl(CATALOGUE / "items.jsonl"))
    # What a judge knows of them helps, and each pair is asked once.
    with FakeEndpoint(knowing(whole)) as endpoint:
        judged = cogr_index(*UPDATE, "new.jsonl", *at(endpoint), "--json")
        asked_of = len(endpoint.bodies)
        again = done(cogr_index, *UPDATE, "new.jsonl", *at(endpoint))
        assert again["snapshot"] == judged.json["snapshot"]
        assert len(endpoint.bodies) == asked_of
    told = re.search(r"judge: ([\d,]+) pairs, \1 of them .*: new items (\S+) -> (\S+)", judged.err)
    assert told is not None, judged.err
    assert int(told[1].replace(",", "")) == asked_of
    assert float(told[3]) > float(told[2])
    asked = old.serving("query")
    both = done(cogr_index, "update", "--side", "both", "--changed", "new.jsonl")
    made, written = both["item"], both["query"]
    assert (made["generated"], made["carried"]) == (len(new), 400 - len(new))
    now = workspace_of(folder)
    items, queries = now.serving("item"), now.serving("query")
    assert items.manifest.generator["joined"] == [first.id, asked.id]
    assert queries.manifest.generator["joined"] == [items.id, asked.id]
    before = {row.id: row.keywords for row in first.rows()}
    assert all(row.keywords == before[row.id] for row in items.rows() if row.id in before)
    for one in (asked, queries):
        assert recall(whole, new, by_known(items, one, whole)) > 0.4

    sharper = open_snapshot(now.store, judged.json["snapshot"])
    f1, before_f1 = (f1_of_sets(whole, by_known(one, asked, whole)) for one in (sharper, items))
    assert f1 > before_f1
    # The queries that gain are written anew, the others are carried over.
    kept = {row.id: row.keywords for row in asked.rows()}
    changed = [row.id for row in queries.rows() if row.keywords != kept[row.id]]
    assert 0 < len(changed) <= written["generated"] == len(kept) - written["carried"] < len(kept)
    f1, before_f1 = (f1_of_sets(whole, by_known(items, one, whole)) for one in (queries, asked))
    assert f1 > before_f1 - 0.01

    # One changed product.
    (row,) = (item for item in read_jsonl(CATALOGUE / "items.jsonl") if item["id"] == min(before))
    write_jsonl(folder / "one.jsonl", [{**row, "text": row["text"] + " Now in oak."}])
    assert done(cogr_index, *UPDATE, "one.jsonl")["carried"] == 399

    # A query that no snapshot has.
    generator = now.generator("query", "statistical")
    assert isinstance(generator, Statistical)
    live = generator.live(queries.manifest.generator, items.id)
    assert isinstance(live, KeptFit)
    fresh = [Query("search", query.text) for query in whole.queries["test"]]
    words = live.artefact.query_keywords(fresh)
    pairs = zip(whole.queries["test"], words, strict=True)
    sets = {query.id: [*found, self_keyword(query.text)] for query, found in pairs}
    assert recall(whole, new, retrieved_ids(Mirror.build(items), sets)) > 0.4

    # Rebuilt, they are still new: an earlier fit has the same labels, and lacks them.
    assert new_ids(now.dataset, now.store) == new
    assert examine(now).turnover == len(new) / 400
    rebuilt_pair(cogr_index)
    last = workspace_of(folder)
    items, queries = last.serving("item"), last.serving("query")
    assert "new" in items.manifest.generator
    assert recall(whole, new, by_known(items, queries, whole)) > 0.4
