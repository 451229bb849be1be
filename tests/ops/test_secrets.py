"""Every secret setting holds a canary while commands plan, work, fail and are mistyped: it comes out nowhere and is written nowhere.

The expander's logs, answers and metrics have a test of their own in `test_expander_fuzz`.
"""

from __future__ import annotations

import base64
import importlib
import os
import shlex
from pathlib import Path

import pytest
from aiohttp import web

from cogr.settings import secret_keys
from tests.commands import Ended, run_here
from tests.indexers.fake_endpoint import FakeEndpoint
from tests.ops.broken_servers import broken
from tests.ops.expander_worlds import workspace

pytestmark = pytest.mark.slow
CANARY = "canary-4711-feathers"
MODULES = {"cogr-index": "indexers.cli", "cogr-train": "trainers.cli", "cogr-ops": "ops.cli"}


def clean(texts: list[str]) -> None:
    """No text holds the canary, as it is or as basic authentication spells it."""
    spelled = [base64.b64encode(f"{user}:{CANARY}".encode()).decode().rstrip("=")[6:-6] for user in ("cogr", "u", "")]
    for text in texts:
        assert not [one for one in (CANARY, *spelled) if one in text], text


class Shop:
    """A shop in which every secret is the canary, and commands in it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self.folder, self._patch, self._capture = folder, monkeypatch, capture
        workspace(folder)
        for variable in [variable for variable in os.environ if variable.startswith("COGR_")]:
            monkeypatch.delenv(variable)
        for name in secret_keys():
            monkeypatch.setenv(f"COGR_{name.upper().replace('.', '__')}", CANARY)
        monkeypatch.setenv("COGR_OPENSEARCH__USERNAME", "cogr")
        monkeypatch.chdir(folder)

    def run(self, line: str, *arguments: str) -> Ended:
        """A command, whose outputs must be clean."""
        name, *words = shlex.split(line)
        main = importlib.import_module(MODULES[name]).main
        ended = run_here(main, self._patch, self._capture, name, *words, *arguments)
        clean([ended.out, ended.err])
        return ended

    def files_are_clean(self) -> int:
        """How many files there are beside the configuration; all of them clean."""
        files = [path for path in self.folder.rglob("*") if path.is_file() and path.name != "cogr.toml"]
        clean([path.read_bytes().decode("utf-8", "replace") for path in files])
        return len(files)


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shop:
    return Shop(tmp_path, monkeypatch, capsys)


def test_all_secrets_are_known() -> None:
    assert {"opensearch.password", "redis.password", "generator.openai.api_key", "serving.token"} <= set(secret_keys())


def test_plans_and_work_show_none(shop: Shop) -> None:
    for line in (
        "cogr-index rebuild --side item --dry-run -v",
        "cogr-index rebuild --side item --dry-run --json --generator openai --set generator.model=m --set generator.openai.base_url=http://localhost:1/v1",
        "cogr-index rebuild --side item --generator extractive --backend memory -v --json --set metrics.file=out.prom",
        "cogr-index rebuild --side query --generator extractive --backend memory --json",
        "cogr-index list --backend memory --json",
        "cogr-index prune --backend memory --dry-run --json",
        "cogr-index inspect --json",
    ):
        assert shop.run(line).status == 0
    shop.run("cogr-ops doctor --json")
    assert (shop.folder / "out.prom").exists()
    assert shop.files_are_clean() > 10


@pytest.mark.parametrize("fault", ["absent", "noise", "error"])
def test_services_that_are_away_show_none(shop: Shop, fault: str) -> None:
    with broken(fault) as port:
        there = (
            *("--set", f"opensearch.url=http://127.0.0.1:{port}", "--set", "opensearch.timeout=2"),
            *("--set", f"redis.url=redis://u:{CANARY}@127.0.0.1:{port}/0", "--set", "redis.timeout=1"),
            *("--set", f"generator.openai.base_url=http://127.0.0.1:{port}/v1", "--set", "generator.openai.retries=0"),
        )
        for line in ("cogr-index list --json", "cogr-index search sofa -v", "cogr-index verify", "cogr-ops backlog -v"):
            assert shop.run(line, *there).status != 0


def test_an_endpoint_that_repeats_what_it_was_sent_shows_none(shop: Shop) -> None:
    def echo(_: int, __: dict[str, object]) -> web.Response:
        return web.json_response({"error": {"message": f"Incorrect API key provided: {CANARY}"}}, status=401)

    with FakeEndpoint(echo) as endpoint:
        ended = shop.run(
            "cogr-index rebuild --side item --generator openai --backend memory -v",
            *("--set", "generator.model=m", "--set", f"generator.openai.base_url={endpoint.url}"),
        )
    assert ended.status == 3


@pytest.mark.parametrize(
    "written",
    [
        f'[opensearch]\npasword = "{CANARY}"\n',
        f'[opensearch]\npassword = "{CANARY}\n',
        f'[opensearch]\nurl = "https://u:{CANARY}@host:9200"\n',
        f'[redis]\nurl = "http://u:{CANARY}@host/0"\n',
        f'[redis]\nurl = "sentinel://u:{CANARY}@host"\n',
        f'[generator.openai]\nbase_url = "https://u:{CANARY}@host/v1"\nno_such = 1\n',
    ],
)
def test_mistakes_in_the_configuration_show_none(shop: Shop, written: str) -> None:
    (shop.folder / "cogr.toml").write_text(f'[dataset]\nloader = "jsonl"\npath = "data"\n{written}')
    assert shop.run("cogr-index list").status == 2


def test_mistakes_on_the_command_line_show_none(shop: Shop) -> None:
    keys = ("opensearch.pasword={}", "opensearch.password.x={}", 'opensearch.password=["{}"]', "redis={}")
    for wrong in (key.format(CANARY) for key in keys):
        assert shop.run("cogr-index list", "--set", wrong).status == 2
