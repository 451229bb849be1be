"""Features: leave-one-out is complete, formulas agree with loops, helpers with numpy."""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse as sp

from cogr.records import Item
from indexers.generators.statistical.artefact import Artefact
from indexers.generators.statistical.ranking.features import FEATURES, candidates
from indexers.generators.statistical.ranking.text_index import TextIndex
from indexers.generators.statistical.ranking.training_queries import (
    TrainingQueries,
)
from indexers.text import Analyser


def test_a_training_query_learns_nothing_from_its_own_labels(artefact: Artefact) -> None:
    """Other labels for one training query change the features of others, and leave its own as they
    are.
    """
    changed = artefact.relevance.toarray()
    changed[7] = np.roll(changed[7], 11)
    texts = [query.text for query in artefact.queries]
    before, after = artefact.sources, TrainingQueries(artefact.index, texts, sp.csr_matrix(changed))

    def rows(sources: TrainingQueries, row: int) -> tuple[np.ndarray, np.ndarray]:
        found = candidates(sources, sources.queries.rows(np.array([row])))
        return found.item, found.x

    own_items, own_x = rows(before, 7)
    items, x = rows(after, 7)
    # Rounding may break a tie at the end of a candidate list the other way; labels would change far
    # more.
    common, at, own_at = np.intersect1d(items, own_items, return_indices=True)
    assert common.size >= own_items.size - 2
    np.testing.assert_allclose(x[at], own_x[own_at], rtol=1e-4, atol=1e-5)
    assert any(
        not np.array_equal(rows(before, row)[1], rows(after, row)[1])
        for row in range(20)
        if row != 7
    )


def test_titles_spelled_like_the_query_are_candidates() -> None:
    """Compounds that share no word, and items that share words with the query in their text."""
    compounds = [f"{first}schrank{last}" for first in ("küchen", "wand") for last in ("", "tür")]
    items = [Item(f"c{n}", title) for n, title in enumerate(compounds)]
    items += [Item(f"o{n}", f"ding {n}", f"wandschränke nummer {n % 7}") for n in range(300)]
    index = TextIndex.fit(Analyser("german"), items, ["nummer 3"])
    one = sp.csr_matrix(([np.float32(1)], ([0], [200])), shape=(1, len(items)))
    sources = TrainingQueries(index, ["nummer 3"], one)
    for text, wanted in (("wandschrankes", {2, 3}), ("hängeschrank küchenschrankmöbel", {0, 1})):
        assert wanted <= {*candidates(sources, index.batch([text])).item.tolist()}


def test_bm25_is_the_published_formula() -> None:
    items = [
        Item("a", "lamp lamp", "chair"),
        Item("b", "lamp", "table table table"),
        Item("c", "", "stool"),
    ]
    index = TextIndex.fit(Analyser(), items, ["sofa"])
    scores = (index.batch(["lamp table sofa"]).terms @ index.bm25).toarray()[0]

    def part(tf: int, df: int, length: int) -> float:
        idf = math.log(1 + (3 - df + 0.5) / (df + 0.5))
        return idf * tf * 2.5 / (tf + 1.5 * (0.25 + 0.75 * length / (8 / 3)))

    np.testing.assert_allclose(scores, [part(2, 2, 3), part(1, 2, 4) + part(3, 1, 4), 0], rtol=1e-5)


def test_a_title_is_recognised_by_its_stop_words_and_their_order() -> None:
    """Of "call me by your name" only "call" and "name" are terms."""
    titles = ["Call Me by Your Name", "The Name Is Call", "By the Sea"]
    items = [Item(str(n), title, "a film") for n, title in enumerate(titles)]
    queries = ["call me by your", "sea film"]
    index = TextIndex.fit(Analyser(), items, queries)
    sources = TrainingQueries(index, queries, sp.csr_matrix((2, 3), dtype=np.float32))
    found = candidates(sources, index.batch(["call me by your"]))
    shares = found.x[:, FEATURES.index("title_grams_share")]
    covered = found.x[:, FEATURES.index("title_grams_covered")]
    assert found.item[shares.argmax()] == 0
    assert shares.max() > 0.9
    assert 0.5 < covered[shares.argmax()] < 1


def test_missing_numbers_are_their_share_of_the_querys_idf() -> None:
    items = [
        Item("0", "tee 1/2 inch", "steel"),
        Item("1", "tee", "1/2 inch, brass"),
        Item("2", "tee 3/4 inch", "steel"),
    ]
    queries = ["tee 1/2 inch", "tee"]
    index = TextIndex.fit(Analyser(), items, queries)
    sources = TrainingQueries(index, queries, sp.csr_matrix((2, 3), dtype=np.float32))
    found = candidates(sources, index.batch(queries))
    names = ("numbers_missing", "title_numbers_missing")
    missing = found.x[:, [FEATURES.index(name) for name in names]]
    idf = dict(zip(index.vocabulary, index.idf.tolist(), strict=True))
    share = idf["1_2"] / (idf["tee"] + idf["1_2"] + idf["inch"])
    of_first = missing[found.query == 0]
    np.testing.assert_allclose(of_first, [[0, 0], [0, share], [share, share]], rtol=1e-5, atol=1e-6)
    assert (missing[found.query == 1] == 0).all()
