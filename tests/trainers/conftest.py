"""A trained shop, once a session, and `cogr-train` in this process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.shop import Shop, write_shop


@dataclass
class Ended:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def sentence(self) -> str:
        """The last line that it wrote to standard error."""
        return self.err.splitlines()[-1]


Command = Callable[..., Ended]


@pytest.fixture
def cogr_train(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run `cogr-train` with arguments, in this process; its stages are processes of their own."""
    from trainers.cli import main

    def run(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["cogr-train", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capfd.readouterr()
        return Ended(int(ended.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """A shop with SFT and one round done. Not to be changed; see `copied`."""
    shop = Shop(write_shop(tmp_path_factory.mktemp("shop")))
    driver = shop.driver()
    driver.sft()
    driver.round()
    return shop


@pytest.fixture
def copied(trained: Shop, tmp_path: Path) -> Shop:
    """A copy of the trained shop that may be trained on and broken."""
    subprocess.run(["cp", "-r", str(trained.config.parent), str(tmp_path / "shop")], check=True)
    return Shop(tmp_path / "shop" / "cogr.toml")
