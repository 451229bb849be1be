"""The examples in the clients' pages run as they are written, but for addresses, prefix and token."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.commands import program
from tests.documents import examples
from tests.ops.client_worlds import CLIENTS, ClientWorld

pytestmark = pytest.mark.slow
ROOT = CLIENTS.parents[1]
HEAVY = ("langchain", "haystack")


def python_examples() -> list[object]:
    """Those of frameworks take seconds to import them."""
    blocks = examples("client-python.md", "python")
    return [
        pytest.param(one, marks=[pytest.mark.clients] if any(word in one for word in HEAVY) else []) for one in blocks
    ]


def placed(example: str, world: ClientWorld) -> str:
    """An example with the addresses of a live world."""
    real = {"http://localhost:8600": world.expander["up"], "http://localhost:9200": world.opensearch["up"]}
    for written, address in {**real, '"shop': f'"{world.prefix}', "PREFIX=shop": f"PREFIX={world.prefix}"}.items():
        example = example.replace(written, address)
    return example


def runs(command: list[str], world: ClientWorld, *, folder: Path = ROOT, stdin: str | None = None) -> str:
    environment = {**os.environ, "COGR_TOKEN": world.token, "COGR_PATIENCE": "30"}
    ended = subprocess.run(
        command, cwd=folder, env=environment, input=stdin, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.server
@pytest.mark.parametrize("example", python_examples())
def test_python(example: str, world: ClientWorld) -> None:
    assert runs([sys.executable, "-c", placed(example, world)], world)


@pytest.mark.server
@pytest.mark.parametrize("example", examples("client-javascript.md", "javascript"))
def test_javascript(example: str, world: ClientWorld) -> None:
    command = [program("node"), "--input-type=module"]
    assert runs(command, world, folder=CLIENTS / "javascript", stdin=placed(example, world))


@pytest.mark.server
def test_curl(world: ClientWorld, tmp_path: Path) -> None:
    """One after another, as a reader does it."""
    program("curl")
    program("jq")
    (tmp_path / "ops").symlink_to(ROOT / "ops")
    script = "\n".join(["set -eu", *examples("client-curl.md", "sh")])
    said = runs(["bash", "-o", "pipefail", "-c", placed(script, world)], world, folder=tmp_path)
    assert said.startswith('["leather couch","sofa","cowhide sofa"]\n"index"\n')
    by_hand = [line.split(",")[0] for line in said.splitlines() if line.startswith('["item-')]
    assert by_hand == [f'["{item}"' for item in ("item-085", "item-050", "item-037", "item-092")] * 2


def test_java() -> None:
    (example,) = examples("client-java.md", "java")
    tested = (CLIENTS / "java/src/test/java/io/cogr/client/DocumentedTest.java").read_text("utf-8")
    assert textwrap.indent(example, " " * 8) in tested
