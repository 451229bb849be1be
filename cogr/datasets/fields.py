"""Reads the fields of a record: checks them, converts them to one type, and removes HTML.
`Columns` has the names of the fields in a user's own data.

Every error names the place and what to do. What depends on several records (duplicates, unknown
ids) is in `builder`.
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
from typing import Any

from cogr.datasets.reading import Place
from cogr.errors import DataError
from cogr.records import Scalar

MAX_ID_BYTES = 512
"""The longest document id that OpenSearch takes."""
_HUGE = 1 << 1000
DEFAULT_TEXT = ("text",)
"""Of `Columns.text`."""


@dataclass(frozen=True, slots=True)
class Columns:
    """Names of an item's fields.

    Attributes:
        id, title, updated: "" for an `updated` that is not to be read.
        text: several are joined by line ends, with lists and numbers in them written out; the
            default one must be a string.
        fields: an extra field's name -> its name in the source, where that is another one.
    """

    id: str = "id"
    title: str = "title"
    text: tuple[str, ...] = DEFAULT_TEXT
    updated: str = "updated"
    fields: Mapping[str, str] = field(default_factory=dict)

    def sources(self, fields: Sequence[str]) -> Sequence[tuple[str, str]]:
        """(name, name in the source) of extra fields."""
        return [(name, self.fields.get(name, name)) for name in fields]

    def renamed(self) -> Iterator[tuple[str, str]]:
        """(setting, name) of the item's fields that are set, and so must be in the source."""
        for name in ("id", "title"):
            if (column := getattr(self, name)) != name:
                yield f"dataset.columns.{name}", column
        if self.text != DEFAULT_TEXT:
            yield from (("dataset.columns.text", column) for column in self.text)

    def read(self) -> frozenset[str]:
        """Names of the item's fields that are read, without extra ones."""
        return frozenset((self.id, self.title, *self.text, self.updated))

    def title_and_text(self, record: Mapping[str, Any], place: Place) -> tuple[str, str]:
        """An item's title and text, "" for none."""
        title = text_field(record, self.title, place)
        if self.text == DEFAULT_TEXT:
            return title, text_field(record, "text", place)
        parts = (written(pick(record, name), name, place) for name in self.text)
        return title, "\n".join(part for part in parts if part and not part.isspace())


def pick(record: Mapping[str, Any], path: str) -> Any:
    """A field by its name, or by a dotted path through objects; lists on the way give lists."""
    if path in record or "." not in path:
        return record.get(path)
    head, _, rest = path.partition(".")
    inner = record.get(head)
    if isinstance(inner, Mapping):
        return pick(inner, rest)
    if isinstance(inner, list):
        picked = [pick(one, rest) for one in inner if isinstance(one, Mapping)]
        flat = (one if isinstance(one, list) else [one] for one in picked if one is not None)
        return [value for some in flat for value in some] or None
    return None


def id_field(record: Mapping[str, Any], key: str, place: Place) -> str:
    """An id: a string, or an integer, which becomes a string.

    Raises DataError when it is missing or something else.
    """
    value = pick(record, key)
    if value is None:
        raise DataError(f"{place}: the record has no {key!r}; give every record one.")
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise DataError(f"{place}: {key!r} is {_kind(value)}; write it as a string.")
    return check_id(str(value), key, place)


def check_id(value: str, key: str, place: Place) -> str:
    """The id itself. Raises DataError when it is empty, too long, or holds a NUL or a lone
    surrogate.
    """
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

    Raises DataError when it is not a string or holds a lone surrogate.
    """
    value = pick(record, key)
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
    """A finite number, or a text that is one, as in CSV; the default when the record has none.

    Raises DataError when it is something else.
    """
    value = pick(record, key)
    if value is None:
        return default
    try:
        number = math.nan if isinstance(value, bool | bytes) else float(value)
    except (ValueError, TypeError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        shown = repr(value) if isinstance(value, float) else _kind(value)
        raise DataError(f"{place}: {key!r} is {shown}; write it as a number.")
    return number


def time_field(record: Mapping[str, Any], key: str, place: Place) -> datetime | None:
    """A time in UTC: ISO 8601 (UTC unless it says otherwise), or seconds or milliseconds since
    1970; None when the record has none. Raises DataError.
    """
    value = pick(record, key)
    if value is None:
        return None
    try:
        if isinstance(value, datetime):
            return in_utc(value).astimezone(UTC)
        if isinstance(value, str) and not value.strip().replace(".", "", 1).isdecimal():
            return in_utc(datetime.fromisoformat(value)).astimezone(UTC)
        seconds = number_field(record, key, place, 0.0)
        return datetime.fromtimestamp(seconds / (1000 if abs(seconds) >= 1e11 else 1), UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise DataError(
            f"{place}: {key!r} is {value!r}; write a time such as 2026-01-31T12:00:00Z."
        ) from error


def in_utc(time: datetime) -> datetime:
    """The time with a zone: UTC where it names none."""
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time


def fields_as_json(
    record: Mapping[str, Any], sources: Iterable[tuple[str, str]], place: Place
) -> str:
    """Extra fields of a record as one JSON object, "" when it has none of them. `sources`: (name,
    name in the record).

    A field is a text, a number, true or false, or a list of these; times become ISO 8601. Null, and
    the NaN that pandas writes for it, is no value. Raises DataError for anything else.
    """
    values = ((name, _field_value(pick(record, source), source, place)) for name, source in sources)
    known = {name: value for name, value in values if value is not None}
    return json.dumps(known, ensure_ascii=False, separators=(",", ":")) if known else ""


def _field_value(value: Any, name: str, place: Place) -> Scalar | list[Scalar] | None:
    if isinstance(value, list):
        return [one for inner in value if (one := _scalar(inner, name, place)) is not None]
    return _scalar(value, name, place)


def _scalar(value: Any, name: str, place: Place) -> Scalar | None:
    if value is None or (isinstance(value, int) and abs(value) < _HUGE):
        return value
    if isinstance(value, str):
        return check_text(value, name, place).replace("\0", "")
    if isinstance(value, date):  # a datetime is one
        return value.isoformat()
    if isinstance(value, float | Decimal) and not math.isinf(value):
        return None if math.isnan(value) else float(value)
    raise DataError(
        f"{place}: {name!r} is {_kind(value)}; write a text, a number, true or false, or a list "
        "of them."
    )


def written(value: Any, name: str, place: Place) -> str:
    """A text, a number or a list of them as text. Raises DataError."""
    if value is None or isinstance(value, str):
        return check_text(value or "", name, place)
    if isinstance(value, list):
        return ", ".join(part for one in value if (part := written(one, name, place)))
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        return "" if value != value else str(value)
    raise DataError(
        f"{place}: {name!r} is not a text, a number or a list of them; name another field as title "
        "or text."
    )


def _kind(value: Any) -> str:
    if isinstance(value, str):
        return f"the string {value[:40]!r}"
    if isinstance(value, bool):
        return "true or false"
    return {"int": "a number", "float": "a number", "list": "a list", "dict": "an object"}.get(
        type(value).__name__, type(value).__name__
    )


_INLINE = """
    a abbr acronym b bdi bdo big cite code data del dfn em font i img ins kbd label mark nobr o:p q
    rp rt ruby s samp small span strike strong time tt u var
"""
_WITHIN_A_WORD = ("sub", "sup", "wbr")
_BLOCKS = """
    address area article aside audio base blockquote body br button canvas caption center col
    colgroup dd details dialog dir div dl dt embed fieldset figcaption figure footer form frame
    frameset h1 h2 h3 h4 h5 h6 head header hgroup hr html iframe input legend li link main map menu
    meta nav noscript object ol optgroup option output p picture pre progress script section select
    source style summary svg table tbody td template textarea tfoot th thead title tr track ul video
"""
_GAP = "\0"
_INSTEAD = {
    **dict.fromkeys(_INLINE.split(), _GAP),
    **dict.fromkeys(_WITHIN_A_WORD, ""),
    **dict.fromkeys(_BLOCKS.split(), "\n"),
}
# A known element, with attributes in HTML's syntax; so "a <b and c> d" and "List<String>" are text.
_TAG = re.compile(
    rf"</?({'|'.join(_INSTEAD)})(?>\s+[\w:.-]+\s*=\s*(?>\"[^\"]*\"|'[^']*'|[^\s\"'<>`]+))*+\s*/?>"
    r"|<!doctype[^<>]*>",
    re.IGNORECASE,
)
_UNSEEN = [
    (re.compile(end, re.IGNORECASE), re.compile(rf"{begin}.*?{end}", re.IGNORECASE | re.DOTALL))
    for begin, end in (
        *((rf"<{name}\b[^<>]*>", rf"</{name}\s*>") for name in ("script", "style", "template")),
        ("<!--", "-->"),
    )
]
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_GAPS = re.compile(rf"{_GAP}+([,.;:!?)\]%]?)")
# White space, and the two joiners, without which words of some languages are spelled wrong.
_KEPT = "\n\t\xa0\u2002\u2003\u2009\u200c\u200d"
_PASSES = 3


def plain_text(text: str) -> str:
    """The text without HTML; the same text where it has none. Each block, such as a paragraph, is a
    line.

    These count as HTML: known elements, comments, scripts, styles, and entities that end in a
    semicolon, also where they are escaped, as feeds write them ("&lt;p&gt;").

    Args:
        text: without NUL characters.
    """
    for _ in range(_PASSES):
        plain = _ENTITY.sub(_character, _without_tags(text) if "<" in text else text)
        if plain == text:
            break
        text = plain
    return text


def _character(entity: re.Match[str]) -> str:
    character = html.unescape(entity[0])
    return (
        character
        if character in _KEPT or (character.isprintable() and character != "\ufffd")
        else ""
    )


def _without_tags(text: str) -> str:
    plain = text
    for end, whole in _UNSEEN:
        # What is not closed is text. Behind the last end none is looked for, which would take long.
        last = max((match.end() for match in end.finditer(plain)), default=0)
        plain = whole.sub("", plain[:last]) + plain[last:]
    plain = _TAG.sub(lambda tag: _INSTEAD.get((tag[1] or "p").lower(), "\n"), plain)
    if plain == text:
        return text
    plain = _GAPS.sub(lambda gap: gap[1] or " ", plain)
    lines = (" ".join(line.split()) for line in plain.split("\n"))
    return "\n".join(line for line in lines if line)
