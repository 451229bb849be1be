"""Types of the items' extra fields, so that an index can filter, count and sort by price, brand or
stock.

A field has one type for all items: the first in `TYPES` that every value fits. So texts that are
numbers, as in CSV, become numbers. The backend maps types to those of OpenSearch.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Literal, get_args

from cogr.errors import DataError
from cogr.records import FieldValue, Scalar, fields_of

FieldType = Literal["boolean", "long", "double", "date", "keyword"]
TYPES: tuple[FieldType, ...] = get_args(FieldType)

MAX_BYTES = 32_766
"""The longest term that Lucene takes."""
_LONG = 1 << 63
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})")
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_TIME = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?)?")
_ANY = frozenset(TYPES)


def types_of(
    items: Iterable[tuple[str, str]],
    names: Iterable[str],
    given: Mapping[str, FieldType] | None = None,
) -> dict[str, FieldType]:
    """The type of every field, by name.

    Args:
        items: (id, its fields as one JSON object or "") of all items.
        given: types that are set; the others are inferred from the values. A field without any
            value is a keyword.

    Raises:
        DataError: a field has values of several kinds; names the item and the field.
    """
    given = given or {}
    open_ = {name: _ANY for name in names if name not in given}
    example: dict[str, tuple[str, Scalar]] = {}
    seen: set[str] = set()
    for id_, fields_json in items if open_ else ():
        for name, value in fields_of(fields_json).items():
            for one in values_of(value) if name in open_ else ():
                left = open_[name] & _fitting(one)
                if not left:
                    raise DataError(_mixed(name, (id_, one), example[name]))
                if left != open_[name] or name not in example:
                    example[name] = (id_, one)
                open_[name] = left
                seen.add(name)
    derived = {
        name: next(t for t in TYPES if t in left) if name in seen else "keyword"
        for name, left in open_.items()
    }
    return dict(sorted({**derived, **{name: given[name] for name in given}}.items()))


def typed(id_: str, fields_json: str, types: Mapping[str, FieldType]) -> str:
    """An item's fields as a snapshot stores them: converted to their types, names sorted, no empty
    values.

    Args:
        fields_json: one JSON object, or "".

    Raises:
        DataError: a value does not fit its field; names the item and the field.
    """
    given = fields_of(fields_json)
    kept: dict[str, FieldValue] = {}
    for name in sorted(given.keys() & types.keys()):
        values = [_made(id_, name, one, types[name]) for one in values_of(given[name])]
        if values:
            kept[name] = values if isinstance(given[name], list) else values[0]
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":")) if kept else ""


def values_of(value: FieldValue) -> list[Scalar]:
    """The single values; an empty text is no value."""
    return [one for one in (value if isinstance(value, list) else [value]) if one != ""]


def _fitting(value: Scalar) -> frozenset[FieldType]:
    # Only a text fits a keyword: a number or a boolean in the data is meant as such.
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int):
        return frozenset({"long", "double"})
    if isinstance(value, float):
        return frozenset({"double"})
    text = value.strip()
    found: set[FieldType] = {"keyword"}
    if text.lower() in ("true", "false"):
        found.add("boolean")
    elif _NUMBER.fullmatch(text):
        found |= {"long", "double"} if _WHOLE.fullmatch(text) else {"double"}
    elif _TIME.fullmatch(text) and _time(text) is not None:
        found.add("date")
    return frozenset(found)


def _made(id_: str, name: str, value: Scalar, type_: FieldType) -> Scalar:
    made = _MAKERS[type_](value)
    if made is None:
        raise DataError(
            f"The field {name} of item {id_!r} is {_shown(value)}, not {_CALLED[type_]}; "
            f"correct it, or set publish.field_types.{name}."
        )
    if isinstance(made, str) and len(made) * 4 > MAX_BYTES and len(made.encode()) > MAX_BYTES:
        raise DataError(
            f"The field {name} of item {id_!r} has {len(made):,} characters, but a text for "
            f"filters has at most {MAX_BYTES:,} bytes; shorten it, or take the field out of "
            "publish.fields."
        )
    return made


def _boolean(value: Scalar) -> bool | None:
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(str(value).strip().lower())


def _long(value: Scalar) -> int | None:
    if isinstance(value, str):
        value = int(value) if re.fullmatch(r"[+-]?\d{1,19}", value.strip()) else math.nan
    whole = not isinstance(value, bool) and math.isfinite(value) and int(value) == value
    return int(value) if whole and -_LONG <= value < _LONG else None


def _double(value: Scalar) -> float | None:
    try:
        made = math.nan if isinstance(value, bool) else float(value)
    except (ValueError, OverflowError):
        return None
    return made if math.isfinite(made) else None


def _time(text: str) -> str | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return text if _TIME.fullmatch(text) else found.isoformat()


_MAKERS: Mapping[FieldType, Callable[[Scalar], Scalar | None]] = {
    "boolean": _boolean,
    "long": _long,
    "double": _double,
    "date": lambda value: _time(value.strip()) if isinstance(value, str) else None,
    "keyword": lambda value: value if isinstance(value, str) else json.dumps(value),
}
_CALLED: Mapping[FieldType, str] = {
    "boolean": "true or false",
    "long": "a whole number of 64 bits",
    "double": "a number",
    "date": "a time such as 2026-01-31 or 2026-01-31T12:00:00Z",
    "keyword": "text",
}


def _mixed(name: str, one: tuple[str, Scalar], other: tuple[str, Scalar]) -> str:
    return (
        f"The field {name} of item {one[0]!r} is {_shown(one[1])}, but of item {other[0]!r} "
        f"{_shown(other[1])}; write one kind of value, or set "
        f'publish.field_types.{name} = "keyword".'
    )


def _shown(value: Scalar) -> str:
    if isinstance(value, str):
        return f"the text {value[:40]!r}"
    return json.dumps(value) if isinstance(value, bool) else f"the number {value}"
