"""Secrets and control characters are taken out of text that leaves the process.

Texts of items, of servers and of libraries are untrusted. `masked` takes secrets out of them, and
`visible` escapes the characters that control a terminal. The sentence of an error is masked when it
is made. Both are applied where text leaves the process (`indexers.telemetry.terminal`,
`indexers.telemetry.logs`, pages by `indexers.tables`), so callers need not.
"""

from __future__ import annotations

import base64
import html
import json
import re
import unicodedata
from collections.abc import Iterator
from urllib.parse import quote, quote_plus, unquote, unquote_plus

_ADDRESS = r"//(?:(?![,;]\s*[a-z][a-z0-9+.-]*://)\S)*@"
_USER = re.compile(_ADDRESS, re.IGNORECASE)
"""User and password of a URL: from the slashes to the last @ before a space or before the next URL
of a list, since a password may contain any of /?#@.
"""
_PARAMETER = re.compile(
    r"([?&][\w.-]*(?:key|token|pass|password|secret|sig|signature|auth|credential)=)[^&#\s]+", re.I
)
_SECRET_NAME = re.compile(
    r"pas+w|pass|pwd|secret|token|api_?key|hash_?key|credential", re.IGNORECASE
)
_MIN_SECRET = 6
"""Shorter secrets are not masked, because they occur in ordinary words."""
_JOINERS = "\u200c\u200d"

learned: set[str] = set()
"""Every secret of this process, in all its spellings."""


def masked(text: str) -> str:
    """The text without secrets: user and password of URLs, URL parameters with the name of a
    secret, and every text given to `learn`.
    """
    for secret in sorted(learned, key=len, reverse=True):
        if secret in text:
            text = text.replace(secret, "...")
    return _PARAMETER.sub(r"\1...", _USER.sub("//...@", text)) if "//" in text else text


def learn(secret: str) -> None:
    """Mask this text from now on, also in the spellings of URLs, JSON, HTML and Python, in base64,
    alone or within a longer text (as the header of basic authentication has it), and in hex.

    A secret of less than 6 characters is ignored.
    """
    for plain in {secret, unquote(secret), unquote_plus(secret)}:
        spelled = (
            plain,
            json.dumps(plain)[1:-1],
            json.dumps(plain, ensure_ascii=False)[1:-1],
            repr(plain)[1:-1],
            html.escape(plain),
            *(quote(plain, safe=safe) for safe in ("", "/")),
            quote_plus(plain),
            *_encoded(plain.encode("utf-8", "surrogatepass")),
        )
        learned.update(one for one in spelled if len(one) >= _MIN_SECRET)


def _encoded(plain: bytes) -> Iterator[str]:
    yield plain.hex()
    yield plain.hex().upper()
    for before in range(3):
        # Of the text's own bits alone; the characters at the ends depend on what surrounds it.
        whole = base64.b64encode(bytes(before) + plain).decode()
        own = whole[(0, 2, 3)[before] : (before + len(plain)) * 8 // 6]
        yield own
        yield own.translate({ord("+"): "-", ord("/"): "_"})
        yield quote(own, safe="")


def learn_address(text: str) -> None:
    """Learn the password, or else the user, of the URLs in a text, well-formed or not."""
    if "://" not in text or "@" not in text:
        return
    for user in re.findall(_ADDRESS, text, re.IGNORECASE):
        _, colon, password = user[2:-1].partition(":")
        learn(password if colon else user[2:-1])


def learn_words(words: list[str]) -> None:
    """Learn the secrets of a command line, well-formed or not: `--set opensearch.password=X`,
    `opensearch.password X`, URLs.
    """
    follows = False
    for word in (word.removeprefix("--set=") for word in words):
        learn_address(word)
        key, *rest = re.split(r"[=:\s]", word, maxsplit=1)
        value = rest[0] if rest else ""
        named = "." in key and _SECRET_NAME.search(key) is not None
        if (follows and not word.startswith("-")) or (named and value):
            learn(value.strip() or word)
            learn(value.strip().partition("=")[0])
        follows = named and not value


def visible(text: str, *, keep: str = "\n\t") -> str:
    r"""The text with control and format characters as escapes, such as \x1b and \u202e.

    Those are the categories Cc (but for `keep`), Cf (directions, tags, zero widths), Cs, Zl and Zp.
    The zero-width joiners U+200C and U+200D stay: Persian, Indic scripts and emoji need them.
    """
    if text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode("ascii")
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        and character not in keep + _JOINERS
        else character
        for character in text
    )


def one_line(text: str) -> str:
    """`masked` and `visible` on one line: a sentence for a person, or a line of a log."""
    return visible(masked(text), keep="")
