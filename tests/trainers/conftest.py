"""A trained shop, once a session, and `cogr-train` in this process."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.commands import Command
from tests.conftest import made_for_the_run
from tests.shops import write_sample_part
from tests.trainers.shop import Shop


@pytest.fixture
def cogr_train(cogr_train: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run `cogr-train` with arguments, and its stages, in this process, which imports TRL once."""
    from trainers.training import stage

    monkeypatch.setattr(stage, "Launcher", stage.InThisProcess)
    return cogr_train


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A shop with SFT and one round done, once for all processes of a run. Not to be changed; see
    `copied`.
    """

    def train(folder: Path) -> None:
        Shop(write_sample_part(folder)).driver().reach(1)

    return Shop(made_for_the_run(tmp_path_factory, "trained-shop", train) / "cogr.toml")


@pytest.fixture
def copied(trained: Shop, tmp_path: Path) -> Shop:
    """A copy of the trained shop that may be trained on and broken."""
    subprocess.run(["cp", "-r", str(trained.config.parent), str(tmp_path / "shop")], check=True)
    return Shop(tmp_path / "shop" / "cogr.toml")
