"""Personal data in queries is known by its form and checksum, however it is written."""

from __future__ import annotations

import pytest

from cogr.privacy import MAX_QUERY, QueryFilter, personal_data

PERSONAL = {
    "an e-mail address": (
        "ann.lee@example.com invoice",
        "ann\u200b.lee@exa\u00admple.com",
    ),
    "a telephone number": (
        "call +49 170 1234567",
        "0049 170 1234567",
        "００４９ １７０ １２３４５６７",
        "+4\u200b9 170\u20111234567",
    ),
    "a payment card number": (
        "4111 1111 1111 1111",
        "41\u200b11 1111 1111 1111 12/27 123",
        "card 3782 822463 10005 4711",
    ),
    "a bank account number": (
        "de89 3704 0044 0532 0130 00",
        "DE89-3704-0044-0532-0130-00 Max Mustermann",
        "iban: GB82 WEST 1234 5698 7654 32",
    ),
    "": (
        "4006381333931",
        "4111 1111 1111 1112",
        "tile 10.5.2",
        "10:20:30",
        "c++ 17 std::vector",
        "0012345678905",
        "00123457",
        "firmware 10.0.19.41",
        "Driver: 31.0.15.3623",
        "0012345678",
    ),
    "an IP address": (
        "router 192.168.0.17",
        "192.168.0.17.",
        "http://[2001:db8::1]:80/",
        "2001:0db8:85a3:0000:0000:8a2e:0370:7334",
        "::ffff:192.0.2.1",
    ),
}


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, one) for kind in PERSONAL for one in PERSONAL[kind]]
)
def test_personal_data_is_known_by_its_form_and_checksum(kind: str, text: str) -> None:
    assert personal_data(text) == kind


def test_what_is_left_out_is_counted_by_its_reason() -> None:
    texts = ["Sofa ", "bob@example.com", "x" * (MAX_QUERY + 1), "\u200b", "ann@example.com", "???"]
    kept = QueryFilter()
    assert kept.keys(texts) == ["sofa", "", "", "", "", "???"]
    assert kept.counts == {
        "queries with an e-mail address": 2,
        "queries longer than 512 characters": 1,
        "empty queries": 1,
    }
