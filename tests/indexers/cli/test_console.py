"""The command lines' shared plumbing, by the exit status and the two output streams of real
processes.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from indexers.cli import console
from indexers.telemetry import terminal
from tests.commands import Ended, run_here

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
    ("kind", "status", "says"),
    [
        ("data", 2, "[items.jsonl:3] is not a JSON object; " + "mend it " * 30),
        ("check", 1, "[items.jsonl:3] is not a JSON object; " + "mend it " * 30),
        ("service", 3, "[items.jsonl:3] is not a JSON object; " + "mend it " * 30),
        ("stop", 130, "Interrupted."),
    ],
)
def test_an_error_is_its_sentence_on_one_line(run: Run, kind: str, status: int, says: str) -> None:
    assert run("fail", kind) == Ended(status, "", f"{says}\n")


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


@pytest.mark.parametrize("inside", [True, False])
def test_the_next_command_works_where_the_environment_is_not_activated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Run, inside: bool
) -> None:
    folder = BIN.parent.parent if inside else tmp_path
    program = str(BIN.relative_to(folder) / "cogr-index") if inside else str(BIN / "cogr-index")
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
        "keywords of items: 50 of 1,000, 1:35 min left",
        "keywords of items: 350 of 1,000, 1:05 min left",
        "keywords of items: 650 of 1,000, 35.0 s left",
        "keywords of items: 950 of 1,000, 5.0 s left",
        "keywords of items: 1,000 in 1:40 min",
    ]
    assert [terminal.duration(seconds) for seconds in (0, 59.94, 59.97, 187, 3599.6, 7500)] == [
        "0.0 s",
        "59.9 s",
        "1:00 min",
        "3:07 min",
        "1:00 h",
        "2:05 h",
    ]
