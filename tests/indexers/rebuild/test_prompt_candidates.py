"""Search results of a prompt: titles by BM25, keywords by the ranker; out of fold, within their
number, kept in the store.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cogr.keywords import self_keyword
from cogr.prompts import Prompter
from cogr.records import Item, Query
from cogr.settings import Settings
from indexers.generators.statistical.artefact import Artefact
from indexers.rebuild.plan import by_bm25, by_statistical, prompts_for
from indexers.workspace import Workspace
from trainers.demo import CATALOGUE

pytestmark = pytest.mark.slow

pytest.importorskip("lightgbm")
pytest.importorskip("bm25s")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


def workspace(store: Path, **prompts: Any) -> Workspace:
    dataset = {"loader": "jsonl", "path": str(CATALOGUE)}
    return Workspace(Settings(dataset=dataset, store=str(store), prompts=prompts))


def test_titles_by_bm25_best_first_and_never_an_items_own() -> None:
    items = [Item("1", "Velvet sofa"), Item("2", "Velvet sofa bed"), Item("3", "Oak table")]
    found = by_bm25(items, [Query("q", "velvet sofa"), Query("none", "lamp"), items[0]], 2)
    assert found == {"q": ["velvet sofa", "velvet sofa bed"], "none": [], "1": ["velvet sofa bed"]}


@pytest.mark.parametrize(
    ("variant", "between", "end"), [("search", "; ", ""), ("proposals", ", ", ")")]
)
def test_a_prompt_shows_titles_alone_and_keywords_with_how_sure_they_are(
    store: Path, variant: str, between: str, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = workspace(store, query_variant=variant, templates="bare")
    queries = opened.dataset.queries["test"][:20]
    prompts = [*map(prompts_for(opened, "query", queries), queries)]
    shown = [prompt.user.split("results: ")[1] for prompt in prompts]
    assert max(text.count(between) for text in shown) == 9
    assert all(text == "" or text.endswith(")") is bool(end) for text in shown)
    # What the ranker proposed once is read from the store; prompts without results ask nobody.
    monkeypatch.setattr(Artefact, "proposals", None)
    assert [*map(prompts_for(opened, "query", queries), queries)] == prompts
    monkeypatch.setattr("indexers.rebuild.plan.by_bm25", None)
    assert isinstance(prompts_for(workspace(store), "query", queries), Prompter)


def test_keywords_are_those_the_ranker_would_write_and_runners_up(store: Path) -> None:
    opened = workspace(store)
    queries = [*opened.dataset.queries["train"][:40], *opened.dataset.queries["test"][:20]]
    with opened.generator("query", "statistical") as generator:
        artefact: Artefact = generator.artefact  # type: ignore[attr-defined]
        found = by_statistical(generator, queries, 8, opened.store)  # type: ignore[arg-type]
        written = artefact.targets(queries)
    known = {keyword for item in opened.dataset.items for keyword in artefact.item_keywords(item)}
    titles = {self_keyword(item.title) for item in opened.dataset.items}
    for query, own in zip(queries, written, strict=True):
        words = [word for word, _ in found[query.id]]
        assert words[: len(own)] == own[:8]
        assert len(words) == len(set(words)) <= 8
        assert set(words) <= known | titles
        assert query.text not in words
        assert all(0 <= sure <= 1 for _, sure in found[query.id])
    assert sum(len(found[q.id]) for q in queries) > sum(map(len, written))


def test_an_item_is_shown_its_keywords(store: Path) -> None:
    opened = workspace(store, item_variant="proposals")
    items = opened.dataset.items[:5]
    prompt = prompts_for(opened, "item", items)(items[0])
    assert 1 < prompt.user.split("Search results: ")[1].count(" (9)") <= 10
