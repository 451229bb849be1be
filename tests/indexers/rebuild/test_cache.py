"""Keys and answers of a whole side, without an object for each."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cogr.store import Store
from indexers.generators import Answer, Completion, Failure
from indexers.rebuild.cache import SIZE, GenerationCache, Keys, ReadCache, fingerprint_hash
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
    assert list(keys.take(np.arange(len(mine), dtype=np.uint32)[::-1])) == mine[::-1]


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def answers(cache: GenerationCache, numbers: Sequence[int]) -> list[Answer | None]:
    return cache.load(Keys.of(map(key, numbers))).answers([f"e{number}" for number in numbers], 0)


def test_answers_come_by_position_from_any_segments(tmp_path: Path) -> None:
    cache = GenerationCache(Store(tmp_path), {"kind": "test"})
    assert answers(cache, [1, 2]) == [None, None]
    cache.add(
        [(key(5), Completion("e5", "fünf", 7)), (key(1), Completion("e1", "", 1, truncated=True))]
    )
    cache.add(
        [(key(3), Failure("e3", "too long")), (key(9), Completion("e9", "of another side", 1))]
    )
    # Not remembered, so it is in no segment.
    cache.add([(key(2), Failure("e2", "away", permanent=False))])
    assert answers(cache, [5, 2, 1, 3]) == [
        Completion("e5", "fünf", 7),
        None,
        Completion("e1", "", 1, truncated=True),
        Failure("e3", "too long"),
    ]
    assert cache.load(Keys.of(map(key, [5, 2, 1, 3]))).answers(["a", "b"], 2) == [
        Completion("a", "", 1, truncated=True),
        Failure("b", "too long"),
    ]
    assert list(cache.missing(Keys.of(map(key, [5, 2, 1, 3])))) == [1]


def test_weights_and_a_confidence_come_back_and_older_files_have_none(tmp_path: Path) -> None:
    store = Store(tmp_path)
    cache = GenerationCache(store, {"kind": "test"})
    weights = {"sofa": 2.5, 'quo"ted, ü': 0.1}
    given = Completion("e1", "sofa", weights=weights, confidence=0.731)
    cache.add([(key(1), given), (key(2), Failure("e2", "too long"))])
    old = cache.add([(key(3), Completion("e3", "lamp", 4))])
    assert old is not None
    table = pq.read_table(store.local(old)).drop_columns(["weights", "confidence"])
    store.remove(old)
    pq.write_table(table, store.local(f"{Path(old).parent}/of-before.parquet".replace("-", "")))
    assert answers(cache, [1, 2, 3]) == [
        given,
        Failure("e2", "too long"),
        Completion("e3", "lamp", 4),
    ]


def test_entities_with_one_prompt_share_its_first_answer(tmp_path: Path) -> None:
    store = Store(tmp_path)
    cache = GenerationCache(store, {"kind": "test"})
    cache.add([(key(1), Completion("a", "first", 1)), (key(1), Completion("b", "second", 1))])
    cache.add([(key(1), Completion("a", "first", 1)), (key(2), Completion("c", "third", 1))])
    found = cache.load(Keys.of(map(key, [1, 2, 1]))).answers(["a", "c", "b"], 0)
    assert found == [
        Completion("a", "first", 1),
        Completion("c", "third", 1),
        Completion("b", "first", 1),
    ]


def test_a_segment_with_other_keys_is_removed(tmp_path: Path) -> None:
    cache = GenerationCache(Store(tmp_path), {"kind": "test"})
    cache.add([(b"short", Completion("a", "text", 1))])
    assert answers(cache, [1]) == [None]
    assert list(tmp_path.rglob("*.parquet")) == []


@pytest.mark.parametrize("how", HARMS)
def test_a_damaged_segment_is_removed_and_its_answers_are_asked_for_again(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(tmp_path)
    cache = GenerationCache(store, {"kind": "test"})
    cache.add([(key(2), Completion("whole", "lamp", 1))])
    kept = [(key(1), Completion("a", "sofa, couch", 1))]
    for number in range(20):
        segment = cache.add(kept)
        assert segment is not None
        damage(tmp_path / segment, how, random.Random(number))
        assert list(cache.missing(Keys.of(map(key, [1, 2])))) == [0]
        assert not (tmp_path / segment).exists()
    assert ("is damaged" in caplog.text) is (how != "gone")


def test_a_segment_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    cache = GenerationCache(Store(tmp_path), {"kind": "test"})
    segment = cache.add([(key(1), Completion("a", "sofa", 1))])
    assert segment is not None
    now = tmp_path / segment
    now.rename(now.with_name(now.name.split("-")[0] + ".parquet"))
    assert answers(cache, [1]) == [Completion("e1", "sofa", 1)]


def test_a_file_that_is_none_of_ours_is_removed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    cache = GenerationCache(store, {"kind": "test"})
    buffer = io.BytesIO()
    pq.write_table(pa.table({"key": [bytes(SIZE)]}), buffer)
    folder = f"cache/{fingerprint_hash({'kind': 'test'})}"
    store.write(f"{folder}/{'0' * 32}.parquet", buffer.getvalue())
    assert answers(cache, [0]) == [None]
    assert store.list(folder) == []


def test_a_cache_that_is_asked_again_reads_only_what_is_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    cache = ReadCache(store, {"kind": "test"})
    each = [bytes([n]) * 16 for n in range(6)]
    keys, given = Keys.of(each), [(key, Completion("e", "text", 1)) for key in each]
    assert list(cache.missing(keys)) == [0, 1, 2, 3, 4, 5]
    GenerationCache(store, {"kind": "test"}).add(given[:2])
    assert list(cache.missing(keys)) == [2, 3, 4, 5]
    opened: list[str] = []
    read = Store.read
    monkeypatch.setattr(Store, "read", lambda self, path: opened.append(path) or read(self, path))
    cache.add(given[4:])
    assert list(cache.missing(keys)) == [2, 3]
    assert list(cache.missing(Keys.of(each[1:5]))) == [1, 2]
    assert len(opened) == 1
    for name in store.list(f"cache/{fingerprint_hash({'kind': 'test'})}"):
        store.remove(f"cache/{fingerprint_hash({'kind': 'test'})}/{name}")
    assert list(cache.missing(keys)) == [0, 1, 2, 3, 4, 5]
