"""Methods that train a model: each learns on a part of the sample shop, from tiny models of its
architecture, and what is ours of their losses is held to its formula.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.compare import (
    METHODS,
    NotRunError,
    dense,
    dsi,
    trained,
)
from benchmarks.compare.dense import bm25_negatives, examples, mined_negatives
from tests.benchmarks.compare.tasks import recall, task_of
from tests.shops import sample_part

pytestmark = [pytest.mark.model, pytest.mark.drill]

PAIRS = {"learning_rate": 3e-3, "batch": 16, "negatives": 1, "document": 1e-4, "query": 1e-4}
WRITER = {"learning_rate": 3e-3, "batch": 16, "negatives": 2}
POLICY = {"prompts": 4, "generations": 2, "learning_rate": 1e-3}
PARAMS = {
    "ance": PAIRS,
    "ripor": WRITER,
    "quester": POLICY,
    "deepretrieval": POLICY,
}
UNTRAINED = {"learning_rate": 1e-12}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which fits are found again."""
    return tmp_path_factory.mktemp("methods")


# Learning


@pytest.mark.parametrize(
    ("method", "params", "steps", "items"),
    [
        ("dpr", PAIRS, 25, 60),
        ("splade", {**PAIRS, "learning_rate": 1e-3, "batch": 8}, 100, 60),
        ("dsi", WRITER, 100, 30),
        ("ripor", WRITER, 60, 30),
    ],
)
def test_a_trained_method_beats_its_untrained_self(
    work: Path, method: str, params: dict[str, float], steps: int, items: int
) -> None:
    task = task_of(work, {method: "tiny"}, sample_part(items), steps)
    before = METHODS[method]().fit(replace(task, steps=3), {**params, **UNTRAINED})
    after = METHODS[method]().fit(task, params)
    assert recall(task, after) > recall(task, before) + 0.15
    assert after.bytes_an_item > 0
    assert after.model
    assert "random weights, a stand-in" in after.said


@pytest.mark.parametrize("method", ["ripor", "quester", "ance", "deepretrieval"])
def test_a_model_is_trained_and_opened_again(work: Path, method: str) -> None:
    task = task_of(work, {method: "tiny"}, steps=3)
    fitted = METHODS[method]().fit(task, PARAMS[method])
    assert "random weights" in fitted.said
    recall(task, fitted)


# Pairs and negatives


def test_negatives_are_found_and_not_relevant(work: Path) -> None:
    task = task_of(work, {})
    drawn = bm25_negatives(task, 3)
    mined = mined_negatives(dense.open_encoder(trained.tiny(task, "bert")), task, 3)
    for negatives in (drawn, mined):
        for wrong, relevant in zip(negatives, task.relevant, strict=True):
            assert len(set(wrong)) == 3
            assert not set(wrong) & relevant
    assert bm25_negatives(task, 3) == drawn
    assert bm25_negatives(replace(task, seed=1), 3) != drawn
    rows = examples(task, drawn)
    assert len(rows) == sum(min(32, len(found)) for found in task.relevant)
    texts = set(task.texts)
    assert all({row["positive"], row["negative_0"], row["negative_2"]} <= texts for row in rows)


# Identifiers


def test_no_identifier_begins_another_one() -> None:
    shop = sample_part(400)
    items = [*shop.items, *(replace(shop.items[0], id=f"copy {n}") for n in range(25))]
    paths = dsi.identifiers(items, [item.title for item in items], 0)
    assert paths.keys() == {item.id for item in items}
    found = sorted(paths.values())
    assert all(one != other[: len(one)] for one, other in itertools.pairwise(found))
    assert all(0 <= digit < dsi.BRANCHES for path in found for digit in path)
    trie = dsi.Trie(paths, range(100, 110), 1)
    assert trie.item[trie.tokens["copy 3"]] == "copy 3"
    for tokens in trie.tokens.values():
        assert all(token in trie.after(tokens[:at]) for at, token in enumerate(tokens))
        assert trie.after(tokens) == [1]


# What can't run


@pytest.mark.parametrize("method", ["embeddings", "dsi", "quester"])
def test_without_weights_a_method_says_what_it_needs(tmp_path: Path, method: str) -> None:
    task = task_of(tmp_path, {})
    with pytest.raises(NotRunError, match=r"^not run: needs ") as error:
        METHODS[method]().fit(task, METHODS[method]().trials(task)[0])
    assert f"--model {method}=" in str(error.value)
