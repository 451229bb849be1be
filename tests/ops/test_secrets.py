"""Every secret setting holds a canary while commands plan, work, fail and are mistyped: it comes
out nowhere and is written nowhere.

The expander's logs, answers and metrics have a test of their own in `test_expander_fuzz`.
"""

from __future__ import annotations

import base64
import shlex
import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest

from cogr.settings import secret_keys
from tests.commands import Command, Ended, sets
from tests.damages import files_below
from tests.indexers.generators.fake_endpoint import FakeEndpoint, refused
from tests.ops.broken_servers import broken
from tests.ops.expander.expander_worlds import workspace

pytestmark = pytest.mark.slow
CANARY = "canary-4711-feathers"


def clean(texts: list[str]) -> None:
    """No text holds the canary, as it is or as basic authentication spells it."""
    spelled = [
        base64.b64encode(f"{user}:{CANARY}".encode()).decode().rstrip("=")[6:-6]
        for user in ("cogr", "u", "")
    ]
    for text in texts:
        assert not [one for one in (CANARY, *spelled) if one in text], text


class Shop:
    """A shop in which every secret is the canary, and commands in it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, run: Command) -> None:
        self.folder, self._run = folder, run
        workspace(folder)
        for name in secret_keys():
            monkeypatch.setenv(f"COGR_{name.upper().replace('.', '__')}", CANARY)
        monkeypatch.setenv("COGR_OPENSEARCH__USERNAME", "cogr")
        monkeypatch.chdir(folder)

    def run(self, line: str, *arguments: str) -> Ended:
        """A command, whose outputs must be clean."""
        ended = self._run(*shlex.split(line), *arguments)
        clean([ended.out, ended.err])
        return ended

    def files_are_clean(self) -> int:
        """How many files there are beside the configuration; all of them clean."""
        files = [*files_below(self.folder, without=["cogr.toml"])]
        clean([path.read_bytes().decode("utf-8", "replace") for path in files])
        return len(files)


@pytest.fixture
def shop(
    tmp_path: Path, no_other_settings: None, monkeypatch: pytest.MonkeyPatch, run_any: Command
) -> Shop:
    return Shop(tmp_path, monkeypatch, run_any)


def test_plans_and_work_show_none(shop: Shop) -> None:
    for line in (
        "cogr-index rebuild --side item --dry-run -v",
        "cogr-index rebuild --side item --dry-run --json --generator openai --set "
        "generator.model=m --set generator.openai.base_url=http://localhost:1/v1",
        "cogr-index rebuild --side item --generator extractive --set backend=memory -v --json",
        "cogr-index rebuild --side query --generator extractive --set backend=memory --json",
        "cogr-index list --set backend=memory --json",
        "cogr-index prune --set backend=memory --dry-run --json",
        "cogr-index inspect --json",
    ):
        assert shop.run(line).status == 0
    shop.run("cogr-ops doctor --json")
    assert shop.files_are_clean() > 10


@pytest.mark.parametrize("fault", ["absent", "noise"])
def test_services_that_are_away_show_none(shop: Shop, fault: str) -> None:
    with broken(fault) as port:
        there = (
            f"--set opensearch.url=http://127.0.0.1:{port} "
            f"--set redis.url=redis://u@127.0.0.1:{port}/0"
        )
        for line in ("list --json", "search sofa -v", "verify"):
            assert shop.run(f"cogr-index {line} {there}").status == 3


def test_an_endpoint_that_repeats_what_it_was_sent_shows_none(shop: Shop) -> None:
    echo = refused(401, f"Incorrect API key provided: {CANARY}")
    with FakeEndpoint(lambda *_: echo) as endpoint:
        ended = shop.run(
            "cogr-index rebuild --side item --generator openai --set backend=memory -v",
            *sets(*endpoint.settings),
        )
    assert ended.status == 3


@pytest.mark.parametrize(
    "written",
    [
        f'[opensearch]\npasword = "{CANARY}"\n',
        f'[opensearch]\npassword = "{CANARY}\n',
        f'[generator.openai]\nbase_url = "https://u:{CANARY}@host/v1"\nno_such = 1\n',
    ],
)
def test_mistakes_in_the_configuration_show_none(shop: Shop, written: str) -> None:
    (shop.folder / "cogr.toml").write_text(f'[dataset]\nloader = "jsonl"\npath = "data"\n{written}')
    assert shop.run("cogr-index list").status == 2


URLS = {
    "opensearch.url": "https://{}@127.0.0.1:1",
    "redis.url": "redis://{}@127.0.0.1:1/0",
    "generator.openai.base_url": "http://{}@127.0.0.1:1/v1",
    "metrics.pushgateway": "http://{}@127.0.0.1:1",
    "store": "ftp://{}@127.0.0.1:1/folder",
}
USERS = (
    *("u:{}", ":{}", "u:{}/x", "u:x/{}", "u:{}#x", "u:x#{}", "u:{}?x", "u:x?{}", "u:{}@x"),
    *("u:x@{}", "u:[{}", "u/{}", "{} x", "u:%2F{}"),
)
EVERY = (
    "cogr-index list --json",
    "cogr-index inspect -v",
    "cogr-index search sofa",
    "cogr-index verify",
    "cogr-index rebuild --side item --dry-run --json",
    "cogr-index rebuild --side item --generator extractive --workers celery -v",
    "cogr-index update --side item --since 2026-01-01",
    "cogr-index publish item-r000-000000000000",
    "cogr-index rollback",
    "cogr-index prune --dry-run",
    "cogr-index export keywords out.jsonl",
    "cogr-index import labels none.csv",
    "cogr-train status",
    "cogr-train evaluate",
    "cogr-ops doctor --json",
    "cogr-ops opensearch stop",
    "cogr-ops redis stop --json",
    "cogr-ops serve --host no.such.host.invalid",
    "cogr-ops worker",
)


CASES = list(product(USERS, URLS, ("file", "environment", "flag"), EVERY))


@pytest.mark.parametrize("step", [131, pytest.param(13, marks=pytest.mark.drill)])
def test_a_password_in_a_url_is_shown_by_no_command_however_it_is_spelt(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """The steps have no divisor in common with the lists: each of their members is met."""
    monkeypatch.setattr("indexers.rebuild.fleet.coordinator.PATIENCE_SECONDS", 1)
    # `stop` ends all servers that it knows: here none, not those of other tests.
    monkeypatch.setenv("COGR_CACHE_DIR", str(shop.folder / "cache"))
    for user, key, where, line in CASES[::step]:
        # A worker goes on with a URL that can be one.
        if line == "cogr-ops worker" and not any(sign in user for sign in "/#?[ "):
            continue
        url = URLS[key].format(user.format(CANARY))
        with pytest.MonkeyPatch.context() as patch:
            _write(shop, key, url if where == "file" else "")
            if where == "environment":
                patch.setenv(f"COGR_{key.upper().replace('.', '__')}", url)
            ended = shop.run(line, *(("--set", f"{key}={url}") if where == "flag" else ()))
            assert "Traceback" not in ended.err
            assert "No such command" not in ended.err
            assert ended.status in (0, 1, 2, 3)
    assert shop.files_are_clean() > 2


def _write(shop: Shop, key: str, url: str) -> None:
    table, _, name = key.rpartition(".")
    head = f"[{table}]\n" if table else ""
    data = '[dataset]\nloader = "jsonl"\npath = "data"\n'
    line = f'{name} = "{url}"\n' if url else ""
    (shop.folder / "cogr.toml").write_text(f"{data}{head}{line}" if table else f"{line}{data}")


def test_the_traceback_of_a_bug_has_no_secret(shop: Shop) -> None:
    program = (
        "import logging, typer; from cogr.settings import load_settings; from indexers.cli import "
        "console\n"
        "app = typer.Typer()\n"
        "@app.command()\n"
        "def bug():\n"
        "    password = load_settings().opensearch.password.get_secret_value()\n"
        "    logging.getLogger('library').warning('sent %s', password)\n"
        "    raise ZeroDivisionError(password + '\\x1b[2J')\n"
        "console.run(app)\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=shop.folder)
    clean([done.stdout, done.stderr])
    assert done.returncode == 1
    assert done.stderr.startswith("sent ...\n")
    assert done.stderr.endswith("ZeroDivisionError: ...\\x1b[2J\n")
