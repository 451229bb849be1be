"""One table of all drills of a session, printed at its end."""

from __future__ import annotations

import pytest

from tests.drills.table import TABLE, Table


@pytest.fixture
def drill_table() -> Table:
    return TABLE


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if TABLE.rows:
        terminalreporter.section("what was done, and what was lost")
        for line in TABLE.lines():
            terminalreporter.write_line(line)
