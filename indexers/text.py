"""Words, stems and phrases of a text, for the parts that read text without a language model.

An `Analyser` turns a text into words (as written) and terms (Snowball stems), and `SurfaceForms`
turns stems back into words, so that a phrase of stems becomes a readable keyword. Scripts without
spaces between words (Chinese, Japanese, Thai, ...) are read as overlapping pairs of characters, as
Lucene's CJK analyser does.

`cogr.keywords.normalise`, not this module, decides when two keywords are the same. Stems are never
stored in a snapshot.

`WordIndex` is plain BM25 over texts, and `Lexical` that over titles and texts of items: the
baseline of every comparison. They know no generated keywords; `cogr.matching.mirror` searches
those.
"""

from __future__ import annotations

import json
import re
import tomllib
import unicodedata
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from cogr.errors import GeneratorError
from cogr.mapped import integers
from cogr.records import Item

_Ints = NDArray[np.int64]
Phrase = tuple[str, ...]
"""Adjacent stems, e.g. ("wireless", "headphon")."""

CJK = "cjk"
"""The language of scripts without spaces between words: no stems, and English stop words."""
_SCRIPTS = {
    "arabic": "\u0600-\u06ff",
    "armenian": "\u0530-\u058f",
    "greek": "\u0370-\u03ff",
    "hindi": "\u0900-\u097f",
    "tamil": "\u0b80-\u0bff",
}
"""Letters that tell a language without stop words here."""
_MUTED = ("english", "german")
"""Whose stop words begin and end no phrase where the texts use them."""
DETECT = "auto"
"""The name of the language that is detected."""
_READ, _BEGINNING = 5000, 500
_SPOKEN = 0.2
# Where hardly any stop word is, as in bare titles, the language is unknown.
_MIN_STOP_WORDS = 0.03
_MANY = 0.1
_NEAR = 40
_MARKUP = frozenset(("amp", "br", "div", "href", "http", "https", "html", "img", "nbsp", "quot"))
_NUMBER = re.compile(r"(?<![\w.,-])\d+(?:\.\d+)?(?![\w.,]\d|\w)")
_UNIT = re.compile(
    r"\s?(?:[x×%€$£\"″'°]|(?:mm|cm|dm|m|km|mg|g|kg|ml|cl|l|w|kw|v|ma|mah|hz|khz|mhz|ghz|mb|gb|tb|db"
    r"|in|inch|inches|ft|lbs?|oz|zoll|eur|euro|usd|liter|watt|volt)\b)",
    re.IGNORECASE,
)
_BEFORE = re.compile(r"([^\W\d_][\w.\-'’]*) $")
_AFTER = re.compile(r" ([^\W\d_][\w.\-'’]*)")

_ASCII_WORD = re.compile(r"[a-z0-9]+(?:(?:[.\-']|(?<=\d)/(?=\d))[a-z0-9]+)*")
_ASCII_TERM = re.compile(r"[a-z0-9]+(?:(?<=\d)[._]\d[a-z0-9]*)*")
_WORD = r"[^\W_]LETTER*(?:(?:[.\-'’·]|(?<=\d)/(?=\d))[^\W_]LETTER*)*"
_TERM = r"[^\W_]LETTER*(?:(?<=\d)[._]\dLETTER*)*"
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]+"
)


@cache
def _listed() -> Mapping[str, frozenset[str]]:
    listed = tomllib.loads(files("indexers").joinpath("stop_words.toml").read_text("utf-8"))
    return {language: frozenset(words.split()) for language, words in listed.items()}


def stop_words(language: str) -> frozenset[str]:
    """The stop words of a language. Where there are none every word counts, since rare words
    decide anyway.
    """
    return _listed().get("english" if language == CJK else language, frozenset())


@cache
def _telling() -> Mapping[str, frozenset[str]]:
    # Stop words of each language, without those that are English too.
    english, listed = stop_words("english"), _listed().items()
    return {name: words if name == "english" else words - english for name, words in listed}


def _words_of(texts: Iterable[str]) -> list[list[str]]:
    # The beginnings of the first texts.
    pattern = _pattern(_WORD)
    return [pattern.findall(text[:_BEGINNING].casefold()) for text in islice(texts, _READ)]


def _shares(texts: Iterable[Sequence[str]]) -> dict[str, float]:
    # Without the two that are there most: a single word may mean something else.
    counts = Counter(word for words in texts for word in words)
    total = max(1, counts.total())
    return {
        name: sum(sorted(counts[word] for word in listed)[:-2]) / total
        for name, listed in _telling().items()
    }


def detect_language(texts: Iterable[str]) -> str:
    """The language of most texts, for `Analyser`: by its script, or by stop words, and English
    where no other is far ahead of it. "+" joins others of which more than a tenth of the texts are.
    """
    first = _words_of(texts)
    shares = _shares(first)
    best = max(shares, key=shares.__getitem__)
    sure = shares[best] >= max(_MIN_STOP_WORDS, 1.5 * shares["english"])
    script = _by_script("".join(word for words in first for word in words))
    others = (one for one in _by_many(first) if shares[one] >= _MANY * _MIN_STOP_WORDS)
    return "+".join(dict.fromkeys([script or (best if sure else "english"), *others]))


def _by_script(text: str) -> str:
    least = sum(map(str.isalpha, text)) / 2
    counts = {name: len(re.findall(f"[{letters}]", text)) for name, letters in _SCRIPTS.items()}
    counts[CJK] = sum(map(len, _UNSPACED.findall(text)))
    return next((name for name, count in counts.items() if count > least), "")


def _by_many(texts: Sequence[Sequence[str]]) -> list[str]:
    # A text is of the language of which it has the most telling stop words.
    votes = Counter[str]()
    for words in map(set, texts):
        counts = Counter({name: len(listed & words) for name, listed in _telling().items()})
        (best, most), (_, second) = counts.most_common(2)
        votes.update([best] if most > second else [])
    return [name for name, count in votes.most_common() if count > _MANY * len(texts)]


def is_language(name: str) -> bool:
    """Whether `Analyser` has a stemmer for the language, or it is `CJK`."""
    import snowballstemmer

    return set(name.split("+")) <= {CJK, *snowballstemmer.algorithms()}


@cache
def _pattern(word: str) -> re.Pattern[str]:
    # Python's \w leaves out the vowel signs of Indic scripts, so marks are added.
    marks = "".join(c for c in map(chr, range(0x10000)) if unicodedata.category(c)[0] == "M")
    return re.compile(word.replace("LETTER", rf"(?:[^\W_]|[{marks}])"))


class Analyser:
    """Splits texts into words and stems.

    Args:
        language: a Snowball algorithm, e.g. "english" or "german", or `CJK`. It decides stems and
            stop words (`stop_words`). "+" joins others, of which there are the stop words too.

    Raises:
        GeneratorError: the language has no Snowball algorithm.
    """

    def __init__(self, language: str = "english") -> None:
        import snowballstemmer

        main, *_ = self.languages = language.split("+")
        if not is_language(language):
            known = ", ".join(sorted([CJK, *snowballstemmer.algorithms()]))
            raise GeneratorError(
                f"There is no Snowball stemmer for the language {language!r}; set one of {known}."
            )
        self.language = language
        self.stop_words = frozenset[str]().union(*map(stop_words, self.languages))
        self.stemmer = "" if main == CJK else main
        self._stem_word = snowballstemmer.stemmer(main).stemWord if self.stemmer else str
        # Turkish has an i without a dot, whose capital is I.
        self.capitals = {ord("I"): "ı"} if main == "turkish" else {}
        self._stems: dict[str, str] = {}

    def stem(self, word: str) -> str:
        """The stem of one case-folded word."""
        stem = self._stems.get(word)
        if stem is None:
            stem = self._stems[word] = self._stem_word(word) or word
        return stem

    def words(self, text: str) -> list[str]:
        """Case-folded words in order, as written: compounds such as wi-fi and fractions whole; no
        stop words.
        """
        text = text.translate(self.capitals)
        words = _ASCII_WORD.findall(text.lower()) if text.isascii() else _read(_WORD, text)
        return [word for word in words if word not in self.stop_words]

    def stems(self, text: str) -> list[str]:
        """Stems of `words`, one for each word, for phrases."""
        return [self.stem(word) for word in self.words(text)]

    def spelled(self, text: str) -> str:
        """A text with numbers, units and signs in one spelling (`SIGNS`, `SPELLING_RULES`)."""
        return _ruled(text.translate(self.capitals))

    def terms(self, text: str) -> list[str]:
        """Stems for matching: a compound's parts, numbers and units apart and one in all their
        spellings (`SIGNS`, `SPELLING_RULES`, `UNITS`). A cluster's analyser gives the same.
        """
        text = self.spelled(text)
        words = _ASCII_TERM.findall(text.lower()) if text.isascii() else _read(_TERM, text)
        named = (UNITS.get(word, word) for word in words)
        return [self.stem(word) for word in named if word not in self.stop_words]


def _read(word: str, text: str) -> list[str]:
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    return [piece for words in _pattern(word).findall(text) for piece in _pieces(words)]


SIGNS: Mapping[str, str] = {
    **{sign: " " + unicodedata.normalize("NFKC", sign).replace("⁄", "/") for sign in "½⅓⅔¼¾⅛⅜⅝⅞"},
    **dict(zip("×⁄–²³_µ®™©″“”′‘’", "x/-23 μ   \"\"\"'''", strict=True)),
    "ß": "ss",
    "İ": "i",
}
"""Signs that are read as others, before `SPELLING_RULES`."""

_LETTER = r"[^\W\d_]"
SPELLING_RULES: Sequence[tuple[str, str]] = (
    # C++ and C# are not C.
    (r"\+\+", " plusplus "),
    (rf"(?<=\b{_LETTER})#", " sharp "),
    # No elided article; possessives, contractions and abbreviations are one word.
    (r"\b(?:[cdjlmnst]|qu)'(?=\w)", ""),
    (rf"(?<={_LETTER})'(?:s\b|(?={_LETTER}))|(?<=\b{_LETTER})\.(?={_LETTER}\b)", ""),
    # Decimal commas are points, thousands have none; a fraction is one number.
    (r"\b0,(?=\d)", "0."),
    (r"(?<=\d),(?=\d{3}(?!\d))", ""),
    (r"(?<=\d),(?=\d{1,2}(?![\d,]))", "."),
    (r"(?<![\d./])(\d{1,2})/(2|3|4|5|6|8|16|32|64)(?![\d/])(?!\.\d)", r"\1_\2"),
    # A metric thread's length has its unit; other dimensions are numbers side by side.
    (r"\bm\s?(\d+(?:\.\d+)?)\s?x\s?(\d+(?:\.\d+)?)(?:\s?mm\b)?", r"m\1 \2 mm "),
    (r"""(?<=\d)(\s?(?:mm|cm|m|in|inch|ft|")?)\s?[x*]\s?(?=\d)""", r"\1 "),
    # An inch, but neither two in one nor a year in a place.
    (
        r"""(?<=\d)[\s-]?(?:"|''|zoll\b)"""
        r"""|(?<=\d)(?<!\d{4})[\s-]?in\b\.?(?![\s-]*(?:\d|one\b|stock\b))""",
        " inch ",
    ),
    (
        r"(?<=\d)[\s-]?(?:(?:(m)illi|(c)enti|(k)ilo)?(?:(m)et(?:er|re)|(l)it(?:er|re)|(g)ram)m?s?"
        r"|(v)olts?|(w)atts?|(f)(?:oo|ee)(t))\b",
        r" \1\2\3\4\5\6\7\8\9\10",
    ),
    (r"μ(?=(?:[mglafsvwh]|mol|hz)\b)", "u"),
    (r"(?<=\d)[\s-]?v(?=[ad]c\b)", " v "),
    (r"(?<![\w-])(\d{1,3}(?:\.\d+)?)(?:a\b|\sa(?=\s*(?:$|[^\s\w]|[ad]c\b)))", r"\1 amp"),
    # Letters and digits apart, but for a letter with one or two digits (M8, B12, 4K).
    (
        rf"(?<=\d)(?!(?:st|nd|rd|th)\b)(?={_LETTER}{{2}})|(?<=\d)(?=[vwlgmh]\b)"
        rf"|(?<=\d{{3}})(?={_LETTER})|(?<={_LETTER}{{2}})(?=\d)|(?<=\b{_LETTER})(?=\d{{3}})",
        " ",
    ),
    (rf"\b({_LETTER})-(?=\d{{1,2}}\b)|\b(\d{{1,2}})-(?={_LETTER}\b)", r"\1\2"),
)
"""What `Analyser.terms` replaces, in order, whatever the case. Python and Java read them alike."""

UNITS: Mapping[str, str] = {
    word: unit
    for unit, words in (
        ("inch", "inches zoll"),
        ("pound", "lb lbs pounds"),
        ("ounce", "oz ounces"),
        ("amp", "amps ampere amperes"),
        ("ohm", "ohms ω"),
        ("kg", "kgs"),
        ("ug", "mcg"),
        ("um", "micron microns"),
    )
    for word in words.split()
}
"""Words that are read as another one."""

_SIGN = re.compile("[" + "".join(SIGNS) + "]")
_DIGIT = re.compile(r"\d")
_RULED = re.compile(r"[\d'μ#+.](?:(?<=[\d'μ#])|(?<=\+\+)|(?<=\b\w\.)(?=\w\b))")
_PLAIN = r"(?:[^\s.\d'μ#+]|\.(?!\w))"
_TELLING_WORD = rf"{_PLAIN}*+(?:[.\d'μ#+]\S*+|(?<=\b[mM])(?!\S))"
_NEAR_RULED = re.compile(
    rf"(?<!\S){_TELLING_WORD}(?:(?:\s[\s-]*+{_PLAIN}++(?!\S)){{0,2}}\s[\s-]*+{_TELLING_WORD})*+"
    r"(?:\s[\s-]*+\S+){0,2}"
)
# No rule looks further than two words after such a word: a third of the time for natural texts.


@cache
def _rules() -> Sequence[tuple[re.Pattern[str], str]]:
    return [(re.compile(rule, re.IGNORECASE), with_) for rule, with_ in SPELLING_RULES]


def _ruled(text: str) -> str:
    text = _SIGN.sub(lambda sign: SIGNS[sign[0]], text)
    return _NEAR_RULED.sub(_by_rules, text) if _RULED.search(text) else text


def _by_rules(part: re.Match[str]) -> str:
    text = part[0]
    for rule, with_ in _rules():
        text = rule.sub(with_, text)
    return text


MIN_CODE, MAX_CODE = 4, 64
"""Characters of a part number."""
CODE_RUN = 4
"""Words that a part number may be spread over."""
_CUT = (r"[^\w.,/]+|[_²³¹¼-¾]|(?<!\d)[.,/]|(?:[.,/])(?!\d)", "")
CODE_WORD: Sequence[tuple[str, str]] = (_CUT, (rf"^{_LETTER}{{5,}}$", " "))
CODE: Sequence[tuple[str, str]] = ((r"^(?:.*\s.*|\D*)$", ""),)
ASKED_CODE: Sequence[tuple[str, str]] = (
    (rf"^(?=(?:.*\s)?{_LETTER}+(?:\s.*)?$)(?:[\W_]*[^\W_]){{1,5}}[\W_]*$", ""),
    _CUT,
    *CODE,
)
"""What part numbers are made by, of each word, of a run of words, and of a query: letters and
digits without what is between them, with a digit, without words of five letters. A short query in
which a word has no digit (led 20, 100 m) is none.
"""


def _replaced(text: str, rules: Sequence[tuple[str, str]]) -> str:
    for rule, with_ in rules:
        text = re.sub(rule, with_, text)
    return text


def codes(text: str) -> set[str]:
    """What may be part numbers in a text, and what begins with them: `AB-12 34 C` gives `ab12`,
    `ab1234` and `ab1234c`.
    """
    if not _DIGIT.search(text):
        return set()
    words = [_replaced(word, CODE_WORD) for word in text.lower().split()]
    runs = (words[at:end] for at in range(len(words)) for end in range(at + 1, at + 1 + CODE_RUN))
    runs_read = {_replaced("".join(run), CODE) for run in runs}
    return {code for code in runs_read if MIN_CODE <= len(code) <= MAX_CODE}


def asked_code(text: str) -> str:
    """The part number that a query asks for; "" where it is none."""
    code = _replaced(text.lower().strip(), ASKED_CODE) if _DIGIT.search(text) else ""
    return code if MIN_CODE <= len(code) <= MAX_CODE else ""


def _pieces(word: str) -> Iterable[str]:
    # Pairs of characters for unspaced stretches: 耳机线 gives 耳机, 机线.
    if not _UNSPACED.search(word):
        yield word
        return
    end = 0
    for run in _UNSPACED.finditer(word):
        if before := word[end : run.start()].strip(".-'’·"):
            yield before
        stretch, end = run.group(), run.end()
        yield from (stretch[i : i + 2] for i in range(max(1, len(stretch) - 1)))
    if after := word[end:].strip(".-'’·"):
        yield after


def phrases(stems: Sequence[str], size: int) -> list[Phrase]:
    """Runs of `size` adjacent stems, in order."""
    return list(zip(*(stems[i:] for i in range(size)), strict=False))


@dataclass(frozen=True)
class Said:
    """Which phrases of a collection people would say.

    A phrase neither begins nor ends with a stop word of a language that the texts use, or with a
    remnant of markup. A number stands beside the word that it has beside it in a text: a number
    with a unit beside no other word than the unit.

    Attributes:
        mute: stems that no phrase begins or ends with.
        numbers: phrases of two stems, one of them a number, that are in the texts.
    """

    mute: frozenset[str]
    numbers: frozenset[Phrase]

    @classmethod
    def of(cls, analyser: Analyser, texts: Iterable[str]) -> Said:
        """What the first texts mute, and the numbers of all."""
        first: list[str] = []
        numbers: set[Phrase] = set()
        for text in texts:
            first += [text] if len(first) < _READ else []
            for one in _NUMBER.finditer(text):
                if unit := _UNIT.match(text, one.end()):
                    beside = [f"{one[0]} {unit[0]}"]
                else:
                    before = _BEFORE.search(text, max(0, one.start() - _NEAR), one.start())
                    after = _AFTER.match(text, one.end())
                    beside = [f"{before[1]} {one[0]}"] if before else []
                    beside += [f"{one[0]} {after[1]}"] if after else []
                for words in beside:
                    stems = analyser.stems(words)
                    numbers.update([(stems[0], stems[1])] if len(stems) == 2 else [])
        shares = _shares(_words_of(first))
        least = max(_MIN_STOP_WORDS, _SPOKEN * max(shares.values()))
        # The analyser's words have no stop words of its own language.
        others = [name for name in _MUTED if name not in analyser.languages]
        mute = {word for name in others if shares[name] >= least for word in stop_words(name)}
        return cls(frozenset(map(analyser.stem, mute | _MARKUP)), frozenset(numbers))

    def keeps(self, stems: Sequence[str]) -> bool:
        """Whether a word, or two, is a phrase that people would say."""
        if not self.mute.isdisjoint(stems):
            return False
        return not any(map(_is_number, stems)) or tuple(stems) in self.numbers


def _is_number(word: str) -> bool:
    return word[0].isdigit() and word.replace(".", "").isdigit()


class SurfaceForms:
    """Remembers how often each word stands for a stem, and spells phrases of stems by the most
    frequent words.
    """

    def __init__(self, analyser: Analyser) -> None:
        self._analyser = analyser
        self._counts: Counter[str] = Counter()
        self._best: dict[str, str] | None = None

    def add(self, words: Iterable[str]) -> None:
        """Count the words of one text, as `Analyser.words` gives them."""
        self._counts.update(words)
        self._best = None

    def spell(self, phrase: Sequence[str]) -> str:
        """The phrase in words: `("wireless", "headphon")` becomes "wireless headphones".

        Unknown stems are kept as they are.
        """
        if self._best is None:
            # The most frequent word of a stem; the first in the alphabet among equals, so that
            # spelling is reproducible.
            ordered = sorted(sorted(self._counts, reverse=True), key=self._counts.__getitem__)
            self._best = {self._analyser.stem(word): word for word in ordered}
        return join_words([self._best.get(stem, stem) for stem in phrase])


def join_words(words: Sequence[str]) -> str:
    """Words as one text: with spaces, except between pairs of characters of an unspaced script,
    which overlap or abut.
    """
    text = ""
    for word in words:
        if text and _UNSPACED.match(text[-1]) and _UNSPACED.match(word):
            text += word[1:] if len(word) > 1 and text[-1] == word[0] else word
        else:
            text += f" {word}" if text else word
    return text


K1 = 1.5
B = 0.75
_ARRAYS = ("starts", "texts", "postings")
_TERMS = "terms.json"


@dataclass(frozen=True)
class WordIndex:
    """BM25 over texts by number, with Lucene's weights; in memory, or mapped from a folder.

    Attributes:
        known: term -> its place in `starts`.
        count: of texts.
        starts: of each term's postings, one more at the end; shape (terms + 1,).
        texts: numbers of the texts that have a term, term by term; shape (postings,).
        postings: their scores.
    """

    analyser: Analyser
    known: Mapping[str, int]
    count: int
    starts: _Ints
    texts: NDArray[np.int32]
    postings: NDArray[np.float32]

    @classmethod
    def of(
        cls, texts: Iterable[str], analyser: Analyser, k1: float = K1, b: float = B
    ) -> WordIndex:
        """Index texts, streaming. Memory: some 32 bytes a posting."""
        known, lengths, sizes = dict[str, int](), array("q"), array("q")
        terms, counts = array("i"), array("i")
        for text in texts:
            words = Counter(known.setdefault(word, len(known)) for word in analyser.terms(text))
            terms.extend(words)
            counts.extend(words.values())
            sizes.append(len(words))
            lengths.append(words.total())
        by_term = np.argsort(terms, kind="stable")
        at = np.repeat(np.arange(len(sizes), dtype=np.int32), sizes)[by_term]
        often = np.array(counts, np.float32)[by_term]
        df = np.bincount(terms, minlength=len(known))
        idf = np.log1p((len(sizes) - df + 0.5) / (df + 0.5))
        mean = max(1, sum(lengths)) / max(1, len(lengths))
        norms = k1 * (1 - b + b * np.array(lengths) / mean)
        scores = np.repeat(idf.astype(np.float32), df)
        scores *= often / (often + norms.astype(np.float32)[at])
        starts = np.concatenate([[0], np.cumsum(df)])
        return cls(analyser, known, len(sizes), starts, at, scores)

    @classmethod
    def open(cls, folder: Path, analyser: Analyser) -> WordIndex:
        """What `save` wrote, mapped. Raises FileNotFoundError where nothing is there."""
        noted = json.loads((folder / _TERMS).read_bytes())
        known = {term: at for at, term in enumerate(noted["terms"])}
        arrays = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS)
        return cls(analyser, known, noted["texts"], *arrays)

    def save(self, folder: Path) -> None:
        folder.mkdir()
        arrays: Sequence[NDArray[Any]] = (self.starts, self.texts, self.postings)
        for name, array_ in zip(_ARRAYS, arrays, strict=True):
            np.save(folder / f"{name}.npy", array_)
        noted = {"texts": self.count, "terms": [*self.known]}
        (folder / _TERMS).write_text(json.dumps(noted), "utf-8")

    def scores(self, text: str) -> NDArray[np.float32]:
        """The score of every text for a query, shape (texts,); 0 where no word is in it."""
        scores = np.zeros(self.count, np.float32)
        for term in self.analyser.terms(text):
            if (at := self.known.get(term)) is not None:
                postings = slice(*self.starts[at : at + 2])
                scores[self.texts[postings]] += self.postings[postings]
        return scores

    def best(self, text: str, size: int) -> list[tuple[int, float]]:
        """Numbers and scores of the best texts with scores above 0, score descending, then by
        number.
        """
        scores = self.scores(text)
        scored = np.flatnonzero(scores > 0)
        best = scored[np.argsort(-scores[scored], kind="stable")][:size]
        return list(zip(best.tolist(), scores[best].tolist(), strict=True))

    def literal(self, text: str) -> NDArray[np.int64]:
        """Numbers of the texts that have every word of a query, stop words aside."""
        terms = set(self.analyser.terms(text))
        if not terms or not terms <= self.known.keys():
            return np.zeros(0, np.int64)
        places = (self.known[term] for term in terms)
        lists = [self.texts[slice(*self.starts[at : at + 2])].astype(np.int64) for at in places]
        return reduce(np.intersect1d, lists)

    @property
    def size_bytes(self) -> int:
        return self.starts.nbytes + self.texts.nbytes + self.postings.nbytes


class CodeIndex(Sequence[bytes]):
    """Part numbers, sorted, each with the number of its text; in memory, or mapped."""

    def __init__(self, letters: NDArray[np.uint8], ends: _Ints, owners: _Ints) -> None:
        self._arrays = letters, ends, owners

    @classmethod
    def of(cls, texts: Iterable[tuple[int, str]]) -> CodeIndex:
        """Index the part numbers of texts with these numbers. Memory: some 70 bytes each."""
        letters, ends, owners = bytearray(), array("q", [0]), array("q")
        for at, text in texts:
            for code in codes(text):
                letters += code.encode()
                ends.append(len(letters))
                owners.append(at)
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(letters)]
        unsorted = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(owners), buffers)
        order = pc.array_sort_indices(unsorted)
        _, ends_in_order, in_order = unsorted.take(order).buffers()
        return cls(
            np.frombuffer(in_order or b"", np.uint8),
            np.frombuffer(ends_in_order, np.int64),
            np.array(owners, np.int64)[integers(order)],
        )

    @classmethod
    def open(cls, folder: Path) -> CodeIndex:
        return cls(*(np.load(folder / f"codes.{n}.npy", mmap_mode="r") for n in range(3)))

    def save(self, folder: Path) -> None:
        for number, array_ in enumerate(self._arrays):
            np.save(folder / f"codes.{number}.npy", np.asarray(array_))

    def __len__(self) -> int:
        return len(self._arrays[2])

    def __getitem__(self, at: Any) -> Any:
        letters, ends, _ = self._arrays
        return letters[ends[at] : ends[at + 1]].tobytes()

    def find(self, text: str) -> tuple[_Ints, _Ints]:
        """Texts that have the part number that a query asks for, and texts with one that begins
        with it, these among them.
        """
        code, owners = asked_code(text).encode(), self._arrays[2]
        first = bisect_left(self, code) if code else len(self)
        same, last = (bisect_right(self, end, first) for end in (code, code + b"\xff"))
        return np.unique(owners[first:same]), np.unique(owners[first:last])


class Lexical:
    """A BM25 index over title and text of every item.

    Args:
        texts: of the items, in their order, instead of title and text.
    """

    def __init__(
        self,
        items: Sequence[Item],
        k1: float = K1,
        b: float = B,
        texts: Sequence[str] | None = None,
    ) -> None:
        said = texts or [f"{item.title} {item.text}" for item in items]
        ids = [item.id for item in items]
        # Ties are broken by position, so the items are put into id order first.
        order = sorted(range(len(ids)), key=ids.__getitem__)
        self._ids = [ids[at] for at in order]
        language = detect_language(said[at] for at in order)
        self._index = WordIndex.of((said[at] for at in order), Analyser(language), k1, b)

    def rank(self, text: str, size: int) -> list[tuple[str, float]]:
        """Ids and scores of the best items of one text with scores above 0, score descending, then
        id.
        """
        return [(self._ids[at], score) for at, score in self._index.best(text, size)]

    @property
    def size_bytes(self) -> int:
        return self._index.size_bytes
