"""Fields of a record: taken out, freed of HTML, checked and made one type; and what the fields of a
data set of one's own are called (`Columns`).

Every error names the place and what to do. What depends on several records (duplicates, unknown
ids) is in `builder`.

HTML is: elements that HTML has, with attributes in its syntax; comments, scripts, styles; entities
that end in a semicolon. So "a < b", "List<String>", "R&D" and "x&y=1" stay as they are. Escaped
HTML, as feeds write it ("&lt;p&gt;"), is HTML too. Parsed by the standard library's `html.parser`.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from html.parser import HTMLParser
from typing import Any

from cogr.datasets.reading import Place
from cogr.errors import DataError
from cogr.records import Scalar

MAX_ID_BYTES = 512
"""The longest document id that OpenSearch takes."""


DEFAULT_TEXT = ("text",)
"""Of `Columns.text`."""


@dataclass(frozen=True, slots=True)
class QueryColumns:
    """Names of a query's fields; "" for a field that is not to be read."""

    id: str = "id"
    text: str = "text"
    weight: str = "weight"
    split: str = "split"
    updated: str = "updated"


@dataclass(frozen=True, slots=True)
class LabelColumns:
    """Names of a judgement's fields."""

    query: str = "query"
    item: str = "item"
    grade: str = "grade"


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of an item's fields, and of the other records'.

    Attributes:
        id, title, updated: "" for `updated` that is not to be read.
        text: several are joined by line ends, with lists and numbers in them written out; the
            default one must be a string.
        fields: an extra field's name -> its name in the source, where that is another one.
    """

    id: str = "id"
    title: str = "title"
    text: tuple[str, ...] = DEFAULT_TEXT
    updated: str = "updated"
    fields: Mapping[str, str] = field(default_factory=dict)
    queries: QueryColumns = QueryColumns()
    labels: LabelColumns = LabelColumns()

    def sources(self, fields: Sequence[str]) -> Sequence[tuple[str, str]]:
        """(name, name in the source) of extra fields."""
        return [(name, self.fields.get(name, name)) for name in fields]

    def renamed(self) -> Iterator[tuple[str, str]]:
        """(setting, name) of the item's fields that are set, and so must be in the source."""
        for name in ("id", "title", "updated"):
            if (column := getattr(self, name)) not in (name, ""):
                yield f"dataset.columns.{name}", column
        if self.text != DEFAULT_TEXT:
            yield from (("dataset.columns.text", column) for column in self.text)

    def read(self) -> frozenset[str]:
        """Names of the item's fields that are read, without extra ones."""
        return frozenset((self.id, self.title, *self.text, self.updated))

    def title_and_text(self, record: Mapping[str, Any], place: Place) -> tuple[str, str]:
        """An item's title and text, "" for none. Does not check their characters.

        Raises DataError when the record has neither.
        """
        if self.text is DEFAULT_TEXT:
            title, text = record.get(self.title), record.get("text")
            if isinstance(title, str) and isinstance(text, str):
                return title, text  # as most items are
        if record.get(self.title) is None and all(record.get(name) is None for name in self.text):
            names = ", ".join(map(repr, (self.title, *self.text[:-1])))
            raise DataError(
                f"{place}: the item has neither {names} nor {self.text[-1]!r}; give it one of "
                "them, or say in dataset.columns what they are called."
            )
        title = text_field(record, self.title, place)
        if self.text == DEFAULT_TEXT:
            return title, text_field(record, "text", place)
        parts = (written(record.get(name), name, place) for name in self.text)
        return title, "\n".join(part for part in parts if part and not part.isspace())


def id_field(record: Mapping[str, Any], key: str, place: Place) -> str:
    """An id: a string, or an integer that is written out.

    Raises DataError when it is missing or something else.
    """
    value = record.get(key)
    if value is None:
        raise DataError(f"{place}: the record has no {key!r}; give every record one.")
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise DataError(f"{place}: {key!r} is {_kind(value)}; write it as a string.")
    return check_id(str(value), key, place)


def check_id(value: str, key: str, place: Place) -> str:
    """The id itself. Raises DataError when it is empty, too long, or holds a NUL or a lone
    surrogate.
    """
    if value.isascii() and value.isalnum() and len(value) <= MAX_ID_BYTES:
        return value  # as most ids are
    if not value or value.isspace():
        raise DataError(f"{place}: {key!r} is empty; give every record an id of its own.")
    if "\0" in value:
        raise DataError(f"{place}: {key!r} holds a NUL character; remove it.")
    if len(check_text(value, key, place).encode()) > MAX_ID_BYTES:
        raise DataError(
            f"{place}: {key!r} is longer than {MAX_ID_BYTES} bytes, the most OpenSearch takes; "
            "shorten it."
        )
    return value


def text_field(record: Mapping[str, Any], key: str, place: Place) -> str:
    """A text; "" when the record has none.

    Raises DataError when it is no string or holds a lone surrogate.
    """
    value = record.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise DataError(f"{place}: {key!r} is {_kind(value)}; write it as a string.")
    return check_text(value, key, place)


def check_text(value: str, key: str, place: Place) -> str:
    """The text itself. Raises DataError when it holds a lone surrogate, which no UTF-8 file or
    index can hold.
    """
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{place}: {key!r} holds a lone surrogate (U+{ord(value[error.start]):04X}) at "
            f"character {error.start + 1}; remove it."
        ) from error
    return value


def number_field(record: Mapping[str, Any], key: str, place: Place, default: float) -> float:
    """A finite number; the default when the record has none.

    Raises DataError when it is something else.
    """
    value = record.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
        raise DataError(f"{place}: {key!r} is {_shown(value)}; write it as a number.")
    return float(value)


def parse_number(text: str, key: str, place: Place) -> float:
    """A finite number from a text. Raises DataError."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{place}: {key!r} is {text[:40]!r}; write it as a number.")
    return number


def time_field(record: Mapping[str, Any], key: str, place: Place) -> datetime | None:
    """A time: ISO 8601 (UTC unless it says otherwise) or seconds since 1970; None when the record
    has none. Raises DataError.
    """
    value = record.get(key)
    if value is None or isinstance(value, datetime):
        return value and in_utc(value)
    try:
        if isinstance(value, str):
            return in_utc(datetime.fromisoformat(value))
        return datetime.fromtimestamp(number_field(record, key, place, 0.0), UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise DataError(
            f"{place}: {key!r} is {value!r}; write a time such as 2026-01-31T12:00:00Z."
        ) from error


def fields_as_json(
    record: Mapping[str, Any], sources: Iterable[tuple[str, str]], place: Place
) -> str:
    """Extra fields of a record as one JSON object, "" when it has none of them. `sources`: (name,
    name in the record).

    A field is a text, a number, true or false, or a list of these; times become ISO 8601. Null, and
    the NaN that pandas writes for it, is no value. Raises DataError for anything else.
    """
    values = ((name, _field_value(record.get(source), source, place)) for name, source in sources)
    found = {name: value for name, value in values if value is not None}
    return json.dumps(found, ensure_ascii=False, separators=(",", ":")) if found else ""


def _field_value(value: Any, name: str, place: Place) -> Scalar | list[Scalar] | None:
    if isinstance(value, list):
        return [one for inner in value if (one := _scalar(inner, name, place)) is not None]
    return _scalar(value, name, place)


def _scalar(value: Any, name: str, place: Place) -> Scalar | None:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return check_text(value, name, place).replace("\0", "")
    if isinstance(value, date):  # a datetime is one
        return value.isoformat()
    if isinstance(value, float | Decimal) and not math.isinf(value):
        return None if math.isnan(value) else float(value)
    raise DataError(
        f"{place}: {name!r} is {_shown(value)}; write a text, a number, true or false, or a list "
        "of them."
    )


def in_utc(time: datetime) -> datetime:
    """The time with a zone: UTC where it names none."""
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def _finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, float) else _kind(value)


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return f"the string {value[:40]!r}"
    if isinstance(value, bool):
        return "true or false"
    return {"int": "a number", "float": "a number", "list": "a list", "dict": "an object"}.get(
        type(value).__name__, type(value).__name__
    )


def written(value: Any, name: str, place: Place) -> str:
    """A text, a number or a list of them as text."""
    if value is None or isinstance(value, str):
        return check_text(value or "", name, place)
    if isinstance(value, list):
        return ", ".join(part for one in value if (part := written(one, name, place)))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "" if value != value else str(value)
    raise DataError(
        f"{place}: {name!r} is no text, number or list of them; leave it out of "
        "dataset.columns.text."
    )


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
