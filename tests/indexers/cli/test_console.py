"""The command lines' shared plumbing: exit status, the two output streams, versions and completion;
texts of items, queries and servers steer no terminal.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from cogr import __version__
from cogr.snapshots import Row
from cogr.store import Store
from indexers.cli import console
from indexers.telemetry import logs, terminal
from tests.commands import MODULES, Command, Ended, run_here
from tests.shops import ITEMS, frozen, write_jsonl

PROGRAM = """
import pathlib, sys, typer
from cogr.errors import CheckFailedError, DataError, ServiceError
from indexers.cli import console

app = typer.Typer(no_args_is_help=True)
RAISED = {
    "data": DataError, "check": CheckFailedError, "service": ServiceError,
    "bug": ZeroDivisionError, "stop": KeyboardInterrupt,
}

@app.command()
def fail(kind: str) -> None:
    raise RAISED[kind]("[items.jsonl:3] is not a JSON object; " + "mend it " * 30)

@app.command()
def show(as_json: bool = typer.Option(False, "--json")) -> None:
    console.note("a message")
    payload = {"path": pathlib.Path("a/b"), "title": "sofa \\ud83d"}
    console.emit(as_json, payload, lambda out: out.print("[bold]sofa[/bold] :smile:"))
    console.next_command("cogr-index search sofa")

console.run(app)
"""
BIN = Path(sys.executable).parent
Run = Callable[..., Ended]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the program in this process."""
    code = compile(PROGRAM, "program", "exec")

    def main() -> None:
        exec(code, {"__name__": "program"})

    return lambda *words: run_here(main, monkeypatch, capsys, "program", *words)


@pytest.mark.parametrize(
    ("kind", "status"), [("data", 2), ("check", 1), ("service", 3), ("stop", 130)]
)
def test_an_error_is_its_sentence_on_one_line(run: Run, kind: str, status: int) -> None:
    says = "[items.jsonl:3] is not a JSON object; " + "mend it " * 30
    assert run("fail", kind) == Ended(
        status, "", "Interrupted.\n" if kind == "stop" else f"{says}\n"
    )


def test_a_bug_keeps_its_traceback() -> None:
    line = [sys.executable, "-c", PROGRAM, "fail", "bug"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


@pytest.mark.parametrize("arguments", [("show", "--no-such"), ("fail",), ("no-such",), ()])
def test_a_wrong_command_line_exits_with_2(run: Run, arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert done.status == 2
    if arguments:
        assert done.out == ""
        assert done.err.count("\n") == 1
        assert "--help" in done.err


def test_json_is_one_object_and_text_of_items_is_not_read_as_markup(run: Run) -> None:
    done = run("show", "--json")
    assert (done.status, done.json) == (0, {"path": str(Path("a/b")), "title": "sofa \ud83d"})
    assert done.err == f"a message\nNext: {console.runnable('cogr-index search sofa')}\n"
    assert run("show").out == "[bold]sofa[/bold] :smile:\n"


def test_the_next_command_works_where_the_environment_is_not_activated(
    monkeypatch: pytest.MonkeyPatch, run: Run
) -> None:
    folder = BIN.parent.parent
    program = str(BIN.relative_to(folder) / "cogr-index")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert run("show").sentence == f"Next: {program} search sofa"
    assert Path(program).is_file()


def test_progress_is_shown_by_lines_where_nobody_watches(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(terminal.time, "monotonic", lambda: now)
    with terminal.progress_bar("keywords of items", 1000) as advance:
        for seconds in range(1, 101):
            now = 100.0 + seconds
            advance(10)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "keywords of items: 50 of 1,000",
        "keywords of items: 350 of 1,000, 1:05 min left",
        "keywords of items: 650 of 1,000, 35.0 s left",
        "keywords of items: 950 of 1,000, 5.0 s left",
        "keywords of items: 1,000 in 1:40 min",
    ]
    durations = map(terminal.duration, (59.97, 3599.6))
    assert [*durations] == ["1:00 min", "1:00 h"]


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
    written = cogr_index("search", f"sofa {HOSTILE}\x7f", "--json")
    assert steering(written.out) == []
    assert "sofa \x1b]0;owned\x07" in written.json["hits"][0]["title"]
    for line in (
        ("search", "sofa"),
        ("search", "sofa", "--explain"),
        ("search", HOSTILE, "--keywords", f"sofa,{RTL}{CSI}"),
        ("diff", second, first),
        ("list",),
        ("publish", f"item-{HOSTILE}"),
        ("rebuild", "--side", "item", "--dry-run", "--set", f"opensearch.prefix={HOSTILE}"),
    ):
        ended = cogr_index(*line)
        assert steering(ended.out + ended.err) == [], line
        shown.append(ended.out + ended.err)
    assert r"\x1b]0;owned\x07" in shown[0]
    assert r"\u202e\u2066" in shown[2]
    assert "\\x1b]0" in shown[3]


def test_notes_logs_and_tracebacks_are_one_line_each_and_steer_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logs.begin(verbose=True)
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
