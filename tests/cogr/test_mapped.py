"""Spools, scratch arrays and strings over mapped files: the same as lists in memory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cogr.mapped import (
    SortedStrings,
    StringIndex,
    Strings,
    StringsSpool,
    arrow_strings,
)

TEXTS = st.text(st.characters(codec="utf-8"), max_size=6)


@settings(deadline=None, max_examples=40)
@given(st.lists(TEXTS, max_size=20), TEXTS)
def test_strings_are_found_by_their_hashes(texts: list[str], other: str) -> None:
    written = StringsSpool()
    written.append(arrow_strings(texts[:5]))
    written.append(arrow_strings(texts[5:])[0:])
    strings = Strings(written.arrow())
    assert list(strings) == texts
    assert strings[1:4] == texts[1:4]
    index = StringIndex(strings)
    assert index.find(other) == (texts.index(other) if other in texts else -1)
    assert index.repeats() == [at for at, text in enumerate(texts) if text in texts[:at]]


@settings(deadline=None, max_examples=40)
@given(st.sets(TEXTS, max_size=20), TEXTS)
def test_sorted_strings_are_found_by_their_ranks(texts: set[str], other: str) -> None:
    found = SortedStrings(arrow_strings(sorted(texts)))
    assert list(found) == sorted(texts)
    assert [found.find(text) for text in found] == list(range(len(texts)))
    assert (other in found, found.find(other) >= 0) == (other in texts, other in texts)
    assert "\ud800" not in found
    with pytest.raises(IndexError):
        found[len(texts)]
