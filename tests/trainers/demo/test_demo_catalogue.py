"""The sample shop: what ships is what its maker makes, and it is as hard as it is meant to be."""

from __future__ import annotations

from pathlib import Path

import pytest
from _shop import RELEVANT, Catalogue, make_catalogue, write_catalogue

from cogr.datasets import load_dataset
from indexers.text import Lexical
from trainers.demo import CATALOGUE

SEEDS = (0, 1, 2)


@pytest.fixture(scope="module", params=SEEDS)
def shop(request: pytest.FixtureRequest) -> Catalogue:
    return make_catalogue(request.param)


def test_what_ships_is_what_the_maker_makes_and_seeds_make_different_shops(tmp_path: Path) -> None:
    write_catalogue(tmp_path, seed=0)
    for file in tmp_path.iterdir():
        assert file.read_bytes() == (CATALOGUE / file.name).read_bytes(), file.name
    assert make_catalogue(1).files() == make_catalogue(1).files() != make_catalogue(2).files()


def test_sizes_and_splits(shop: Catalogue) -> None:
    assert len(shop.items) == len({item.title for item in shop.items}) == 400
    sizes = {split: len(queries) for split, queries in shop.queries.items()}
    assert sizes == {"train": 100, "dev": 32, "test": 50}
    queries = [query for queries in shop.queries.values() for query in queries]
    assert len({query.text for query in queries}) == len(queries)
    # No combination of values is in two splits.
    assert len({frozenset(shop.asked[query.id].items()) for query in queries}) == len(queries)
    trained = [word for query in shop.queries["train"] for word in query.text.split()]
    for query in (*shop.queries["dev"], *shop.queries["test"]):
        assert all(trained.count(word) >= 2 for word in query.text.split()), query.text


def test_relevance_is_exact(shop: Catalogue) -> None:
    for queries in shop.queries.values():
        for query in queries:
            wanted = shop.asked[query.id].items()
            expected = [item.id for item in shop.items if wanted <= shop.values[item.id].items()]
            assert shop.relevant[query.id] == expected
            assert len(expected) in RELEVANT


def test_plain_bm25_finds_little(tmp_path: Path) -> None:
    write_catalogue(tmp_path, 1)
    dataset = load_dataset("jsonl", tmp_path)
    lexical = Lexical(dataset.items)

    def f1(split: str, cutoff: int) -> float:
        total = 0.0
        for query in dataset.queries[split]:  # type: ignore[index]
            relevant = dataset.relevant[query.id]
            found = [item.id for item, _ in lexical.rank(query.text, cutoff)]
            total += 2 * len(relevant.intersection(found)) / (len(found) + len(relevant))
        return total / len(dataset.queries[split])  # type: ignore[index]

    cutoff = max((5, 10, 15, 20, 30, 45), key=lambda k: f1("train", k))
    assert 0.10 <= f1("test", cutoff) <= 0.20
