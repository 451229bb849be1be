"""Decides which queries of a log may be kept: none with personal data, and none that few people
asked.

A query with an e-mail address, an international telephone number, a payment card or bank account
number with a valid checksum, or an IP address is left out entirely, and counted. So is one that
fewer than k clients asked (k-anonymity): names and addresses are mostly in rare queries.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from cogr.errors import MissingExtraError
from cogr.keywords import self_keyword

LONGEST = 512
"""Characters of a query; longer texts are pasted by accident, or by machines."""

TOO_LONG = "queries longer than 512 characters"
EMPTY = "queries without a letter or digit"

_EMAIL = re.compile(r"[\w.+-]+\s?@\s?[\w-]+(?:\.[\w-]+)+")
_CARD = re.compile(r"(?<!\d)\d(?:[ -]?\d){12,18}(?!\d)")
_CARD_LENGTHS = (15, 16, 19)
"""Digits of payment cards. Not 13 and 14, which are those of article numbers (EAN, GTIN)."""
_IBAN = re.compile(r"(?<![a-z0-9])[a-z]{2}\d{2}(?: ?[a-z0-9]){11,30}", re.IGNORECASE)
_IP = re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])")


class Scrubber:
    """Maps queries to their normalised texts, or to "" where they may not be kept.

    Args:
        personal: whether to look for personal data.

    Attributes:
        counts: distinct texts that were left out, by reason.

    Raises MissingExtraError without the extra `data`.
    """

    def __init__(self, personal: bool = True) -> None:
        self.counts: Counter[str] = Counter()
        self._personal = personal
        if personal:
            _libraries()

    def __call__(self, texts: Sequence[str]) -> list[str]:
        """The normalised text of each text, or ""."""
        return [self._name(text) for text in texts]

    def _name(self, text: str) -> str:
        reason = self.reason(text)
        if reason:
            self.counts[reason] += 1
            return ""
        return self_keyword(text)

    def reason(self, text: str) -> str:
        """Why a text may not be kept; "" where it may."""
        if len(text) > LONGEST:
            return TOO_LONG
        if not self_keyword(text):
            return EMPTY
        kind = personal_data(text) if self._personal else ""
        return f"queries with {kind}" if kind else ""


def personal_data(text: str) -> str:
    """The first kind of personal data in a text: "an e-mail address", ...; "" for none."""
    if "@" in text and _EMAIL.search(text):
        return "an e-mail address"
    if not any(character.isdigit() for character in text):
        return ""
    phonenumbers, luhn, iban = _libraries()
    if "+" in text and any(True for _ in phonenumbers.PhoneNumberMatcher(text, None)):
        return "a telephone number"
    digits = (re.sub(r"\D", "", match[0]) for match in _CARD.finditer(text))
    if any(len(number) in _CARD_LENGTHS and luhn.is_valid(number) for number in digits):
        return "a payment card number"
    if any(iban.is_valid(match[0]) for match in _IBAN.finditer(text)):
        return "a bank account number"
    if any(_is_ip(match[0]) for match in _IP.finditer(text)):
        return "an IP address"
    return ""


def _is_ip(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True


def _libraries() -> tuple[Any, Any, Any]:
    try:
        import phonenumbers
        from stdnum import iban, luhn
    except ImportError as error:
        raise MissingExtraError("Looking for personal data in queries", "data") from error
    return phonenumbers, luhn, iban
