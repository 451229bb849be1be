"""Takes HTML out of titles and texts; what a reader sees stays. Parsed by the standard library's
`html.parser`.

HTML is: elements that HTML has, with attributes in its syntax; comments, scripts, styles; entities
that end in a semicolon. So "a < b", "List<String>", "R&D" and "x&y=1" stay as they are. Escaped
HTML, as feeds write it ("&lt;p&gt;"), is HTML too.
"""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_INLINE = _names("""
    a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd label mark nobr
    o:p q rp rt ruby s samp small span strike strong time tt u var
""")
_WITHIN_A_WORD = frozenset(("sub", "sup", "wbr"))
_BLOCKS = _names("""
    address area article aside audio base blockquote body br button canvas caption center col
    colgroup dd details dialog dir div dl dt embed fieldset figcaption figure footer form
    frame frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html iframe input legend li link
    main map menu meta meter nav noscript object ol optgroup option output p param picture pre
    progress section select source summary svg table tbody td textarea tfoot th thead title tr
    track ul video
""")
_UNSEEN = frozenset(("script", "style", "template"))
_ELEMENTS = _INLINE | _WITHIN_A_WORD | _BLOCKS | _UNSEEN
# Attributes that HTML writes without a value.
_VALUELESS = _names("""
    allowfullscreen async checked controls defer disabled hidden loop multiple muted nowrap
    noshade open readonly required reversed selected
""")
_NAME = re.compile(r"[a-zA-Z_:][-\w:.]*\Z")
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
# The parser of some versions raises on a marked section that it doesn't know.
_ODD_SECTION = re.compile(r"<!\[(?!CDATA\[|if |else|endif)")
# White space, and the two joiners, without which words of some languages are spelled wrong.
_KEPT = "\n\t\xa0\u2002\u2003\u2009\u200c\u200d"
_AMPERSAND, _LESS = "\0", "\1"
_PASSES = 3
_DEEPEST = 3


def plain_text(text: str) -> str:
    """The text without HTML; the same text where it has none. Each block, such as a paragraph, is a
    line.

    Args:
        text: without NUL characters.
    """
    for _ in range(_PASSES):
        found = _ENTITY.sub(_character, _without_tags(text) if "<" in text else text)
        if found == text:
            break
        text = found
    return text


def _character(entity: re.Match[str]) -> str:
    """The entity's character; "" for a character that no text should hold; the entity itself when
    it names none.
    """
    found = html.unescape(entity[0])
    return found if found in _KEPT or (found.isprintable() and found != "\ufffd") else ""


def _without_tags(text: str, depth: int = 0) -> str:
    # From the last "<" that nothing closes on it is no tag; the parsers of Python's versions differ
    # on it.
    end = text.rfind(">") + 1
    end = text.find("<", end) if "<" in text[end:] else len(text)
    parser = _Reader(depth)
    parser.feed(_ODD_SECTION.sub(f"{_LESS}![", text[:end].replace("&", _AMPERSAND)))
    parser.finish()
    if not parser.touched:
        return text
    parser.handle_data(text[end:])
    plain = "".join(parser.parts).replace(_AMPERSAND, "&").replace(_LESS, "<")
    lines = (" ".join(line.split()) for line in plain.split("\n"))
    return "\n".join(line for line in lines if line)


class _Reader(HTMLParser):
    """Collects what a reader sees. `touched`: there was HTML."""

    def __init__(self, depth: int) -> None:
        super().__init__(convert_charrefs=False)
        self.parts: list[str] = []
        self.touched = False
        self._depth = depth
        self._gap = ""
        self._unseen: str | None = None
        self._hidden: list[str] = []

    def finish(self) -> None:
        """Read what the parser still waits to understand. A script that never ends is text."""
        rest = "".join((*self._hidden, self.rawdata))
        self._unseen = None
        self.handle_data(rest)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        raw = self.get_starttag_text() or ""
        written = all(
            (_NAME.match(name) and (value is not None or name in _VALUELESS)) or name == "/"
            for name, value in attrs
        )
        if _known(tag) and written:
            self._leave_out(tag)
            self._unseen = self._unseen or (
                tag if tag in _UNSEEN and not raw.endswith("/>") else None
            )
        else:
            # "a <b and <p>c</p>": what the parser took for attributes may be a tag.
            inner = (
                _without_tags(raw[1:], self._depth + 1)
                if "<" in raw[1:] and self._depth < _DEEPEST
                else raw[1:]
            )
            self.handle_data(f"<{inner}")
            if inner != raw[1:]:
                self._leave_out("span")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._unseen:
            self._unseen = None
            self._hidden.clear()
        if _known(tag):
            self._leave_out(tag)
        else:
            self.handle_data(f"</{tag}>")

    def handle_data(self, data: str) -> None:
        if self._unseen or not data:
            self._hidden.append(data)
            return
        if self.parts and not (self._gap == " " and data[0] in ",.;:!?)]%"):
            self.parts.append(self._gap)
        self._gap = ""
        self.parts.append(data)

    def handle_comment(self, data: str) -> None:
        self.unknown_decl(data.removeprefix("["))

    def unknown_decl(self, data: str) -> None:
        """`<![CDATA[...]]>`, which holds text; anything else of this kind is for machines."""
        self.touched = True
        if data.startswith("CDATA["):
            self.handle_data(data.removeprefix("CDATA[").removesuffix("]]"))

    def handle_decl(self, decl: str) -> None:  # noqa: ARG002
        self.touched = True

    def handle_pi(self, data: str) -> None:  # noqa: ARG002
        self.touched = True

    def _leave_out(self, tag: str) -> None:
        self.touched = True
        if tag in _BLOCKS:
            self._gap = "\n"
        elif tag not in _WITHIN_A_WORD:
            self._gap = self._gap or " "


def _known(tag: str) -> bool:
    return tag in _ELEMENTS
