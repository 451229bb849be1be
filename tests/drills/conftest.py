"""The servers that drills have for themselves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cogr.errors import CogrError
from tests.drills.nursery import Nursery
from tests.drills.servers import Broker, Node


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
