"""What the fields of a data set of one's own are called, and which of them make an item's title and
text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cogr.datasets.fields import check_text, text_field
from cogr.datasets.reading import Place
from cogr.errors import DataError

USUAL_TEXT = ("text",)


@dataclass(frozen=True, slots=True)
class QueryColumns:
    """Names of a query's fields; "" for one that is not to be read."""

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
        text: several are joined by line ends, lists and numbers in them written out; the usual one
            must be a string.
        fields: names that extra fields have in the source, by the names that they get.
    """

    id: str = "id"
    title: str = "title"
    text: tuple[str, ...] = USUAL_TEXT
    updated: str = "updated"
    fields: Mapping[str, str] = field(default_factory=dict)
    queries: QueryColumns = QueryColumns()
    labels: LabelColumns = LabelColumns()

    def sources(self, fields: Sequence[str]) -> Sequence[tuple[str, str]]:
        """Extra fields that are asked for, each with its name in the source."""
        return [(name, self.fields.get(name, name)) for name in fields]

    def renamed(self) -> Iterator[tuple[str, str]]:
        """(setting, name) of the item's fields that are not the usual ones, and so must
        be there.
        """
        for name in ("id", "title", "updated"):
            if (column := getattr(self, name)) not in (name, ""):
                yield f"dataset.columns.{name}", column
        if self.text != USUAL_TEXT:
            yield from (("dataset.columns.text", column) for column in self.text)

    def read(self) -> frozenset[str]:
        """Names of the item's fields that are read, without extra ones."""
        return frozenset((self.id, self.title, *self.text, self.updated))

    def title_and_text(self, record: Mapping[str, Any], place: Place) -> tuple[str, str]:
        """An item's title and text, "" for none; strings are not looked into.

        Raises DataError when the record has neither.
        """
        if self.text is USUAL_TEXT:
            title, text = record.get(self.title), record.get("text")
            if isinstance(title, str) and isinstance(text, str):
                return title, text  # as most items are
        if record.get(self.title) is None and all(record.get(name) is None for name in self.text):
            names = ", ".join(map(repr, (self.title, *self.text[:-1])))
            raise DataError(
                f"{place}: the item has neither {names} nor {self.text[-1]!r}; give it one of "
                "them, or say in "
                "dataset.columns what they are called."
            )
        title = text_field(record, self.title, place)
        if self.text == USUAL_TEXT:
            return title, text_field(record, "text", place)
        parts = (_written(record.get(name), name, place) for name in self.text)
        return title, "\n".join(part for part in parts if part and not part.isspace())


def _written(value: Any, name: str, place: Place) -> str:
    """A text, a number or a list of them as text."""
    if value is None or isinstance(value, str):
        return check_text(value or "", name, place)
    if isinstance(value, list):
        return ", ".join(part for one in value if (part := _written(one, name, place)))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "" if value != value else str(value)
    raise DataError(
        f"{place}: {name!r} is no text, number or list of them; leave it out of "
        "dataset.columns.text."
    )
