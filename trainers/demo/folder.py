"""The demo's folder: the sample shop, the configuration of everything that the demo does with it,
and the settings by which `tiny` learns the shop in minutes on a CPU.

The folder is an ordinary workspace: every command works on it with `-c .demo/cogr.toml`, and
`cogr-train run` does the same training.
"""

from __future__ import annotations

import json
import shutil
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cogr.errors import SettingsError, TrainingError, UserError
from cogr.records import Say
from cogr.store import storage_errors
from indexers.workspace import Workspace
from trainers.demo import CATALOGUE
from trainers.training.driver import Driver
from trainers.training.rounds import DEFAULT_RUN, Round, create
from trainers.training.stage import Launcher

MARK = "# Written by cogr-train demo."
_HEAD = f"{MARK} Your own shop: copy this file and point dataset.path at your folder.\n"
_OWN = {
    "store": "store",
    "dataset.loader": "jsonl",
    "dataset.path": "shop",
    "opensearch.prefix": "cogr-demo",
    # A model of this size leaves some items without keywords; their titles still find them.
    "rebuild.max_failure_share": 0.25,
}
SAMPLE_SETTINGS: dict[str, Any] = {
    "keywords.k_max": 12,
    # Every word of an instruction distracts a model of this size.
    "prompts.templates": "bare",
    "generator.dtype": "float32",
    # Its figures are the same with and without a network.
    "generator.statistical.encoder": "none",
    "generator.sampling.temperature": 0,
    "generator.sampling.max_tokens": 48,
    "training.model": "tiny",
    "training.invented_queries": 500,
    "training.sft.item_keywords": 12,
    "training.sft.query_keywords": 10,
    "training.sft.item_epochs": 12,
    "training.sft.query_epochs": 12,
    "training.sft.learning_rate": 3e-3,
    "training.sft.batch_size": 16,
    "training.rollouts.max_tokens": 40,
    "training.query.max_steps": 25,
    "training.query.prompts_per_step": 50,
    "training.query.learning_rate": 1e-3,
    "training.item.max_steps": 10,
    "training.item.prompts_per_step": 32,
    "training.item.learning_rate": 5e-4,
}
"""Dotted key -> value, by which `tiny` learns the sample shop."""


def lay_out(out: Path, backend: str, more: Sequence[str] = ()) -> Path:
    """Put the shop and its configuration into the demo's folder. Returns the configuration's file.

    Args:
        out: the folder.
        backend: memory or opensearch.
        more: `key=value` settings over the sample's own.

    Raises:
        UserError: the folder has a configuration that the demo did not write.
        SettingsError: one of `more` has no value.
        StorageError: it can't be written.
    """
    config = out / "cogr.toml"
    values = {**_OWN, "backend": backend, **SAMPLE_SETTINGS, **dict(map(_read, more))}
    lines = (f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in values.items())
    with storage_errors(str(out)):
        if config.exists() and not config.read_text("utf-8", errors="replace").startswith(MARK):
            raise UserError(
                f"{config} was not written by the demo; name another folder with --out."
            )
        (out / "shop").mkdir(parents=True, exist_ok=True)
        for file in sorted(CATALOGUE.glob("*.jsonl")):
            shutil.copyfile(file, out / "shop" / file.name)
        config.write_text(_HEAD + "".join(lines), "utf-8")
    return config


def _read(override: str) -> tuple[str, Any]:
    """A `--set` value: as TOML where it parses, otherwise as text."""
    key, equals, text = override.partition("=")
    if not equals or not key.strip():
        raise SettingsError(
            f"--set {override!r} is not of the form key=value, such as training.query.max_steps=5."
        )
    try:
        return key.strip(), tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), text.strip()


def train_sample(config: Path, say: Say, overrides: Sequence[str] = ()) -> Iterator[Round]:
    """SFT and two rounds on the shop of a configuration, one after another as they finish.

    What an earlier call finished is not repeated; a run with other settings or data is begun anew.
    `say` gets a message when a stage begins; `overrides` are `--set` values.
    """
    workspace = Workspace.open(config, overrides)
    try:
        run = create(workspace)
    except TrainingError:
        workspace.store.remove(f"runs/{DEFAULT_RUN}")
        run = create(workspace)
    driver = Driver(workspace, run, Launcher(config, overrides), say)
    for number in range(3):
        driver.reach(number)
        yield run.state().rounds[number]
