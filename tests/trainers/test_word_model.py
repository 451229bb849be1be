"""What labels say about words, and what is invented from it."""

from __future__ import annotations

import pytest

from cogr.errors import DataError
from cogr.records import Dataset
from tests.shops import COLOURS, THINGS, colour_shop
from trainers.word_model import WordModel


def test_words_that_relevant_items_share_matter_and_others_do_not() -> None:
    assert set(WordModel(colour_shop()).weights) == {*COLOURS.values(), *THINGS.values()}


def test_item_keywords_are_pairs_of_words_that_matter() -> None:
    words = WordModel(colour_shop()).keywords("red-car-0", 5)
    assert len(words) == 1
    assert sorted(words[0].split()) == ["crimson", "vehicle"]
    assert WordModel(colour_shop()).keywords("red-car-0", 0) == ()


def test_query_words_are_translated_into_the_items_words() -> None:
    table = WordModel(colour_shop()).translations
    best = {word: max(row, key=lambda to, row=row: row[to]) for word, row in table.items()}  # type: ignore[misc]
    assert best == COLOURS | THINGS


def test_a_combination_that_nobody_asked_for_is_invented_with_its_items() -> None:
    model = WordModel(colour_shop())
    assert model.items_of(["green", "cup"]) == {f"green-cup-{n}" for n in range(4)}
    assert model.items_of(["green", "unknown"]) == frozenset()
    invented = model.invent(50, seed=1)
    ((query, items),) = invented.items()
    assert {*query.text.split()} == {"green", "cup"}
    assert items == {f"green-cup-{n}" for n in range(4)}
    assert model.invent(50, seed=1) == invented


def test_without_training_queries_there_is_nothing_to_learn_from() -> None:
    whole = colour_shop()
    with pytest.raises(DataError, match="train split"):
        WordModel(Dataset("shop", whole.items, {}, {}, {}, "hash"))
