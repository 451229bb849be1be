"""The one filter for the texts of queries, whichever way they come in: logs, clicks, the expander's
backlog and cache.

A text with an e-mail address, an international telephone number, the number of a payment card or a
bank account with a valid checksum, or an IP address is left out whole, and counted by its reason.
A text is normalised before it is matched: compatibility forms, digits of other scripts, invisible
characters and dashes hide nothing. National telephone numbers, names and postal addresses have no
form of their own; few people ask them, so that a least number of clients keeps them out.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate

from cogr.keywords import query_key

MAX_QUERY = 512
"""Characters of a query; longer texts are pasted by accident, or by machines."""

TOO_LONG = f"queries longer than {MAX_QUERY} characters"
EMPTY = "empty queries"

_FEWEST_DIGITS = 4
"""Of a number that is looked for; an IPv6 address may have fewer."""
_INVISIBLE = {"Cf", "Cs", "Mn", "Me"}
_FILLERS = "\u115f\u1160\u2800\u3164"
_EMAIL = re.compile(r"[\w.+-]+\s?@\s?[\w-]+(?:\.[\w-]+)+")
_EXIT_CODE = re.compile(r"(?<![\d+])00(?=[ ./()-]{0,2}[1-9])")
_BARCODE = re.compile(r"(?<![\d+])00\d{6}(?:\d{4,6})?(?!\d)")
"""Of an article that begins as a telephone number may; its check digit tells."""
_VERSION = re.compile(
    r"(?<![a-z])(?:v|ver|version|firmware|fw|driver|build|release|update|patch)[ .:]{0,2}"
    r"\d+(?:\.\d+)+"
)
_DIGIT_GROUPS = re.compile(r"(?<!\d)\d{3,}(?:[ ._-]{1,2}\d{3,})*(?!\d)|(?<!\d)\d{15,19}(?!\d)")
_CARD = re.compile(r"3[47]\d{13}|(?:[2456]\d|35)\d{14}(?:\d{3})?")
"""Not of 13 and 14 digits, which are those of article numbers (EAN, GTIN)."""
_IBAN = re.compile(r"(?<![a-z0-9])[a-z]{2}\d{2}(?:[ .-]?[a-z0-9]){11,}")
_IBAN_LENGTHS = range(15, 35)
_IP = re.compile(
    r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?!\.?\d)|(?<![\w:.])(?=[a-f:.]*\d)[\da-f.]*:[\da-f:.]+(?!\w)"
)


class QueryFilter:
    """Decides which texts of queries may be kept, and counts those that may not.

    Attributes:
        counts: reason -> texts that were left out.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def keeps(self, text: str) -> bool:
        """Whether a text may be kept."""
        kind = personal_data(text) if len(text) <= MAX_QUERY else ""
        if reason := TOO_LONG if len(text) > MAX_QUERY else kind and f"queries with {kind}":
            self.counts[reason] += 1
        return not reason

    def keys(self, texts: Sequence[str]) -> list[str]:
        """The `query_key` of each text; "" for one that may not be kept, or is empty then."""
        keys = [query_key(text) if self.keeps(text) else None for text in texts]
        self.counts += Counter({EMPTY: keys.count("")})
        return [text or "" for text in keys]


def personal_data(text: str) -> str:
    """The first kind of personal data in a text, such as "an e-mail address"; "" without any."""
    text = _plain(text)
    if "@" in text and _EMAIL.search(text):
        return "an e-mail address"
    if sum(map(str.isdecimal, text)) < _FEWEST_DIGITS and ":" not in text:
        return ""
    for kind, matches in _KINDS.items():
        if matches(text):
            return kind
    return ""


def _plain(text: str) -> str:
    if text.isascii():
        return " ".join(text.lower().split())
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text)).casefold()
    return " ".join("".join(map(_character, folded)).split())


def _character(character: str) -> str:
    kind = unicodedata.category(character)
    if kind in _INVISIBLE or character in _FILLERS:
        return ""
    if kind == "Nd":
        return str(unicodedata.decimal(character))
    return {"Pd": "-", "Cc": " "}.get(kind, "-" if character == "\u2212" else character)


def _has_phone(text: str) -> bool:
    from phonenumbers import PhoneNumberMatcher  # such libraries load when a text first needs them
    from stdnum import ean

    text = _EXIT_CODE.sub(
        "+", _BARCODE.sub(lambda run: "" if ean.is_valid(run[0]) else run[0], text)
    )
    return "+" in text and any(True for _ in PhoneNumberMatcher(text, None))


def _has_card(text: str) -> bool:
    from stdnum import luhn

    return any(
        _CARD.fullmatch(number) and luhn.is_valid(number)
        for run in _DIGIT_GROUPS.finditer(text)
        for number in _joined(re.findall(r"\d+", run[0]))
    )


def _joined(groups: list[str]) -> Iterator[str]:
    for start in range(len(groups)):
        yield from accumulate(groups[start : start + 8])


def _has_account(text: str) -> bool:
    from stdnum import iban

    numbers = (re.sub(r"[^a-z0-9]", "", match[0]) for match in _IBAN.finditer(text))
    return any(
        iban.is_valid(number[:length])
        for number in numbers
        for length in _IBAN_LENGTHS
        if length <= len(number)
    )


def _has_ip(text: str) -> bool:
    candidates = _IP.findall(_VERSION.sub(" ", text))
    return any(_is_ip(one) or _is_ip(one.rstrip(".:")) for one in candidates)


def _is_ip(text: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(text) is not None
    return False


_KINDS = {
    "a telephone number": _has_phone,
    "a payment card number": _has_card,
    "a bank account number": _has_account,
    "an IP address": _has_ip,
}
