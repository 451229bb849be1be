"""HTML goes out of titles and texts; what only looks like it stays."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cogr.datasets.fields import plain_text


@pytest.mark.parametrize(
    "text",
    [
        "a < b", "p<0.05 and q>3", "a <b and c> d", "List<String>", "R&D", "x&y=1&copy=2",
        "I <3 you", "cut <a href='x", "<!-- open > b", "<![odd[x]]>", "&bogus;", "<" * 5000,
        "two\n\n lines  < kept",
    ],
)  # fmt: skip
def test_what_is_no_html_stays_as_it_is(text: str) -> None:
    assert plain_text(text) == text


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("<p>Soft &amp; warm</p><ul><li>Wool</li><li>Red</li></ul>", "Soft & warm\nWool\nRed"),
        ("&lt;p&gt;Escaped&lt;/p&gt; 40&quot; TV", 'Escaped\n40" TV'),
        ("&amp;quot;twice&amp;quot;", '"twice"'),
        ("<b>Acme</b>, blue <strong>Colour</strong>Red", "Acme, blue Colour Red"),
        ("H<sub>2</sub>O", "H2O"),
        ("A<BR/>B<br />C", "A\nB\nC"),
        ('<span style="x">Red</span><span id=x>Blue</span>', "Red Blue"),
        ("<a href=http://x?a=1&b=2>link</a>", "link"),
        ("<script>x<1;</script>shown<!-- not --><style>p {}</style>", "shown"),
        ("<script>never closed", "never closed"),
        ("a <b, c <p>text</p>", "a <b, c\ntext"),
        ("<p>5 < 6 &lt; 7</p> a <b", "5 < 6 < 7\na <b"),
        ("soft&shy;ware&#0;&#x202e; &#39;x&#39; &hellip;", "software 'x' …"),
        ("<o:p>Word</o:p>", "Word"),
        ("<i>" * 3000, ""),
    ],
)
def test_html_goes_and_what_a_reader_sees_stays(text: str, plain: str) -> None:
    assert plain_text(text) == plain


@settings(deadline=None)
@given(st.text("<>/&;!-[]= ab\"'pCDAT#1\n", max_size=60))
def test_any_text_is_read_without_error_and_settles(text: str) -> None:
    assert isinstance(plain_text(text), str)
    if "<" not in text and "&" not in text:
        assert plain_text(text) == text
