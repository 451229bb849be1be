"""Laws of `normalise` and `parse`, examples of what models write, and time by length."""

from __future__ import annotations

import time
import timeit
import unicodedata

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cogr.keywords import (
    MAX_KEYWORD_CHARS,
    folded,
    loops,
    normalise,
    parse,
    query_key,
    self_keyword,
)

SEPARATORS = ",，、،;；؛\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"

# Characters on which normalisers stumble: case pairs of other lengths, ligatures, joiners, marks,
# quotes, list marks.
TRICKY = (
    "İıßẞﬁŉΐǰﷺ㎏½²ªK\u0345\u0301\u200b\u200d\u202e\ufeff\u00ad\ud800\udfff\x00\x1b"
    "`*•-#123.)(]“”„«»'\"’,;:!?&+%/\\|<> \t\n\u3000，、；。"
)
strange_text = st.text(st.one_of(st.characters(), st.sampled_from(TRICKY)), max_size=60)


# normalise


@pytest.mark.parametrize(
    ("written", "normal"),
    [
        ("ＵＳＢ－Ｃ cable", "usb-c cable"),
        ("Straße", "strasse"),
        ("**bold**", "bold"),
        ("3) third", "third"),
        ("“curly”", "curly"),
        ("「引用」", "引用"),
        ("c++", "c++"),
        ("3d printer", "3d printer"),
        ("3 in 1", "3 in 1"),
        (".NET", ".net"),
        ("…or ...net", "or ...net"),
        (">= 3 m", ">= 3 m"),
        ("<b>bold</b>", "b>bold</b"),
        ("-18 °C", "-18 °c"),
        ("rock'n'roll", "rock'n'roll"),
        ("soft\u00adware", "software"),
        ("zero\u200bwidth", "zerowidth"),
        ("lone\ud800surrogate", "lonesurrogate"),
        ("tab\tand\nnewline", "tab and newline"),
        ("کتاب‌خانه", "کتابخانه"),
        ("ΣΊΣΥΦΟΣ", "σίσυφοσ"),
        ("", ""),
    ],
)
def test_normalise_examples(written: str, normal: str) -> None:
    assert normalise(written) == normal


@given(strange_text)
def test_normalised_text_is_clean_and_stays_as_it_is(text: str) -> None:
    normal = normalise(text)
    assert normalise(normal) == normal
    assert len(normal) <= MAX_KEYWORD_CHARS
    assert normal == normal.strip()
    assert "  " not in normal
    assert not {unicodedata.category(c) for c in normal} & {"Cc", "Cf", "Cs"}
    normal.encode("utf-8")


@given(st.text(st.characters(codec="ascii"), max_size=60))
def test_ascii_and_unicode_paths_agree(text: str) -> None:
    # A zero-width space sends the same words down the general path.
    assert normalise(text + "\u200b") == normalise(text)


# self_keyword


@pytest.mark.parametrize(
    ("text", "keyword"),
    [
        ("Oak chair, blue", "oak chair blue"),
        ("Kettle; 1.7 L / 2,200 W", "kettle 1.7 l / 2 200 w"),
        ("沙发，灰色、布", "沙发 灰色 布"),
        ("Keywords: a guide", "keywords a guide"),
        ("Girls girls GIRLS", "girls girls"),
        ("3. Liga Trikot", "3 liga trikot"),
        ('"(12) eggs"', "12 eggs"),
        (", ;", ""),
    ],
)
def test_own_texts_in_a_form_that_a_completion_can_say(text: str, keyword: str) -> None:
    assert self_keyword(text) == keyword
    assert parse(f"sofa, {text if keyword == text else keyword}, couch") == tuple(
        filter(None, ("sofa", keyword, "couch"))
    )


LONG = "how do i find the two numbers of a list whose sum is the number that i am given " * 4


def test_long_texts_are_told_apart_by_their_ends() -> None:
    far = " ".join(map(str, range(3000)))
    texts = [LONG, f"{LONG} in python", f"{LONG} in rust", LONG[:300], f"{far} a", f"{far} b"]
    for of in (self_keyword, query_key):
        found = [of(text) for text in texts]
        assert len({*found}) == len(found)
        assert max(map(len, found)) <= MAX_KEYWORD_CHARS
        assert [of(one) for one in found] == found
    assert parse(self_keyword(LONG)) == (self_keyword(LONG),)
    assert query_key(f"  {LONG.upper()}\n") == query_key(LONG)


# query_key

TOLD_APART = [
    ("3. Liga", "2. Liga", "Liga", "3 Liga"),
    (".net", "net", "net.", "(net)"),
    ("<3 m", ">3 m", "3 m", "≤3 m"),
    ("?", "!", "...", "—"),
    ("a, b", "a b", "a; b"),
    ("new york", "new york new york", "new york new york new york"),
    ("c++", "c", "c#"),
]


@pytest.mark.parametrize("texts", TOLD_APART)
def test_what_normalising_removes_tells_queries_apart(texts: tuple[str, ...]) -> None:
    assert len({*map(query_key, texts)}) == len(texts)


def test_case_white_space_and_width_tell_no_queries_apart() -> None:
    same = [
        "Straße 3. Liga",
        " STRASSE\t3.\u00a0liga ",
        "ｓtrasse 3. li\u200bga",
        "strasse 3. Liga\n",
    ]
    assert {*map(query_key, same)} == {"strasse 3. liga"}
    assert query_key(" \u200b\n") == ""


@given(st.one_of(strange_text, strange_text.map(lambda text: text * 90)))
def test_a_folded_text_stays_as_it_is(text: str) -> None:
    fold = folded(text)
    assert folded(fold) == fold
    assert query_key(fold) == query_key(text)
    assert query_key(query_key(text)) == query_key(text)
    assert self_keyword(fold) == self_keyword(self_keyword(fold))
    fold.encode()


_SAID = "Keywords:|keyword|:|<think>|</think>|```|,|;|1.|- | |a|K\u0301|\n|\ufffd| sofa sofa"
own_text = st.one_of(
    strange_text,
    st.text(st.one_of(st.characters(), st.sampled_from(TRICKY + SEPARATORS)), max_size=400),
    st.lists(st.sampled_from(_SAID.split("|"))).map("".join),
)


@given(own_text)
def test_every_own_text_can_be_written_by_a_completion(text: str) -> None:
    own = self_keyword(text)
    assert parse(own) == ((own,) if own else ())
    assert parse(f"first, {own}") == (("first", own) if own and own != "first" else ("first",))
    assert self_keyword(own) == own
    assert normalise(own) == own


# parse


@pytest.mark.parametrize(
    ("completion", "keywords"),
    [
        ("sofa,couch , Sofa,SETTEE", ("sofa", "couch", "settee")),
        ("Keywords: sofa, couch", ("sofa", "couch")),
        ("- sofa\n- couch\n* settee", ("sofa", "couch", "settee")),
        ('"sofa", "couch', ("sofa", "couch")),
        ('```json\n{"keywords": ["sofa", "couch"]}\n```', ("sofa", "couch")),
        ("<think>They want a couch, I guess.</think>sofa, settee", ("sofa", "settee")),
        ("<think>never closed, so nothing was said", ()),
        ("thinking began in the prompt</think>sofa", ("sofa",)),
        ("沙发，椅子、桌子；灯", ("沙发", "椅子", "桌子", "灯")),
        ("sofa, caf\ufffd, \ufffd, couch", ("sofa", "couch")),
        (f"sofa, {'very ' * 100}long, couch, Sofa", ("sofa", "couch")),
        ("أريكة، كرسي؛ طاولة", ("أريكة", "كرسي", "طاولة")),
        ("sofa; couch\nsettee\u2028divan", ("sofa", "couch", "settee", "divan")),
        ("", ()),
    ],
)
def test_parse_examples(completion: str, keywords: tuple[str, ...]) -> None:
    assert parse(completion) == keywords


@pytest.mark.parametrize(
    ("keyword", "stuck"),
    [
        ("f blush blush blush eine", True),
        ("sofa bed sofa bed sofa bed", True),
        ("x1 x1 x1", True),
        ("new york new york", False),
        ("bora bora bora bora island", True),
        ("10 10 10 fertilizer", False),
        ("", False),
    ],
)
def test_words_that_are_said_three_times_in_a_row_are_no_keyword(keyword: str, stuck: bool) -> None:
    assert loops(keyword) == stuck
    assert (keyword in parse(f"sofa, {keyword}, couch")) == (bool(keyword) and not stuck)
    assert not loops(self_keyword(keyword))


@given(strange_text)
def test_parsed_keywords_are_normal_distinct_and_without_separators(text: str) -> None:
    keywords = parse(text)
    assert len(set(keywords)) == len(keywords)
    for keyword in keywords:
        assert keyword
        assert normalise(keyword) == keyword
        assert not set(keyword) & set(SEPARATORS)


plain_text = st.lists(
    st.sampled_from(["sofa", "T-shirt", "ha", "1", "-", "'", "x" * 90]), max_size=9
)


@given(st.lists(plain_text, max_size=4), st.sampled_from([", ", ",", " , "]))
def test_plain_completions_are_read_as_all_others_are(words: list[list[str]], comma: str) -> None:
    text = comma.join(map(" ".join, words))
    # A comma at the end adds nothing, but makes it a text that is read with every rule.
    assert parse(text) == parse(f"{text},")
    assert self_keyword(text) == self_keyword(f"{text},")


@given(st.lists(strange_text, max_size=8))
def test_what_parse_wrote_it_reads_again(texts: list[str]) -> None:
    keywords = parse("\n".join(texts))
    # A first keyword such as "keywords: sofa" would be read as a label.
    assume(not any("keyword" in keyword for keyword in keywords))
    assert parse(", ".join(keywords)) == keywords


# scale

MEGABYTE = 1_000_000
LONG_LINES = {
    "distinct": "".join(f"word {i}, " for i in range(MEGABYTE // 10)),
    "commas": ",",
    "numbering": "1. ",
    "think tags": "<think>",
    "fences": "```",
    "opening brackets": "(1",
    "combining marks": "e\u0301\u0327",
    "expanding": "ﷺ",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG_LINES)
def test_time_is_linear_in_the_length(name: str) -> None:
    unit = LONG_LINES[name]

    def seconds(characters: int) -> float:
        text = (unit * (characters // len(unit) + 1))[:characters]

        def both() -> None:
            parse(text)
            normalise(text)
            self_keyword(text)
            query_key(text)

        return min(timeit.repeat(both, timer=time.process_time, repeat=2, number=1))

    # Ten times the length may take ten times as long, with room for caches and noise; a square
    # would take a hundred.
    assert seconds(MEGABYTE // 16) <= 30 * seconds(MEGABYTE // 160) + 0.02
