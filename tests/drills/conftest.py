"""One table of all drills of a session, printed at its end, and the servers that drills have for
themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cogr.errors import CogrError
from tests.drills.nursery import Nursery
from tests.drills.servers import Broker, Node

TABLE: list[str] = []


@pytest.fixture
def drill_table() -> list[str]:
    """What was done, and what came of it: a line each."""
    return TABLE


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if TABLE:
        terminalreporter.section("what was done, and what was lost")
        for line in TABLE:
            terminalreporter.write_line(line)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


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
