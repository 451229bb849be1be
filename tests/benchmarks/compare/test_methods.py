"""Each method without weights on the sample shop: it beats what it is without training, and does
what its paper says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.compare import METHODS, Fitted, NotRunError, Task
from benchmarks.compare.lexical import learned_synonyms
from benchmarks.compare.measuring import checked_run, ids_of
from cogr.datasets import load_dataset
from cogr.metrics import measure
from tests.benchmarks.compare.tasks import task_of
from tests.trainers.report_worlds import whole_run
from trainers.demo import CATALOGUE


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return task_of(tmp_path_factory.mktemp("work"), {}, load_dataset("jsonl", CATALOGUE))


def fitted(task: Task, name: str, **params: Any) -> Fitted:
    method = METHODS[name]()
    return method.fit(task, {**method.trials(task)[0], **params})


def figures(task: Task, found: Fitted, split: Any = "test") -> Mapping[str, float]:
    queries = task.dataset.require(split)
    run = ids_of(checked_run("", found.rank(queries, 100), queries, 100))
    whole = found.rank(queries, len(task.dataset.items))
    return measure(task.dataset, queries, found.sets(whole) if found.sets else run, run).means


def unlabelled(task: Task) -> Task:
    """The same shop, whose training queries want random items."""
    rng = np.random.default_rng(0)
    ids = [item.id for item in task.dataset.items]
    wrong = {
        query.id: frozenset(rng.choice(ids, len(task.dataset.relevant[query.id])).tolist())
        for query in task.dataset.queries["train"]
    }
    return replace(task, dataset=replace(task.dataset, relevant={**task.dataset.relevant, **wrong}))


def test_synonyms_beat_the_words_alone_and_random_labels_teach_none(task: Task) -> None:
    pytest.importorskip("bm25s")
    learned, words = fitted(task, "synonyms"), fitted(task, "synonyms", most=0)
    wrong = fitted(unlabelled(task), "synonyms")
    assert figures(task, learned)["ndcg@10"] > 1.4 * figures(task, words)["ndcg@10"]
    assert figures(task, wrong)["ndcg@10"] < figures(task, words)["ndcg@10"] + 0.05


def test_a_synonym_needs_two_queries_a_share_of_their_votes_and_more_than_chance() -> None:
    items = [["sofa", "blue"], ["sofa", "red"], ["lamp", "blue"], ["couch", "blue"]]
    asked = [["settee"], ["settee", "cheap"], ["light"]]
    relevant = [[0, 1], [1], [2]]
    found = learned_synonyms(asked, relevant, items, 5, 0.3)
    assert found == {"settee": ["red", "sofa"]}, "blue is there by chance, light was asked once"
    assert learned_synonyms(asked, relevant, items, 1, 0.3) == {"settee": ["red"]}
    assert learned_synonyms(asked, relevant, items, 5, 0.8) == {"settee": ["sofa"]}


@pytest.mark.slow
def test_learned_keywords_beat_those_without_labels(task: Task) -> None:
    learned, plain = (fitted(task, one) for one in ("statistical", "extractive"))
    assert figures(task, learned)["f1"] > 3 * figures(task, plain)["f1"]
    assert learned.model


def test_rounds_are_not_run_without_a_training_run(task: Task, tmp_path: Path) -> None:
    settings = task.settings.model_copy(update={"store": str(tmp_path)})
    missing = "a finished round of a training run.* on these data, which main is not"
    with pytest.raises(NotRunError, match=missing):
        fitted(replace(task, settings=settings), "cogr")


def test_rounds_are_measured_as_evaluate_measures_their_pair(tmp_path: Path) -> None:
    """CoGR is the round that does best on dev."""
    workspace, run = whole_run(tmp_path)
    work = tmp_path / "out" / "work" / "cogr" / "seed-0"
    work.mkdir(parents=True)
    own = Task(workspace.dataset, work, 0, lambda _: None, workspace.settings)
    rounds = run.state().finished
    notes = [done.stage("evaluate").notes for done in rounds]  # type: ignore[union-attr]
    accepted = [at for at, done in enumerate(rounds) if done.verdict == "accepted"]
    best = max(accepted, key=lambda at: notes[at]["dev"]["f1"])
    found = figures(own, fitted(own, "cogr"))
    for name in ("p", "r", "f1", "ndcg@10", "mrr@10"):
        assert found[name] == pytest.approx(notes[best]["test"][name], abs=1e-6)
    share = workspace.settings.dataset.model_copy(update={"dev_share": 0.4})
    settings = workspace.settings.model_copy(update={"dataset": share})
    other = replace(own.dataset, dataset_hash="0" * 64)
    with pytest.raises(NotRunError, match="training run"):
        fitted(replace(own, settings=settings, dataset=other), "cogr")
