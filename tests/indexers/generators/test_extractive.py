"""The kind `extractive`: what it picks on a small catalogue, and its band."""

from __future__ import annotations

import pytest

from cogr.errors import GeneratorError
from cogr.keywords import parse
from cogr.prompts import Prompt
from cogr.records import Entity, Item, Query
from indexers.generators import Completion, Request
from indexers.generators.extractive import Extractive, ExtractiveOptions

NO_PROMPT = Prompt("", "")
SHOP = [
    Item("a", "Velvet sofa", "A green velvet sofa for the living room"),
    Item("b", "Leather sofa", "A brown leather sofa for the living room"),
    Item("c", "Oak table", "A solid oak dining table"),
    Item("d", "Walnut table", "A walnut dining table for six"),
    Item("e", "Floor lamp", "A brass floor lamp for reading"),
    Item("f", "Desk lamp", "A small lamp for reading at a desk"),
]


def keywords(generator: Extractive, *entities: Entity) -> dict[str, tuple[str, ...]]:
    found = {}
    for answer in generator.generate(Request(entity.id, entity, NO_PROMPT) for entity in entities):
        assert isinstance(answer, Completion)
        found[answer.id] = parse(answer.text)
    return found


def test_items_get_their_own_words_inside_the_band() -> None:
    found = keywords(Extractive(SHOP, ""), *SHOP)
    # "velvet sofa" occurs in one item only.
    assert {"sofa", "velvet sofa"} & set(found["a"]) == {"sofa"}
    assert "living room" in found["a"]
    assert "dining table" in found["c"]
    for item in SHOP:
        text = f"{item.title} {item.text}".lower()
        assert all(word in text for keyword in found[item.id] for word in keyword.split())
    # All forty say "shiny thing", and only item 0 says "word0".
    common = [Item(str(n), "shiny thing", f"word{n} shared{n // 2}") for n in range(40)]
    assert keywords(Extractive(common, ""), *common)["0"] == ("shared0",)
    # No phrase reaches across title, text or items.
    items = [Item("1", "red", "car"), Item("2", "red", "car"), Item("3", "big", "house")]
    assert set(keywords(Extractive(items, ""), *items)["1"]) == {"red", "car"}


def test_a_query_gets_keywords_that_items_own() -> None:
    generator = Extractive(SHOP, "")
    owned = {word for words in keywords(generator, *SHOP).values() for word in words}
    texts = {"q": "sofas for a living room", "none": "spaceship", "empty": ""}
    found = keywords(generator, *(Query(id_, text) for id_, text in texts.items()))
    assert found["q"]
    assert set(found["q"]) <= owned
    assert found["none"] == found["empty"] == ()


def test_options_are_checked_and_part_of_the_fingerprint() -> None:
    assert Extractive(SHOP, "h").fingerprint != Extractive(SHOP, "other").fingerprint
    with pytest.raises(GeneratorError, match="'klingon'"):
        keywords(Extractive(SHOP, "", ExtractiveOptions(language="klingon")), SHOP[0])
