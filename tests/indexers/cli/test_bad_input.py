"""Bad input: one sentence, exit status 2, nothing lost.

The embedded backend; OpenSearch's own faults are tested with it.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from cogr.snapshots import Manifest
from tests.indexers.conftest import ITEMS, Command
from tests.shops import write_jsonl


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("rebuild",), "--side"),
        (("rebuild", "--side", "item", "--generator", "magic"), "'magic' is not one of"),
        (("rebuild", "--side", "item", "--limit", "0"), "--limit"),
        (("search", " "), "The query is empty"),
        (("search", "sofa"), "No item snapshot serves yet: run cogr-index rebuild --side item"),
        (("publish", "item-r000-000000000000"), "no snapshot 'item-r000-000000000000'"),
        (("rollback",), "Nothing was published before"),
        (("verify",), "Nothing serves yet"),
        (("export", "keywords", "out.x"), "has no item snapshot"),
        (("frobnicate",), "frobnicate"),
    ],
)
def test_arguments(shop: Path, cogr_index: Command, arguments: tuple[str, ...], says: str) -> None:
    cogr_index(*arguments).check_refused(says)


def test_odd_texts_are_taken_as_they_are(shop: Path, cogr_index: Command) -> None:
    odd = [
        {"id": "nul", "title": "so\x00fa", "text": "x\x00y"},
        {"id": "long", "title": "Long", "text": "velvet couch " * 80_000},
        {"id": "blank", "title": "   ", "text": "\t\n"},
        {
            "id": "markup",
            "title": "[bold]<script>alert(1)</script>[/bold]",
            "text": "[/nothing] {item} {description}",
        },
    ]
    write_jsonl(shop / "data" / "items.jsonl", [*ITEMS, *odd])
    for generator in ("extractive", "scripted"):
        ended = cogr_index("rebuild", "--side", "item", "--generator", generator, "--json")
        assert ended.status == 0, ended.err
        assert ended.json["items"] == 8
        assert ended.json["cut_prompts"] == 1
    assert cogr_index("search", "sofa").status == 0
    assert "<script>" in cogr_index("search", "[bold]<script>alert(1)</script>[/bold]").out


def test_a_flipped_byte_and_another_normaliser(shop: Path, cogr_index: Command) -> None:
    rebuilt = partial(cogr_index, "rebuild", "--json", "--side")
    ids = {side: rebuilt(side).json["snapshot"] for side in ("item", "query")}
    file = shop / ".cogr/snapshots" / ids["item"] / "keywords.parquet"
    good = file.read_bytes()
    file.write_bytes(good[:100] + bytes([good[100] ^ 1]) + good[101:])
    cogr_index("verify", ids["item"]).check_refused("does not match its manifest")
    file.write_bytes(good)
    manifest = shop / ".cogr/snapshots" / ids["item"] / "manifest.json"
    other = Manifest.model_validate_json(manifest.read_bytes()).summed(normaliser="cogr-0")
    manifest.write_text(other.model_dump_json())
    cogr_index("verify", ids["item"]).check_refused("normaliser cogr-0")
    cogr_index("publish", ids["query"]).check_refused("their normalisers are", status=1)


def test_models_that_are_none(shop: Path, cogr_index: Command) -> None:
    pytest.importorskip("transformers")
    (shop / "model").mkdir()
    endpoint = ("rebuild", "--side", "item", "--generator", "openai", "--set", "generator.model=m")
    cogr_index(*endpoint).check_refused("needs generator.openai.base_url")
    for kind in filter(find_spec, ("transformers", "vllm")):
        asked = ("rebuild", "--side", "item", "--generator", kind)
        cogr_index(*asked).check_refused("needs generator.model")
        empty = ("--set", f"generator.model={shop / 'model'}")
        cogr_index(*asked, *empty).check_refused("config.json")


def test_an_endpoint_that_is_away(
    shop: Path, cogr_index: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = "openai._base_client.BaseClient._calculate_retry_timeout"
    monkeypatch.setattr(at_once, lambda *_, **__: 0)
    asked = ("rebuild", "--side", "item", "--generator", "openai", "--set", "generator.model=m")
    ended = cogr_index(*asked, "--set", "generator.openai.base_url=http://127.0.0.1:9/v1")
    assert ended.status == 3
    assert "can't be reached" in ended.err.splitlines()[-1]


REBUILD = [Path(sys.executable).with_name("cogr-index"), "rebuild", "--side", "item"]
REBUILD += ["--generator", "scripted"]


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))


@pytest.mark.slow
def test_a_full_disk_loses_nothing(shop: Path) -> None:
    more = [{"id": f"x{n}", "title": f"thing {n}", "text": f"word{n} " * 9} for n in range(400)]
    write_jsonl(shop / "data" / "items.jsonl", [*ITEMS, *more])
    run = partial(subprocess.run, [*REBUILD, "--json"], capture_output=True, text=True, cwd=shop)
    full = run(preexec_fn=limited)
    assert full.returncode == 2, full.stderr
    assert "size limit" in full.stderr.splitlines()[-1]
    assert json.loads(run(check=True).stdout)["items"] == 404
