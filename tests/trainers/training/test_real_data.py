"""The set-up for real data: prompts with candidates, targets by the ranker, its item snapshot
first, constrained index builds.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cogr.errors import SettingsError
from cogr.settings import Settings, load_settings
from cogr.settings.training import SftSettings, TrainingSettings
from cogr.snapshots import open_snapshot
from indexers.generators.constraint import known_keywords
from indexers.rebuild.prompt_candidates import proposals
from indexers.workspace import Workspace
from tests.shops import write_sample_part
from tests.trainers.shop import InThisProcess
from trainers.demo import CATALOGUE
from trainers.training.building import proposal_targets
from trainers.training.driver import Driver
from trainers.training.run_folder import create
from trainers.training.trainer_config import check_settings, items_from

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*-train.toml"))


def test_labels_can_not_index_the_items() -> None:
    with pytest.raises(SettingsError, match=r'start is "source".*"statistical"'):
        items_from(TrainingSettings(start="source"))
    assert (
        items_from(TrainingSettings(start="source", sft=SftSettings(items_from="statistical")))
        == "statistical"
    )


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_holds_no_labels_in_what_it_trains_against(example: Path) -> None:
    """A training query's own text would find its labels, were they item keywords."""
    settings = load_settings(example)
    assert not settings.generator.statistical.anchors
    assert settings.prompts.source("query") == settings.prompts.source("item") == "statistical"
    assert settings.training.sft.queries_from in ("statistical", "proposals")
    assert "{search_results}" in settings.prompts.template("query").user


def test_a_random_half_of_the_candidates_in_the_prompts_order(tmp_path: Path) -> None:
    pytest.importorskip("lightgbm")
    prompts = {"query_variant": "proposals", "search_results": 6}
    workspace = Workspace(
        Settings(
            dataset={"loader": "jsonl", "path": str(CATALOGUE)},
            store=str(tmp_path),
            prompts=prompts,
        )
    )
    queries = workspace.dataset.queries["train"]
    shown = {
        id_: [word for word, _ in own]
        for id_, own in proposals(workspace, "query", queries).items()
    }
    targets = proposal_targets(workspace, queries, 30)
    assert targets == proposal_targets(workspace, queries[::-1], 30)
    assert targets.keys() == {id_ for id_, words in shown.items() if words}
    assert all(
        words and [word for word in shown[id_] if word in words] == list(words)
        for id_, words in targets.items()
    )
    kept, all_of_them = (sum(map(len, found.values())) for found in (targets, shown))
    assert 0.4 < kept / all_of_them < 0.7
    assert max(map(len, proposal_targets(workspace, queries, 1).values())) == 1


def test_half_of_candidates_that_no_prompt_shows(tmp_path: Path) -> None:
    settings = {"dataset": {"loader": "jsonl", "path": str(CATALOGUE)}, "store": str(tmp_path)}
    for prompts in (
        {"query_variant": "proposals", "query_user": "{query}"},
        {"query_variant": "search"},
    ):
        workspace = Workspace(
            Settings(**settings, prompts=prompts, training={"sft": {"queries_from": "proposals"}})
        )
        with pytest.raises(
            SettingsError, match=r"query prompts show no keywords; set prompts\.query_variant"
        ):
            check_settings(workspace)


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("example", EXAMPLES[:1], ids=lambda path: path.stem)
def test_an_example_runs_two_steps_on_the_shop(example: Path, tmp_path: Path) -> None:
    shop = write_sample_part(tmp_path / "shop", items=60).parent
    own = [
        'dataset.loader="jsonl"',
        f'dataset.path="{shop / "data"}"',
        "dataset.dev_share=0.2",
        f'store="{tmp_path / "store"}"',
        "generator.sampling.max_tokens=24",
        "generator.constrained=true",
        "rebuild.max_failure_share=1.0",
        "training.gate.on=false",
        "training.candidates=0",
        *(f"training.tiny.{key}" for key in ("hidden=32", "layers=1")),
        *(f"training.sft.{side}_epochs=1" for side in ("query", "item")),
        *(
            f"training.{side}.{key}"
            for side in ("query", "item")
            for key in ("max_steps=2", "prompts_per_step=4")
        ),
        *(f"training.{side}.micro_batch=16" for side in ("query", "item")),
        "training.rollouts.generations=4",
        "training.rollouts.max_tokens=16",
    ]
    workspace = Workspace.open(example, own)
    driver = Driver(
        workspace, create(workspace, "main"), InThisProcess(example, tuple(own)), lambda _: None
    )
    sft, first = driver.sft(), driver.round()
    store = workspace.store
    targets = [
        json.loads(line) for line in store.read("runs/main/sft/query.jsonl").decode().splitlines()
    ]
    items = open_snapshot(store, sft.items)
    known = set(known_keywords(items))
    # The ranker's own set is the targets', its item snapshot the first, and nothing unknown to it
    # is written.
    assert items.manifest.generator["kind"] == "statistical"
    assert {word for row in targets for word in row["keywords"]} <= known
    for round_ in (sft, first):
        queries = open_snapshot(store, round_.queries)
        assert queries.manifest.generator["vocabulary"] == sft.items
        assert {word for row in queries.rows() for word in row.keywords} <= known
    assert open_snapshot(store, first.items).manifest.parent == sft.items
