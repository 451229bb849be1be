"""Judgements of other tools. `indexers.exports` writes the same formats.

| format | of |
|---|---|
| `trec` | qrels: query id, 0, item, grade |
| `beir` | qrels with the header `query-id corpus-id score`, separated by tabs |
| `quepid` | Quepid 8: a case's CSV (`query,docid,rating`), or a book's (a column a judge) |

`trec` and `beir` have ids of queries, `quepid` has their texts. The grades of several judges of a
book become one by Quepid's own rule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from cogr.datasets.fields import check_id, number_field
from cogr.datasets.reading import Place, Sheet, lines
from cogr.errors import DataError

BEIR = ("query-id", "corpus-id", "score")
QUEPID = ("query", "docid")


@dataclass(frozen=True, slots=True)
class Judged:
    """One judgement.

    Attributes:
        query: the query's text; "" where the format has none.
        query_id: the query's id; "" where the format has none.
        item: id of the item; "" for a query without judgements.
        grade: None for an item that judges saw but did not grade.
    """

    place: Place
    query: str
    query_id: str
    item: str
    grade: float | None


def read_judgements(path: Path, format: str | None = None) -> Iterator[Judged]:
    """Judgements of a file, plain or gzip.

    Args:
        format: a name of `FORMATS`; None to detect it.

    Raises:
        DataError: the file is missing, its format is unknown, or a record is bad; names file and
            line.
    """
    return FORMATS[format or looks_like(path)](path)


def looks_like(path: Path) -> str:
    """A file's format, by its content. Raises DataError for an unknown format."""
    first = next((line for _, line in islice(lines(path), 20) if line.strip()), "")
    names = {name.strip(' "').casefold() for name in re.split("[,;\t]", first)}
    if {*BEIR} <= names:
        return "beir"
    if {*QUEPID} <= names:
        return "quepid"
    if len(first.split()) == 4 and "," not in first:
        return "trec"
    raise DataError(
        f"{path} is not in a known format of judgements; write one of {', '.join(FORMATS)}."
    )


def consensus(grades: Sequence[float]) -> float:
    """One grade from several judges, by Quepid's rule for filling a case from a book: the mean of
    one or two grades; of more, the lowest of the three highest.
    """
    if len(grades) < 3:
        return sum(grades) / len(grades)
    return sorted(grades, reverse=True)[2]


def _read_trec(path: Path) -> Iterator[Judged]:
    for number, line in lines(path):
        fields, place = line.split(), Place(path, number)
        if not fields:
            continue
        if len(fields) != 4:
            raise DataError(
                f"{place}: the line has {len(fields)} fields where qrels have 4; write query, 0, "
                "item and grade."
            )
        query, _, item, grade = fields
        # Grades below 0 mark spam pages: not relevant, as for trec_eval.
        value = max(0.0, number_field({"grade": grade}, "grade", place, 0.0))
        yield Judged(place, "", check_id(query, "query", place), item, value)


def _read_beir(path: Path) -> Iterator[Judged]:
    for place, record in Sheet.of(path, *BEIR).records():
        query, item = (check_id(record.get(name, ""), name, place) for name in BEIR[:2])
        yield Judged(place, "", query, item, number_field(record, BEIR[2], place, 1.0))


def _read_quepid(path: Path) -> Iterator[Judged]:
    sheet = Sheet.of(path, *QUEPID)
    judges = [name for name in sheet.header if name not in QUEPID]
    for place, record in sheet.records():
        if "query" not in record:
            raise DataError(f"{place}: the query has no text; write one.")
        found = (number_field(record, name, place, 0.0) for name in judges if name in record)
        grades = list(found)
        grade = consensus(grades) if grades else None
        yield Judged(place, record["query"], "", record.get("docid", ""), grade)


FORMATS: dict[str, Callable[[Path], Iterator[Judged]]] = {
    "trec": _read_trec,
    "beir": _read_beir,
    "quepid": _read_quepid,
}
"""By name, how each is read."""
