"""Counts over completions."""

from __future__ import annotations

import pytest

from indexers.build.parse_stats import ParseStats, is_one_line
from indexers.generators.protocol import Completion


def test_counts() -> None:
    stats = ParseStats()
    stats.add(Completion("1", "sofa, couch, Sofa", tokens=7))
    stats.add(Completion("2", "1. sofa\n2. couch", tokens=9, truncated=True))
    stats.add(Completion("3", "", tokens=1))
    stats.add(Completion("4", "very " * 100))
    stats.add(Completion("5", "blush sofa, f blush blush blush eine, caf\ufffd, ha ha ha"))
    assert stats.as_dict() == {
        "completions": 5,
        "on_one_line": 3,
        "empty": 2,
        "truncated": 1,
        "keywords": 5,
        "repeated": 1,
        "overlong": 1,
        "broken": 1,
        "looping": 2,
        "tokens": 17,
        "one_line_share": 0.6,
        "mean_keywords": 1.0,
    }


def test_nothing_counted_is_zero() -> None:
    assert ParseStats().one_line_share == ParseStats().mean_keywords == 0.0


@pytest.mark.parametrize(
    ("completion", "one_line"),
    [
        ("sofa, couch", True),
        ("\n sofa, couch \n", True),
        ("sofa", True),
        ("sofa\ncouch", False),
        ("<think>hm</think> sofa", False),
        ("```sofa```", False),
        ("  ", False),
    ],
)
def test_one_line(completion: str, one_line: bool) -> None:
    assert is_one_line(completion) is one_line
