"""Search results of a prompt: titles by BM25."""

from __future__ import annotations

from pathlib import Path

import pytest

from cogr.prompts import Prompter
from cogr.records import Item, Query
from cogr.settings import Settings
from indexers.rebuild.plan import by_bm25, prompts_for
from indexers.workspace import Workspace
from trainers.demo import CATALOGUE

pytestmark = pytest.mark.slow

pytest.importorskip("bm25s")


def test_titles_by_bm25_best_first_and_never_an_items_own() -> None:
    items = [Item("1", "Velvet sofa"), Item("2", "Velvet sofa bed"), Item("3", "Oak table")]
    found = by_bm25(items, [Query("q", "velvet sofa"), Query("none", "lamp"), items[0]], 2)
    assert found == {"q": ["velvet sofa", "velvet sofa bed"], "none": [], "1": ["velvet sofa bed"]}


def test_a_prompt_shows_titles_where_its_template_has_their_place(tmp_path: Path) -> None:
    file = tmp_path / "prompts.toml"
    file.write_text("[query]\nuser = '{query}: {search_results}'")
    shop = {"loader": "jsonl", "path": str(CATALOGUE)}
    opened = Workspace(Settings(dataset=shop, prompts={"templates": str(file)}))
    queries = opened.dataset.queries["test"][:20]
    prompts = [*map(prompts_for(opened, "query", queries), queries)]
    assert max(prompt.user.count("; ") for prompt in prompts) == 9
    assert isinstance(prompts_for(opened, "item", opened.dataset.items), Prompter)
