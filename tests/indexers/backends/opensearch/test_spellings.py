"""Numbers, units and single letters: a cluster finds the items that memory finds."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from cogr.settings.serving import OpenSearchSettings
from cogr.snapshots import Row
from cogr.store import Store
from indexers.backends import Words
from indexers.backends.memory import MemoryBackend
from indexers.backends.opensearch import OpenSearchBackend
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.indexes import OWN_WORDS, index_settings
from indexers.text import Analyser
from tests.indexers.backends.backend_worlds import frozen, publish
from tests.indexers.backends.opensearch_worlds import backend_of

SIZES = ('{0}/{1}"', "{0}/{1} in", "{0}/{1} inch", "{0}/{1}-inch", "{0}/{1}″", "{0}/{1} Zoll")
VOLTS = ("{0}vdc", "{0} V DC", "{0}VDC", "{0} v dc")
THREADS = ("M{0}x{1}", "m{0} {1}mm", "M{0} x {1} mm", "M{0}×{1}")
LITRES = ("{0}.{1} l", "{0},{1}L", "{0}.{1} liter", "{0}.{1}-litre")
MICRONS = ("{0} µm", "{0}um", "{0}μm")
CODES = ("{2}-{0}{1}-x", "{2}{0}{1}x", "{2} {0}{1} X", "{2}.{0}{1}.X")
LETTERS = ("size {2}", "Size {2}", "size-{2}")
FAMILIES = {
    "nipple": (SIZES, [(n, d) for d in (4, 8, 16) for n in range(1, d, 2)]),
    "relay": (VOLTS, [(volts,) for volts in (5, 12, 24, 48, 230)]),
    "bolt": (THREADS, [(m, length) for m in (4, 5, 6, 8, 10) for length in (20, 25, 30)]),
    "beaker": (LITRES, [(n, tenth) for n in range(1, 4) for tenth in (2, 5, 7)]),
    "filter": (MICRONS, [(size,) for size in (1, 5, 10, 25)]),
    "sensor": (CODES, [(n, 11 * n, code) for n in (23, 47, 86) for code in ("kx", "tqr")]),
    "shirt": (LETTERS, [(0, 0, letter) for letter in "SMLX"]),
}
THINGS = [
    (family, spellings, values)
    for family, (spellings, every) in FAMILIES.items()
    for values in every
]


@pytest.fixture(scope="module")
def places(
    opensearch: OpenSearchSettings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[MemoryBackend, OpenSearchBackend, str]]:
    """Both backends with a catalogue in which each thing has a spelling drawn at random."""
    draw, store = random.Random(1), Store(tmp_path_factory.mktemp("spellings"))
    rows = [
        Row(f"item {number:03}", f"Steel {family} {draw.choice(spellings).format(*values)}", ())
        for number, (family, spellings, values) in enumerate(THINGS)
    ]
    snapshot = frozen(store, "item", [*rows, Row("other", "Vitamin C++ tablets 1 2 4 5", ())])
    with backend_of(opensearch, store) as cluster:
        memory = MemoryBackend(store)
        for backend in (memory, cluster):
            publish(backend, snapshot)
        yield memory, cluster, snapshot.id


@pytest.mark.parametrize("family", FAMILIES)
def test_both_backends_find_a_thing_by_all_of_its_spellings(
    places: tuple[MemoryBackend, OpenSearchBackend, str], family: str
) -> None:
    *backends, snapshot = places
    for number, (name, spellings, values) in enumerate(THINGS):
        if name != family:
            continue
        for spelling in spellings:
            words = Words(f"{family} {spelling.format(*values)}")
            memory, cluster = (
                backend.search([], snapshot=snapshot, size=1000, words=words)
                for backend in backends
            )
            sets = [
                {hit.id for hit in found.hits if hit.tier == "set"} for found in (memory, cluster)
            ]
            assert sets == [{f"item {number:03}"}] * 2, words
            assert {hit.id for hit in memory.hits} == {hit.id for hit in cluster.hits}


def test_a_clusters_terms_are_those_of_memory(cluster: Cluster) -> None:
    draw, name = random.Random(2), f"{cluster.settings.prefix}-words"
    parts = [*"0123456789", *"abcdvwxMÄß", *"\"'/.,;:-_#+*×½µ²®", " ", " ", " ", "in", "mm", "inch"]
    parts += ["24", "1/2", "m8", "vdc", "C++", "x", "liter", "size", "1,000", "0,5", "it's", "u.s."]
    cluster.call("PUT", f"/{name}", body={"settings": index_settings(1, "english")}, doing="")
    analyser = Analyser()
    for _ in range(300):
        text = "".join(draw.choices(parts, k=draw.randint(1, 14)))
        body = {"analyzer": OWN_WORDS, "text": text}
        answer = cluster.call("POST", f"/{name}/_analyze", body=body, doing="")
        assert [one["token"] for one in answer["tokens"]] == analyser.terms(text), text
