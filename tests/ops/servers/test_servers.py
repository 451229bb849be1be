"""`cogr-ops opensearch` and `cogr-ops redis` as a user meets them: real servers are started, found
again, killed and stopped. A stand-in program takes the place of OpenSearch where the point is how a
start fails.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from redis import Redis

from cogr.settings.indexing import RedisSettings
from cogr.settings.serving import OpenSearchSettings
from indexers.backends.opensearch.client import Cluster
from ops.servers import (
    NOBODY,
    OpenSearchSpec,
    ServerState,
    ValkeySpec,
    created_at,
    find_opensearch,
    known,
    read_state,
    servers_folder,
    start,
    stop,
)
from tests.commands import Command
from tests.owned_servers import BRIEF

AS_ROOT = os.geteuid() == 0


def stand_in(folder: Path, script: str) -> str:
    """A folder that looks like OpenSearch 3.8.0 and whose program is a shell script."""
    for name in ("bin", "lib", "config"):
        (folder / name).mkdir(parents=True)
    (folder / "lib" / "opensearch-3.8.0.jar").touch()
    (folder / "config" / "jvm.options").write_text("-Xms1g\n")
    (folder / "bin" / "opensearch").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bin" / "opensearch").chmod(0o755)
    return str(folder)


def child(tmp_path: Path, code: str = "") -> ServerState:
    """A Python child that has run this code and waits."""
    command = [sys.executable, "-c", f"{code}\nprint('ready', flush=True)\nimport time\n"]
    command[-1] += "time.sleep(60)"
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    process.stdout.readline()
    pid = process.pid
    return ServerState(url="", folder=tmp_path, pid=pid, created=created_at(pid))


def test_a_process_is_ended_even_if_it_ignores_that_and_a_dead_one_is_left_alone(
    tmp_path: Path,
) -> None:
    process = child(tmp_path, "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)")
    assert process.created is not None
    earlier = process.model_copy(update={"created": process.created - 0.01})
    assert not earlier.running, "a recycled id is never signalled"
    assert not earlier.end()
    assert process.running
    assert process.end(patience=0.2)
    # The child is a zombie until its parent, this test, asks for its status.
    assert not process.running
    assert not process.end()


def test_a_node_that_ends_is_exit_3_with_its_last_words_and_its_log(
    cache: Path, alone: Command
) -> None:
    script = "id -u; echo starting; echo 'java.lang.IllegalStateException: no luck'"
    home = stand_in(cache / "home", f'touch "$OPENSEARCH_TMPDIR/x" || exit 1; {script}')
    ended = alone("opensearch", "start", COGR_OPENSEARCH_HOME=home)
    assert (ended.status, ended.out) == (3, "")
    log = cache / f"servers/{os.geteuid()}/opensearch/opensearch-3.8.0/output.log"
    assert "ended while starting: java.lang.IllegalStateException: no luck" in ended.sentence
    assert ended.sentence.endswith(f"The log is {log}.")
    # Root's nodes run as somebody else.
    assert log.read_text().splitlines()[0] == str(NOBODY if AS_ROOT else os.geteuid())


def test_a_cache_that_is_a_file_is_one_sentence(cache: Path, alone: Command) -> None:
    (cache / "file").touch()
    ended = alone("redis", "start", COGR_CACHE_DIR=str(cache / "file"))
    assert ended.err.count("\n") == 1
    assert "No server can be started" in ended.err
    assert "set COGR_CACHE_DIR to another folder" in ended.err


def test_where_the_environment_names_a_server_none_is_started(
    alone: Command, valkey: RedisSettings
) -> None:
    named = {"COGR_REDIS__URL": str(valkey.url)}
    started = alone("redis", "start", "--json", **named)
    assert (started.status, started.json) == (0, {"url": valkey.url})
    assert "nothing is started" in started.err
    named = {"COGR_OPENSEARCH__URL": "http://127.0.0.1:9"}
    ended = alone("opensearch", "start", "--json", **named)
    assert (ended.status, ended.json) == (0, {"url": "http://127.0.0.1:9"})


def test_a_life_with_a_kill_and_a_restart(alone: Command) -> None:
    here = partial(alone, "redis")
    started = here("start", "--json")
    assert started.status == 0, started.err
    first = read_state(Path(started.json["folder"]))
    assert Path(f"/proc/{first.pid}").stat().st_uid == (NOBODY if AS_ROOT else os.geteuid())
    told = {"state": "ok", "name": "redis", "detail": f"{first.url} (local)"}
    assert told in alone("doctor", "--json").json["findings"]
    with Redis.from_url(str(first.url)) as client:
        client.set("kept", 1)
    again = here("start", "--json")
    assert again.json["pid"] == first.pid
    assert "is already running" in again.err
    os.kill(first.pid, signal.SIGKILL)
    while first.running:
        time.sleep(0.01)
    revived = here("start", "--json")
    (second,) = known("valkey")
    with Redis.from_url(str(second.url)) as client:
        assert client.get("kept") == b"1"
    assert here("stop", "--json").json == {"stopped": ["valkey"], "removed": []}
    assert here("stop", "--json").json == {"stopped": [], "removed": []}
    here("start")
    removed = here("stop", "--remove", "--json")
    assert removed.json == {"stopped": ["valkey"], "removed": ["valkey"]}
    assert not Path(revived.json["folder"]).exists()


def test_starts_and_stops_at_once_agree(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COGR_CACHE_DIR", str(cache))
    with ThreadPoolExecutor(3) as pool:
        wanted = [ValkeySpec(name=name) for name in ("one", "one", "two")]
        first, same, second = pool.map(start, wanted)
    assert first.url == same.url != second.url
    with ThreadPoolExecutor(2) as pool:
        ended = pool.map(lambda _: stop("valkey", "two", remove=True), range(2))
    assert sorted(ended) == [False, True], "whoever comes second finds nothing to remove"


def test_a_damaged_state_is_one_sentence(cache: Path, alone: Command) -> None:
    file = cache / f"servers/{os.geteuid()}/valkey/valkey/state.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"pid": 1')
    sentence = f"{file} can't be read; end its process if it runs, and delete"
    ended = alone("redis", "start")
    assert (ended.status, ended.err.count("\n")) == (2, 1)
    assert sentence in ended.err
    ended = alone("redis", "stop", "--json")
    assert (ended.status, ended.json) == (0, {"stopped": [], "removed": []})
    assert sentence in ended.err


def documents(url: str) -> int:
    with closing(Cluster(OpenSearchSettings(url=url))) as cluster:
        cluster.call("PUT", "/kept", doing="test", exists_ok=True)
        cluster.call("POST", "/kept/_doc", doing="test", body={"a": 1}, params={"refresh": "true"})
        return int(cluster.call("GET", "/kept/_count", doing="test")["count"])


@pytest.mark.drill
def test_a_node_keeps_its_data_over_a_kill_and_listens_on_the_loopback_alone(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = find_opensearch("2.19.5", print)
    monkeypatch.setenv("COGR_CACHE_DIR", str(cache))
    wanted = OpenSearchSpec(home=home, name="life", port=0, options=BRIEF)
    first = start(wanted)
    assert first.log.is_file()
    assert documents(str(first.url)) == 1
    port, sockets = urlsplit(first.url).port, psutil.net_connections("tcp")
    mine = {one.laddr.ip for one in sockets if one.status == "LISTEN" and one.laddr.port == port}
    assert mine
    assert mine <= {"127.0.0.1", "::ffff:127.0.0.1"}
    os.kill(first.pid, signal.SIGKILL)
    while first.running:
        time.sleep(0.01)
    second = start(wanted)
    assert documents(str(second.url)) == 2, "the data outlives the node"
    assert stop(second.kind, second.name, remove=True)
    assert servers_folder() == cache / "servers"
