"""Numbers, units, single letters and words of any language: a cluster finds the items that memory
finds.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from cogr.settings.serving import IntoSettings, OpenSearchSettings
from cogr.snapshots import Provenance, Row, Snapshot
from cogr.snapshots.texts import TextsWriter
from cogr.snapshots.writing import write_snapshot
from cogr.store import Store
from indexers.backends import Backend, Words
from indexers.backends.memory import MemoryBackend
from indexers.backends.opensearch import OpenSearchBackend
from indexers.backends.opensearch.client import Cluster
from indexers.backends.opensearch.indexes import CODES as PART_NUMBERS
from indexers.backends.opensearch.indexes import (
    OWN_CODES,
    OWN_SPELLED,
    OWN_WORDS,
    WORDS,
    code_analysis,
    index_name,
    index_settings,
    read_index,
    searched,
)
from indexers.backends.opensearch.search import TIER, bodies
from indexers.backends.opensearch.serving import served_fields
from indexers.text import Analyser, codes
from tests.documents import DOCS
from tests.indexers.backends.backend_worlds import publish
from tests.indexers.backends.opensearch_worlds import backend_of, filled
from tests.shops import frozen

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


PARTS = [
    Row("part 1", "Contactor 3RT2015-1AP01 24 V", ()),
    Row("part 2", "Contactor 3RT2015-1BB42", ()),
    Row("part 3", "Contactor", (), '{"mpn": "3RT 2016 1AP01"}'),
    Row("LC1D09BD", "Contactor 9 A", ()),
    Row("LC1D-09-BDM", "Contactor of mine", ()),
    Row("part 6", "Contactor 3RT20", ()),
]
CODED: dict[str, tuple[list[str], list[str]]] = {
    "3RT20151AP01": (["part 1"], []),
    "3rt2015 1ap01": (["part 1"], []),
    "3rt-2015-1bb42": (["part 2"], []),
    "3RT2016-1AP01": (["part 3"], []),
    "lc1d 09 bd": (["LC1D09BD"], ["LC1D-09-BDM"]),
    "LC1D-09-BD": (["LC1D09BD"], ["LC1D-09-BDM"]),
    "3rt20": (["part 6"], ["part 1", "part 2", "part 3"]),
    "3RT-2015": ([], ["part 1", "part 2"]),
    "3RT2017": ([], []),
}
"""Items that have the part number, and those that have one which begins with it."""


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
    rows += [Row("other", "Vitamin C++ tablets 1 2 4 5", ()), *PARTS]
    snapshot = frozen(store, "item", rows)
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


@pytest.mark.parametrize("text", CODED)
def test_a_part_number_finds_its_item_first_then_those_that_begin_with_it(
    places: tuple[MemoryBackend, OpenSearchBackend, str], text: str
) -> None:
    *backends, snapshot = places
    for backend in backends:
        found = backend.search([], snapshot=snapshot, size=1000, words=Words(text))
        ids = [hit.id for hit in found.hits[: found.total]]
        same, begun = CODED[text]
        assert sorted(ids[: len(same)]) == same, backend.name
        assert sorted(ids) == sorted(same + begun), backend.name
        whole = backend.retrieved([], snapshot=snapshot, words=Words(text))
        assert [hit.id for hit in whole.hits] == ids


def test_an_index_of_ones_own_finds_part_numbers_as_documented(cluster: Cluster) -> None:
    page = (DOCS / "own-index.md").read_text("utf-8")
    made = json.loads(page.partition("### Part numbers")[2].split("```")[1].removeprefix("json"))
    name = f"{cluster.settings.prefix}-products"
    assert made["settings"]["analysis"] == code_analysis()
    numbers = ("3RT2015-1AP01", "3RT2015-1BB42", "LC1D 09 BD")
    filled(cluster, name, ((str(at), {"sku": sku}) for at, sku in enumerate(numbers)), **made)
    fields = served_fields(IntoSettings(index=name, id_field="sku"), None)
    for text, expected in (
        ("3rt20151ap01", ["3RT2015-1AP01"]),
        ("3rt-2015 1bb42", ["3RT2015-1BB42"]),
        ("3RT2015", ["3RT2015-1AP01", "3RT2015-1BB42"]),
        ("lc1d09bd", ["LC1D 09 BD"]),
        ("3rt2016", []),
    ):
        body = {"query": bodies([], Words(text), fields)[0]}
        hits = cluster.call("POST", f"/{name}/_search", body=body, doing="")["hits"]["hits"]
        assert sorted(hit["_source"]["sku"] for hit in hits) == expected, text
        assert all(hit["_score"] >= TIER for hit in hits)


def test_a_clusters_terms_are_those_of_memory(cluster: Cluster) -> None:
    draw, name = random.Random(2), f"{cluster.settings.prefix}-words"
    parts = [*"0123456789", *"abcdvwxMÄß", *"\"'/.,;:-_#+*×½µ²®", " ", " ", " ", "in", "mm", "inch"]
    parts += ["24", "1/2", "m8", "vdc", "C++", "x", "liter", "size", "1,000", "0,5", "it's", "u.s."]
    cluster.call("PUT", f"/{name}", body={"settings": index_settings(1, "english")}, doing="")
    analyser, path = Analyser(), f"/{name}/_analyze"
    for _ in range(300):
        text = "".join(draw.choices(parts, k=draw.randint(1, 14)))
        body = {"analyzer": OWN_WORDS, "text": text}
        answer = cluster.call("POST", path, body=body, doing="")
        assert [one["token"] for one in answer["tokens"]] == analyser.terms(text), text
        ((_, sent),) = searched(
            [("1", {"item_id": text, WORDS: [text]})], {"text_analyzer": "english"}
        )
        whole = {"analyzer": OWN_SPELLED, "text": sent[WORDS] if sent else []}
        answer = cluster.call("POST", path, body=whole, doing="")
        assert [one["token"] for one in answer["tokens"]] == analyser.terms(text), text
        coded = cluster.call("POST", path, body={**body, "analyzer": OWN_CODES}, doing="")
        assert {one["token"] for one in coded["tokens"]} == codes(text), text
        assert {*(sent or {}).get(PART_NUMBERS, "").split()} == codes(text), text


CATALOGUES = {
    "english": [
        ("Velvet sofas with the wooden legs", "They are made to last, the covers are washable."),
        ("A table for the garden", "It is folded and stored in the shed when the winter comes."),
        ("Reading lamps", "The shade is made of brass; this is what you have when reading."),
    ],
    "german": [
        ("Bücherregale aus massiver Eiche", "Die Böden sind verstellbar, und das Holz ist geölt."),
        ("Ein Stuhl für die Küche", "Der Bezug ist abnehmbar und kann gewaschen werden."),
        ("Straßenschuhe für den Winter", "Sie sind warm gefüttert, und die Sohlen sind aus Gummi."),
    ],
    "french": [
        ("Une table pour le jardin", "Elle est pliante et les pieds sont réglables avec une clé."),
        ("Lampes de l'atelier", "L'abat-jour est en laiton et il est livré avec une ampoule."),
        ("Des chaussures pour la montagne", "Les semelles sont légères et en caoutchouc."),
    ],
    "arabic": [
        ("طاولات خشبية للحديقة", "هذه الطاولة من خشب الزان ويمكن طيها في الشتاء"),
        ("مصباح القراءة", "المصباح من النحاس مع كابل طويل"),
        ("أحذية جبلية", "النعل من المطاط والحذاء خفيف الوزن"),
    ],
    "turkish": [
        ("Bahçe için ahşap masalar", "Bu masa kışın katlanır ve ayakları ayarlanabilir, çok da."),
        ("ISPARTA halısı ve kilim", "Yünden dokunmuş bu halı bir oda için çok büyük ama ince."),
        ("Işıklı kitaplık", "İçinde lamba olan kitaplık, salon veya oda için daha iyi."),
    ],
    "cjk": [
        ("蓝牙耳机线", "这款耳机适合跑步时使用，电池可以用十小时"),
        ("实木书架", "书架由橡木制成，可以调节高度"),
        ("户外登山鞋", "鞋底是橡胶的，重量很轻，适合冬天"),
    ],
}
QUERIES = {
    "english": ["sofa leg", "wooden leg", "reads", "reading brass", "the winter", "folding table"],
    "german": ["Bücherregal", "eiche", "Küchen", "gewaschene", "strassenschuh", "Sohle Winter"],
    "french": ["tables", "lampe atelier", "l'ampoule", "chaussure légère", "pied réglable", "clés"],
    "arabic": ["طاولة", "المصباح", "حذاء خفيف", "خشب", "النحاس", "الحديقة"],
    "turkish": ["masa", "ısparta halı", "Isparta", "IŞIKLI", "kitaplıklar", "halılar oda"],
    "cjk": ["耳机", "书架 橡木", "登山鞋", "橡胶", "电池", "鞋底"],
}


CATALOGUES["english+german"] = CATALOGUES["english"] * 2 + CATALOGUES["german"]
QUERIES["english+german"] = ["für die Küche", "the garden"]


def frozen_texts(store: Store, texts: list[tuple[str, str]]) -> Snapshot:
    """The catalogue, written by a generator that knows no language."""
    with TextsWriter(store) as writer:
        keys = writer.add([text for _, text in texts])
        rows = [
            Row(f"item-{at}", title, (), body=key)
            for at, ((title, _), key) in enumerate(zip(texts, keys, strict=True))
        ]
        return write_snapshot(store, "item", rows, Provenance(texts=writer.keep()))


def found(backend: Backend, snapshot: Snapshot, query: str) -> set[tuple[str, str]]:
    hits = backend.search([], snapshot=snapshot.id, words=Words(query)).hits
    return {(hit.id, hit.tier) for hit in hits}


@pytest.mark.parametrize("language", CATALOGUES)
def test_a_cluster_finds_what_memory_finds(
    opensearch: OpenSearchSettings, tmp_path: Path, language: str
) -> None:
    store = Store(tmp_path)
    snapshot, memory = frozen_texts(store, CATALOGUES[language]), MemoryBackend(store)
    with backend_of(opensearch, store) as cluster:
        for backend in (memory, cluster):
            publish(backend, snapshot)
        state = read_index(cluster.cluster, index_name(cluster.prefix, snapshot.id))
        assert state is not None
        assert state.meta["text_analyzer"] == language
        for query in QUERIES[language]:
            hits = found(memory, snapshot, query)
            assert found(cluster, snapshot, query) == hits, query
            assert hits, query
