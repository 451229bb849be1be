"""Redaction: texts are shown without secrets and without characters that control a terminal."""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from html import escape
from urllib.parse import quote, quote_plus

import pytest

from cogr.errors import ServiceError
from cogr.redaction import learn, learn_words, masked, one_line, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://host:6379/0", "redis://host:6379/0"),
        ("at https://u:pw@host:9200 (listing)", "at https://...@host:9200 (listing)"),
        ("http://u:p#w?x@y@host/v1", "http://...@host/v1"),
        (
            "http://a:1,http://u:p,w@b:2;sentinel://:q@c",
            "http://a:1,http://...@b:2;sentinel://...@c",
        ),
        ("https://host/v1?api_key=abc&x=1#top", "https://host/v1?api_key=...&x=1#top"),
        ("write to me@example.com", "write to me@example.com"),
    ],
)
def test_users_and_passwords_of_urls_are_masked_up_to_the_last_at(text: str, shown: str) -> None:
    assert masked(text) == shown


def test_what_was_learned_is_masked_as_it_is_and_as_others_spell_it() -> None:
    learn('pass"wörd/7')
    for spelled in ('pass"wörd/7', 'pass\\"w\\u00f6rd/7', 'pass\\"wörd/7'):
        assert masked(f"the server said {spelled}.") == "the server said ...."
    learn("can%41ry-1")
    assert masked("Port could not be cast: 'canAry-1'") == "Port could not be cast: '...'"
    learn("sofa")
    assert masked("a sofa") == "a sofa", "too short to be looked for"


@pytest.mark.parametrize(
    "secret", ["s3cret/canary+1", "grün & blau?", "caf%C3%A9-canary", "0123456"]
)
def test_an_authorization_that_is_repeated_is_masked_in_every_encoding(secret: str) -> None:
    learn(secret)
    own = secret.encode()
    for user in ("", "a", "ab", "shop", "søren"):
        before = f"{user}:".encode()
        hexed = (before + own).hex()
        spelled = [f"Bearer {secret}", hexed, hexed.upper()]
        parts = [secret, own.hex(), own.hex().upper()]
        for coded in (b64encode, urlsafe_b64encode):
            basic = coded(before + own).decode()
            spelled.append(f"Basic {basic}")
            # What the secret alone decides.
            parts.append(basic[-(-len(before) * 8 // 6) : len(before + own) * 8 // 6])
        for header in spelled:
            for form in (str, quote, quote_plus, escape, repr):
                shown = masked(f"400: unknown header authorization: {form(header)} was sent")
                assert "..." in shown
                for part in parts:
                    ends = range(5, len(form(part)))
                    assert not [at for at in ends if form(part)[at - 5 : at + 1] in shown]


@pytest.mark.parametrize(
    "words",
    [
        ["--set", "opensearch.password=canary-1"],
        ["--set", "opensearch.password canary-1"],
        ["--set", "opensearch.password", "canary-1"],
        ["opensearch.pasword=", "canary-1"],
        ["--set", "redis.url=redis://:canary-1@host"],
    ],
)
def test_secrets_of_a_command_line_are_learned_well_formed_or_not(words: list[str]) -> None:
    learn_words(words)
    assert masked("Got unexpected argument (canary-1)") == "Got unexpected argument (...)"


def test_every_error_of_the_tree_is_masked_whoever_quotes_it() -> None:
    learn("canary-1")
    said = ServiceError("The server says canary-1 at http://u:p/w@host.")
    assert str(said) == "The server says ... at http://...@host."


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07 \x1b[2J\x1b[8m", r"\x1b]0;title\x07 \x1b[2J\x1b[8m"),
        ("a\u202eb\u2066c\u2069\u200e", r"a\u202eb\u2066c\u2069\u200e"),
        ("\U000e0041 \u2028", r"\U000e0041 \u2028"),
        ("lone \ud83d", r"lone \ud83d"),
        ("over\rwritten \x7f \x00", r"over\rwritten \x7f \x00"),
        ("naïve Größe 椅子 مرحبا 🛋️", "naïve Größe 椅子 مرحبا 🛋️"),
        # A family and a Persian plural need their joiners.
        ("👩\u200d👩\u200d👧", "👩\u200d👩\u200d👧"),
        ("کتاب\u200cها", "کتاب\u200cها"),
    ],
)
def test_control_and_format_characters_are_shown_as_escapes_and_joiners_stay_where_they_join(
    text: str, shown: str
) -> None:
    assert visible(text) == shown
    assert visible(shown) == shown


def test_a_sentence_is_one_line() -> None:
    assert one_line("it says\nNext: rm -rf /") == r"it says\nNext: rm -rf /"
