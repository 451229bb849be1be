"""The examples in the clients' pages run as they are written, but for addresses, prefix
and token.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from tests.commands import program, ran
from tests.documents import ROOT, examples
from tests.ops.clients.client_worlds import CLIENTS, ClientWorld

pytestmark = pytest.mark.slow


IN_STOCK = ["3", "item-092", "item-050", "item-037", "Ostrava", "Alva"]
"""First words of what a search for what is in stock prints: how many, the hits, the brands."""


def check_found_in_stock(world: ClientWorld, index: str, body: object) -> None:
    """A printed query body finds what it is meant to find."""
    answer = httpx.post(f"{world.opensearch['up']}/{index}/_search", json=body).json()
    found = [hit["_source"]["in_stock"] for hit in answer["hits"]["hits"]]
    assert found == [True] * 3


def placed(example: str, world: ClientWorld) -> str:
    """An example with the addresses of a live world."""
    real = {
        "http://localhost:8600": world.expander["up"],
        "http://localhost:9200": world.opensearch["up"],
        '"shop': f'"{world.prefix}',
        "PREFIX=shop": f"PREFIX={world.prefix}",
    }
    for written, address in real.items():
        example = example.replace(written, address)
    return example


def environment(world: ClientWorld) -> Mapping[str, str]:
    return {**os.environ, "COGR_TOKEN": world.token, "COGR_PATIENCE": "30"}


@pytest.mark.parametrize(
    ("language", "example"),
    [(name, one) for name in ("python", "javascript") for one in examples("clients.md", name)],
)
def test_python_and_javascript(language: str, example: str, world: ClientWorld) -> None:
    code, env = placed(example, world), environment(world)
    if language == "python":
        said = ran(sys.executable, "-c", code, cwd=ROOT, env=env)
    else:
        node, package = program("node"), CLIENTS / "javascript"
        said = ran(node, "--input-type=module", input=code, cwd=package, env=env)
    assert said
    if "print(expansion.index, body)" in example or "JSON.stringify(body)" in example:
        index, _, body = said.partition(" ")
        read = ast.literal_eval if language == "python" else json.loads
        check_found_in_stock(world, index, read(body))
    elif "in_stock" in example:
        assert [line.split()[0] for line in said.splitlines()] == IN_STOCK


def test_curl(world: ClientWorld, tmp_path: Path) -> None:
    """One after another, as a reader does it."""
    program("curl")
    program("jq")
    (tmp_path / "ops").symlink_to(ROOT / "ops")
    script = placed("\n".join(["set -eu", *examples("clients.md", "sh")]), world)
    said = ran("bash", "-o", "pipefail", "-c", script, cwd=tmp_path, env=environment(world))
    assert said.startswith('["leather couch","sofa","cowhide sofa"]\n"index"\n')
    by_hand = re.findall(r'^\["(item-\d+)"', said, re.MULTILINE)
    assert by_hand == ["item-085", "item-092", "item-050", "item-037"] * 2


def test_java() -> None:
    (example,) = examples("clients.md", "java")
    tested = (CLIENTS / "java/src/test/java/io/cogr/client/DocumentedTest.java").read_text("utf-8")
    assert textwrap.indent(example, " " * 8) in tested
