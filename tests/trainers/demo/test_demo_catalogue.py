"""The sample shop: what ships is what the script makes, and it is as hard as it is meant to be."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import get_args

import pytest

from cogr.datasets import load_dataset
from trainers.demo.shop import RELEVANT, Catalogue, make_catalogue, write_catalogue
from trainers.demo.vocabulary import VALUES, Language

SEEDS = (0, 1, 2)
SHIPPED = Path(__file__).parents[3] / "trainers" / "demo" / "data"


@pytest.fixture(scope="module", params=SEEDS)
def shop(request: pytest.FixtureRequest) -> Catalogue:
    return make_catalogue(request.param)


def test_shipped_files_are_what_the_script_makes(tmp_path: Path) -> None:
    write_catalogue(tmp_path, seed=0)
    for name in ("items.jsonl", "queries.jsonl", "labels.jsonl"):
        assert (tmp_path / name).read_bytes() == (SHIPPED / name).read_bytes(), (
            f"{name}: run write_catalogue again"
        )


def test_seeds_make_different_shops() -> None:
    assert make_catalogue(1).files() != make_catalogue(2).files()
    assert make_catalogue(1).files() == make_catalogue(1).files()


def test_sizes(shop: Catalogue) -> None:
    assert (
        len(shop.items)
        == len({item.id for item in shop.items})
        == len({item.title for item in shop.items})
        == 400
    )
    assert {split: len(queries) for split, queries in shop.queries.items()} == {
        "train": 100,
        "dev": 32,
        "test": 50,
    }
    texts = [query.text for queries in shop.queries.values() for query in queries]
    assert len(set(texts)) == len(texts)


def test_relevance_is_exact(shop: Catalogue) -> None:
    for queries in shop.queries.values():
        for query in queries:
            wanted = shop.asked[query.id].items()
            expected = [item.id for item in shop.items if wanted <= shop.values[item.id].items()]
            assert shop.relevant[query.id] == expected
            assert len(expected) in RELEVANT


def test_no_combination_is_in_two_splits(shop: Catalogue) -> None:
    pairs = [
        frozenset(shop.asked[query.id].items())
        for queries in shop.queries.values()
        for query in queries
    ]
    assert len(set(pairs)) == len(pairs)


def test_every_dev_and_test_word_occurs_in_training(shop: Catalogue) -> None:
    trained = [word for query in shop.queries["train"] for word in query.text.split()]
    for query in (*shop.queries["dev"], *shop.queries["test"]):
        assert all(trained.count(word) >= 2 for word in query.text.split()), query.text


def test_an_item_tells_all_its_values(shop: Catalogue) -> None:
    for item in shop.items:
        text = f"{item.title} {item.text}".casefold()
        for attribute, value in shop.values[item.id].items():
            spoken = VALUES[attribute][value]  # type: ignore[index]
            words = [
                word
                for language in get_args(Language)
                for word in (*spoken[language].sellers, *spoken[language].shoppers)
            ]
            assert any(word.casefold() in text for word in words), (item, attribute)
        assert 2 <= len(re.findall(r"[.。]", item.text)) <= 4


def test_sellers_and_shoppers_have_different_words() -> None:
    for values in VALUES.values():
        for spoken in values.values():
            for language in get_args(Language):
                assert not set(spoken[language].sellers) & set(spoken[language].shoppers)
        for one, other in combinations(values.values(), 2):
            for language in get_args(Language):
                both = [
                    {*words[language].sellers, *words[language].shoppers} for words in (one, other)
                ]
                assert not both[0] & both[1], "a word must mean one value"


def test_one_in_eight_is_not_english(shop: Catalogue) -> None:
    known = {
        word
        for values in VALUES.values()
        for spoken in values.values()
        for word in (*spoken["en"].sellers, *spoken["en"].shoppers)
    }
    asked = [query for queries in shop.queries.values() for query in queries]
    foreign = [query for query in asked if not known & set(query.text.split())]
    assert len(foreign) == 18
    assert sum(not query.text.isascii() for query in foreign) >= 9


def test_the_loader_reads_it() -> None:
    dataset = load_dataset("jsonl", SHIPPED)
    shop = make_catalogue(0)
    assert list(dataset.items) == list(shop.items)
    assert [query.text for query in dataset.queries["test"]] == [
        query.text for query in shop.queries["test"]
    ]
    assert dataset.relevant == {id_: frozenset(items) for id_, items in shop.relevant.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_plain_bm25_finds_little(tmp_path: Path, seed: int) -> None:
    from indexers.text import Lexical

    write_catalogue(tmp_path, seed)
    dataset = load_dataset("jsonl", tmp_path)
    lexical = Lexical(dataset.items)

    def f1(split: str, cutoff: int) -> float:
        total = 0.0
        for query in dataset.queries[split]:  # type: ignore[index]
            relevant = dataset.relevant[query.id]
            found = [item.id for item, _ in lexical.rank(query.text, cutoff)]
            total += 2 * len(relevant.intersection(found)) / (len(found) + len(relevant))
        return total / len(dataset.queries[split])  # type: ignore[index]

    cutoff = max(range(1, 60), key=lambda k: f1("train", k))
    assert 0.10 <= f1("test", cutoff) <= 0.20
