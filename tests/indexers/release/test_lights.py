"""What every light says of the pair that serves in an index of a team's own: `verify`, `list`,
`search`, `shadow`, the expander's `/readyz` and metrics. They agree, each half of a pair is red in
all of them, and the command that they print mends it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from cogr.snapshots import Row
from indexers import serving
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.search import TIER
from indexers.workspace import Workspace
from ops.expander import expander as following
from tests.commands import Command, Ended
from tests.indexers.release.test_nightly import BRANDS, RULES, Shop, team
from tests.ops.expander.expander_worlds import Running, freeze, running, wait_for
from tests.shops import write_jsonl, write_shop

__all__ = ["team"]


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
    team.move(team.make(0), None)
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


def queries_deleted(lights: Lights) -> None:
    """The index of the queries is gone."""
    lights.change("DELETE", f"/{lights.queries}-{lights.serving['query']}")


def rules_of_another_day(lights: Lights) -> None:
    """The alias names the queries with the rules of before."""
    point_queries(lights, remove=True)


def queries_twice(lights: Lights) -> None:
    """The alias names two indexes."""
    point_queries(lights, remove=False)


def point_queries(lights: Lights, *, remove: bool) -> None:
    rows = lights.run("list", "--json").json["snapshots"]
    published = [row["snapshot"] for row in rows if row["side"] == "query" and row["pairs"]]
    before, now = (f"{lights.queries}-{id_}" for id_ in published)
    actions = [{"add": {"index": before, "alias": lights.queries}}]
    actions += [{"remove": {"index": now, "alias": lights.queries}}] if remove else []
    lights.change("POST", "/_aliases", actions=actions)


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
    queries_deleted,
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


@pytest.mark.drill
def test_nights_of_a_team(lights: Lights) -> None:
    """Products come and go; the second night brings other rules, the third a rollback."""
    shop = lights.shop
    for night in range(5):
        new, before = shop.make(night + 1), lights.serving
        lights.run("publish", before["item"], before["query"], "--no-gate", "--into", new)
        shop.move(new, shop.index(night))
        shop.night = night + 1
        lights.check(green=True)
        if night == 1:
            Path("rules.csv").write_text(RULES.replace("bury,couch", "bury,settee"))
        lights.run("publish", *shop.snapshots(), "--no-gate")
        lights.check(green=True)
        if night == 2:
            lights.run("rollback")
            lights.check(green=True)
        lights.change("DELETE", f"/{shop.index(night)}")
        lights.run("prune", "--keep", 1)
        lights.check(green=True)
        check_codes(lights)


def check_codes(lights: Lights) -> None:
    """A product is found by its number, however it is written, by every way."""
    number = lights.shop.numbers[30]
    for query in (spelling.format(number) for spelling in SPELLINGS):
        found = lights.run("search", query, "--json").json["hits"]
        answer = lights.expander.expand(query)
        body = {"query": answer["clause"], "size": 1}
        hits = lights.change("POST", f"/{answer['index']}/_search", **body)["hits"]["hits"]
        assert (found[0]["id"], hits[0]["_id"]) == (f"C-{number}", f"de:C-{number}"), query


PAGE = (Path(__file__).parents[3] / "docs" / "own-index.md").read_text("utf-8")


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
        cluster.call("PUT", f"/{name}", body=mapping, doing="making an index")
        for n, title in enumerate(("Green sofa", "Green couch", "Oak table", *titles)):
            body = {"sku": f"S-{n}", "title": title, "brand": "ACME", "price": 9.5 - n}
            path, now = f"/{name}/_doc/{n}", {"refresh": "true"}
            cluster.call("PUT", path, body=body, params=now, doing="writing")

    def move(name: str) -> None:
        actions = [{"remove": {"index": f"{alias}-*", "alias": alias, "must_exist": False}}]
        body = {"actions": [*actions, {"add": {"index": name, "alias": alias}}]}
        cluster.call("POST", "/_aliases", body=body, doing="moving the alias")

    make(f"{alias}-1")
    move(f"{alias}-1")
    for line in "".join(blocks["console"]).splitlines():
        words = [names.get(word, word) for word in shlex.split(line)[1:]]
        if "--into" in words:
            make(names["products-2"], "Floor lamp")
        ended = cogr_index(*words)
        assert ended.status == 0, (line, ended.err)
        if "--into" in words:
            move(names["products-2"])
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
