"""Every client does what `ops/clients/conformance.json` says, against a live expander and
OpenSearch and against broken ones.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict
from typing import Any

import pytest

from cogr_client import Client, Found, RefusedError, SearchError
from tests.commands import program, ran
from tests.ops.broken_servers import broken
from tests.ops.clients.client_worlds import CLIENTS, CONFORMANCE, ClientWorld

pytestmark = pytest.mark.slow
CASES = [pytest.param(case, id=case["name"]) for case in CONFORMANCE["cases"]]


def arguments(world: ClientWorld, case: dict[str, Any]) -> dict[str, Any]:
    """How a case makes its client."""
    expander = case.get("expander", "up")
    return {
        "expander": world.expander[expander],
        "opensearch": world.opensearch[case.get("opensearch", "up")],
        "prefix": world.prefix,
        "token": case.get("token", world.token),
        "patience": 30 if expander == "up" else 0.3,
        "timeout": 30,
    }


def found_by(world: ClientWorld, case: dict[str, Any]) -> Found:
    """The page of a search that a case asks for."""
    more: dict[str, Any] = {}
    with Client(**arguments(world, case)) as client:
        for _ in range(case.get("page", 1)):
            found = client.search(case["query"], **case.get("options", {}), **more)
            more = {"search_after": found.hits[-1].sort if found.hits else ()}
        return found


def seen(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    """What a search found (a `Found`, as JSON has it), in the words of the conformance file, as far
    as a case expects something.
    """
    first = found["hits"][0] if found["hits"] else {"source": {"text": None}, "matched": []}
    buckets = found["aggregations"].get("facet", {"buckets": []})["buckets"]
    whole = {
        **found["expansion"],
        "total": found["total"],
        "more": found["more"],
        "tiers": [hit["tier"] for hit in found["hits"]],
        "ids": [hit["id"] for hit in found["hits"]],
        "best": max(found["hits"], key=lambda hit: hit["score"], default={"id": None})["id"],
        "matched": sorted(first["matched"]),
        "text": first["source"]["text"],
        "field": {
            name: value
            for name, value in first["source"].items()
            if name in expected.get("field", ())
        },
        "facet": {bucket["key"]: bucket["doc_count"] for bucket in buckets},
    }
    return {name: whole[name] for name in expected}


@pytest.mark.parametrize("case", CASES)
def test_python(world: ClientWorld, case: dict[str, Any]) -> None:
    expected = case["expect"]
    if "error" in expected:
        with pytest.raises(
            {"refused": RefusedError, "search": SearchError, "option": TypeError}[expected["error"]]
        ):
            found_by(world, case)
    else:
        found = json.loads(json.dumps(asdict(found_by(world, case))))
        assert seen(found, expected) == expected


@pytest.mark.parametrize("fault", ["null", "half"])
def test_what_is_no_answer_is_none(fault: str) -> None:
    """The Python client, beside the faults of the conformance file."""
    with broken(fault) as port:
        here = f"http://127.0.0.1:{port}"
        with Client(here, patience=0.3) as client:
            assert client.expand("a").source == "none"
            with pytest.raises(SearchError, match="no address"):
                client.search("green couch")
        with Client(here, here, patience=0.3, timeout=0.5) as client, pytest.raises(SearchError):
            client.search("green couch")


def test_javascript(world: ClientWorld) -> None:
    ran(program("node"), "--test", cwd=CLIENTS / "javascript", env=world.environment())


@pytest.mark.clients
def test_javascript_is_typed(world: ClientWorld) -> None:
    npm, place = program("npm"), {"cwd": CLIENTS / "javascript", "env": world.environment()}
    ran(npm, "ci", "--no-fund", "--no-audit", **place)
    ran(npm, "run", "types", **place)


@pytest.mark.clients
def test_java(world: ClientWorld) -> None:
    ran(program("mvn"), "-q", "-B", "test", cwd=CLIENTS / "java", env=world.environment())


def curl(
    world: ClientWorld, case: dict[str, Any], **options: Any
) -> subprocess.CompletedProcess[str]:
    """The script, with a case's environment; `options` are parameters beside the case's own."""
    given = {f"COGR_{name.upper()}": str(value) for name, value in arguments(world, case).items()}
    command = [CLIENTS / "curl/cogr-search.sh", case["query"]]
    return subprocess.run(
        [*command, json.dumps(case.get("options", {}) | options)],
        env={"PATH": os.environ["PATH"], **given},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("case", CASES)
def test_curl(world: ClientWorld, case: dict[str, Any]) -> None:
    program("curl")
    program("jq")
    expected = case["expect"]
    ended = curl(world, case)
    for _ in range(1, case.get("page", 1)):
        ended = curl(world, case, search_after=json.loads(ended.stdout)["hits"][-1]["sort"])
    assert ended.returncode == {"refused": 2, "option": 2, "search": 3}.get(
        expected.get("error"), 0
    ), ended.stderr
    if "error" not in expected:
        assert seen(json.loads(ended.stdout), expected) == expected
        assert ("No expander" in ended.stderr) == (expected.get("reason") == "no expander")
