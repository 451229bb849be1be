"""What the chart renders against what really runs: the expander's command, configuration, probes,
test hook and end, as processes of this machine; `make images` runs them inside its images, as their
user and with their files read-only.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from ops.servers import free_port
from tests.charts.conftest import IMAGE_USER, IMAGES, Object, Render, configuration, one
from tests.documents import ROOT

pytestmark = pytest.mark.slow


def started(container: Object, folder: Path, *more: str) -> subprocess.Popen[str]:
    """A container's command with its variables and mounts; the volumes lie in a folder."""
    line = [*container["command"], *container["args"], *more]
    mounts = {
        mount["mountPath"]: folder / ("cogr.toml" if mount["name"] == "config" else mount["name"])
        for mount in container["volumeMounts"]
    }
    own = {variable["name"]: variable["value"] for variable in container["env"]}
    environment = {key: value for key, value in os.environ.items() if not key.startswith("COGR_")}
    if IMAGES:
        image = container["image"].rpartition("/")[2].rpartition(":")[0].removeprefix("cogr-")
        lent = [part for to, here in mounts.items() for part in ("-v", f"{here}:{to}")]
        lent += [part for name, value in own.items() for part in ("-e", f"{name}={value}")]
        program = str(ROOT / "ops/images/images.sh")
        line = [program, "run", IMAGES, image, *lent, "--", *line]
    else:
        line = [part.replace("/etc/cogr/cogr.toml", str(folder / "cogr.toml")) for part in line]
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        environment |= own | {"COGR_CACHE_DIR": str(folder / "cache"), "PATH": path}
        environment["PYTHONPATH"] = str(ROOT)
    return subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=environment)


def content(url: str) -> bool:
    """Whether the kubelet would be content with a probe."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def test_the_expander_answers_its_probes_and_the_test_hook_and_ends(
    render: Render, tmp_path: Path
) -> None:
    settings = {
        "dataset": {"loader": "jsonl", "path": str(tmp_path / "data")},
        "store": str(tmp_path / "store"),
        "serving": {"live": "none"},
    }
    objects = render({"settings": settings, "worker": {"enabled": False}})
    (tmp_path / "cogr.toml").write_text(configuration(objects))
    for volume in ("data", "store", "cache", "tmp"):
        (tmp_path / volume).mkdir()
        # The image's user has no name here; fsGroup gives it the volumes in a cluster.
        (tmp_path / volume).chmod(0o777)
    port = str(free_port())
    (container,) = one(objects, "Deployment", "-expander")["spec"]["template"]["spec"]["containers"]
    (hook,) = one(objects, "Pod", "-test-expand")["spec"]["containers"]
    expander = started(container, tmp_path, "--port", port)
    try:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            deadline = time.monotonic() + 240
            while not content(f"http://127.0.0.1:{port}{container[probe]['httpGet']['path']}"):
                assert expander.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
        code, _, query = hook["args"][1:]
        asked = {**hook, "args": ["-c", code, f"http://127.0.0.1:{port}/expand", query]}
        said, _ = started(asked, tmp_path).communicate(timeout=60)
        assert json.loads(said)["keywords"] == [query]
        command = psutil.Process(expander.pid)
        if IMAGES:  # Around it is a shell, which has no such user.
            inside = command.children(recursive=True)
            command = next(child for child in inside if child.uids().real == IMAGE_USER)
        command.terminate()
        # The server hands the signal on when it has closed down.
        assert expander.wait(60) in (0, -signal.SIGTERM, 128 + signal.SIGTERM)
    finally:
        expander.kill()
