"""What reaches a terminal: texts of items, queries and servers steer nothing; choices, versions and
completion of the programs.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest

from cogr import __version__
from cogr.snapshots import Provenance, Row
from cogr.snapshots.writing import write_snapshot
from cogr.store import Store
from indexers.cli import console
from indexers.telemetry import logs
from tests.commands import MODULES, Command
from tests.shops import write_jsonl

ROOT = Path(__file__).parents[3]
OSC, CLEAR, CONCEAL, RTL, BELL, CSI = (
    "\x1b]0;owned\x07",
    "\x1b[2J\x1b[3J",
    "\x1b[8m",
    "\u202e\u2066",
    "\x07",
    "\x9b31m",
)
HOSTILE = f"sofa {OSC}{CLEAR}{CONCEAL}{RTL}{BELL}{CSI} green"


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
    items = [
        json.loads(line) for line in (shop / "data" / "items.jsonl").read_text("utf-8").splitlines()
    ]
    write_jsonl(
        shop / "data" / "items.jsonl",
        [{**item, "title": f"{item['title']} {HOSTILE}"} for item in items],
    )
    return shop


def test_titles_and_keywords_that_would_steer_a_terminal_are_shown_as_escapes(
    hostile_shop: Path, cogr_index: Command
) -> None:
    rows = [
        Row(id_, "", ("sofa", f"so\u202efa{id_}", "\x1b]8;;http://x\x07link")) for id_ in "abcd"
    ]
    first = cogr_index("rebuild", "--side", "item", "--json").json["snapshot"]
    second = write_snapshot(Store(hostile_shop / ".cogr"), "item", rows, Provenance()).id
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


@pytest.mark.parametrize(
    ("name", "typed", "offered"),
    [
        ("cogr-train", "cogr-train evaluate --split d", ["dev"]),
    ],
)
def test_commands_and_choices_complete(name: str, typed: str, offered: list[str]) -> None:
    asked = {
        f"_{name.upper().replace('-', '_')}_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
        "PYTHONPATH": str(ROOT),
    }
    program = f"import sys; sys.argv = ['{name}']; from {MODULES[name]} import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **asked},
    )
    assert sorted(done.stdout.split()) == sorted(offered)
