"""docs/combining.md: its bodies are those that are measured, and they run; a short run of the
benchmark. Vectors are a drill.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cogr.settings.serving import OpenSearchSettings

ROOT = Path(__file__).parents[3]
BENCHMARK = ROOT / "benchmarks" / "bench_combining.py"
PAGE = (ROOT / "docs/combining.md").read_text("utf-8")
TEXT, CLAUSE, VECTOR = "{{query}}", "{{clause cogr_keywords_r003_5d0f0c2b7a91}}", "{{vector}}"


@pytest.fixture
def combining(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARK.parent))
    import _combining  # type: ignore[import-not-found]

    module: ModuleType = _combining
    return module


def test_the_pages_bodies_are_those_that_are_measured(combining: ModuleType) -> None:
    shown = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)]
    assert [body for body in shown if "id" not in body] == [
        combining.two_tiers(TEXT, CLAUSE, 0.2),
        combining.alone(CLAUSE),
        combining.beside_text(TEXT, CLAUSE, 2),
        combining.as_filter(TEXT, CLAUSE),
        combining.rescored(TEXT, CLAUSE, 0.5),
        combining.by_signal(TEXT, CLAUSE, 2, 0.1),
        combining.beside_both(TEXT, CLAUSE, VECTOR, 2, 10),
    ]


def test_the_pages_fusion_is_the_one_that_is_measured(combining: ModuleType) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(program, names)
    rankings = ["abc", "bd", "", "cb"]
    fused = names["reciprocal_rank_fusion"](rankings)
    assert fused == combining.reciprocal_rank_fusion(rankings) == ["b", "c", "a", "d"]


def rows(*arguments: str) -> dict[str, dict[str, float]]:
    """The benchmark's figures for the sample shop, by row."""
    command = [sys.executable, str(BENCHMARK), "--data", "sample", "--json", *arguments]
    found = json.loads(
        subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    )
    return {row["name"]: row["figures"] for row in found["sample"]}


def check_words_and_keywords(found: dict[str, dict[str, float]]) -> None:
    """What holds whatever was learned, and that there is something to combine."""
    alone, beside = found["(a) keywords alone"], found["(b) text should keywords"]
    assert alone["nDCG@10"] > found["text alone"]["nDCG@10"]
    assert beside["nDCG@10"] > found["text alone"]["nDCG@10"]
    # Words or keywords find what either finds; those that rank what keywords found find no less and
    # no more.
    assert beside["R@100"] >= max(alone["R@100"], found["text alone"]["R@100"]) - 0.01
    for name in (
        "(c) keywords filter, text ranks",
        "(c) keywords rescored by text",
        "(c) function_score of a signal",
    ):
        assert found[name]["R@100"] == pytest.approx(alone["R@100"], abs=0.02)


@pytest.mark.drill
def test_every_way_runs_on_the_sample_shop(opensearch: OpenSearchSettings) -> None:
    check_words_and_keywords(rows("--no-vectors", "--url", str(opensearch.url)))


@pytest.mark.drill
def test_every_way_runs_beside_vectors() -> None:
    """On a node of its own with the k-NN plugin, which Maven fetches."""
    found = rows()
    check_words_and_keywords(found)
    both = found["(d) text should vectors should keywords"]
    assert both["nDCG@10"] > found["text should vectors"]["nDCG@10"]
    assert (
        found["(d) fusion of text, vectors and keywords"]["nDCG@10"]
        > found["fusion of text and vectors"]["nDCG@10"]
    )
