"""How many requests at once: the limit as a function of what became of requests, without a network
or a clock.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexers.generators.openai_client import START, Limit, outcome_of

OUTCOMES = ("answered", "limited", "unavailable", "timeout", "lost", "refused")


def rounds(limit: Limit, count: int, begin: float = 0.0, latency: float = 1.0) -> float:
    """Rounds of good answers, as many as allowed at once. Returns when the last one ended."""
    for number in range(count):
        started = begin + number * latency
        for _ in range(int(limit.limit)):
            limit.learn("answered", started, started + latency, crowded=True)
    return begin + count * latency


def test_it_doubles_until_the_first_trouble_and_then_grows_by_one_a_round() -> None:
    limit = Limit(1, 1000, target=60)
    now = rounds(limit, 3)
    assert limit.limit == START * 8
    limit.learn("limited", now, now + 1, crowded=True)
    assert limit.limit == START * 4
    rounds(limit, 4, now + 1)
    assert START * 4 + 3.5 < limit.limit < START * 4 + 4.5


def test_a_round_trip_brings_one_cut_however_many_fail() -> None:
    limit = Limit(1, 64, target=60)
    for _ in range(8):
        limit.learn("unavailable", 0.0, 1.0, crowded=True)
    assert limit.limit == START / 2
    limit.learn("timeout", 1.5, 2.0, crowded=True)
    assert limit.limit == START / 4


def test_slow_answers_cut_a_little_and_lost_connections_say_nothing() -> None:
    limit = Limit(1, 64, target=1.0)
    limit.learn("answered", 0.0, 3.0, crowded=True)
    assert limit.limit == pytest.approx(START * 0.9)
    before = limit.limit
    for outcome in ("lost", "refused"):
        limit.learn(outcome, 4.0, 4.1, crowded=True)  # type: ignore[arg-type]
    assert limit.limit == before


def test_it_does_not_grow_while_nobody_asks_for_more() -> None:
    limit = Limit(1, 64, target=60)
    for _ in range(100):
        limit.learn("answered", 0.0, 0.1, crowded=False)
    assert limit.limit == START


@given(
    st.integers(1, 50),
    st.integers(0, 200),
    st.lists(
        st.tuples(st.sampled_from(OUTCOMES), st.floats(0, 100), st.floats(0, 100), st.booleans()),
        max_size=200,
    ),
)
def test_it_stays_within_its_bounds(
    least: int, more: int, events: list[tuple[str, float, float, bool]]
) -> None:
    limit = Limit(least, least + more, target=5)
    now = 0.0
    for outcome, pause, took, crowded in events:
        now += pause
        limit.learn(outcome, now, now + took, crowded=crowded)  # type: ignore[arg-type]
        assert least <= limit.limit <= least + more


def test_statuses() -> None:
    found = [outcome_of(status) for status in (200, 204, 400, 404, 429, 500, 503)]
    assert found == [
        "answered",
        "answered",
        "refused",
        "refused",
        "limited",
        "unavailable",
        "unavailable",
    ]
