"""Keywords: `normalise` for both sides and for serving, `parse` for what a generator wrote,
`self_keyword` for an entity's own text; and `query_key`, by which a query's text is looked up.

A key and an own keyword differ: "(C++)" and "C++" are two queries with labels of their own, but
either may find an item with the keyword "c++".

Nothing here knows about models, snapshots or indexes. The rules have a version, `NORMALISER`, that
goes into every snapshot's manifest: snapshots of different versions never meet.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Iterable
from itertools import accumulate

NORMALISER = "cogr-3"
"""Version of `normalise`, `self_keyword`, `query_key` and `parse`.

Any change of their output needs a new one.
"""

MAX_KEYWORD_CHARS = 256
"""Cap on a keyword's length in code points.

`normalise` cuts there; `parse` drops what is longer, as a run-on. Of a longer query or title a hash
stands for what is cut off.
"""

_MAX_READ = 16 * MAX_KEYWORD_CHARS
# Characters composed from more than four are too rare to matter.
_MAX_COMPOSED = 4
# Quotes, brackets, list marks and sentence marks around a keyword. Not + # % & @ $ °, which end
# real keywords (c++, c#, 50%).
_OUTER = (
    " \t!\"'()*,-./:;<=>?[\\]^_`{|}~"
    + "¡¿«»‘’‚‛“”„‟‹›•‣◦⁃∙·●○■□▪▫►▶–—―…"
    + "、。〈〉《》「」『』【】〔〕〖〗،؛؟।！？：；，．（）［］｛｝～"
)
# What means something where it is glued to what follows: .net, <5 kg, >= 3, -20 °c.
_SIGN = re.compile(r"(?<![-=.<>])(?:(?:-|[<>]=? ?)\.?(?=\d)|\.(?=\w))")
_NUMBERING = re.compile(r"(?:[(\[]?\d{1,3}[.):\]]\s+|#+\s+)+")
_NUMBERED = re.compile(r"(?:#+\s+)*[(\[]?(\d{1,3})[.):\]]\s+")
# Commas, semicolons and line ends, Latin, CJK and Arabic, with the variants that NFKC turns into
# one of them.
_SEPARATORS = re.compile(
    "[,，、،;；؛\n\r\v\f\x1c-\x1e\x85\u2028\u2029\u037e\ufe10\ufe11\ufe14\ufe50\ufe51\ufe54\uff64]"
)
_THINKING = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_FENCE = re.compile(r"^[ \t]{0,8}```.*$", re.MULTILINE)
_LABEL = re.compile(r"^[\s{\[\"'*#]{0,20}(?:[\w ]{0,40} )?keywords?[\"'*]*\s*:", re.IGNORECASE)
_DROPPED = {"Cc", "Cf", "Cs"}
# What decoders write for bytes that are no character.
_BROKEN = "\ufffd"
_THINKING_TAG = re.compile("</?think>")


def normalise(text: str) -> str:
    """The canonical form of a keyword, for both sides and for serving; "" when nothing is left.

    NFKC, casefold, control and format characters and lone surrogates out, white space collapsed,
    outer punctuation, quotes, list marks and numbering stripped, cut at `MAX_KEYWORD_CHARS`.
    Idempotent. Never raises on any string.
    """
    return _stripped(text[:_MAX_READ])


def _stripped(text: str, *, own: bool = False) -> str:
    # An own text is not cut, and keeps the number that it begins with.
    while True:
        once = _without_outer(_ascii_fold(text) if text.isascii() else _unicode_fold(text), own)
        if once == text:
            return once
        text = once


def _ascii_fold(text: str) -> str:
    text = " ".join(text.lower().split())
    return text if text.isprintable() else " ".join("".join(filter(str.isprintable, text)).split())


def _unicode_fold(text: str) -> str:
    text = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    text = " ".join(text.split())
    text = "".join(c for c in text if unicodedata.category(c) not in _DROPPED)
    return _ascii_fold(text) if text.isascii() else text


def _without_outer(text: str, own: bool) -> str:
    if own:
        text = _NUMBERED.sub(r"\1 ", text, count=1) if _NUMBERED.match(text) else text
    elif match := _NUMBERING.match(text):
        text = text[match.end() :]
    stripped = text.lstrip(_OUTER)
    begin = len(text) - len(stripped)
    if stripped and begin and (sign := _SIGN.search(text, max(0, begin - 4), begin + 1)):
        begin = sign.start() if sign.end() == begin else begin
    return text[begin : None if own else begin + MAX_KEYWORD_CHARS].rstrip(_OUTER)


def folded(text: str) -> str:
    """A query's text without what no shopper tells apart: NFKC, casefold, white space collapsed,
    control and format characters and lone surrogates out. Punctuation and length stay. Idempotent.
    """
    if text.isascii():
        return _ascii_fold(text)
    while True:
        # In parts, since normalisation is quadratic in a run of combining marks.
        starts = range(0, len(text), _MAX_READ)
        parts = (_unicode_fold(f".{text[at : at + _MAX_READ]}.")[1:-1] for at in starts)
        if (once := " ".join("".join(parts).split())) == text:
            return once
        text = once


def query_key(text: str) -> str:
    """What identifies a query: its `folded` text, the end of a long one as a hash; "" for a text
    that is empty then. Idempotent, `MAX_KEYWORD_CHARS` at most.
    """
    text = folded(text)
    return text if len(text) <= MAX_KEYWORD_CHARS else f"{text[:_CUT].rstrip()} {_digest(text)}"


_CUT = MAX_KEYWORD_CHARS - 17


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def self_keyword(text: str) -> str:
    """An entity's own text as a keyword: normalised, in a form that `parse` keeps; "" when nothing
    is left.

    It keeps the number that it begins with ("10. Klasse" is "10 klasse"), since list marks belong
    to completions. Separators become spaces, and words that loop are kept twice. So a completion
    can name every entity: parse(k) == (k,) for each k != "". Idempotent. Never raises on any
    string.
    """
    if (pieces := _plain_pieces(text)) is not None and len(pieces) == 1:
        return pieces[0]
    whole = _said_plainly(text[:_MAX_READ])
    if len(whole) <= MAX_KEYWORD_CHARS:
        return _without_loops(whole)
    more = folded(text[_MAX_READ:])
    return f"{_without_loops(whole[:_CUT])} {_digest(whole + more)}".strip()


def _said_plainly(text: str) -> str:
    while (once := _stripped(_without_separators(text), own=True)) != text:
        text = once
    return text


def _without_loops(text: str) -> str:
    text = _said_plainly(text)
    while loop := _first_loop(words := text.split(" ")):
        start, size = loop
        text = _said_plainly(" ".join(words[:start] + words[start + size :]))
    return text


def with_self(own: str, keywords: Iterable[str]) -> list[str]:
    """S ∪ {self}: an entity's own text as a keyword, where there is one, then its keywords, each
    once.
    """
    return [word for word in dict.fromkeys((own, *keywords)) if word]


def query_keywords(text: str, keywords: Iterable[str]) -> list[str]:
    """S_q ∪ {q} for a search: the text as a keyword first, then its keywords, each once."""
    return with_self(self_keyword(text), keywords)


def _without_separators(text: str) -> str:
    text = _THINKING_TAG.sub(" ", _SEPARATORS.sub(" ", text.replace(_BROKEN, " ")))
    if match := _LABEL.match(text):
        text = f"{text[: match.end() - 1]} {text[match.end() :]}"
    return text


def loops(keyword: str) -> bool:
    """Whether a keyword has the same words three times in a row, as from a model that is stuck ("f
    blush blush blush eine").

    Names have them twice at most ("duran duran", "new york new york"). Numbers may repeat ("10 10
    10 fertilizer").
    """
    return _first_loop(keyword.split(" ")) is not None


def _first_loop(words: list[str]) -> tuple[int, int] | None:
    # Most keywords have few, different words and end here. The rest is slow, and rare.
    if len(words) - len(set(words)) < 2:
        return None
    lexical = [word for word in words if _has_letter(word)]
    if len(lexical) - len(set(lexical)) < 2:
        return None
    lettered = list(
        accumulate((place if _has_letter(word) else -1 for place, word in enumerate(words)), max)
    )
    for size in range(1, len(words) // 3 + 1):
        same = 0
        for place in range(len(words) - size):
            same = same + 1 if words[place] == words[place + size] else 0
            if same >= 2 * size and lettered[place] > place - size:
                return place - 2 * size + 1, size
    return None


def _has_letter(word: str) -> bool:
    return any(map(str.isalpha, word))


_PLAIN = re.compile(r"[a-z0-9]++(?:(?:[-']|,? )[a-z0-9]++)*+")


def _plain_pieces(text: str) -> list[str] | None:
    # Lower-case ASCII words with spaces and commas between them are normalised already. Most texts
    # are so, which makes parsing five times as fast. None: some piece may have to be dropped.
    if len(text) > _MAX_READ or not text.isascii() or not _PLAIN.fullmatch(text := text.lower()):
        return None
    pieces = text.split(", ")
    # A quick check for words three times in a row: most texts have too few words, or all different.
    if text.count(" ") - len(pieces) > 0:
        words = text.replace(", ", " ").split(" ")
        if len(words) - len(set(words)) > 1 and any(map(loops, pieces)):
            return None
    too_long = len(text) > MAX_KEYWORD_CHARS and len(max(pieces, key=len)) > MAX_KEYWORD_CHARS
    return None if too_long else pieces


def _is_run_on(piece: str) -> bool:
    # Unicode normalisation is quadratic in a run of combining marks, so a far longer piece is never
    # normalised.
    if len(piece) <= MAX_KEYWORD_CHARS and piece.isascii():
        return False
    if len(piece) > _MAX_COMPOSED * MAX_KEYWORD_CHARS:
        return True
    return len(unicodedata.normalize("NFKC", piece)) > MAX_KEYWORD_CHARS


def parse(completion: str) -> tuple[str, ...]:
    """Distinct normalised keywords of a completion, in order of first occurrence.

    Linear in its length; never raises on any string.
    """
    if (pieces := _plain_pieces(completion)) is not None:
        return tuple(dict.fromkeys(pieces))
    text = _THINKING.sub(" ", completion)
    text = text.rpartition("</think>")[2]
    text = _FENCE.sub("", text)
    text = _LABEL.sub("", text, count=1)
    keywords: dict[str, None] = {}
    for piece in _SEPARATORS.split(text):
        piece = piece.strip()
        # Too long, or with bytes of a model that are no character.
        if not piece or _is_run_on(piece) or _BROKEN in piece:
            continue
        keyword = normalise(piece)
        if keyword and not _SEPARATORS.search(keyword) and not loops(keyword):
            keywords[keyword] = None
    return tuple(keywords)


def over_budget(keywords: Iterable[str], k_max: int) -> bool:
    """True when more than `k_max` distinct keywords were written (paper, eq. 2 and 3)."""
    return len(set(keywords)) > k_max


def cut_to_budget(keywords: Iterable[str], k_max: int) -> tuple[str, ...]:
    """The first `k_max` distinct keywords, as an index build keeps them."""
    return tuple(dict.fromkeys(keywords))[:k_max]
