"""A shop with an index and ids of its own, which makes that index anew each night behind an alias,
while its search asks an expander all the time.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cogr.snapshots import Row
from indexers.backends.opensearch import live
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.indexes import CODED, code_analysis, refresh
from indexers.backends.opensearch.push import write_documents
from indexers.workspace import Workspace
from tests.commands import Command, Ended
from tests.indexers.backends.opensearch_worlds import flags_of
from tests.ops.expander.expander_worlds import Running, freeze, running, workspace

BRANDS, NOUNS = ("Brüggmann", "ACME", "Penharrow"), ("sofa", "table", "lamp", "shelf")
KINDS = {"sofa": "couch", "table": "desk", "lamp": "light", "shelf": "rack"}
INTO = ('serving.into.text_fields=["title"]', "serving.into.id_field=sku")
IDS = ("--set", INTO[1])
PINNED, BURIED = 10_055, 10_056
RULES = f"""rule,query,item,keyword
pin,couch,C-{PINNED},
bury,couch,C-{BURIED},
synonym,couch,,settee
"""
"""Of products that are there each night: a shelf, a sofa."""


def title_of(number: int) -> str:
    return f"{BRANDS[number % 3]} {NOUNS[number % 4]} C-{number}"


@dataclass
class Shop:
    """The team: its products of tonight, its index behind an alias, and its search."""

    cluster: Cluster
    workspace: Workspace
    alias: str
    size: int
    night: int = 0
    asked: int = 0
    literal: dict[str, int] = field(default_factory=dict)

    def numbers_of(self, night: int) -> range:
        """Products come and go."""
        first = 10_000 + night * 10
        return range(first, first + self.size)

    @property
    def numbers(self) -> range:
        return self.numbers_of(self.night)

    def index(self, night: int) -> str:
        return f"{self.alias}-{night}"

    def make(self, night: int) -> str:
        """A night's index, which nothing names yet."""
        text = {"type": "text"}
        sku = {"type": "keyword", "fields": {"codes": CODED}}
        properties = {"title": text, "sku": sku, "night": {"type": "integer"}}
        name = self.index(night)
        settings = {"analysis": code_analysis()}
        body = {"settings": settings, "mappings": {"dynamic": "strict", "properties": properties}}
        self.cluster.call("PUT", f"/{name}", body=body, doing="making an index")
        self.write(name, self.numbers_of(night), night)
        return name

    def write(self, name: str, numbers: range, night: int) -> None:
        """Write whole documents, as an import of the team does."""
        made = (
            (f"de:C-{n}", {"title": title_of(n), "sku": f"C-{n}", "night": night}) for n in numbers
        )
        write_documents(self.cluster, name, made, replace=True)
        refresh(self.cluster, name)

    def move(self, name: str, old: str | None) -> None:
        """Let the alias name an index."""
        actions: list[dict[str, Any]] = [{"add": {"index": name, "alias": self.alias}}]
        actions += [{"remove": {"index": old, "alias": self.alias}}] if old else []
        self.cluster.call("POST", "/_aliases", body={"actions": actions}, doing="moving")

    def snapshots(self) -> list[str]:
        """Keywords of tonight's products and of the queries for them, pushed."""
        items = [
            Row(f"C-{n}", title_of(n), (NOUNS[n % 4], KINDS[NOUNS[n % 4]])) for n in self.numbers
        ]
        queries = [
            Row(f"q{n}", text, tuple(KINDS[word] for word in text.split() if word in KINDS))
            for n, text in enumerate(self.queries())
        ]
        pair = (freeze(self.workspace, "item", items), freeze(self.workspace, "query", queries))
        return [one.id for one in pair]

    def queries(self) -> list[str]:
        """Brands, an identifier, a title, and words that no title has."""
        middle = self.numbers[self.size // 2]
        return [*BRANDS, f"C-{middle}", title_of(middle), *KINDS.values()]

    def check_rules(self, query: str, ids: list[str], whole: list[str]) -> None:
        """What the merchant decided holds at any moment."""
        if query in ("couch", "settee"):
            assert whole[0] == f"de:C-{PINNED}"
            assert f"de:C-{BURIED}" not in ids

    def ask(self, expander: Running, query: str) -> None:
        """One search of the site, as the docs say, beside text search alone."""
        night, answer = self.night, expander.expand(query)
        literal = {"match": {"title": {"query": query, "operator": "and"}}}
        size = {"size": 1000, "_source": ["night"]}
        lines = [
            line
            for body in (answer["set"], answer["clause"], literal)
            for line in ({"index": answer["index"] or self.alias}, {"query": body, **size})
        ]
        body = "".join(f"{json.dumps(line)}\n" for line in lines)
        answers = self.cluster.call("POST", "/_msearch", body=body, doing="searching")
        first, found, exact = (one["hits"]["hits"] for one in answers["responses"])
        hits, wanted = [*first, *found], exact
        assert hits, f"no answer to {query!r}"
        assert all(hit["_source"]["night"] >= night for hit in hits), f"stale: {query!r}"
        self.check_rules(query, *([hit["_id"] for hit in some] for some in (first, found)))
        if {hit["_index"] for hit in (*hits, *wanted)} == {self.index(self.night)}:
            lost = {hit["_id"] for hit in wanted} - {hit["_id"] for hit in first}
            assert not lost, f"{query!r} loses {lost}"
            self.literal[query] = len(wanted)
        self.asked += 1


@pytest.fixture
def team(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    name = cluster.settings.prefix
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(live, "COUNT_SECONDS", 0.1)
    sets = (
        f"opensearch.url={cluster.url}",
        f"opensearch.prefix={name}",
        "serving.deadline=5",
        "serving.live=none",
    )
    opened = workspace(tmp_path, *sets, f"serving.into.index={name}-products", *INTO)
    return Shop(cluster, opened, f"{name}-products", 60)


@contextmanager
def asking(team: Shop, expander: Running) -> Iterator[None]:
    """Shoppers ask all the while; what went wrong for one is raised at the end."""
    done, wrong = threading.Event(), list[BaseException]()

    def ask() -> None:
        try:
            while not done.is_set():
                for query in (*team.queries(), "settee"):
                    team.ask(expander, query)
        except BaseException as error:  # noqa: BLE001 (raised below)
            wrong.append(error)

    shopper = threading.Thread(target=ask)
    shopper.start()
    yield
    done.set()
    shopper.join(60)
    if wrong:
        raise wrong[0]


@pytest.mark.parametrize("nights", [1, pytest.param(5, marks=pytest.mark.drill)])
def test_a_shop_reindexes_each_night(
    team: Shop, cogr_index: Command, tmp_path: Path, nights: int
) -> None:
    (tmp_path / "rules.csv").write_text(RULES)
    ruled = ("--set", f"publish.rules={tmp_path / 'rules.csv'}")
    flags = ["--into", team.alias, *IDS, *flags_of(team.cluster.settings), *ruled, "--json"]

    def run(*given: str, status: int = 0) -> Ended:
        ended = cogr_index(*given, *flags)
        assert ended.status == status, ended.err
        return ended

    team.move(team.make(0), None)
    assert "Nothing was published into" in run("publish", status=2).err
    serving = run("publish", *team.snapshots(), "--no-gate").json["serving"]
    with running(team.workspace, hot_queries=0) as expander:
        assert expander.expand("couch")["index"] == team.alias
        with asking(team, expander):
            for _ in range(nights):
                old, new = team.index(team.night), team.make(team.night + 1)
                there = ["--into", new, *flags[2:]]
                ended = cogr_index("publish", serving, "--no-gate", *there)
                assert ended.status == 0, ended.err
                team.move(new, old)
                team.night += 1
                serving = run("publish", *team.snapshots(), "--no-gate").json["serving"]
                run("verify")
                team.cluster.call("DELETE", f"/{old}", doing="the team tidies up")
        assert team.asked > 20
        assert team.literal[BRANDS[0]] == 20
        assert team.literal[title_of(team.numbers[30])] == 1
        assert expander.expand("couch")["index"] == team.alias


def test_ids_that_no_item_has_are_refused_and_nothing_is_written(
    team: Shop, cogr_index: Command
) -> None:
    name = team.make(0)
    team.move(name, None)
    item, query = team.snapshots()
    flags = ["--into", team.alias, *flags_of(team.cluster.settings), "--json"]
    before = team.cluster.call("GET", f"/{name}/_mapping", doing="looking")
    refused = cogr_index("publish", item, "--no-gate", *flags)
    told = "items 'C-10000', 'C-10001'; name the field" in refused.sentence
    assert (refused.status, told) == (2, True), refused.err
    assert team.cluster.call("GET", f"/{name}/_mapping", doing="looking") == before

    done = cogr_index("publish", item, query, "--no-gate", *flags, *IDS)
    assert done.status == 0, done.err
    assert (done.json["covered"], done.json["query"]) == (60, query)
    assert team.workspace.backend.serving() == {"item": item, "query": query}
    # Products of which the snapshot knows few: said, with the share.
    team.write(name, range(20_000, 20_600), 0)
    again = cogr_index("publish", *flags, *IDS)
    assert "Warning: only 60 of 660 documents" in again.err
    assert "600 are of no item of the snapshot (such as 'de:C-2" in again.err
    # Rolled back as one, too.
    team.night = 1
    run = [*flags, *IDS]
    assert cogr_index("publish", *team.snapshots(), "--no-gate", *run).status == 0
    back = cogr_index("rollback", *run)
    assert (back.status, back.json["serving"], back.json["query"]) == (0, item, query)
