"""The paper's variants, each trained on a part of the sample shop; the table of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from cogr.errors import SettingsError
from cogr.snapshots import open_snapshot
from indexers.workspace import Workspace
from tests.commands import Command
from tests.shops import write_sample_part
from tests.trainers.shop import InThisProcess
from trainers.ablation import VARIANTS, Row, ablate, table
from trainers.training.rounds import Round, Run, open_run
from trainers.training.trainer_config import check_settings

TINY = (
    "training.sft.item_epochs=1",
    "training.sft.query_epochs=1",
    "training.query.max_steps=1",
    "training.item.max_steps=1",
    "training.invented_queries=0",
)


class Shop:
    """A shop whose variants are trained in this process."""

    def __init__(self, config: Path) -> None:
        self.config = config
        self.said: list[str] = []

    def rows(self, variants: Sequence[str], *overrides: str) -> list[Row]:
        launcher = InThisProcess(self.config, (*TINY, *overrides))
        return list(ablate(launcher, 1, variants, 1, self.said.append))


Trained = tuple[Shop, dict[str, Row]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Some variants; a drill has all of them."""
    shop = Shop(write_sample_part(tmp_path_factory.mktemp("shop"), items=24))
    return shop, {row.variant: row for row in shop.rows(["full", "transposed", "shared"])}


@pytest.fixture(scope="module")
def every(trained: Trained) -> Trained:
    shop, _ = trained
    return shop, {row.variant: row for row in shop.rows(list(VARIANTS))}


def rounds_of(shop: Shop, row: Row) -> tuple[Run, Sequence[Round]]:
    run = open_run(Workspace.open(shop.config, TINY), row.run)
    return run, run.state().finished


pytestmark = [pytest.mark.slow, pytest.mark.model]


@pytest.mark.drill
def test_every_variant_is_trained_on_the_shop(every: Trained) -> None:
    shop, rows = every
    assert rows.keys() == VARIANTS.keys()
    for row in rows.values():
        assert not row.failed
        assert set(row.figures) == {"p", "r", "f1"}
    assert len({row.run for row in rows.values()}) == len(rows)
    frozen = {name: rounds_of(shop, row)[0].frozen()["settings"] for name, row in rows.items()}
    for name, setting in (
        ("transposed", "training.item.reward"),
        ("search", "prompts.query_variant"),
        ("no-description", "prompts.item_variant"),
    ):
        changed = {key for key, value in frozen[name].items() if value != frozen["full"][key]}
        assert changed == {setting}


@pytest.mark.drill
def test_frozen_items_are_never_trained(every: Trained) -> None:
    run, (sft, first) = rounds_of(every[0], every[1]["frozen"])
    targets = sft.stage("targets")
    assert sft.items == first.items == targets.notes["snapshot"]
    assert open_snapshot(run.store, first.items).manifest.generator["kind"] == "extractive"
    assert sft.model("item") == first.model("item") == targets.output
    assert first.model("query") != sft.model("query")
    assert first.queries != sft.queries


@pytest.mark.drill
def test_without_sft_rounds_start_from_the_untrained_model(every: Trained) -> None:
    run, (sft, first) = rounds_of(every[0], every[1]["no-sft"])
    assert sft.model("item") == sft.model("query") == sft.output("targets")
    assert first.model("item") != sft.model("item") != first.model("query")
    assert list(run.folder("sft").iterdir()), "the next command reads them"


def test_a_shared_generator_is_one_lineage_with_both_prompts(trained: Trained) -> None:
    _, (sft, first) = rounds_of(trained[0], trained[1]["shared"])
    assert sft.model("item") == sft.model("query") != sft.output("targets")
    examples = sft.stages[1].notes["examples"]
    targets = sft.stage("targets")
    assert examples == targets.notes["items"] + targets.notes["queries"]
    # What each model was made of stands in its card.
    assert first.model("query") != first.model("item")


def test_what_is_trained_is_not_trained_again_and_what_fails_keeps_the_others(
    trained: Trained,
    cogr_train: Command,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shop, rows = trained
    shop.said.clear()
    failing = "training.item.reward=tests.trainers.shop:failing_reward"
    again = shop.rows(["full", "shared"])
    assert again == [rows["full"], rows["shared"]]
    assert not shop.said

    mixed = {row.variant: row for row in shop.rows(["full", "transposed"], failing)}
    assert "The reward failed" in mixed["full"].failed
    assert not mixed["full"].figures
    assert mixed["transposed"] == rows["transposed"], "the same settings are the same run"
    lines = {line["variant"]: line for line in table(list(mixed.values()))}
    assert lines["full"]["f1"] is None
    assert lines["transposed"]["f1"] == pytest.approx(rows["transposed"].figures["f1"])

    own = [part for override in TINY for part in ("--set", override)]
    ended = cogr_train(
        "ablate", "-c", shop.config, *own, "--variants", "full,shared", "--seeds", 1,
        "--rounds", 1, "--json",
    )  # fmt: skip
    assert ended.status == 0, ended.err
    told = json.loads(ended.out)
    assert [row["run"] for row in told["rows"]] == [rows["full"].run, rows["shared"].run]
    ended = cogr_train(
        "ablate", "-c", shop.config, *own, "--set", failing, "--variants", "full,transposed",
        "--seeds", 1, "--rounds", 1,
    )  # fmt: skip
    assert ended.status == 1
    assert "1 of 2 runs failed" in ended.err
    assert "Transposed F1" in ended.out


def test_an_unknown_variant_is_one_sentence(cogr_train: Command, tmp_path: Path) -> None:
    config = write_sample_part(tmp_path / "shop", items=24)
    ended = cogr_train("ablate", "-c", config, "--variants", "full,nonsense")
    assert ended.status == 2
    assert "There is no variant 'nonsense'; name all, or some of full," in ended.sentence


def test_what_a_configuration_can_not_vary_is_left_out_of_the_table(tmp_path: Path) -> None:
    shop = Shop(write_sample_part(tmp_path / "shop", items=24))
    own = ("prompts.item_variant=title", "prompts.query_variant=search")
    assert not shop.rows(["no-description", "search"], *own)
    assert shop.said == [
        f"{name} is left out: the configuration is this variant already"
        for name in ("no-description", "search")
    ]


def test_frozen_items_are_none_that_labels_write(tmp_path: Path) -> None:
    config = write_sample_part(tmp_path / "shop", items=24)
    with pytest.raises(SettingsError, match=r'variant is "frozen-items", but labels'):
        check_settings(Workspace.open(config, ["training.variant=frozen-items"]))


def test_the_table_has_means_and_spreads_over_seeds() -> None:
    def row(variant: str, seed: int, f1: float) -> Row:
        return Row(variant, seed, "run", 1, {"p": 0.5, "r": 0.25, "f1": f1})

    rows = [
        row("full", 0, 0.4), row("shared", 0, 0.3), row("full", 1, 0.6), row("shared", 1, 0.4),
        Row("shared", 2, "run", failed="It broke."),
    ]  # fmt: skip
    full, shared = table(rows)
    assert (full["f1"], full["f1_sd"]) == (0.5, pytest.approx(0.141421, abs=1e-6))
    assert full["f1_over_full"] is None
    assert shared["f1_over_full"] == -0.15
    assert shared["seeds"] == 2
    assert shared["failed"] == {2: "It broke."}
    assert table([row("full", 0, 0.4)])[0]["f1_sd"] is None
