"""The playground's answers: what the page shows is what searching does, with figures, and nothing
gets in or out.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from cogr.snapshots import Row
from indexers.release import release
from indexers.search import search
from indexers.workspace import Workspace
from ops.cli.serve import expander_app
from ops.expander.live_models import Models
from tests.ops.expander.expander_worlds import (
    ITEMS,
    QUERIES,
    Running,
    freeze,
    running,
    serve_pair,
    wait_for,
)
from tests.ops.playground.playground_worlds import FIELDS, two_rounds, workspace
from tests.shops import rebuild_pair, write_sample_part


class Page:
    """Asks as the page does."""

    def __init__(self, running: Running, pair: dict[str, str]) -> None:
        self.running, self.pair = running, pair

    def ask(self, path: str, status: int = 200, **body: Any) -> Any:
        answer = self.running.client.post(f"/playground/api/{path}", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def search(self, query: str, keywords: list[str] | None = None, **more: Any) -> Any:
        given = None if keywords is None else [{"text": word} for word in keywords]
        pairs = [{**self.pair, "keywords": given}]
        return self.ask("search", query=query, pairs=pairs, **more)["pairs"][0]

    def earlier(self) -> dict[str, str]:
        """The pair of the round before."""
        return {side: self.ask("page")["pairs"][1][side] for side in ("item", "query")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("playground")


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[Page]:
    shop = workspace(folder)
    pair = two_rounds(shop)
    with running(shop, playground=True) as started:
        yield Page(started, pair)


def test_the_page_comes_with_a_strict_policy(page: Page) -> None:
    client = page.running.client
    assert client.get("/playground").headers["location"].endswith("/playground/")
    answer = client.get("/playground/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["content-type"].startswith("text/html")
    assert client.get("/playground/page.js").headers["content-type"].startswith("text/javascript")
    assert client.get("/playground/../app.py").status_code == 404
    assert not any("playground" in path for path in client.get("/openapi.json").json()["paths"])


def test_pairs_are_of_one_round_and_what_serves_comes_first(page: Page) -> None:
    world = page.ask("page")
    named = [(pair["writer"], pair["serving"]) for pair in world["pairs"]]
    assert named == [("imported, round 2", True), ("imported, round 1", False)]
    assert {side: world["pairs"][0][side] for side in ("item", "query")} == page.pair
    assert world["data"] == {"items": 9, "queries": 2}
    assert "green sofa" in world["examples"]


def test_a_search_is_what_the_search_command_finds(page: Page, folder: Path) -> None:
    answer, expected = page.search("green sofa"), search(workspace(folder), "green sofa", size=20)
    assert answer["total"] == expected.total == 3
    for name in ("id", "score", "matched", "words"):
        shown = expected.as_dict()["hits"]
        assert [hit[name] for hit in answer["hits"]] == [hit[name] for hit in shown]
    assert {hit["id"]: hit["fields"] for hit in answer["hits"]} == {**FIELDS, "d": {}}
    df = {word["text"]: word["df"] for word in answer["keywords"]}
    assert df == {"green sofa": 0, "sofa": 3, "couch": 2}


def test_figures_are_of_the_whole_set(page: Page) -> None:
    answer = page.search("green sofa", size=1)
    # Found are a, b and d; relevant are a, b and new, which this snapshot does not hold.
    assert answer["figures"] == pytest.approx({"p": 2 / 3, "r": 2 / 3, "f1": 2 / 3})
    assert [hit["relevant"] for hit in answer["hits"]] == [True]
    assert answer["missed"] == [{"id": "new", "title": "Loveseat"}]
    assert "figures" not in page.search("velvet things")


def test_the_labelled_queries_are_listed_worst_first(page: Page) -> None:
    both = [page.pair, page.earlier()]
    told = page.ask("queries", pairs=both)
    f1 = {row["text"]: row["f1"] for row in told["queries"]}
    assert f1["green sofa"] == pytest.approx([2 / 3, 0.5])
    assert told["total"] == 2
    assert [row["f1"][0] for row in told["queries"]] == sorted(one[0] for one in f1.values())
    assert told["mean"] == pytest.approx([sum(one[at] for one in f1.values()) / 2 for at in (0, 1)])
    for text, figures in f1.items():
        assert page.search(text)["figures"]["f1"] == pytest.approx(figures[0])
    by_change = page.ask("queries", pairs=both, sort="change")["queries"]
    change = [-abs(row["f1"][0] - row["f1"][1]) for row in by_change]
    assert change == sorted(change)
    assert "reload" in page.ask("queries", 422, pairs=both, sort="fastest")["detail"]


def test_weights_are_shown_and_change_the_order_alone(tmp_path: Path) -> None:
    """Of the pair that serves and of any other one; by hand too."""
    shop = workspace(tmp_path)
    items = [Row("a", "One", ("sofa",)), Row("b", "Two", ("couch",)), Row("c", "Three", ("lamp",))]
    pairs = []
    for round_, weights in ((1, (1.0, 2.5, 1.0)), (2, (2.5, 1.0, 1.0))):
        row = Row("q", "green sofa", ("sofa", "couch"), weights=weights, confidence=0.5)
        ids = serve_pair(shop, items, [row], round_)
        pairs.append({"item": ids[0], "query": ids[1]})
    release(shop, list(pairs[0].values()), gate=False)
    with running(shop, playground=True) as started:
        page = Page(started, pairs[0])
        answers = page.ask("search", query="green sofa", pairs=pairs)["pairs"]
        assert [[hit["id"] for hit in one["hits"]] for one in answers] == [["b", "a"], ["a", "b"]]
        assert [one["confidence"] for one in answers] == [0.5, 0.5]
        shown = [[word["weight"] for word in one["keywords"]] for one in answers]
        assert shown == [[1.0, 1.0, 2.5], [1.0, 2.5, 1.0]]
        given = [{"text": "Sofa", "weight": 3}, {"text": "couch", "weight": 0.5}]
        changed = {**pairs[0], "keywords": given}
        (answer,) = page.ask("search", query="green sofa", pairs=[changed])["pairs"]
        assert [hit["id"] for hit in answer["hits"]] == ["a", "b"]
        wrong = {**pairs[0], "keywords": [{"text": "sofa", "weight": -1}]}
        assert page.ask("search", 422, query="green sofa", pairs=[wrong])["detail"].endswith(".")


def test_changed_keywords_change_the_set_and_its_figures(page: Page) -> None:
    answer = page.search("green sofa", ["  COUCH. ", "nothing has it"])
    assert (answer["source"], answer["reason"]) == ("given", "")
    assert answer["keywords"] == [
        {"text": "couch", "df": 2, "weight": 1.0},
        {"text": "nothing has it", "df": 0, "weight": 1.0},
    ]
    assert answer["figures"] == pytest.approx({"p": 1.0, "r": 2 / 3, "f1": 0.8})
    # What the query names stays, and what its words find.
    bare = page.search("green sofa", [])
    assert [(hit["id"], hit["tier"]) for hit in bare["hits"]] == [("a", "set"), ("b", "more")]


def test_two_pairs_are_searched_beside_one_another(page: Page) -> None:
    both = [page.pair, page.earlier()]
    now, before = page.ask("search", query="green sofa", pairs=both)["pairs"]
    assert [(hit["id"], hit["tier"]) for hit in before["hits"]] == [("a", "set"), ("b", "more")]
    elsewhere = {hit["id"]: hit["elsewhere"] for hit in now["hits"]}
    assert elsewhere == {"a": True, "b": False, "d": False}
    assert page.ask("search", query="velvet things", pairs=both)["pairs"][1]["reason"] == "unknown"


def test_an_item_shows_its_keywords_and_the_queries_that_reach_it(page: Page) -> None:
    told = page.ask("item", id="a", pair=page.pair)
    assert [(word["text"], word["df"], word["own"]) for word in told["keywords"]] == [
        ("sofa", 3, False),
        ("couch", 2, False),
        ("velvet", 2, False),
        ("velvet sofa green", 1, True),
    ]
    assert told["fields"] == FIELDS["a"]
    reached = {
        query["text"]: (query["via"], query["relevant"]) for query in told["reached"]["queries"]
    }
    assert reached == {"green sofa": (["sofa", "couch"], True), "velvet things": (["velvet"], None)}
    absent = page.ask("item", id="new", pair=page.pair)
    assert (absent["held"], absent["title"], absent["reached"]["total"]) == (False, "Loveseat", 0)
    assert "reload" in page.ask("item", 409, id="nobody", pair=page.pair)["detail"]


@pytest.mark.slow
def test_the_baseline_is_cut_where_the_keywords_end(page: Page) -> None:
    found = page.ask("baseline", query="green sofa", cut=1, size=10)
    assert (found["cut"], len(found["hits"])) == (1, 2)
    assert found["figures"] == pytest.approx({"p": 1.0, "r": 1 / 3, "f1": 0.5})


def test_bad_requests_are_refused_in_one_sentence(page: Page) -> None:
    unknown = {"item": "item-r009-000000000000", "query": None}
    assert "has no snapshot" in page.ask("search", 409, query="sofa", pairs=[unknown])["detail"]
    for wrong in (
        {},
        {"query": "x", "pairs": []},
        {"query": "x", "pairs": [{"item": "../x"}]},
        {"query": "x" * 5000},
    ):
        assert "reload" in page.ask("search", 422, **wrong)["detail"]
    large = page.running.client.post(
        "/playground/api/search",
        content=b" " * 100_000,
        headers={"content-type": "application/json"},
    )
    assert large.status_code == 413


@pytest.mark.slow
def test_the_page_works_with_nothing_there_and_asks_for_the_token(tmp_path: Path) -> None:
    shop = workspace(
        tmp_path, "serving.token=secret-canary", f"dataset.path={tmp_path / 'nowhere'}"
    )
    with running(shop, playground=True) as started:
        page = Page(started, {})
        assert "Bearer" in page.ask("page", 401)["detail"]
        started.client.headers["authorization"] = "Bearer secret-canary"
        world = page.ask("page")
    assert (world["pairs"], world["data"], world["examples"]) == ([], None, [])
    assert "nowhere" in world["problem"]


def test_only_pages_of_its_own_are_answered(page: Page, folder: Path) -> None:
    """A page elsewhere reaches it by another host name (DNS rebinding), or without the type that
    browsers ask about first.
    """
    client, path = page.running.client, "/playground/api/page"
    for host in ("shop.example", "127.0.0.1.shop.example", "shop.example:8600"):
        for method, url in (("POST", path), ("GET", "/playground/")):
            answer = client.request(method, url, headers={"host": host}, json={})
            assert (answer.status_code, "item-r" in answer.text) == (400, False)
    for host in ("localhost:8600", "[::1]:8600", "LOCALHOST"):
        assert client.post(path, headers={"host": host}, json={}).status_code == 200
    for kind in ("text/plain", "application/x-www-form-urlencoded", "text/plain;application/json"):
        answer = client.post(path, content="{}", headers={"content-type": kind})
        assert (answer.status_code, "application/json" in answer.json()["detail"]) == (415, True)
    settings = workspace(folder).settings
    asked = {"host": "shop.example", "content-type": "application/json"}
    for hosts, status in ((["shop.example"], 200), (["other.example"], 400)):
        with TestClient(expander_app(settings, ("127.0.0.1", 1), None, hosts, True)) as other:
            assert other.post(path, content="{}", headers=asked).status_code == status


def test_a_merchants_rules_are_listed_and_those_of_a_query_named(tmp_path: Path) -> None:
    (tmp_path / "rules.csv").write_text(
        "rule,query,item,keyword\npin,green sofa,c,\nforbid,,,velvet\n"
    )
    shop = workspace(tmp_path, f"publish.rules={tmp_path / 'rules.csv'}")
    two_rounds(shop)
    serving = {side: str(id_) for side, id_ in shop.backend.serving().items()}
    with running(shop, playground=True) as started:
        page = Page(started, serving)
        rules = page.ask("page")["rules"]
        assert rules == [["pin", "green sofa", "c", ""], ["forbid", "", "", "velvet"]]
        answer = page.search("Green Sofa")
        assert answer["rules"] == ["pin green sofa, c"]
        assert answer["hits"][0]["id"] == "c"


@pytest.mark.slow
def test_the_first_answer_waits_for_a_model_that_is_being_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says so; what a shopper is answered meanwhile is the fallback."""
    shop = Workspace.open(write_sample_part(tmp_path), ["generator.name=statistical"])
    rebuild_pair(shop)
    made, slow = Models._made, threading.Event()
    monkeypatch.setattr(Models, "_made", lambda *given: slow.wait(20) and made(*given))
    with running(shop, playground=True) as started:
        wait_for(lambda: started.parts.models.state == "loading")
        pair = {f"{side}": str(id_) for side, id_ in shop.backend.serving().items()}
        page = Page(started, pair)
        assert page.ask("page")["loading"]
        assert started.expand("grey velvet something")["reason"] == "loading"
        threading.Timer(0.5, slow.set).start()
        found = page.ask("search", query="grey velvet something", pairs=[page.pair])
        assert found["waited"] >= 0.3
        assert found["pairs"][0]["source"] == "model"
        assert not page.ask("page")["loading"]
        assert page.ask("search", query="blue velvet", pairs=[page.pair])["waited"] == 0
        assert page.ask("page")["pairs"][0]["writer"] == "statistical"


def test_a_distilled_pair_is_named_so(tmp_path: Path) -> None:
    shop = workspace(tmp_path)
    item = freeze(shop, "item", ITEMS, kind="statistical")
    freeze(shop, "query", QUERIES, kind="statistical", evidence=[["item-a", "query-a"]])
    with running(shop, playground=True) as started:
        (pair,) = Page(started, {}).ask("page")["pairs"]
    assert (pair["item"], pair["writer"]) == (item.id, "distilled")
