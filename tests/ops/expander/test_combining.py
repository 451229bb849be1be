"""docs/combining.md: its bodies are those that `benchmarks/bench_combining.py` measures."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest

from tests.documents import ROOT, examples

PAGE = "combining.md"
TEXT, CLAUSE, VECTOR = "{{query}}", "{{clause cogr_keywords_r003_5d0f0c2b7a91}}", "{{vector}}"


@pytest.fixture
def combining(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import _combining  # type: ignore[import-not-found]

    module: ModuleType = _combining
    return module


def test_the_pages_bodies_are_those_that_are_measured(combining: ModuleType) -> None:
    shown = [json.loads(block) for block in examples(PAGE, "json")]
    assert [body for body in shown if "id" not in body] == [
        combining.two_tiers(TEXT, CLAUSE, 0.2),
        combining.counted(TEXT, CLAUSE),
        combining.alone(CLAUSE),
        combining.beside_text(TEXT, CLAUSE, 2),
        combining.as_filter(TEXT, CLAUSE),
        combining.rescored(TEXT, CLAUSE, 0.5),
        combining.by_signal(TEXT, CLAUSE, 2, 0.1),
        combining.beside_both(TEXT, CLAUSE, VECTOR, 2, 10),
    ]


def test_the_pages_fusion_is_the_one_that_is_measured(combining: ModuleType) -> None:
    (program,) = examples(PAGE, "python")
    names: dict[str, Any] = {}
    exec(program, names)
    rankings = ["abc", "bd", "", "cb"]
    fused = names["reciprocal_rank_fusion"](rankings)
    assert fused == combining.reciprocal_rank_fusion(rankings) == ["b", "c", "a", "d"]
