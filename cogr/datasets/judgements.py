"""Judgements in the formats of other tools, read and written.

| format | of |
|---|---|
| `trec` | qrels: query id, 0, item, grade |
| `quepid` | Quepid 8: a case's CSV (`query,docid,rating`), a book's (a column a judge), ratings, \
cases and books as JSON, LTR lines (`3 qid:1 # item text`) |
| `rre` | the Rated Ranking Evaluator, and Quepid's form of it |
| `workbench` | OpenSearch's Search Relevance Workbench: `judgmentRatings` |
| `rank_eval` | the body of OpenSearch's `_rank_eval` |
| `letor` | LETOR and SVM-rank: grade, qid, features, `#docid = item` or `# item text` |

A format has ids of queries, their texts, or both; a writer takes what its format has room for.
Several judges of a book are one grade by Quepid's own rule. Nothing here knows what is in a data
set.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from cogr.datasets.fields import check_id, id_field, number_field, parse_number, text_field
from cogr.datasets.reading import Place, Sheet, json_object, lines, parse_json, safe_cell
from cogr.errors import DataError


@dataclass(frozen=True, slots=True)
class Judged:
    """One judgement.

    Attributes:
        query: the query's text; "" where the format has none.
        query_id: its id there; "" where the format has none.
        item: id of the item; "" for a query of which nothing is judged.
        grade: None for an item that was shown to judges and not judged.
    """

    place: Place
    query: str
    query_id: str
    item: str
    grade: float | None


def read_judgements(path: Path, format: str | None = None) -> Iterator[Judged]:
    """Judgements of a file, plain or packed by gzip.

    Args:
        format: a name of `FORMATS`; None for what the file looks like.

    Raises:
        DataError: it is not there, in no known format, or a record is bad; names file and line.
    """
    if not path.is_file():
        raise DataError(f"The file of judgements {path} is not there; name one.")
    return FORMATS[format or looks_like(path)].read(path)


def looks_like(path: Path) -> str:
    """A file's format, by its content. Raises DataError where it is none that is known."""
    first = [line for _, line in islice(lines(path), 20) if line.strip()]
    if not first:
        raise DataError(f"{path} is empty; name a file of judgements.")
    if first[0].lstrip().startswith(("{", "[")):
        return _json_format(path)
    if _LETOR.match(first[0]):
        return "quepid" if _QUEPID_LTR.match(first[0]) else "letor"
    fields = first[0].split()
    if len(fields) == 4 and "," not in first[0]:
        return "trec"
    names = {name.strip(' "').casefold() for name in re.split("[,;\t]", first[0])}
    if {"query", "docid"} <= names:
        return "quepid"
    raise DataError(
        f"{path} looks like no file of judgements that is known; name its format with --format: "
        f"{', '.join(FORMATS)}."
    )


def _json_format(path: Path) -> str:
    found = _json(path)
    signs = {
        "judgmentRatings": "workbench",
        "hits": "workbench",
        "requests": "rank_eval",
        "topics": "rre",
        "id_field": "rre",
        "query_doc_pairs": "quepid",
        "ratings": "quepid",
        "queries": "quepid",
    }
    for sign, format in signs.items():
        if sign in found:
            return format
    raise DataError(
        f"{path}: the JSON has none of {', '.join(signs)}; name its format with --format."
    )


def _json(path: Path) -> dict[str, Any]:
    place = Place(path, 1)
    return json_object(parse_json("\n".join(line for _, line in lines(path)), place), place)


def consensus(grades: Sequence[float]) -> float:
    """One grade of several judges, as Quepid makes it when a case is filled from a book: the mean
    of one or two; else the lowest of the three highest.
    """
    if len(grades) < 3:
        return sum(grades) / len(grades)
    return sorted(grades, reverse=True)[2]


# trec


def _read_trec(path: Path) -> Iterator[Judged]:
    wanted = "qrels have 4; write query, 0, item and grade"
    for place, (query, _, item, grade) in _columns(path, 4, wanted):
        # Below 0 are pages that nobody should see: not relevant, as for trec_eval.
        value = max(0.0, parse_number(grade, "grade", place))
        yield Judged(place, "", check_id(query, "query", place), item, value)


def _columns(path: Path, count: int, wanted: str) -> Iterator[tuple[Place, list[str]]]:
    """Lines of columns that white space separates, but for empty ones. Raises DataError."""
    for number, line in lines(path):
        fields = line.split()
        place = Place(path, number)
        if fields and len(fields) != count:
            raise DataError(f"{place}: the line has {len(fields)} fields where {wanted}.")
        if fields:
            yield place, fields


def _write_trec(judged: Iterable[Judged]) -> str:
    return "".join(
        f"{_word(one, one.query_id)} 0 {_word(one, one.item)} {_number(one.grade)}\n"
        for one in judged
        if one.grade is not None
    )


def _word(one: Judged, id_: str) -> str:
    if not id_ or any(letter.isspace() for letter in id_):
        raise DataError(
            f"{one.place}: the id {id_!r} is empty or has white space, which separates columns in "
            "this format; write another format."
        )
    return id_


def _number(grade: float | None) -> str:
    return f"{grade or 0:g}"


def read_run(path: Path) -> dict[str, list[str]]:
    """A TREC run: query id -> ids of items, score descending, then id, as everywhere here.

    Its ranks are not read: evaluation tools go by scores.

    Raises:
        DataError: it is not there, a line is bad, or an item is twice in one query's list.
    """
    if not path.is_file():
        raise DataError(f"The run {path} is not there; name one.")
    scores: dict[str, dict[str, float]] = {}
    wanted = "a run has 6; write query, Q0, item, rank, score and tag"
    for place, (query, _, item, _, score, _) in _columns(path, 6, wanted):
        found = scores.setdefault(query, {})
        if item in found:
            raise DataError(f"{place}: {item!r} is twice in the list of {query!r}; keep one.")
        found[item] = parse_number(score, "score", place)
    return {
        query: sorted(found, key=lambda item: (-found[item], item))
        for query, found in scores.items()
    }


# quepid

_LETOR = re.compile(r"\s*-?[\d.]+\s+qid:\S+")
_QUEPID_LTR = re.compile(r"\s*-?[\d.]+\s+qid:(\S+)\s+#\s*(\S+)\s+(.*)")


def _read_quepid(path: Path) -> Iterator[Judged]:
    first = next((line for _, line in lines(path) if line.strip()), "")
    if first.lstrip().startswith("{"):
        return _quepid_json(path, _json(path))
    if _LETOR.match(first):
        # Its numbers of queries are of one case and no other.
        return (replace(one, query_id="") for one in _read_letor(path))
    return _quepid_csv(path)


def _quepid_csv(path: Path) -> Iterator[Judged]:
    """A case's CSV, or a book's, which has a column for each judge."""
    sheet = Sheet.open(path, ["query", "docid"])
    for name in ("query", "docid"):
        sheet.need(name, "--format")
    query, item = (sheet.header.index(name) for name in ("query", "docid"))
    judges = [at for at in range(len(sheet.header)) if at not in (query, item)]
    for place, row in sheet.rows():
        # Quepid writes a blank before what a spreadsheet would take for a formula.
        text = _query_text(row[query].strip(), place)
        grades = [
            parse_number(row[at].strip(), sheet.header[at], place)
            for at in judges
            if row[at].strip()
        ]
        yield Judged(place, text, "", row[item].strip(), consensus(grades) if grades else None)


def _quepid_json(path: Path, found: Mapping[str, Any]) -> Iterator[Judged]:
    if "query_doc_pairs" in found:
        for place, pair in _objects(path, found, "query_doc_pairs"):
            text = _query_text(text_field(pair, "query_text", place), place)
            judges = (one for _, one in _objects(place, pair, "judgements"))
            grades = [
                number_field(one, "rating", place, 0.0)
                for one in judges
                if one.get("rating") is not None and not one.get("unrateable")
            ]
            item = id_field(pair, "doc_id", place)
            yield Judged(place, text, "", item, consensus(grades) if grades else None)
    elif "queries" not in found:
        for place, one in _objects(path, found, "ratings"):
            text = _query_text(text_field(one, "query_text", place), place)
            yield from _rated(place, text, [one])
    else:
        for place, query in _objects(path, found, "queries"):
            name = "query" if "query" in query else "query_text"
            text = _query_text(text_field(query, name, place), place)
            ratings = query.get("ratings") or []
            if isinstance(ratings, Mapping):
                ratings = [{"doc_id": item, "rating": rating} for item, rating in ratings.items()]
            yield from _rated(place, text, ratings)


def _rated(place: Place, text: str, ratings: Sequence[Mapping[str, Any]]) -> Iterator[Judged]:
    """Quepid's ratings of one query; without any, the query alone."""
    if not ratings:
        yield Judged(place, text, "", "", None)
    for one in ratings:
        if one.get("doc_id") is None:
            yield Judged(place, text, "", "", None)
            continue
        rating = one.get("rating")
        grade = None if rating in (None, "") else _grade(rating, "rating", place)
        yield Judged(place, text, "", id_field(one, "doc_id", place), grade)


def _write_quepid(judged: Iterable[Judged]) -> str:
    """The CSV that Quepid reads; a query of which nothing is judged is there, too."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["query", "docid", "rating"])
    for one in judged:
        writer.writerow(
            [safe_cell(one.query), one.item, "" if one.grade is None else _number(one.grade)]
        )
    return text.getvalue()


# rre


def _read_rre(path: Path) -> Iterator[Judged]:
    found = _json(path)
    if "topics" not in found:
        # Quepid's: queries with their own relevant documents.
        for place, query in _objects(path, found, "queries"):
            yield from _rre_group(place, [query], query)
        return
    for place, topic in _objects(path, found, "topics"):
        for _, group in _objects(place, topic, "query_groups"):
            queries = [query for _, query in _objects(place, group, "queries")]
            yield from _rre_group(place, queries, group)


def _rre_group(
    place: Place, queries: Sequence[Mapping[str, Any]], group: Mapping[str, Any]
) -> Iterator[Judged]:
    relevant = group.get("relevant_documents") or {}
    if not isinstance(relevant, Mapping):
        raise DataError(f"{place}: 'relevant_documents' is no object; write one.")
    for query in queries:
        placeholders = query.get("placeholders") or {}
        text = _query_text(text_field(placeholders, "$query", place), place)
        if not relevant:
            yield Judged(place, text, "", "", None)
        for key, value in relevant.items():
            if isinstance(value, list):  # grade -> items
                grade = _grade(key, "a grade of relevant_documents", place)
                yield from (Judged(place, text, "", str(item), grade) for item in value)
            else:  # item -> gain, which RRE calls rating, too
                inner = json_object(value, place)
                gain = inner.get("gain", inner.get("rating", 2))
                yield Judged(place, text, "", key, _grade(gain, "gain", place))


def _write_rre(judged: Iterable[Judged]) -> str:
    groups = []
    for text, some in _by_query(judged):
        by_grade: dict[str, list[str]] = {}
        for one in some:
            if one.grade is not None:
                by_grade.setdefault(_number(one.grade), []).append(one.item)
        queries = [{"template": "template.json", "placeholders": {"$query": text}}]
        groups.append({"name": text, "queries": queries, "relevant_documents": by_grade})
    topics = [{"description": "queries", "query_groups": groups}]
    head = {"index": "products", "id_field": "_id", "template": "template.json"}
    return json.dumps({**head, "topics": topics}, ensure_ascii=False, indent=1) + "\n"


# workbench


def _read_workbench(path: Path) -> Iterator[Judged]:
    found = _json(path)
    answered = found.get("hits", {}).get("hits")  # of GET judgments
    for one in [found] if answered is None else [hit["_source"] for hit in answered]:
        for place, query in _objects(path, one, "judgmentRatings"):
            text = _query_text(text_field(query, "query", place), place)
            for _, rating in _objects(place, query, "ratings"):
                grade = _grade(rating.get("rating"), "rating", place)
                yield Judged(place, text, "", id_field(rating, "docId", place), grade)


def judgment_ratings(judged: Iterable[Judged]) -> list[dict[str, Any]]:
    """`judgmentRatings` of the workbench."""
    found = []
    for text, some in _by_query(judged):
        ratings = [
            {"docId": one.item, "rating": f"{one.grade:.3f}"}
            for one in some
            if one.grade is not None
        ]
        if ratings:
            found.append({"query": text, "ratings": ratings})
    return found


def _write_workbench(judged: Iterable[Judged]) -> str:
    body = {
        "name": "cogr",
        "description": "Judgements of a data set",
        "type": "IMPORT_JUDGMENT",
        "judgmentRatings": judgment_ratings(judged),
    }
    return json.dumps(body, ensure_ascii=False, indent=1) + "\n"


# rank_eval


def _read_rank_eval(path: Path) -> Iterator[Judged]:
    for place, request in _objects(path, _json(path), "requests"):
        query = id_field(request, "id", place)
        for _, rating in _objects(place, request, "ratings"):
            grade = _grade(rating.get("rating"), "rating", place)
            yield Judged(place, "", query, id_field(rating, "_id", place), grade)


def rank_eval_body(
    judged: Iterable[Judged], index: str, request: Callable[[str], Mapping[str, Any]]
) -> dict[str, Any]:
    """`requests` of `_rank_eval`, to which `metric` is to be added.

    Args:
        index: in which the rated documents are.
        request: the search of a query, by its id.

    Raises DataError for a grade that is not whole, which OpenSearch refuses.
    """
    requests = []
    for query, some in groupby(judged, lambda one: one.query_id):
        ratings = [
            {"_index": index, "_id": one.item, "rating": _whole(one)}
            for one in some
            if one.grade is not None
        ]
        requests.append({"id": query, "request": request(query), "ratings": ratings})
    return {"requests": requests}


def _whole(one: Judged) -> int:
    if one.grade is None or one.grade != int(one.grade):
        raise DataError(
            f"{one.place}: the grade of {one.item!r} is {one.grade}, and _rank_eval takes whole "
            "ones; multiply or round them."
        )
    return int(one.grade)


# letor


def _read_letor(path: Path) -> Iterator[Judged]:
    for number, line in lines(path):
        if not line.strip():
            continue
        place = Place(path, number)
        head, _, comment = line.partition("#")
        fields = head.split()
        if not _LETOR.match(line) or not comment.strip():
            raise DataError(
                f"{place}: the line is no 'grade qid:N ... # item'; end it with the item's id "
                "behind #."
            )
        grade = parse_number(fields[0], "grade", place)
        query = fields[1].removeprefix("qid:")
        words = comment.split()
        if words[0] == "docid" and words[1:2] == ["="] and len(words) > 2:
            item, text = words[2], ""
        else:
            item, text = words[0], " ".join(words[1:])
        # -1 is "not judged" in LETOR's semi-supervised sets.
        yield Judged(place, text, query, item, None if grade < 0 else grade)


def _write_letor(judged: Iterable[Judged]) -> str:
    """Quepid's LTR lines, which are LETOR's without features; queries are numbered from 1."""
    numbers: dict[str, int] = {}
    found = []
    for one in judged:
        number = numbers.setdefault(one.query_id or one.query, len(numbers) + 1)
        if one.grade is not None:
            text = " ".join(one.query.split())
            found.append(f"{_number(one.grade)} qid:{number} # {_word(one, one.item)} {text}\n")
    return "".join(found)


# shared


def _objects(
    where: Path | Place, record: Mapping[str, Any], key: str
) -> Iterator[tuple[Place, Mapping[str, Any]]]:
    """The objects of a list; their place is their number, or that of the object around them."""
    found = record.get(key)
    if not isinstance(found, list):
        raise DataError(f"{where}: {key!r} is no list; write one.")
    for number, one in enumerate(found, start=1):
        place = where if isinstance(where, Place) else Place(where, number, key.rstrip("s"))
        yield place, json_object(one, place)


def _query_text(text: str, place: Place) -> str:
    if not text.strip():
        raise DataError(f"{place}: the query has no text; write one.")
    return text.strip()


def _grade(value: Any, key: str, place: Place) -> float:
    """A number, or a text that is one, as some tools write it."""
    if isinstance(value, str):
        return parse_number(value, key, place)
    if value is None:
        raise DataError(f"{place}: {key!r} is missing; write a number.")
    return number_field({key: value}, key, place, 0.0)


def _by_query(judged: Iterable[Judged]) -> Iterator[tuple[str, list[Judged]]]:
    for text, some in groupby(judged, lambda one: one.query):
        yield text, list(some)


@dataclass(frozen=True)
class Format:
    """A format: how it is read, and how it is written, where a list of judgements is enough."""

    read: Callable[[Path], Iterator[Judged]]
    write: Callable[[Iterable[Judged]], str] | None = None


FORMATS: dict[str, Format] = {
    "trec": Format(_read_trec, _write_trec),
    "quepid": Format(_read_quepid, _write_quepid),
    "rre": Format(_read_rre, _write_rre),
    "workbench": Format(_read_workbench, _write_workbench),
    "rank_eval": Format(_read_rank_eval),
    "letor": Format(_read_letor, _write_letor),
}
