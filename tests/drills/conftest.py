"""One table of all drills of a session, printed at its end, and the servers that drills have for
themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cogr.errors import CogrError
from tests.drills.nursery import Nursery
from tests.drills.servers import Broker, Node
from tests.drills.table import TABLE, Table


@pytest.fixture
def drill_table() -> Table:
    return TABLE


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Faults that the suite tries one by one are lines of the table too."""
    if report.when == "call" and "fault" in report.keywords and "drill" not in report.keywords:
        name = report.nodeid.rpartition("::")[2].removeprefix("test_").replace("_", " ")
        TABLE.add(
            "one by one", name, "nothing lost" if report.passed else f"{report.outcome.upper()}"
        )


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if any(drill != "one by one" for drill, *_ in TABLE.rows):
        terminalreporter.section("what was done, and what was lost")
        for line in TABLE.lines():
            terminalreporter.write_line(line)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


@pytest.fixture
def broker() -> Iterator[Broker]:
    try:
        broker = Broker()
    except CogrError as error:
        pytest.skip(f"NO VALKEY: {error}")
    yield broker
    broker.stop()


@pytest.fixture
def node() -> Iterator[Node]:
    try:
        node = Node()
    except CogrError as error:
        pytest.skip(f"NO OPENSEARCH: {error}")
    yield node
    node.stop()
