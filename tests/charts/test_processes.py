"""What the chart renders against what really runs: every pod's commands, configuration and probes,
drain and scrapes.

`make images` runs these tests again inside the images that it built.
"""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from ops.servers import ValkeySpec, free_port, stop
from tests.charts.conftest import Render
from tests.charts.pods import BY_SIGTERM, Machine, Started, containers_of
from tests.owned_servers import start_owned

pytestmark = pytest.mark.slow
ITEMS = 100
AT_ONCE = 32


def values_in(folder: Path, **settings: Any) -> dict[str, Any]:
    """Values whose volumes lie in a folder."""
    own = {
        "dataset": {"loader": "jsonl", "path": str(folder / "data")},
        "store": str(folder / "store"),
        "serving": {"live": "none"},
        "metrics": {"port": free_port()},
        **settings,
    }
    return {"settings": own, "data": {"existingClaim": "data", "mountPath": str(folder / "data")}}


def port_of(started: Started) -> int:
    (port,) = [port["containerPort"] for port in started.container["ports"]]
    return int(port)


def test_the_expander_answers_its_probes_and_the_test_hook_and_ends(
    render: Render, tmp_path: Path
) -> None:
    machine = Machine(tmp_path, render({**values_in(tmp_path), "worker": {"enabled": False}}))
    (container,) = containers_of(machine.objects, "Deployment", "-expander")
    (hook,) = containers_of(machine.objects, "Pod", "-test-expand")
    with machine.running(container) as expander:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            expander.until(lambda probe=probe: expander.probed(probe))  # type: ignore[misc]
        code, _, query = hook["args"][1:]
        said = machine.finished(
            {**hook, "args": ["-c", code, f"http://127.0.0.1:{port_of(expander)}/expand", query]}
        )
        assert json.loads(said)["keywords"] == [query]
        expander.terminate()
        # Uvicorn hands the signal on when it has closed down.
        assert expander.end(60) in (0, BY_SIGTERM)


def test_a_pod_waits_for_a_service_that_comes_late(render: Render, tmp_path: Path) -> None:
    port = free_port()
    # OpenSearch is away, too, which does not concern a worker.
    redis = {"url": f"redis://127.0.0.1:{port}/0"}
    values = values_in(tmp_path, redis=redis, opensearch={"url": f"http://127.0.0.1:{port}"})
    machine = Machine(tmp_path, render({**values, "waitForServicesSeconds": 240}))
    wait, _ = containers_of(machine.objects, "Deployment", "-worker")
    with machine.running(wait) as waiting:
        waiting.until(lambda: "Waiting for Redis" in waiting.log.read_text())
        late = ValkeySpec(name=f"tests-late-{uuid.uuid4().hex[:8]}", port=port)
        started = start_owned(late)
        try:
            assert waiting.end(240) == 0, waiting.log.read_text()
        finally:
            stop(started.kind, started.name, remove=True)
        said = waiting.log.read_text()
        assert "Redis answers" in said
        assert "OpenSearch" not in said
