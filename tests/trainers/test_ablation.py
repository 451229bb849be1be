"""The paper's variants, each trained on a part of the sample shop; the table of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from ablation import VARIANTS, Row, ablate, main, table

from cogr.errors import UserError
from cogr.records import Say
from cogr.snapshots import open_snapshot
from indexers.workspace import Workspace
from tests.shops import write_sample_part
from trainers.training.rounds import Round, Run, open_run
from trainers.training.stage import InThisProcess

TINY = (
    "training.sft.epochs=1",
    "training.query.max_steps=1",
    "training.item.max_steps=1",
    "training.invented_queries=0",
)


Rows = dict[str, Row]


def rows_of(config: Path, variants: Sequence[str], *overrides: str, said: Say = print) -> Rows:
    """The rows of variants, trained in this process."""
    launcher = InThisProcess(config, (*TINY, *overrides))
    return {row.variant: row for row in ablate(launcher, 1, variants, 1, said)}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample_part(tmp_path_factory.mktemp("shop"), items=24)


@pytest.fixture(scope="module")
def every(config: Path) -> Rows:
    return rows_of(config, list(VARIANTS))


def rounds_of(config: Path, row: Row) -> tuple[Run, Sequence[Round]]:
    run = open_run(Workspace.open(config, TINY), row.run)
    return run, run.state().finished


pytestmark = [pytest.mark.slow, pytest.mark.model]


@pytest.mark.drill
def test_every_variant_is_trained_on_the_shop(config: Path, every: Rows) -> None:
    assert every.keys() == VARIANTS.keys()
    assert not any(row.failed for row in every.values())
    assert all(set(row.figures) == {"p", "r", "f1"} for row in every.values())
    assert len({row.run for row in every.values()}) == len(every)
    frozen = {n: rounds_of(config, row)[0].frozen()["settings"] for n, row in every.items()}
    for name, setting in (
        ("transposed", "training.item.reward"),
        ("no-description", "prompts.templates"),
    ):
        changed = {key for key, value in frozen[name].items() if value != frozen["full"][key]}
        assert changed == {setting}

    # Frozen items are never trained.
    run, (sft, first) = rounds_of(config, every["frozen"])
    targets = sft.stage("targets")
    assert sft.items == first.items == targets.notes["snapshot"]
    assert open_snapshot(run.store, first.items).manifest.generator["kind"] == "extractive"
    assert sft.model("item") == first.model("item") == targets.output
    assert first.model("query") != sft.model("query")

    # Without SFT rounds start from the untrained model.
    _, (sft, first) = rounds_of(config, every["no-sft"])
    assert sft.model("item") == sft.model("query") == sft.output("targets")
    assert first.model("item") != sft.model("item") != first.model("query")


def test_a_shared_generator_is_one_lineage_with_both_prompts(config: Path) -> None:
    """The one variant that is trained outside of drills."""
    _, (sft, first) = rounds_of(config, rows_of(config, ["shared"])["shared"])
    assert sft.model("item") == sft.model("query") != sft.output("targets")
    targets = sft.stage("targets").notes
    assert sft.stages[1].notes["examples"] == targets["items"] + targets["queries"]
    assert first.model("query") != first.model("item")


@pytest.mark.drill
def test_what_is_trained_is_not_trained_again_and_what_fails_keeps_the_others(
    config: Path, every: Rows, capsys: pytest.CaptureFixture[str]
) -> None:
    full, transposed, shared = (every[name] for name in ("full", "transposed", "shared"))
    said: list[str] = []
    again = rows_of(config, ["full", "shared"], said=said.append)
    assert (list(again.values()), said) == ([full, shared], [])
    failing = "training.item.reward=tests.trainers.shop:failing_reward"
    mixed = rows_of(config, ["full", "transposed"], failing)
    assert "The reward failed" in mixed["full"].failed
    assert not mixed["full"].figures
    assert mixed["transposed"] == transposed, "the same settings are the same run"
    without, whole = table(list(mixed.values()))
    assert (without["f1"], whole["f1"]) == (None, pytest.approx(transposed.figures["f1"]))

    own = [part for override in TINY for part in ("--set", override)]
    asked = ["-c", str(config), *own, "--seeds", "1", "--rounds", "1", "--variants"]
    assert main([*asked, "full,shared"]) == 0
    assert "Shared generator" in capsys.readouterr().out
    assert main([*asked, "full,transposed", "--set", failing]) == 1
    assert "Transposed F1" in capsys.readouterr().out


def test_an_unknown_variant_is_one_sentence(config: Path) -> None:
    with pytest.raises(UserError, match="'nonsense'"):
        main(["-c", str(config), "--variants", "full,nonsense"])
