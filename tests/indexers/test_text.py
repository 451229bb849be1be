"""Words, stems and phrases in several scripts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cogr.errors import GeneratorError
from indexers.text import Analyser, Said, SurfaceForms, detect_language, join_words, phrases


def test_words_and_terms_of_english() -> None:
    analyser = Analyser()
    text = "Wireless headphones for the TV, with Wi-Fi"
    assert analyser.words(text) == ["wireless", "headphones", "tv", "wi-fi"]
    assert analyser.terms(text) == ["wireless", "headphon", "tv", "wi-fi", "wi", "fi"]


def test_german_has_its_own_stems_and_stop_words() -> None:
    analyser = Analyser("german")
    assert analyser.words("Der Kopfhörer für die Küche") == ["kopfhörer", "küche"]
    assert analyser.stem("küchen") == analyser.stem("küche")


def test_unspaced_scripts_are_pairs_and_mix_with_latin() -> None:
    words = Analyser().words("蓝牙耳机 3d打印机 書")
    assert " ".join(words) == "蓝牙 牙耳 耳机 3d 打印 印机 書"


def test_indic_vowel_signs_stay_in_their_word() -> None:
    assert Analyser().words("हिन्दी में किताब") == ["हिन्दी", "में", "किताब"]


def test_an_unknown_language_names_the_known_ones() -> None:
    with pytest.raises(GeneratorError, match="'klingon'.*english"):
        Analyser("klingon")


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
    assert set(analyser.stems(text)) <= set(analyser.terms(text))


GERMAN = [
    "Kühlschrank mit Gefrierfach, hochwertig verarbeitet und leise für 149 €. Hochwertiges Glas.",
    "Maße: 176 x 60 cm, als Kühlschrank oder als Gefrierschrank für die Küche zu verwenden.",
    "Breite 90 cm&nbsp; und mit der Baureihe Serie 42 nicht kombinierbar",
]


def test_the_language_is_that_of_most_texts() -> None:
    assert detect_language(GERMAN) == "german"
    english = ["A sofa for the living room, and as a bed when you have guests."]
    assert detect_language([*english * 4, *GERMAN]) == "english"
    assert detect_language(["Sofa Oslo 3", "Armoire Bern"]) == "english"
    # One word that is said all the time is no language: "num" is Portuguese too.
    assert detect_language(["num cell num rat num mice"]) == "english"
    pytest.importorskip("bm25s")
    french = ["Une armoire pour les vêtements de la famille, dans le salon"]
    assert detect_language(french) == "french"


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ("149 hochwertiges", False),
        ("masse 176", False),
        ("als kühlschrank", False),
        ("breite 90", False),
        ("90 nbsp", False),
        ("90 cm", True),
        ("serie 42", True),
        ("leise kühlschrank", True),
        ("149", False),
    ],
)
def test_phrases_are_what_people_would_say(words: str, kept: bool) -> None:
    """Of German texts too where the rest of the collection is English."""
    analyser = Analyser()
    said = Said.of(analyser, GERMAN)
    assert said.keeps([analyser.stem(word) for word in words.split()]) is kept


def test_umlauts_are_one_word_however_they_are_typed() -> None:
    stems = Analyser("german").stems
    assert stems("Kuehlschrank") == stems("KÜHLSCHRANK") == stems("Kühlschränke")
