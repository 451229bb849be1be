"""Words, stems and phrases in several scripts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexers.text import (
    K1,
    Analyser,
    B,
    CodeIndex,
    Said,
    SurfaceForms,
    WordIndex,
    asked_code,
    codes,
    detect_language,
    join_words,
    phrases,
)


@pytest.mark.parametrize(
    ("language", "text", "words"),
    [
        ("english", "Headphones for the TV, with Wi-Fi", "headphones tv wi-fi"),
        ("english", "Vitamin C, a 1/2 cup", "vitamin c 1/2 cup"),
        ("english", "Kurta मापM, S 5", "kurta मापm s 5"),
        ("german", "Der Kopfhörer für die Küche", "kopfhörer küche"),
        ("english", "蓝牙耳机 3d打印机 書", "蓝牙 牙耳 耳机 3d 打印 印机 書"),
    ],
)
def test_words_are_read_as_written_without_stop_words(language: str, text: str, words: str) -> None:
    assert Analyser(language).words(text) == words.split()


def test_terms_are_stems_of_a_compounds_parts() -> None:
    assert Analyser().terms("headphones, Wi-Fi") == ["headphon", "wi", "fi"]
    assert Analyser("french").terms("L'huile d’olive, taille S") == ["huil", "oliv", "taill", "s"]
    assert Analyser("german").stem("küchen") == Analyser("german").stem("küche")


@pytest.mark.parametrize(
    "spellings",
    [
        ('1/2" NPT', "1/2 in. npt", "½″ NPT", "1/2-inch npt", "1/2 inches NPT", "½ Zoll NPT"),
        ("24vdc", "24 V DC", "24VDC", "24 v dc", "24-vdc"),
        ("M8x30", "m8 30mm", "M8 x 30 mm", "M 8 × 30", "m8x30mm"),
        ("1.5 l", "1,5L", "1.5-liter", "1.5 litres"),
        ("5 µm", "5um", "5 μm", "5 microns"),
        ("16A", "16 A", "16 amps", "16-amp"),
        ("AB-1234-C", "ab1234c", "AB 1234 C", "ab.1234.c", "AB_1234_C", "AB–1234–C"),
        ("women's", "women’s"),
        ("U.S.A.", "USA"),
    ],
)
def test_a_thing_is_the_same_terms_in_all_its_spellings(spellings: tuple[str, ...]) -> None:
    terms = Analyser().terms
    assert len({tuple(terms(one)) for one in spellings}) == 1
    assert len({tuple(terms(f"valve {one}, steel")) for one in spellings}) == 1


@pytest.mark.parametrize(
    "texts",
    [
        ("1/2", "1", "2", "1/4", "1 2", "11/2"),
        ("vitamin c", "vitamin d", "vitamin", "vitamin 3"),
        ("c", "c++", "c#"),
        ("2 in 1", "2 inch"),
        ("born 1985 in Bern", "born 1985 Bern inch"),
    ],
)
def test_different_things_are_different_terms(texts: tuple[str, ...]) -> None:
    assert len({tuple(Analyser().terms(one)) for one in texts}) == len(texts)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("Contactor 3RT2015-1AP01 24 V", ("3rt20151ap01", "3RT2015 1AP01", "3rt-2015-1ap01")),
        ("AB-1234-C", ("ab1234c", "AB 1234 C", "ab.1234.c")),
        ("6ES7 214-1AG40-0XB0", ("6ES72141AG400XB0", "6es7-214-1ag40-0xb0")),
    ],
)
def test_a_part_number_is_one_however_it_is_spaced(text: str, asked: tuple[str, ...]) -> None:
    assert {asked_code(one) for one in asked} <= codes(text)


@pytest.mark.parametrize("text", ["led 20", "lamp", "½", "a-1", ""])
def test_what_is_short_or_has_no_digit_is_no_part_number(text: str) -> None:
    assert asked_code(text) == ""


def test_part_numbers_are_found_whole_and_by_their_beginning() -> None:
    index = CodeIndex.of(enumerate(["Relay KX-4471-B", "KX 4471", "KX-44", "3.5mm jack", "35mm"]))
    for text, same, begun in (
        ("kx4471", [1], [0, 1]),
        ("KX-4471-B", [0], [0]),
        ("kx-44", [2], [0, 1, 2]),
        ("35mm", [4], [4]),
        ("3.5mm", [3], [3]),
        ("kx-9", [], []),
    ):
        assert [found.tolist() for found in index.find(text)] == [same, begun], text


def test_surface_forms_spell_the_most_frequent_word() -> None:
    analyser = Analyser()
    forms = SurfaceForms(analyser)
    forms.add(["wireless", "headphone", "headphones", "headphones"])
    assert forms.spell(("wireless", "headphon", "new")) == "wireless headphones new"
    forms.add(["headphone", "headphone"])
    assert forms.spell(("headphon",)) == "headphone"


def test_joined_pairs_read_as_one_word() -> None:
    assert join_words(["蓝牙", "牙耳", "耳机"]) == "蓝牙耳机"
    assert join_words(["蓝牙", "音响"]) == "蓝牙音响"
    assert join_words(["usb", "耳机"]) == "usb 耳机"


@given(st.text(max_size=80))
def test_any_text_is_read_and_stems_go_with_words(text: str) -> None:
    analyser = Analyser()
    words = analyser.words(text)
    assert len(analyser.stems(text)) == len(words)
    assert len(phrases(words, 2)) == max(0, len(words) - 1)
    assert all(analyser.terms(text))


def test_texts_are_weighed_as_bm25s_weighs_them() -> None:
    bm25s = pytest.importorskip("bm25s")
    draw, analyser = random.Random(0), Analyser()
    texts = [" ".join(f"w{draw.randrange(9)}x" for _ in range(n % 7)) for n in range(40)]
    own, other = WordIndex.of(texts, analyser), bm25s.BM25(k1=K1, b=B)
    other.index([analyser.terms(text) for text in texts], show_progress=False)
    for asked in ("w1x", "w2x w3x w2x", "w1x unknown"):
        expected = other.get_scores(analyser.terms(asked.removesuffix(" unknown")))
        assert own.scores(asked) == pytest.approx(expected, rel=1e-5), asked
    assert WordIndex.of([], analyser).scores("w1x").shape == (0,)


GERMAN = [
    "Kühlschrank mit Gefrierfach, hochwertig verarbeitet und leise für 149 €. Hochwertiges Glas.",
    "Maße: 176 x 60 cm, als Kühlschrank oder als Gefrierschrank für die Küche zu verwenden.",
    "Breite 90 cm&nbsp; und mit der Baureihe Serie 42 nicht kombinierbar",
]


def test_the_language_is_that_of_most_texts() -> None:
    assert detect_language(GERMAN) == "german"
    english = ["A sofa for the living room, and as a bed when you have guests."]
    assert detect_language([*english * 4, *GERMAN]) == "english+german"
    assert detect_language([*english * 12 * len(GERMAN), *GERMAN]) == "english"
    assert detect_language(["Sofa Oslo 3", "Armoire Bern"]) == "english"
    # One word that is said all the time is no language: "num" is Portuguese too.
    assert detect_language(["num cell num rat num mice"]) == "english"
    french = ["Une armoire pour les vêtements de la famille, dans le salon"]
    assert detect_language(french) == "french"


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("149 hochwertiges", False),
        ("als kühlschrank", False),
        ("breite 90", False),
        ("90 cm", True),
        ("leise kühlschrank", True),
        ("149", False),
    ],
)
def test_phrases_are_what_people_would_say(words: str, kept: bool) -> None:
    """Of German texts too where the rest of the collection is English."""
    analyser = Analyser()
    said = Said.of(analyser, GERMAN)
    assert said.keeps([analyser.stem(word) for word in words.split()]) is kept
