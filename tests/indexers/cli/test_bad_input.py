"""Bad input, and values that no setting can have, from every source: one sentence that names the
source, exit status 2, nothing lost. The embedded backend; OpenSearch's own faults are tested with
it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from cogr.errors import SettingsError
from cogr.settings import known_keys, load_settings
from cogr.snapshots import Manifest
from tests.commands import Command, rebuilt_pair
from tests.shops import CONFIGURATION, ITEMS, write_jsonl

pytestmark = pytest.mark.usefixtures("no_other_settings")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("rebuild",), "--side"),
        (("rebuild", "--side", "item", "--generator", "magic"), "'magic' is not one of"),
        (("search", " "), "The query is empty"),
        (("search", "sofa"), "No item snapshot serves: run cogr-index rebuild --side item"),
        (("publish", "item-r000-000000000000"), "no snapshot 'item-r000-000000000000'"),
        (("rollback",), "Nothing was published before"),
        (("verify",), "Nothing serves yet"),
        (("export", "keywords", "out.x"), "has no item snapshot"),
        (("frobnicate",), "frobnicate"),
    ],
)
def test_arguments(shop: Path, cogr_index: Command, arguments: tuple[str, ...], says: str) -> None:
    cogr_index(*arguments).check_refused(says)


def test_another_normaliser(shop: Path, cogr_index: Command) -> None:
    items, queries = rebuilt_pair(cogr_index)
    manifest = shop / ".cogr/snapshots" / items / "manifest.json"
    other = Manifest.model_validate_json(manifest.read_bytes()).summed(normaliser="cogr-0")
    manifest.write_text(other.model_dump_json())
    cogr_index("verify", items).check_refused("normaliser cogr-0")
    cogr_index("publish", queries).check_refused("their normalisers are", status=1)


def test_models_that_are_none(shop: Path, cogr_index: Command) -> None:
    pytest.importorskip("transformers")
    (shop / "model").mkdir()
    endpoint = ("rebuild", "--side", "item", "--generator", "openai", "--set", "generator.model=m")
    cogr_index(*endpoint).check_refused("needs generator.openai.base_url")
    for kind in filter(find_spec, ("transformers", "vllm")):
        asked = ("rebuild", "--side", "item", "--generator", kind)
        cogr_index(*asked).check_refused("needs generator.model")
        empty = ("--set", f"generator.model={shop / 'model'}")
        cogr_index(*asked, *empty).check_refused("has no weights")


REBUILD = [Path(sys.executable).with_name("cogr-index"), "rebuild", "--side", "item"]
REBUILD += ["--generator", "scripted"]


def limited() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))


@pytest.mark.slow
def test_a_full_disk_loses_nothing(shop: Path) -> None:
    more = [{"id": f"x{n}", "title": f"thing {n}", "text": f"word{n} " * 9} for n in range(400)]
    write_jsonl(shop / "data" / "items.jsonl", [*ITEMS, *more])
    run = partial(subprocess.run, [*REBUILD, "--json"], capture_output=True, text=True, cwd=shop)
    # Python would keep modules that it compiles, cut at the limit.
    full = run(preexec_fn=limited, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    assert full.returncode == 2, full.stderr
    assert "too large" in full.stderr.splitlines()[-1]
    assert json.loads(run(check=True).stdout)["items"] == 404


HOSTILE = (
    *("", "-1", "nan", "-inf", "1e308", "99999999999999999999999", "1979-05-27"),
    *('"a\\u0000b"', '"\\u001b[2J"', "\udcff", "x" * 5000, "[1]", "{a = 1}", "[" * 5000),
    *("http://[::1", "http://host:99999", "http://a..b", "redis://host/database"),
)


@pytest.mark.parametrize("step", [6, pytest.param(1, marks=pytest.mark.drill)])
@pytest.mark.parametrize("value", HOSTILE, ids=lambda value: ascii(value[:20]))
def test_any_value_of_any_key_is_taken_or_refused_in_one_sentence(
    shop: Path, value: str, step: int
) -> None:
    """In the suite each value meets one key in six; in the drill all."""
    taken, sentences = 0, []
    for key in list(known_keys())[HOSTILE.index(value) % step :: step]:
        try:
            load_settings(None, [f"{key}={value}"])
            taken += 1
        except SettingsError as error:
            sentences.append(str(error))
    assert [one for one in sentences if "\n" in one or len(one) > 500] == []
    if value in ("inf", "-inf", "nan", "\udcff", '"a\\u0000b"'):
        # Only keys of text may have a word that looks like a number.
        assert taken < 60 if "n" in value else taken == 0


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("opensearch.url=http://[::1", "opensearch.url: the host or port is invalid"),
        ("opensearch.url=http://", "opensearch.url: the host is missing"),
        ("opensearch.url=http://a b", "opensearch.url: it contains a space"),
        ("generator.openai.base_url=localhost:8000", "generator.openai.base_url: it is not a URL"),
        ("store=" + "x" * 300, "store: the name is too long for a file"),
        ("dataset.path=~nobody-has-this-name", "dataset.path: there is no user of this name"),
        ("publish.tolerance=nan", "publish.tolerance: input should be a finite number"),
        ("keywords=3", "keywords: input should be"),
        ("opensearch.ulr=http://x", "opensearch.ulr is unknown; the nearest known key is"),
        ("opensearch.prefix=Shop", "opensearch.prefix"),
        ('serving.token="two\\nlines"', "serving.token: it contains a line break"),
        ("a..b=1", "is not of the form key=value"),
    ],
)
def test_a_flag_is_blamed_for_its_own_mistakes(
    shop: Path, cogr_index: Command, override: str, says: str
) -> None:
    cogr_index("list", "--set", override).check_refused("--set", says)


@pytest.mark.parametrize(
    ("source", "text", "says"),
    [
        ("COGR_KEYWORDS", "notjson", "COGR_KEYWORDS is not valid JSON; write a list as"),
        ("COGR_KEYWORDS__KMAX", "3", "KMAX is not a setting; the nearest one is COGR_KEYWORDS__K"),
        ("COGR_STORE", "\udcff", "COGR_STORE: store: it contains a line break or a control"),
        ("COGR_CONFIG", "none.toml", "There is no configuration none.toml"),
        ("cogr.toml", "a = " + "[" * 5000, "is not valid TOML: it is nested too deeply"),
        ("cogr.toml", '[dataset]\nloader = "jsonl"\udcff\n', "is not valid TOML"),
        ("cogr.toml", "", "dataset is missing"),
        ("cogr.toml", '[dataset]\nloadr = "jsonl"\n', "nearest known key is dataset.loader."),
        ("cogr.toml", '[data]\nloader = "jsonl"\n', "the table data is unknown; the nearest"),
        ("cogr.toml", "k_max = 3\n" + CONFIGURATION, "nearest known key is keywords.k_max."),
        ("-c", "folder", "can't be read (Is a directory)"),
        ("-c", "file/cogr.toml", "can't be read (Not a directory)"),
        ("-c", "x" * 300, "can't be read (File name too long)"),
        ("--set", "store=file", "is not a folder"),
        ("--set", "dataset.path=file", "file"),
    ],
    ids=lambda value: ascii(value[:30]),
)
def test_variables_files_and_folders_are_blamed_for_their_own_mistakes(
    shop: Path,
    cogr_index: Command,
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    text: str,
    says: str,
) -> None:
    (shop / "folder").mkdir()
    (shop / "file").write_text("x")
    flags = (source, text) if source.startswith("-") else ()
    if source.startswith("COGR_"):
        monkeypatch.setenv(source, text)
    elif not flags:
        (shop / source).write_bytes(text.encode("utf-8", "surrogateescape"))
    command = ("rebuild", "--side", "item") if text.startswith("dataset") else ("list",)
    cogr_index(*command, *flags).check_refused(says)


def test_a_value_that_a_flag_overrules_is_nobodys_mistake(
    shop: Path, cogr_index: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shop / "cogr.toml").write_text(CONFIGURATION + '[keywords]\nk_max = "many"\n')
    monkeypatch.setenv("COGR_KEYWORDS__K_MAX", "several")
    cogr_index("list").check_refused("environment variable COGR_KEYWORDS__K_MAX: keywords.k_max")
    cogr_index("list", "--set", "keywords.k_max=few").check_refused("--set: keywords.k_max")
    assert cogr_index("list", "--set", "keywords.k_max=3").status == 0
    # A byte order mark before the file is no mistake.
    monkeypatch.delenv("COGR_KEYWORDS__K_MAX")
    (shop / "cogr.toml").write_text(CONFIGURATION, "utf-8-sig")
    assert cogr_index("list").status == 0


def test_a_device_or_a_pipe_is_not_replaced_by_a_file(shop: Path, cogr_index: Command) -> None:
    os.mkfifo(shop / "pipe")
    assert cogr_index("rebuild", "--side", "item", "--generator", "extractive").status == 0
    cogr_index("export", "keywords", "pipe").check_refused("it is not a file; name another.")
    assert (shop / "pipe").is_fifo()
