"""Texts are read by their own language, and a cluster finds the items that memory finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from cogr.settings.serving import OpenSearchSettings
from cogr.snapshots import Provenance, Row, Snapshot
from cogr.snapshots.texts import TextsWriter
from cogr.snapshots.writing import write_snapshot
from cogr.store import Store
from indexers.backends import Backend, Words
from indexers.backends.memory import MemoryBackend
from indexers.backends.opensearch.indexes import read_index
from indexers.backends.opensearch.push import index_name
from tests.indexers.backends.backend_worlds import publish
from tests.indexers.backends.opensearch_worlds import backend_of

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


def frozen(store: Store, texts: list[tuple[str, str]]) -> Snapshot:
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
    snapshot, memory = frozen(store, CATALOGUES[language]), MemoryBackend(store)
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
