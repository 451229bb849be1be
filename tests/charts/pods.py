"""Rendered pods as processes of this machine: each container's own command, arguments, environment,
mounts and probes.

Where DRILL_IMAGES names the folder of `make images`, a container runs inside the image that its pod
names, as that image's user and with its files read-only; otherwise the commands are this
environment's. Not Kubernetes: nothing restarts a process, no policy stops a packet.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from ops.servers import free_port
from tests.charts.conftest import ROOT, Object

IMAGES = os.environ.get("DRILL_IMAGES")
IMAGE_USER = 10001
EXPANDER_PORT = "8600"
BY_SIGTERM = 128 + signal.SIGTERM if IMAGES else -signal.SIGTERM
"""The status of a process that the signal ended, inside an image as the shell around it says it."""


@dataclass
class Started:
    """A container that runs.

    `log` holds both of its streams unless standard output is kept apart.
    """

    process: subprocess.Popen[str]
    container: Object
    log: Path

    def probed(self, probe: str) -> bool:
        """Whether the kubelet would be content with a probe."""
        http = self.container[probe]["httpGet"]
        port = next(
            port["containerPort"]
            for port in self.container["ports"]
            if port["name"] == http["port"]
        )
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{port}{http['path']}", timeout=10
            ) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    def terminate(self) -> None:
        """SIGTERM to the command itself."""
        self.family()[0].terminate()

    def family(self) -> list[psutil.Process]:
        """The command and what it started, as far as it runs; inside an image those are the
        processes of the image's user.
        """
        if self.process.poll() is not None:
            return []
        shell = psutil.Process(self.process.pid)
        children = shell.children(recursive=True)
        return (
            [one for one in children if one.uids().real == IMAGE_USER]
            if IMAGES
            else [shell, *children]
        )

    def end(self, seconds: float) -> int:
        """The exit status, once it has ended by itself."""
        return self.process.wait(seconds)

    def until(self, true: Callable[[], object], seconds: float = 240.0) -> None:
        """Wait for a state of the world while this container runs."""
        deadline = time.monotonic() + seconds
        while not true():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.1)


@dataclass
class Machine:
    """Where the pods of one release run.

    Attributes:
        folder: holds cogr.toml, and what the volumes hold.
        objects: what the chart rendered.
        secrets: the values of the keys that pods name of Secrets.
    """

    folder: Path
    objects: list[Object]
    secrets: Mapping[str, str] = field(default_factory=dict)
    started: int = 0

    def __post_init__(self) -> None:
        # All pods share this machine's ports.
        self.port = str(free_port())
        self.objects = json.loads(json.dumps(self.objects).replace(EXPANDER_PORT, self.port))
        config = next(
            o for o in self.objects if o["kind"] == "ConfigMap" and "cogr.toml" in o["data"]
        )
        (self.folder / "cogr.toml").write_text(config["data"]["cogr.toml"])
        for volume in ("data", "store", "cache", "tmp"):
            (self.folder / volume).mkdir(exist_ok=True)
            if IMAGES:
                # The image's user has no name here; fsGroup gives it the volumes in a cluster.
                (self.folder / volume).chmod(0o777)

    @contextmanager
    def running(self, container: Object) -> Iterator[Started]:
        """A container's command; it is killed where the block leaves it running."""
        self.started += 1
        log = self.folder / f"{self.started}-{container['name']}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                self._line(container),
                stdout=out,
                stderr=out,
                text=True,
                env=self._environment(container),
            )
        started = Started(process, container, log)
        try:
            yield started
        finally:
            for one in started.family():
                with suppress(psutil.NoSuchProcess):
                    one.kill()
            # Around an image's command is a shell, which still has to put the image's files away.
            process.wait(60)

    def finished(self, container: Object, seconds: float = 240.0) -> str:
        """What a container says that has to end well."""
        with self.running(container) as started:
            assert started.end(seconds) == 0, started.log.read_text()
            return started.log.read_text()

    def _mounted(self, container: Object) -> dict[str, Path]:
        """Path in the container -> path here."""
        places = {"config": self.folder / "cogr.toml"}
        return {
            mount["mountPath"]: places.get(mount["name"], self.folder / mount["name"])
            for mount in container["volumeMounts"]
        }

    def _variables(self, container: Object) -> dict[str, str]:
        found = {}
        for variable in container["env"]:
            reference = variable.get("valueFrom", {}).get("secretKeyRef")
            found[variable["name"]] = (
                self.secrets[reference["key"]] if reference else variable["value"]
            )
        return found

    def _line(self, container: Object) -> list[str]:
        line = [*container["command"], *container["args"]]
        if line[:2] == ["cogr-ops", "serve"] and "--port" not in line:
            line += ["--port", self.port]
        if not IMAGES:
            return [self._here(container, part) for part in line]
        image = container["image"].rpartition("/")[2].rpartition(":")[0].removeprefix("cogr-")
        lent = [
            part
            for inside, here in self._mounted(container).items()
            for part in ("-v", f"{here}:{inside}")
        ]
        lent += [
            part
            for name, value in self._variables(container).items()
            for part in ("-e", f"{name}={value}")
        ]
        return [str(ROOT / "ops/images/images.sh"), "run", IMAGES, image, *lent, "--", *line]

    def _here(self, container: Object, text: str) -> str:
        for inside, here in self._mounted(container).items():
            text = (
                text.replace(inside, str(here))
                if inside in ("/etc/cogr/cogr.toml", "/cache")
                else text
            )
        return text

    def _environment(self, container: Object) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("COGR_")}
        if IMAGES:
            return kept
        own = {
            name: self._here(container, value) for name, value in self._variables(container).items()
        }
        return {
            **kept,
            **own,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        }


def containers_of(objects: list[Object], kind: str, name: str) -> list[Object]:
    """A pod's containers in the order in which they run, initial ones first."""
    (found,) = [o for o in objects if o["kind"] == kind and name in o["metadata"]["name"]]
    if kind == "Pod":
        pod: dict[str, Any] = found["spec"]
    elif kind == "CronJob":
        pod = found["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    else:
        pod = found["spec"]["template"]["spec"]
    return [*pod.get("initContainers", []), *pod["containers"]]
