"""Redis, OpenSearch and the model go wrong in every way; the expander answers all the same."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ops import servers
from ops.servers import ValkeySpec
from tests.ops.broken_servers import FAULTS, broken
from tests.ops.expander.expander_worlds import running, serve_pair, wait_for, workspace
from tests.owned_servers import start_owned

pytestmark = pytest.mark.slow


def upstream_at(kind: str, port: int) -> tuple[str, ...]:
    here = f"127.0.0.1:{port}"
    return {
        "redis": (f"redis.url=redis://{here}/0",),
        "opensearch": (f"opensearch.url=http://{here}",),
        "model": (
            "serving.live=openai",
            f"generator.openai.base_url=http://{here}/v1",
        ),
    }[kind]


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        *(("redis", fault) for fault in FAULTS if fault.startswith("redis")),
        *(("opensearch", fault) for fault in ("absent", "hanging", "wrong json", "half")),
        *(("model", fault) for fault in ("closing", "web page", "null", "error")),
        ("redis", "hanging"),
    ],
)
def test_a_broken_upstream_means_bare_queries(
    tmp_path: Path, kind: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ops.expander.live_models.MODEL_SECONDS", 0.3)
    with broken(fault) as port:
        opened = workspace(tmp_path, "serving.deadline=0.3", *upstream_at(kind, port))
        if kind != "opensearch":
            serve_pair(opened)
        with running(opened, model="m", hot_queries=0) as expander:
            if kind != "opensearch":
                wait_for(lambda: expander.parts.follower.pair.matches)
            if kind == "model":
                wait_for(lambda: expander.parts.models.state == "openai")
            answers = [expander.expand(f"unknown {number}") for number in range(6)]
            assert {answer["source"] for answer in answers} == {"none"}
            assert [answer["keywords"] for answer in answers] == [
                [f"unknown {number}"] for number in range(6)
            ]
            if kind != "opensearch":
                assert expander.expand("green couch")["source"] == "index"
            failures = 'cogr_expander_upstream_failures_total{error="'
            wait_for(lambda: failures in expander.client.get("/metrics").text)
            assert expander.metric("cogr_expander_bugs_total") == 0


def test_redis_stops_and_goes_on(tmp_path: Path) -> None:
    """SIGSTOP and SIGKILL of a real server, in mid-service."""
    # Not a port of outgoing connections: the expander's own tries to connect may take one of those.
    port = next(filter(servers.free_port, range(20_000 + os.getpid() % 10_000, 32_768)))
    wanted = ValkeySpec(name=f"faults-{os.getpid()}", port=port)
    state = start_owned(wanted)
    try:
        patient = ("serving.deadline=20",)
        opened = workspace(tmp_path, f"redis.url={state.url}", *patient)
        serve_pair(opened)
        with running(opened, model="m", hot_queries=0) as expander:
            expander.until("green couch", "cache")
            os.kill(state.pid, signal.SIGSTOP)
            try:
                assert expander.expand("green couch")["source"] == "index"
            finally:
                os.kill(state.pid, signal.SIGCONT)
            expander.until("green couch", "cache")
            os.kill(state.pid, signal.SIGKILL)
            expander.until("green couch", "index")
            killed = state
            wait_for(lambda: not killed.running and servers.free_port(port))
            state = servers.start(wanted)
            assert state.pid != killed.pid
            expander.until("green couch", "cache")
            assert expander.metric("cogr_expander_bugs_total") == 0
    finally:
        servers.stop(state.kind, state.name, remove=True)
