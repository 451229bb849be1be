"""What reaches a terminal: texts of items, queries and servers steer nothing; choices, versions and
completion of the programs.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from cogr import __version__
from cogr.snapshots import Row
from cogr.store import Store
from indexers.cli import console
from indexers.telemetry import logs
from tests.commands import MODULES, Command
from tests.indexers.backends.backend_worlds import frozen
from tests.indexers.conftest import ITEMS
from tests.shops import write_jsonl

ROOT = Path(__file__).parents[3]
RTL, CSI = "\u202e\u2066", "\x9b31m"
HOSTILE = f"sofa \x1b]0;owned\x07\x1b[2J\x1b[3J\x1b[8m{RTL}\x07{CSI} green"


def steering(text: str) -> list[str]:
    """Characters of a text that steer a terminal, but for line ends."""
    return [
        c
        for c in text
        if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp") and c not in "\n"
    ]


@pytest.fixture
def hostile_shop(shop: Path) -> Path:
    """The shop with titles and keywords that would steer a terminal."""
    items = [{**item, "title": f"{item['title']} {HOSTILE}"} for item in ITEMS]
    write_jsonl(shop / "data" / "items.jsonl", items)
    return shop


def test_titles_and_keywords_that_would_steer_a_terminal_are_shown_as_escapes(
    hostile_shop: Path, cogr_index: Command
) -> None:
    words = ("sofa", "so\u202efa", "\x1b]8;;http://x\x07link")
    first = cogr_index("rebuild", "--side", "item", "--json").json["snapshot"]
    rows = [Row(id_, "", words) for id_ in "abcd"]
    second = frozen(Store(hostile_shop / ".cogr"), "item", rows).id
    assert cogr_index("publish", first, "--no-gate").status in (0, 2)
    shown = []
    for line in (
        ("search", "sofa"),
        ("search", "sofa", "--explain"),
        ("search", HOSTILE, "--keywords", f"sofa,{RTL}{CSI}"),
        ("diff", second, first),
        ("list",),
        ("inspect", "-v"),
        ("publish", f"item-{HOSTILE}"),
        ("rebuild", "--side", "item", "--dry-run", "--set", f"opensearch.prefix={HOSTILE}"),
    ):
        ended = cogr_index(*line)
        assert steering(ended.out + ended.err) == [], line
        shown.append(ended.out + ended.err)
    assert r"\x1b]0;owned\x07" in shown[0]
    assert r"\u202e\u2066" in shown[2]
    assert "\\x1b]0" in shown[3]


def test_json_has_no_byte_that_steers_a_terminal(hostile_shop: Path, cogr_index: Command) -> None:
    cogr_index("rebuild", "--side", "item")
    written = cogr_index("search", f"sofa {HOSTILE}\x7f", "--json")
    assert steering(written.out) == []
    assert "sofa \x1b]0;owned\x07" in written.json["hits"][0]["title"]


def test_notes_logs_and_tracebacks_are_one_line_each_and_steer_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.set_verbosity(True)
    console.note(f"a note {HOSTILE}\nNext: something else")
    logging.getLogger("indexers.x").warning("a line %s\nERROR forged", HOSTILE)
    try:
        raise ZeroDivisionError(HOSTILE)
    except ZeroDivisionError as error:
        logs.show_bug(type(error), error, error.__traceback__)
    written = capsys.readouterr().err
    assert steering(written) == []
    assert [line for line in written.splitlines() if line.startswith(("Next", "ERROR"))] == []


@pytest.mark.parametrize("name", MODULES)
def test_every_program_says_its_version(name: str, run_any: Command) -> None:
    ended = run_any(name, "--version")
    assert (ended.status, ended.out, ended.err) == (0, f"{name} {__version__}\n", "")


def test_choices_complete() -> None:
    asked = {
        "_COGR_TRAIN_COMPLETE": "complete_bash",
        "COMP_WORDS": "cogr-train evaluate --split d",
        "COMP_CWORD": "3",
        "PYTHONPATH": str(ROOT),
    }
    program = "import sys; sys.argv = ['cogr-train']; from trainers.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **asked},
    )
    assert done.stdout.split() == ["dev"]
