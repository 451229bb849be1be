"""A rerun with nothing changed takes the snapshot that is there; anything that could change it is
noticed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cogr.prompts import ITEM_TEMPLATES, Prompter
from cogr.records import Item
from cogr.store import Store
from indexers.build import plan as rebuilding
from indexers.build.cache import GenerationCache, ReadCache, fingerprint_hash
from indexers.build.keys import Keys
from indexers.build.plan import Job, Rebuilt, rebuild
from indexers.generators.protocol import Completion
from indexers.generators.scripted import Scripted

ITEMS = [Item(f"i{n}", f"Title {n}", "one two three four") for n in range(9)]


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store(tmp_path if request.param == "local" else f"memory://{tmp_path.name}")


@pytest.fixture
def assembled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Snapshots that were assembled, one by one."""
    ids: list[str] = []
    write = rebuilding.write_snapshot

    def noting(*arguments: object) -> object:
        ids.append((snapshot := write(*arguments)).id)  # type: ignore[arg-type]
        return snapshot

    monkeypatch.setattr(rebuilding, "write_snapshot", noting)
    return ids


def job(store: Store, items: list[Item] = ITEMS, k_max: int = 30, answer: str = "") -> Job:
    generator = Scripted(answers={"i3": answer}) if answer else Scripted()
    return Job(
        "item", items, generator, Prompter(ITEM_TEMPLATES["full"]), store, "data", k_max=k_max
    )


def told(rebuilt: Rebuilt) -> tuple[object, ...]:
    return (
        rebuilt.snapshot.id,
        rebuilt.parse_stats,
        dict(rebuilt.set_aside),
        rebuilt.cut_to_budget,
        rebuilt.cut_prompts,
    )


def test_nothing_is_assembled_again_and_the_outcome_is_the_same(
    store: Store, assembled: list[str]
) -> None:
    first = rebuild(job(store, k_max=6, answer="a, b, c, d, e, f, g"))
    again = rebuild(job(store, k_max=6, answer="a, b, c, d, e, f, g"))
    assert len(assembled) == 1
    assert told(again) == told(first)
    assert again.cut_to_budget == 1
    assert again.parse_stats.completions == 9


def test_whatever_decides_the_rows_is_noticed(store: Store, assembled: list[str]) -> None:
    first = rebuild(job(store)).snapshot
    assert rebuild(job(store, k_max=2)).snapshot.id != first.id
    renamed = [Item(item.id, item.title.upper(), item.text) for item in ITEMS]
    assert rebuild(job(store, items=renamed)).snapshot.id != first.id
    assert rebuild(job(store, items=ITEMS[1:])).snapshot.manifest.entities == 8
    assert rebuild(job(store)).snapshot.id == first.id
    assert len(assembled) == 5


def test_a_cache_that_was_changed_is_noticed(store: Store, assembled: list[str]) -> None:
    rebuild(job(store))
    (folder,) = store.list("cache")
    (segment,) = store.list(f"cache/{folder}")
    data = store.read(f"cache/{folder}/{segment}")
    store.remove(f"cache/{folder}/{segment}")
    store.write(f"cache/{folder}/{segment}", data)
    rebuild(job(store))
    assert len(assembled) == 2


def test_a_snapshot_that_is_gone_is_assembled_again(store: Store, assembled: list[str]) -> None:
    first = rebuild(job(store)).snapshot
    store.remove(f"snapshots/{first.id}")
    assert rebuild(job(store)).snapshot.id == first.id
    store.write("assembled/item.json", b"{")
    rebuild(job(store))
    assert len(assembled) == 3


def test_a_cache_that_is_asked_again_reads_only_what_is_new(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = ReadCache(store, {"kind": "test"})
    each = [bytes([n]) * 16 for n in range(6)]
    keys, answers = Keys.of(each), [(key, Completion("e", "text", 1)) for key in each]
    assert list(cache.missing(keys)) == [0, 1, 2, 3, 4, 5]
    GenerationCache(store, {"kind": "test"}).add(answers[:2])
    assert list(cache.missing(keys)) == [2, 3, 4, 5]
    opened: list[str] = []
    read = Store.read
    monkeypatch.setattr(Store, "read", lambda self, path: opened.append(path) or read(self, path))
    cache.add(answers[4:])
    assert list(cache.missing(keys)) == [2, 3]
    assert list(cache.missing(Keys.of(each[1:5]))) == [1, 2]
    assert len(opened) == 1
    for name in store.list(f"cache/{fingerprint_hash({'kind': 'test'})}"):
        store.remove(f"cache/{fingerprint_hash({'kind': 'test'})}/{name}")
    assert list(cache.missing(keys)) == [0, 1, 2, 3, 4, 5]
