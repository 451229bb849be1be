"""Judgements of other tools.

| format | of |
|---|---|
| `trec` | qrels: query id, 0, item, grade |
| `beir` | qrels with the header `query-id corpus-id score`, separated by tabs |
| `quepid` | Quepid 8: a case's CSV (`query,docid,rating`, or detailed), or a book's (a column a
judge) |
| `ranklib` | RankLib and the plugin Learning to Rank: `grade qid:1 ... # item`; `# qid:1: text` |
| `rre` | Rated Ranking Evaluator: JSON with topics, query groups and relevant documents |
| `workbench` | OpenSearch's Search Relevance Workbench: JSON with `judgmentRatings` |
| `rank_eval` | Elasticsearch's and OpenSearch's `_rank_eval`: JSON with `requests` |

`trec` and `beir` have ids of queries, the others mostly their texts. The grades of several judges
of a book become one by Quepid's own rule. `indexers.exports` writes the first three.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from cogr.datasets.fields import check_id, id_field, number_field
from cogr.datasets.reading import Place, Sheet, json_object, json_whole, lines
from cogr.errors import DataError

BEIR = ("query-id", "corpus-id", "score")
QUEPID = ("query", "docid")
_DETAILED = ("query text", "doc id", "rating")


@dataclass(frozen=True, slots=True)
class Judged:
    """One judgement. `query`, its text, and `query_id` are "" where the format has none, `item` is
    "" for a query without judgements; `grade` is None for an item that judges did not grade.
    """

    place: Place
    query: str
    query_id: str
    item: str
    grade: float | None


def read_judgements(path: Path, format: str | None = None) -> Iterator[Judged]:
    """Judgements of a file, plain or gzip, in a format of `FORMATS`, or the detected one. Raises
    DataError.
    """
    return FORMATS[format or looks_like(path)](path)


def looks_like(path: Path) -> str:
    """A file's format, by its content. Raises DataError for an unknown format."""
    first = next((line for _, line in islice(lines(path), 20) if line.strip()), "")
    names = {name.strip(' "').casefold() for name in re.split("[,;\t]", first)}
    if {*BEIR} <= names:
        return "beir"
    if {*QUEPID} <= names or {*_DETAILED} <= names:
        return "quepid"
    if re.match(r"(?:# *|\S+ +|\S+\t+)qid:", first):
        return "ranklib"
    if re.fullmatch(r"\s*\S+\s+Q?\d+\s+\S+\s+\S+\s*", first):
        return "trec"
    if first.lstrip().startswith("{") and isinstance(whole := json_whole(path), dict):
        keys = {"judgmentRatings": "workbench", "topics": "rre", "requests": "rank_eval"}
        for key in keys.keys() & whole.keys():
            return keys[key]
    raise DataError(
        f"{path} has no known format of judgements; convert it to one of {', '.join(FORMATS)}, or "
        "name its format with --format."
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
    sheet = Sheet.open(path, QUEPID)
    detailed = {name.casefold(): name for name in sheet.header}
    if {*_DETAILED} <= detailed.keys():
        for place, record in sheet.records():
            text, item, rating = (record.get(detailed[name], "") for name in _DETAILED)
            yield from _judged(place, text, "", item, rating or None)
        return
    for column in QUEPID:
        sheet.need(column)
    judges = [name for name in sheet.header if name not in QUEPID]
    for place, record in sheet.records():
        if "query" not in record:
            raise DataError(f"{place}: the query has no text; write one.")
        given = (number_field(record, name, place, 0.0) for name in judges if name in record)
        grades = list(given)
        grade = consensus(grades) if grades else None
        yield Judged(place, record["query"], "", record.get("docid", ""), grade)


def _judged(
    place: Place, text: str, query_id: str, item: object, grade: object
) -> Iterator[Judged]:
    if not (text or query_id):
        raise DataError(f"{place}: a query has no text; write one.")
    value = None if grade is None else number_field({"grade": grade}, "grade", place, 0.0)
    known = id_field({"item": item}, "item", place) if item or value is not None else ""
    yield Judged(place, text, query_id, known, None if value is None else max(0.0, value))


def _read_ranklib(path: Path) -> Iterator[Judged]:
    texts: dict[str, str] = {}
    for number, line in lines(path):
        place = Place(path, number)
        if named := re.match(r"# *qid: *(\S+?) *: *(.+)", line):
            texts[named[1]] = named[2].strip()
        elif not line.startswith("#") and line.strip():
            row = re.match(r"\s*(\S+)\s+qid:(\S+)[^#]*#\s*(?:docid\s*=\s*)?(\S+)", line)
            if not row:
                raise DataError(
                    f"{place}: the line is not 'GRADE qid:ID FEATURES # ITEM'; correct it."
                )
            yield from _judged(place, texts.get(row[2], ""), row[2], row[3], row[1])


def _read_rre(path: Path) -> Iterator[Judged]:
    place, groups = Place(path, 1), list[Mapping[str, Any]]()
    for topic in _objects(json_whole(path), "topics", place):
        groups += _objects(topic, "query_groups", place)
    for group in groups:
        relevant = group.get("relevant_documents", {})
        parts = relevant if isinstance(relevant, list) else [relevant]
        # Grade -> ids, or id -> its gain.
        grades: dict[Any, Any] = {}
        for key, value in (pair for part in parts for pair in json_object(part, place).items()):
            some = dict.fromkeys(value, key) if isinstance(value, list) else {key: value}
            grades |= {i: g.get("gain") if isinstance(g, dict) else g for i, g in some.items()}
        for query in _objects(group, "queries", place):
            text = next(iter(query.get("placeholders", {}).values()), group.get("name", ""))
            for item, grade in grades.items():
                yield from _judged(place, str(text), "", item, grade)


def _read_workbench(path: Path) -> Iterator[Judged]:
    place = Place(path, 1)
    for query in _objects(json_whole(path), "judgmentRatings", place):
        for one in _objects(query, "ratings", place):
            text, item = str(query.get("query") or ""), one.get("docId")
            yield from _judged(place, text, "", item, one.get("rating"))


def _read_rank_eval(path: Path) -> Iterator[Judged]:
    place = Place(path, 1)
    for request in _objects(json_whole(path), "requests", place):
        text = _text_in(request.get("params")) or _text_in(request.get("request"))
        for one in _objects(request, "ratings", place):
            id_ = str(request.get("id") or "")
            yield from _judged(place, text, id_, one.get("_id"), one.get("rating"))


def _text_in(value: Any) -> str:
    """The query's text in a request: the first text called query, or the first of its kind."""
    if isinstance(value, str):
        return value
    inner = value if isinstance(value, dict) else {}
    first = [inner["query"]] if "query" in inner else []
    return next(filter(None, map(_text_in, [*first, *inner.values()])), "")


def _objects(value: Any, key: str, place: Place) -> list[Mapping[str, Any]]:
    objects = json_object(value, place).get(key, [])
    if not isinstance(objects, list):
        raise DataError(f"{place}: {key!r} is not a list; write one of objects.")
    return [json_object(one, place) for one in objects]


FORMATS: dict[str, Callable[[Path], Iterator[Judged]]] = {
    "trec": _read_trec,
    "beir": _read_beir,
    "quepid": _read_quepid,
    "ranklib": _read_ranklib,
    "rre": _read_rre,
    "workbench": _read_workbench,
    "rank_eval": _read_rank_eval,
}
"""By name, how each is read."""
