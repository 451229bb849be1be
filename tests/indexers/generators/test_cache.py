"""Keys and answers of a whole side, without an object for each."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cogr.store import Store
from indexers.generators import Answer, Completion, Failure
from indexers.generators.cache import SEGMENT_SCHEMA, GenerationCache, Keys, Missing
from tests.damages import HARMS, damage

# Few first and few second halves: keys that share one half are not the same.
KEYS = st.tuples(
    st.sampled_from([b"a" * 8, b"b" * 8, bytes(8)]), st.sampled_from([b"x" * 8, bytes(8)])
).map(b"".join)


@settings(deadline=None, max_examples=40)
@given(st.lists(KEYS, max_size=12), st.lists(KEYS, max_size=12))
def test_equal_keys_are_found_whatever_their_order(mine: list[bytes], others: list[bytes]) -> None:
    keys = Keys.of(mine)
    assert list(keys) == mine
    rows, positions = keys.find(Keys.of(others))
    pairs = set(zip(rows.tolist(), positions.tolist(), strict=True))
    assert pairs == {
        (row, at) for row, other in enumerate(others) for at, key in enumerate(mine) if key == other
    }
    assert len(rows) == len(pairs)
    assert rows.tolist() == sorted(rows.tolist())


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def answers(cache: GenerationCache, numbers: Sequence[int]) -> list[Answer | None]:
    return cache.load(Keys.of(map(key, numbers))).answers([f"e{number}" for number in numbers], 0)


def test_answers_come_by_position_from_any_segments(tmp_path: Path) -> None:
    cache = GenerationCache(Store(tmp_path), {"kind": "test"})
    assert answers(cache, [1, 2]) == [None, None]
    weights = {"sofa": 2.5, 'quo"ted, ü': 0.1}
    five = Completion("e5", "fünf", 7, weights=weights, confidence=0.731)
    one, three = Completion("e1", "", 1, truncated=True), Failure("e3", "too long")
    cache.add([(key(5), five), (key(1), one)])
    cache.add([(key(3), three), (key(9), Completion("e9", "of another side", 1))])
    # Not remembered, so it is in no segment.
    cache.add([(key(2), Failure("e2", "away", permanent=False))])
    assert answers(cache, [5, 2, 1, 3]) == [five, None, one, three]
    keys = Keys.of(map(key, [5, 2, 1, 3]))
    last = [replace(one, id="a"), Failure("b", "too long")]
    assert cache.load(keys).answers(["a", "b"], 2) == last
    assert list(cache.missing(keys)) == [1]
    # Entities with one prompt share its first answer.
    cache.add([(key(7), Completion("a", "first")), (key(7), Completion("b", "second"))])
    assert answers(cache, [7, 1, 7]) == [Completion("e7", "first"), one, Completion("e7", "first")]


def segment_of(answer: str) -> pa.Table:
    """A segment with one answer, as it is spelled."""
    return pa.table({"key": [key(1)], "answer": [answer]}, schema=SEGMENT_SCHEMA)


@pytest.mark.parametrize("how", HARMS)
def test_a_damaged_segment_is_set_aside_and_its_answers_are_asked_for_again(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache = GenerationCache(Store(tmp_path), {"kind": "test"})
    cache.add([(key(2), Completion("whole", "lamp", 1))])
    for number in range(5):
        segment = cache.add([(key(1), Completion("a", "sofa, couch", 1))])
        assert segment is not None
        damage(tmp_path / segment, how, random.Random(number))
        harmed = (tmp_path / segment).read_bytes() if how != "gone" else None
        assert list(cache.missing(Keys.of(map(key, [1, 2])))) == [0]
        assert not (tmp_path / segment).exists()
        if harmed is not None:
            assert (tmp_path / f"{segment}.damaged").read_bytes() == harmed
    assert ("is damaged" in caplog.text) is (how != "gone")


@pytest.mark.parametrize(
    ("table", "found"),
    [
        (segment_of('{"text": "sofa", "score": 0.5}'), Completion("e1", "sofa")),
        (segment_of('{"reason": "too long", "permanent": true}'), Failure("e1", "too long")),
        (segment_of('{"text": "sofa"}').rename_columns(["key", "text"]), None),
        (pa.table({"key": ["1"], "answer": ['{"text": "sofa"}']}), None),
    ],
)
def test_a_segment_of_another_version_is_read_or_set_aside(
    tmp_path: Path, table: pa.Table, found: Answer | None
) -> None:
    cache = GenerationCache(Store(tmp_path), {"kind": "test"})
    segment = cache.add([(key(2), Completion("e2", "lamp", 1))])
    assert segment is not None
    pq.write_table(table, buffer := pa.BufferOutputStream())
    data = buffer.getvalue().to_pybytes()
    old = f"old-{hashlib.sha256(data).hexdigest()[:16]}.parquet"
    (tmp_path / segment).with_name(old).write_bytes(data)
    keys = Keys.of([key(1)])
    assert list(cache.missing(keys)) == ([] if found else [0])
    assert cache.load(keys).answers(["e1"], 0) == [found]


def test_a_repeated_look_reads_only_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    cache = GenerationCache(store, {"kind": "test"})
    each = [key(number) for number in range(6)]
    given = [(one, Completion("e", "text", 1)) for one in each]
    missing = Missing(cache, Keys.of(each))
    cache.add(given[:2])
    assert list(missing.look()) == [2, 3, 4, 5]
    opened: list[str] = []
    read = Store.read
    monkeypatch.setattr(Store, "read", lambda self, path: opened.append(path) or read(self, path))
    cache.add(given[4:])
    assert list(missing.look()) == list(missing.look()) == [2, 3]
    assert len(opened) == 1
    store.remove("cache")
    assert list(missing.look()) == [0, 1, 2, 3, 4, 5]
