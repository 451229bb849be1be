"""A folder that LoRA training wrote is loaded as it is by both engines of index builds."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.shops import write_sample_part
from tests.trainers.shop import InThisProcess, Shop
from trainers.training.driver import Driver
from trainers.training.run_folder import create

pytestmark = [pytest.mark.slow, pytest.mark.model]


@pytest.fixture(scope="module")
def merged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, str]:
    """A configuration, a model folder that was trained by LoRA and merged, and the query snapshot
    that it wrote in its run.
    """
    config = write_sample_part(tmp_path_factory.mktemp("lora"), items=40)
    # Wide enough for vLLM's kernels: heads of 32.
    overrides = (
        "training.lora.rank=4",
        "training.tiny={hidden=128, layers=1}",
    )
    shop = Shop(config)
    workspace = shop.workspace(*overrides)
    run = create(workspace)
    done = Driver(workspace, run, InThisProcess(config, overrides), shop.said.append).sft()
    return config, run.store.local(done.model("query")), done.queries


def rebuild(
    config: Path, model: Path, store: Path, generator: str
) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "indexers.cli",
        "rebuild",
        "--side",
        "query",
        "--generator",
        generator,
        "--json",
    ]
    chosen = [
        "-c",
        str(config),
        "--no-push",
        "--set",
        f"generator.model={model}",
        "--set",
        f"store={store}",
    ]
    return subprocess.run([*command, *chosen], capture_output=True, text=True, check=False)


def test_merged_weights_are_whole_weights(merged: tuple[Path, Path, str]) -> None:
    _, model, _ = merged
    names = {file.name for file in model.iterdir()}
    assert {
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "README.md",
        "sha256.json",
    } <= names
    assert not any(name.startswith("adapter") or name.endswith(".bin") for name in names)


def test_transformers_loads_merged_weights(merged: tuple[Path, Path, str], tmp_path: Path) -> None:
    config, model, written = merged
    ended = rebuild(config, model, tmp_path, "transformers")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["snapshot"] == written


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllm_loads_merged_weights(merged: tuple[Path, Path, str], tmp_path: Path) -> None:
    from cogr.snapshots import open_snapshot
    from cogr.store import Store

    config, model, written = merged
    ended = rebuild(config, model, tmp_path, "vllm")
    assert ended.returncode == 0, ended.stderr
    one = open_snapshot(Store(tmp_path), json.loads(ended.stdout)["snapshot"]).by_id
    other = open_snapshot(Store(config.parent / "store"), written).by_id
    # Greedy, in another engine: nearly always the same keywords.
    same = sum(one[id_].keywords == row.keywords for id_, row in other.items())
    assert same >= 0.8 * len(other)
