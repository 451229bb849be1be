"""A shop with an index and ids of its own, which makes that index anew each night behind an alias,
while its search asks an expander all the time.

What every light says of the pair that serves there: `verify`, `list`, `search`, `shadow`, the
expander's `/readyz` and metrics. They agree, each half of a pair is red in all of them, and the
command that they print mends it.
"""

from __future__ import annotations

import json
import re
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cogr.snapshots import Row
from indexers import serving
from indexers.backends.opensearch import live
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.indexes import CODED, code_analysis, refresh
from indexers.backends.opensearch.push import write_documents
from indexers.backends.opensearch.search import TIER
from indexers.workspace import Workspace
from ops.expander import expander as following
from tests.commands import Command, Ended
from tests.documents import DOCS
from tests.indexers.backends.opensearch_worlds import filled, flags_of, move_alias, overrides_of
from tests.ops.expander.expander_worlds import Running, freeze, running, wait_for, workspace
from tests.shops import write_jsonl, write_shop

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


def documents(numbers: range, night: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Of products, as they are that night."""
    for n in numbers:
        yield f"de:C-{n}", {"title": title_of(n), "sku": f"C-{n}", "night": night}


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
        mappings = {"dynamic": "strict", "properties": properties}
        settings = {"analysis": code_analysis()}
        products = documents(self.numbers_of(night), night)
        return filled(
            self.cluster, self.index(night), products, settings=settings, mappings=mappings
        )

    def write(self, name: str, numbers: range, night: int) -> None:
        """Write whole documents, as an import of the team does."""
        write_documents(self.cluster, name, documents(numbers, night), replace=True)
        refresh(self.cluster, name)

    def move(self, name: str, old: str = "") -> None:
        """Let the alias name an index."""
        move_alias(self.cluster, self.alias, name, old)

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
    alias = f"{cluster.settings.prefix}-products"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(live, "COUNT_SECONDS", 0.1)
    serving = ("serving.deadline=5", "serving.live=none", f"serving.into.index={alias}", *INTO)
    opened = workspace(tmp_path, *overrides_of(cluster.settings), *serving)
    return Shop(cluster, opened, alias, 60)


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


def test_ids_that_no_item_has_are_refused_and_nothing_is_written(
    team: Shop, cogr_index: Command
) -> None:
    name = team.make(0)
    team.move(name)
    item, query = team.snapshots()
    flags = ["--into", team.alias, *flags_of(team.cluster.settings), "--json"]
    assert "Nothing was published into" in cogr_index("publish", *flags).err
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


@dataclass
class Lights:
    """All lights of a team's configuration."""

    shop: Shop
    command: Command
    ops: Command
    expander: Running = field(init=False)

    @property
    def index(self) -> str:
        """Of the team, tonight."""
        return self.shop.index(0)

    @property
    def queries(self) -> str:
        """The alias of the queries."""
        return f"{self.shop.cluster.settings.prefix}-queries"

    @property
    def serving(self) -> dict[str, Any]:
        """What `list` says of the pair that serves."""
        return dict(self.run("list", "--json").json["serving"])

    def run(self, *given: str, status: int = 0) -> Any:
        ended = self.command(*given)
        assert ended.status == status, (given, ended.err)
        return ended

    def all(self) -> Mapping[str, bool]:
        """Light -> whether it is green."""
        ready = self.expander.client.get("/readyz")
        listed, found = (self.command(*one, "--json") for one in (("list",), ("search", "couch")))
        return {
            "verify": self.command("verify").status == 0,
            "list": listed.status == 0 and not listed.json["serving"]["problems"],
            "search": found.status == 0 and not found.json["note"],
            "shadow": self.shadow().status == 0,
            "readyz": ready.status_code == 200,
            "metric": self.expander.metric("cogr_expander_flaws") == 0,
        }

    def shadow(self) -> Ended:
        """A log of two queries asked of the team's text search and of what serves."""
        sides = ("--present", "today.json", "--index", self.shop.alias, "--rate", 1000)
        return self.ops("shadow", "log.jsonl", *sides, "--expander", self.expander.url)

    def check(self, *, green: bool) -> None:
        """Every light is as it should be, at the latest when the expander has looked again."""
        wanted = dict.fromkeys(self.all(), green)
        wait_for(lambda: self.all() == wanted, 20)

    def advice(self) -> list[str]:
        """The command that `verify` prints, as a shell would split it."""
        told = re.search(r"Run (cogr-index [^.]*)\.", self.run("verify", status=1).err)
        assert told, "no command"
        return shlex.split(told[1])[1:]

    def change(self, method: str, path: str, **body: Any) -> Any:
        return self.shop.cluster.call(method, path, body=body or None, doing="breaking it")


@pytest.fixture
def lights(
    team: Shop,
    cogr_index: Command,
    cogr_ops: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Lights]:
    """A pair with a merchant's rules serves in the team's index, after another one did. Everything
    is configured, so that no command needs an option.
    """
    monkeypatch.setattr(following, "HISTORY_SECONDS", 0.1)
    monkeypatch.setattr(serving, "SWITCHING", timedelta(seconds=1))
    (tmp_path / "rules.csv").write_text(RULES)
    file, into = tmp_path / "cogr.toml", f'into = {{ index = "{team.alias}", id_field = "sku" }}'
    tables = f"""
[publish]
rules = "rules.csv"
[opensearch]
url = "{team.cluster.url}"
prefix = "{team.cluster.settings.prefix}"
"""
    file.write_text(file.read_text().replace("[serving]", f"[serving]\n{into}") + tables)
    (tmp_path / "today.json").write_text('{"query": {"match": {"title": "{{query}}"}}}')
    write_jsonl(tmp_path / "log.jsonl", [{"query": one} for one in (BRANDS[1], "couch")])
    team.move(team.make(0))
    shown = Lights(team, cogr_index, cogr_ops)
    shown.run("publish", *team.snapshots(), "--no-gate")
    (tmp_path / "rules.csv").write_text(RULES.replace("bury,couch", "bury,light"))
    shown.run("publish", "--no-gate")
    with running(team.workspace, hot_queries=0) as shown.expander:
        yield shown


def stripped(lights: Lights) -> None:
    """An import of the team writes whole documents."""
    lights.shop.write(lights.index, lights.shop.numbers, 0)


def partly_stripped(lights: Lights) -> None:
    """The same for one product in ten."""
    lights.shop.write(lights.index, lights.shop.numbers[:6], 0)


def alias_moved(lights: Lights) -> None:
    """The team's alias names tomorrow's index, which has no keywords yet."""
    lights.shop.move(lights.shop.make(1), lights.index)


def index_deleted(lights: Lights) -> None:
    """The team's index, and its alias with it."""
    lights.change("DELETE", f"/{lights.index}")


def queries_unnamed(lights: Lights) -> None:
    """The alias of the queries is gone."""
    lights.change("DELETE", f"/{lights.queries}-*/_alias/{lights.queries}")


def rules_of_another_day(lights: Lights) -> None:
    """The alias names the queries with the rules of before."""
    point_queries(lights, remove=True)


def queries_twice(lights: Lights) -> None:
    """The alias names two indexes."""
    point_queries(lights, remove=False)


def point_queries(lights: Lights, *, remove: bool) -> None:
    rows = lights.run("list", "--json").json["snapshots"]
    queries = sorted(
        (row for row in rows if row["side"] == "query"), key=lambda one: one["serving"]
    )
    before, now = (f"{lights.queries}-{row['snapshot']}" for row in queries if row["pairs"])
    move_alias(lights.shop.cluster, lights.queries, before, now if remove else "")


def field_of_before(lights: Lights) -> None:
    """The field alias names the keywords of before."""
    properties = lights.change("GET", f"/{lights.index}")[lights.index]["mappings"]["properties"]
    now = properties["cogr_keywords"]["path"]
    (before,) = {one for one in properties if one.startswith("cogr_keywords_")} - {now}
    alias = {"cogr_keywords": {"type": "alias", "path": before}}
    lights.change("PUT", f"/{lights.index}/_mapping", properties=alias)


def id_field_changed(lights: Lights) -> None:
    """The keywords were written by other ids than the settings say."""
    path = f"/{lights.index}"
    properties = lights.change("GET", path)[lights.index]["mappings"]["properties"]
    now = properties["cogr_keywords"]["path"]
    meta = {**properties[now]["meta"], "id_field": "ean"}
    lights.change("PUT", f"{path}/_mapping", properties={now: {**properties[now], "meta": meta}})


HALVES: Sequence[Callable[[Lights], None]] = (
    stripped,
    partly_stripped,
    alias_moved,
    index_deleted,
    queries_unnamed,
    rules_of_another_day,
    queries_twice,
    field_of_before,
    id_field_changed,
)
CURED = (
    stripped,
    partly_stripped,
    queries_unnamed,
    rules_of_another_day,
    queries_twice,
    field_of_before,
)
"""By the command that the lights print; the others need the team first."""
PARTIAL = (partly_stripped, queries_twice)
"""Most queries have their keywords: a load balancer does not give up on it."""


@pytest.mark.parametrize(
    "half",
    [
        pytest.param(one, id=one.__name__, marks=[] if one in CURED[1:4:2] else [pytest.mark.drill])
        for one in HALVES
    ],
)
def test_a_half_of_a_pair_is_red_in_every_light(
    lights: Lights, half: Callable[[Lights], None]
) -> None:
    lights.check(green=True)
    half(lights)
    lights.check(green=False)
    pods = lights.expander.client.get("/readyz?exclude=warnings")
    assert pods.json()["problems"]
    assert pods.status_code == (200 if half in PARTIAL else 503)
    if half in CURED:
        lights.run(*lights.advice())
        lights.check(green=True)


def test_queries_alone_are_published_beside_the_items_that_serve(lights: Lights) -> None:
    before = lights.serving
    queries = freeze(lights.shop.workspace, "query", [Row("q", "couch", ("light",))])
    lights.run("publish", queries.id, "--no-gate")
    assert lights.serving["item"] == before["item"]
    assert lights.serving["query"] != before["query"]
    assert "light" in lights.run("search", "couch", "--json").json["keywords"]
    lights.check(green=True)


SPELLINGS = ("C-{}", "c-{}", "C{}", " c {} ", "C - {}")


@pytest.mark.parametrize("nights", [1, pytest.param(5, marks=pytest.mark.drill)])
def test_nights_of_a_team(lights: Lights, nights: int) -> None:
    """Products come and go while shoppers ask; the second night brings other rules, the third a
    rollback.
    """
    shop = lights.shop
    Path("rules.csv").write_text(RULES)
    lights.run("publish", "--no-gate")
    with asking(shop, lights.expander):
        for night in range(nights):
            new, before = shop.make(night + 1), lights.serving
            lights.run("publish", before["item"], before["query"], "--no-gate", "--into", new)
            shop.move(new, shop.index(night))
            shop.night = night + 1
            lights.check(green=True)
            if night == 1:
                Path("rules.csv").write_text(RULES + "add,light,,torch\n")
            lights.run("publish", *shop.snapshots(), "--no-gate")
            lights.check(green=True)
            if night == 2:
                lights.run("rollback")
                lights.check(green=True)
            lights.change("DELETE", f"/{shop.index(night)}")
            lights.run("prune", "--keep", 1)
            lights.check(green=True)
            check_codes(lights)
    assert shop.asked > 20
    assert shop.literal[BRANDS[0]] == 20
    assert shop.literal[title_of(shop.numbers[30])] == 1


def check_codes(lights: Lights) -> None:
    """A product is found by its number, however it is written, by every way."""
    number = lights.shop.numbers[30]
    for query in (spelling.format(number) for spelling in SPELLINGS):
        found = lights.run("search", query, "--json").json["hits"]
        answer = lights.expander.expand(query)
        body = {"query": answer["clause"], "size": 1}
        hits = lights.change("POST", f"/{answer['index']}/_search", **body)["hits"]["hits"]
        assert (found[0]["id"], hits[0]["_id"]) == (f"C-{number}", f"de:C-{number}"), query


PAGE = (DOCS / "own-index.md").read_text("utf-8")


def test_every_command_of_the_page_runs(
    cluster: Cluster, cogr_index: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its order, with its mapping and its configuration, on an index of that name."""
    monkeypatch.chdir(tmp_path)
    alias = f"{cluster.settings.prefix}-products"
    names = {"products": alias, "products-2": f"{alias}-2"}
    blocks = dict[str, list[str]]()
    for kind, text in re.findall(r"^```(\S+).*?\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        blocks.setdefault(kind, []).append(text)
    mapping = {**json.loads(blocks["json"][0]), "aliases": {}}
    (config,) = blocks["toml"]
    for old, new in {
        '"http://localhost:9200"': f'"{cluster.url}"',
        '"shop"': f'"{cluster.settings.prefix}"',
        '"products"': f'"{alias}"',
    }.items():
        assert old in config
        config = config.replace(old, new)
    more = '[publish]\nrules = "rules.csv"\ntolerance = 1\n'
    write_shop(tmp_path, [], [{"id": "q", "text": "green sofa"}], [], config + more)
    (tmp_path / "rules.csv").write_text("rule,query,item,keyword\npin,green sofa,S-1,\n")

    def make(name: str, *titles: str) -> None:
        made = (
            (str(n), {"sku": f"S-{n}", "title": title, "brand": "ACME", "price": 9.5 - n})
            for n, title in enumerate(("Green sofa", "Green couch", "Oak table", *titles))
        )
        filled(cluster, name, made, **mapping)

    make(f"{alias}-1")
    move_alias(cluster, alias, f"{alias}-1")
    for line in "".join(blocks["console"]).splitlines():
        words = [names.get(word, word) for word in shlex.split(line)[1:]]
        if "--into" in words:
            make(names["products-2"], "Floor lamp")
        ended = cogr_index(*words)
        assert ended.status == 0, (line, ended.err)
        if "--into" in words:
            move_alias(cluster, alias, names["products-2"], f"{alias}-1")
    assert cogr_index("verify").status == 0
    with running(Workspace.open(tmp_path / "cogr.toml")) as expander:
        answer = expander.expand("green sofa")

    def asked(body: str) -> Any:
        for name in ("clause", "set"):
            body = body.replace(f'"{{{{{name}}}}}"', json.dumps(answer[name]))
        return cluster.call("POST", f"/{alias}/_search", body=json.loads(body), doing="searching")

    best, facets, cheapest = (asked(one) for one in blocks["json"] if "{{" in one)
    (brand,) = facets["aggregations"]["brands"]["buckets"]
    assert (brand["key"], brand["doc_count"]) == ("ACME", facets["hits"]["total"]["value"])
    assert brand["doc_count"] == len(cheapest["hits"]["hits"]) > 0
    of_set = [hit for hit in best["hits"]["hits"] if hit["_score"] >= TIER]
    assert len(of_set) == brand["doc_count"]
    prices = [hit["sort"][0] for hit in cheapest["hits"]["hits"]]
    assert prices == sorted(prices)
    assert len(set(prices)) > 1
