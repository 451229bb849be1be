"""Words, stems and phrases of a text, for the parts that read text without a language model.

An `Analyser` turns a text into words (as written) and terms (Snowball stems), and `SurfaceForms`
turns stems back into words, so that a phrase of stems becomes a readable keyword. Scripts without
spaces between words (Chinese, Japanese, Thai, ...) are read as overlapping pairs of characters, as
Lucene's CJK analyser does.

`cogr.keywords.normalise`, not this module, decides when two keywords are the same. Stems are never
stored in a snapshot.

`Lexical` is plain BM25 over titles and texts, by bm25s: the baseline of every comparison, and a
source of a prompt's search results. It knows no generated keywords; `cogr.matching.mirror` searches
those.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, reduce
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cogr.errors import GeneratorError, MissingExtraError
from cogr.records import Item

Phrase = tuple[str, ...]
"""Adjacent stems, e.g. ("wireless", "headphon")."""

_ENGLISH = """
a about above after again all also am an and any are as at be been before being below between both
but by can could did do does doing down during each for from further had has have having he her here
hers him his how i if in into is it its itself just may me might more most must my no nor not now of
off on once only or other our out over own s same she should so some such t than that the their them
then there these they this those through to too under until up upon us very was we were what when
where which while who whom why will with within without would you your
"""
_GERMAN = """
aber alle als also am an auch auf aus bei beim bin bis bist da damit dann das dass dein dem den der
des dich die dies diese dieser dieses dir doch dort du durch ein eine einem einen einer eines er es
euch euer für hat hatte hier hin ich ihm ihn ihr ihre im in ins ist ja jede jeder jedes kann kein
keine können man mein mich mir mit nach nicht noch nun nur ob oder ohne sehr sein seine sich sie
sind so soll um und uns unser unter vom von vor war was weil wenn wer werden wie wieder wir wird wo
zu zum zur über
"""
STOP_WORDS = {"english": frozenset(_ENGLISH.split()), "german": frozenset(_GERMAN.split())}
_OTHERS = (
    *("danish", "dutch", "french", "italian", "norwegian", "portuguese", "russian", "spanish"),
    *("swedish", "turkish"),
)
DETECT = "auto"
"""The name of the language that is detected."""
_READ = 5000
_SPOKEN = 0.2
# Where hardly any stop word is, as in bare titles, the language is unknown.
_LEAST_STOP_WORDS = 0.03
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

_ASCII_WORD = re.compile(r"[a-z0-9]+(?:[.\-'][a-z0-9]+)*")
_JOINTS = re.compile(r"[.\-'’·]")
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]+"
)


@cache
def stop_words(language: str) -> frozenset[str]:
    """The stop words of a language; without the extra `statistical`, of English and German alone.
    Where there are none every word counts, since rare words decide anyway.
    """
    if language in STOP_WORDS or language not in _OTHERS:
        return STOP_WORDS.get(language, frozenset())
    try:
        from bm25s import stopwords
    except ImportError:
        return frozenset()
    return frozenset(getattr(stopwords, f"STOPWORDS_{language.upper()}"))


def _shares(texts: Iterable[str]) -> dict[str, float]:
    # Without words that are English too, and without the two that are there most: a single word may
    # mean something else.
    every = {name: stop_words(name) for name in ("english", "german", *_OTHERS)}
    english = every["english"]
    own = {
        name: words - english if words is not english else words for name, words in every.items()
    }
    counts = Counter(
        word for text in islice(texts, _READ) for word in _unicode_word().findall(text.casefold())
    )
    total = max(1, counts.total())
    return {
        name: sum(sorted(counts[word] for word in listed)[:-2]) / total
        for name, listed in own.items()
    }


def detect_language(texts: Iterable[str]) -> str:
    """The language of most texts by their stop words, by its Snowball name; English where no other
    is far ahead of it.
    """
    shares = _shares(texts)
    best = max(shares, key=shares.__getitem__)
    sure = shares[best] >= max(_LEAST_STOP_WORDS, 1.5 * shares["english"])
    return best if sure else "english"


@cache
def _unicode_word() -> re.Pattern[str]:
    # Python's \w leaves out the vowel signs of Indic scripts, so marks are added.
    marks = "".join(c for c in map(chr, range(0x10000)) if unicodedata.category(c)[0] == "M")
    letter = rf"(?:[^\W_]|[{marks}])"
    return re.compile(rf"[^\W_]{letter}*(?:[.\-'’·][^\W_]{letter}*)*")


class Analyser:
    """Splits texts into words and stems.

    Args:
        language: a Snowball algorithm, e.g. "english" or "german". It decides stems and stop words
            (`stop_words`).

    Raises:
        GeneratorError: the language has no Snowball algorithm.
    """

    def __init__(self, language: str = "english") -> None:
        import snowballstemmer

        if language not in snowballstemmer.algorithms():
            known = ", ".join(sorted(snowballstemmer.algorithms()))
            raise GeneratorError(
                f"There is no Snowball stemmer for the language {language!r}; set one of {known}."
            )
        self.language = language
        self.stop_words = stop_words(language)
        self._stem_word = snowballstemmer.stemmer(language).stemWord
        self._stems: dict[str, str] = {}

    def stem(self, word: str) -> str:
        """The stem of one case-folded word."""
        stem = self._stems.get(word)
        if stem is None:
            stem = self._stems[word] = self._stem_word(word) or word
        return stem

    def words(self, text: str) -> list[str]:
        """Case-folded words in order, compounds such as wi-fi whole; no stop words, no single
        letters or digits.
        """
        stop = self.stop_words
        if text.isascii():
            return [w for w in _ASCII_WORD.findall(text.lower()) if len(w) > 1 and w not in stop]
        text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
        return [
            piece
            for word in _unicode_word().findall(text)
            for piece in _pieces(word)
            if self._counts(piece)
        ]

    def _counts(self, word: str) -> bool:
        return (len(word) > 1 or _UNSPACED.match(word) is not None) and word not in self.stop_words

    def stems(self, text: str) -> list[str]:
        """Stems of `words`, one for each word, for phrases."""
        return [self.stem(word) for word in self.words(text)]

    def terms(self, text: str) -> list[str]:
        """Stems for bag-of-words matching: those of `words`, and of the parts of compounds (wi-fi:
        wi-fi, wi, fi).
        """
        found = []
        for word in self.words(text):
            found.append(self.stem(word))
            if not word.isalnum() and len(parts := _JOINTS.split(word)) > 1:
                found.extend(self.stem(part) for part in parts if self._counts(part))
        return found


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
        """What the texts say."""
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
        shares = _shares(first)
        least = max(_LEAST_STOP_WORDS, _SPOKEN * max(shares.values()))
        # The analyser's words have no stop words of its own language.
        others = [name for name in STOP_WORDS if name != analyser.language]
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


class Lexical:
    """A BM25 index over title and text of every item (English stems and stop words).

    Args:
        texts: of the items, in their order, instead of title and text.

    Raises MissingExtraError without the extra `statistical`.
    """

    def __init__(
        self,
        items: Sequence[Item],
        k1: float = K1,
        b: float = B,
        texts: Sequence[str] | None = None,
    ) -> None:
        try:
            import bm25s
            import Stemmer
        except ImportError as error:
            raise MissingExtraError("BM25 over the items' text", "statistical") from error
        self._bm25s = bm25s
        self._stemmer = Stemmer.Stemmer("english")
        self.items = items
        # Ties are broken by position, so the items are put into id order first: score descending,
        # then id.
        self._order = sorted(range(len(items)), key=lambda i: items[i].id)
        self._texts = texts
        tokens = self._tokens([self._said(i) for i in self._order])
        self._index = bm25s.BM25(k1=k1, b=b)
        self._known: dict[str, int] = tokens.vocab
        if self._known:
            self._index.index(tokens, show_progress=False)

    def _said(self, at: int) -> str:
        item = self.items[at]
        return f"{item.title} {item.text}" if self._texts is None else self._texts[at]

    def _tokens(self, texts: Sequence[str]) -> Any:
        return self._bm25s.tokenize(
            list(texts), stopwords="en", stemmer=self._stemmer, show_progress=False
        )

    def scores(self, text: str) -> NDArray[np.float32]:
        """The score of every item for one text, in id order; 0 where no word is in it."""
        tokens = self._words(text)
        if not tokens or not self._known:
            return np.zeros(len(self.items), np.float32)
        return np.asarray(self._index.get_scores(tokens), np.float32)

    def literal(self, text: str) -> NDArray[np.int64]:
        """The items that have every word of a text, stop words aside, by their places in id
        order.
        """
        words = set(self._words(text))
        if not words or not words <= self._known.keys():
            return np.zeros(0, np.int64)
        starts, items = (self._index.scores[name] for name in ("indptr", "indices"))
        places = (self._known[word] for word in words)
        found = [items[starts[at] : starts[at + 1]].astype(np.int64) for at in places]
        return reduce(np.intersect1d, found)

    def _words(self, text: str) -> list[str]:
        found: list[list[str]] = self._bm25s.tokenize(
            [text], stopwords="en", stemmer=self._stemmer, show_progress=False, return_ids=False
        )
        return found[0]

    def rank(self, text: str, size: int) -> list[tuple[Item, float]]:
        """The best items of one text with scores above 0, best first, ties in id order."""
        found = _best(self.scores(text), size)
        return [(self.items[self._order[at]], score) for at, score in found]

    def best(self, scores: NDArray[Any], size: int) -> list[tuple[str, float]]:
        """The same of any scores, in id order, as ids."""
        return [(self._ids[at], score) for at, score in _best(scores, size)]

    @cached_property
    def _ids(self) -> list[str]:
        # Items may be in files, and slow to read one by one.
        return [self.items[at].id for at in self._order]

    @property
    def size_bytes(self) -> int:
        """Of the arrays of postings."""
        return sum(self._index.scores[name].nbytes for name in ("data", "indices", "indptr"))


def _best(scores: NDArray[Any], size: int) -> list[tuple[int, float]]:
    found = np.flatnonzero(scores > 0)
    best = found[np.argsort(-scores[found], kind="stable")][:size]
    return list(zip(best.tolist(), scores[best].tolist(), strict=True))
