"""The servers that drills have for themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.drills.nursery import Nursery
from tests.drills.servers import Broker, Node


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker()
    yield broker
    broker.stop()


@pytest.fixture
def node() -> Iterator[Node]:
    node = Node()
    yield node
    node.stop()
