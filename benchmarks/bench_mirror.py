"""The mirror and the rewards on worlds of realistic shape, each row beside its alternative in the
same run.

    python benchmarks/bench_mirror.py            every row at full size, some minutes
    python benchmarks/bench_mirror.py --quick    small worlds: the figures mean nothing

Keywords follow Zipf's law (vocabulary 60,000, exponent 0.8), fifteen an entity, and every item has
a title of its own. Ranking is compared with bm25s where that is installed, over the same keyword
lists, with both of its backends.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from _timing import Row, first_call_microseconds, microseconds, option_parser, report, timed
from _worlds import Vocabulary, world_in, write_world
from pyroaring import BitMap

from cogr.matching.mirror import Mirror
from cogr.metrics import f1_of
from cogr.records import Query
from cogr.rewards import World, item_reward, query_reward


@dataclass(frozen=True)
class Sizes:
    """How big the worlds are; `small` and `big` are (items, items that a query retrieves).

    `backends`: of bm25s.
    """

    vocabulary: Vocabulary
    small: tuple[int, int]
    big: tuple[int, int]
    queries: int
    repeats: int
    backends: tuple[str, ...]


FULL = Sizes(
    Vocabulary(60_000), (43_000, 25_000), (1_000_000, 512_000), 13_500, 9, ("numpy", "numba")
)
QUICK = Sizes(Vocabulary(2_000), (1_000, 500), (4_000, 2_000), 300, 3, ("numpy",))

_BUILD = """
import json, resource, sys, time
from cogr.matching.mirror import Mirror
from cogr.snapshots import Manifest, Snapshot
from cogr.store import Store
manifest, store = Manifest.model_validate_json(sys.argv[1]), Store(sys.argv[2])
start = time.perf_counter()
mirror = Mirror.build(Snapshot(manifest, store))
built = time.perf_counter()
cpu, peak = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"build": built - start, "peak": peak / 1024, "cpu": cpu}))
"""


def main() -> None:
    parser = option_parser(__doc__, json=True)
    parser.add_argument(
        "--quick", action="store_true", help="small worlds; the figures mean nothing"
    )
    options = parser.parse_args()
    sizes = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory() as folder:
        report(rows(sizes, Path(folder)), as_json=options.json)


def rows(sizes: Sizes, folder: Path) -> Iterator[Row]:
    """Every row of the benchmark."""
    yield import_row(sizes.repeats)
    for items, _ in (sizes.small, sizes.big):
        yield from build_rows(folder / str(items), items, sizes)
    for items, retrieved in (sizes.small, sizes.big):
        yield query_reward_row(folder / str(items), items, retrieved, sizes)
    for shift in (2000, 0):
        yield item_reward_row(sizes, Vocabulary(sizes.vocabulary.size, shift))
    yield from ranking_rows(folder / str(sizes.big[0]), *sizes.big, sizes)


def import_row(repeats: int) -> Row:
    """`import cogr` over an interpreter alone."""

    def seconds(program: str) -> float:
        return timed(partial(subprocess.run, check=True), [sys.executable, "-c", program])[1]

    alone = median(seconds("") for _ in range(repeats))
    package = median(seconds("import cogr") for _ in range(repeats))
    mirror = median(seconds("import cogr.matching.mirror") for _ in range(repeats))
    return Row(
        "import cogr, over python alone",
        package - alone,
        "s",
        0.3,
        notes={"import cogr.matching.mirror": f"{mirror - alone:.2f} s"},
    )


def build_rows(folder: Path, items: int, sizes: Sizes) -> Iterator[Row]:
    """Time and memory of the build, in a process of its own."""
    snapshot = write_world(folder / "store", items, sizes.vocabulary)
    built = child(_BUILD, snapshot.manifest.model_dump_json(), str(folder / "store"))
    name = f"mirror of {items:,} x 15"
    yield Row(
        f"{name}: build",
        built["build"],
        "s",
        30,
        notes={"of processor": f"{built['cpu']:.1f} s"},
    )
    yield Row(f"{name}: peak memory of the build", built["peak"], "MB", 1536)


def child(program: str, *arguments: str) -> dict[str, float]:
    """Run a program in a fresh interpreter and read the JSON that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], check=True, stdout=subprocess.PIPE
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def mirror_in(folder: Path, items: int, sizes: Sizes) -> Mirror:
    """The mirror of the world in a folder, built anew."""
    return Mirror.build(world_in(folder / "store", items, sizes.vocabulary))


def query_reward_row(folder: Path, items: int, retrieved: int, sizes: Sizes) -> Row:
    """Eq. 2 with 40 relevant items, against Python sets and numpy masks that are made
    beforehand.
    """
    mirror = mirror_in(folder, items, sizes)
    queries = sizes.vocabulary.queries_near(mirror, retrieved, 20 if items < 100_000 else 8)
    relevant = BitMap(np.random.default_rng(2).choice(items, 40, replace=False).tolist())
    records = [Query(f"q{number:03}", "") for number in range(len(queries))]
    ids = {record.id: [mirror.ids[item] for item in relevant] for record in records}
    arguments = [(record.id, query) for record, query in zip(records, queries, strict=True)]
    world = World.of(mirror, records, ids)
    cold_world = World.of(mirror_in(folder, items, sizes), records, ids)
    cold = first_call_microseconds(
        lambda id_, query: query_reward(cold_world, id_, query), arguments
    )
    return Row(
        f"query reward, {items:,} items",
        microseconds(
            lambda id_, query: query_reward(world, id_, query), arguments, sizes.repeats * 10
        ),
        "us",
        15 if items < 100_000 else 120,
        cold,
        {
            "sets": microseconds(with_sets(mirror, queries, relevant), arguments, 3),
            "numpy masks": microseconds(
                with_masks(mirror, queries, relevant), arguments, sizes.repeats
            ),
        },
        {"retrieved": f"{median(len(mirror.retrieved(query)) for query in queries):,.0f} (median)"},
    )


def with_sets(mirror: Mirror, queries: list[list[str]], relevant: BitMap) -> Callable[..., float]:
    """The same reward over a Python set for each keyword."""
    having = {word: set(mirror.retrieved([word])) for query in queries for word in query}
    wanted = set(relevant)

    def reward(_: str, query: list[str]) -> float:
        found: set[int] = set().union(*(having[word] for word in query))
        return f1_of(len(found & wanted), len(found), len(wanted))

    return reward


def with_masks(mirror: Mirror, queries: list[list[str]], relevant: BitMap) -> Callable[..., float]:
    """The same reward over a boolean numpy array for each keyword."""
    having = {
        word: _mask(mirror.retrieved([word]), len(mirror)) for query in queries for word in query
    }
    wanted = _mask(relevant, len(mirror))

    def reward(_: str, query: list[str]) -> float:
        found = np.zeros(len(mirror), bool)
        for word in query:
            found |= having[word]
        hits, retrieved = int(np.count_nonzero(found & wanted)), int(np.count_nonzero(found))
        return f1_of(hits, retrieved, len(relevant))

    return reward


def _mask(bitmap: BitMap, size: int) -> np.ndarray[Any, Any]:
    mask = np.zeros(size, bool)
    mask[np.frombuffer(bitmap.to_array(), np.uint32)] = True
    return mask


def item_reward_row(sizes: Sizes, vocabulary: Vocabulary) -> Row:
    """Eq. 3 for candidates that differ from the reference set in a few keywords, against a recount
    of every query.

    With the most frequent keywords in the vocabulary a fifth of all queries retrieves an item;
    without them, one in a hundred.
    """
    rng = np.random.default_rng(3)
    names = [f"i{number:05}" for number in range(sizes.small[0])]
    items = Mirror.from_sets(
        names, [vocabulary.query(rng) for _ in names], [f"item {name}" for name in names]
    )
    records = [Query(f"q{number:05}", f"query {number}") for number in range(sizes.queries)]
    ids, sets, own = (
        [r.id for r in records],
        [vocabulary.query(rng) for _ in records],
        [r.text for r in records],
    )
    relevant = {
        id_: [items.ids[item] for item in rng.choice(len(items), 10).tolist()] for id_ in ids
    }
    world = World.of(items, records, relevant, query_mirror=Mirror.from_sets(ids, sets, own))
    cold_world = World.of(items, records, relevant, query_mirror=Mirror.from_sets(ids, sets, own))
    candidates = [*_few_affected(world, vocabulary, rng, 40)]
    affected = [_affected(world, item, words) for item, words in candidates]
    retrieving = [len(world.reference.item(item).queries) for item, _ in candidates]
    _ = cold_world.reference
    return Row(
        f"item reward, {sizes.queries:,} queries{'' if vocabulary.shift else ', common keywords'}",
        microseconds(
            lambda item, words: item_reward(world, item, words), candidates, sizes.repeats * 10
        ),
        "us",
        10,
        first_call_microseconds(
            lambda item, words: item_reward(cold_world, item, words), candidates
        ),
        {
            "recount": microseconds(
                lambda item, words: _recount(world, item, words), candidates[:2], 1
            )
        },
        {
            "affected": f"{median(affected):.0f} (median), {max(affected)} at most",
            "queries that retrieve the item": f"{median(retrieving):,.0f}",
        },
    )


def _affected(world: World, item: str, words: list[str]) -> int:
    state = world.reference.item(item)
    return len(world.reference.queries_of(state, words) ^ state.queries)


def _few_affected(
    world: World, vocabulary: Vocabulary, rng: np.random.Generator, count: int
) -> Iterator[tuple[str, list[str]]]:
    """Items with a candidate set: the reference set with one of its keywords replaced, 5 to 20
    queries affected.
    """
    while count:
        item = world.items.ids[int(rng.integers(len(world.items)))]
        words = [*world.items.keywords_of(item)[:-1]]
        words[int(rng.integers(len(words)))] = vocabulary.word(int(vocabulary.draw(rng, 1)[0]))
        if 5 <= _affected(world, item, words) <= 20:
            count -= 1
            yield item, words


def _recount(world: World, item: str, words: list[str]) -> float:
    """Eq. 3 by retrieving for every query again.

    That the item is new is put in by hand, which favours the recount.
    """
    state, mirror = world.reference.item(item), world.queries
    assert mirror is not None
    candidate = world.reference.queries_of(state, words)
    total = 0.0
    for query, relevant in world.relevant.items():
        number = mirror.dense(query)
        found = world.items.retrieved(mirror.keywords_of(number))
        before = f1_of(found.intersection_cardinality(relevant), len(found), len(relevant))
        found.discard(state.dense)
        if number in candidate:
            found.add(state.dense)
        total += f1_of(found.intersection_cardinality(relevant), len(found), len(relevant)) - before
    return total


def ranking_rows(folder: Path, items: int, retrieved: int, sizes: Sizes) -> Iterator[Row]:
    """Top 100 of usual queries and of those that retrieve half of the items."""
    mirror = mirror_in(folder, items, sizes)
    rng = np.random.default_rng(4)
    usual = [(sizes.vocabulary.query(rng),) for _ in range(20)]
    half = [(query,) for query in sizes.vocabulary.queries_near(mirror, retrieved, 10)]
    others = dict(_bm25s(mirror, sizes.backends)) if importlib.util.find_spec("bm25s") else {}
    for name, queries in (("usual queries", usual), ("half retrieved", half)):
        cold = first_call_microseconds(
            mirror_in(folder, items, sizes).search, [(query, 100) for (query,) in queries]
        )
        alternatives = {
            key: microseconds(search, queries, sizes.repeats) for key, search in others.items()
        }
        sizes_of_sets = median(len(mirror.retrieved(query)) for (query,) in queries)
        yield Row(
            f"top 100 of {items:,}, {name}",
            microseconds(lambda query: mirror.search(query, 100), queries, sizes.repeats),
            "us",
            min(alternatives.values(), default=None),
            cold,
            alternatives,
            {"retrieved": f"{sizes_of_sets:,.0f} (median)"},
        )


def _bm25s(
    mirror: Mirror, backends: tuple[str, ...]
) -> Iterator[tuple[str, Callable[[list[str]], object]]]:
    """bm25s over the mirror's own keyword lists, one thread, with each of its backends that is
    installed.
    """
    import bm25s
    from bm25s.tokenization import Tokenized

    vocabulary: dict[str, int] = {}
    lists = [
        [vocabulary.setdefault(word, len(vocabulary)) for word in mirror.keywords_of(item)]
        for item in range(len(mirror))
    ]
    index = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
    index.index(Tokenized(ids=lists, vocab=vocabulary), show_progress=False)

    def search(backend: str, query: list[str]) -> object:
        index.backend = backend
        return index.retrieve([query], k=min(100, len(mirror)), show_progress=False, n_threads=1)

    for backend in backends:
        if importlib.util.find_spec(backend):
            yield f"bm25s {backend}", partial(search, backend)


if __name__ == "__main__":
    main()
