"""Judgements of other tools: samples as those tools write them, and ways there and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from cogr.datasets.judgements import FORMATS, Judged, consensus, looks_like, read_judgements
from cogr.datasets.reading import Place
from cogr.errors import DataError

Rated = tuple[str, str, str, float | None]

# Each as the tool's own exporter writes it, cut short.
QUEPID_CSV = (
    'query,docid,rating\nstar trek,1370,3\nstar trek,"a,b",0\n -dash,7,2\nnothing found,,\n'
)
QUEPID_BOOK_CSV = (
    "query,docid,Ann B,Anonymous,C\nstar trek,1370,3,1,\nstar trek,193,3,2,0\nlamp,1,,,\n"
)
QUEPID_BOOK = {
    "name": "book",
    "scale": "0,1,2,3",
    "query_doc_pairs": [
        {
            "query_text": "star trek",
            "doc_id": "1370",
            "position": 1,
            "judgements": [
                {"rating": 3.0, "unrateable": False, "user_email": "a@b"},
                {"rating": 1.0, "unrateable": False},
                {"rating": None, "unrateable": True},
            ],
        }
    ],
}
QUEPID_CASE = {
    "case_name": "c",
    "queries": [
        {"query_text": "star trek", "ratings": [{"doc_id": "1370", "rating": 3.0}]},
        {"query_text": "lamp", "ratings": []},
    ],
}
QUEPID_RATINGS = {"queries": [{"query": "star trek", "ratings": {"1370": 3, "193": 0}}]}
QUEPID_HASH = {"ratings": [{"query_text": "star trek", "doc_id": "1370", "rating": "3"}]}
QUEPID_LTR = "\n\n3 qid:1 # 1370 star trek\n\n0 qid:1 # 193 star trek\n"
QUEPID_RRE = {
    "id_field": "id",
    "index": "tmdb",
    "template": "template.json",
    "queries": [
        {"placeholders": {"$query": "star trek"}, "relevant_documents": {"1370": {"gain": 3}}}
    ],
}
RRE = {
    "index": "basses",
    "corpora_file": "electric_basses.bulk",
    "id_field": "_id",
    "topics": [
        {
            "description": "Fender basses",
            "query_groups": [
                {
                    "name": "Brand search",
                    "queries": [
                        {"template": "t.json", "placeholders": {"$query": "fender"}},
                        {"template": "t.json", "placeholders": {"$query": "Fender bass"}},
                    ],
                    "relevant_documents": {"1": {"gain": 3}, "2": {"rating": 1}, "0": ["9"]},
                }
            ],
        }
    ],
}
WORKBENCH = {
    "name": "Imported",
    "type": "IMPORT_JUDGMENT",
    "judgmentRatings": [
        {"query": "red dress", "ratings": [{"docId": "B077", "rating": "3.000"}]},
        {"query": "blue jeans", "ratings": [{"docId": "B07L", "rating": "0.000"}]},
    ],
}
RANK_EVAL = {
    "requests": [
        {
            "id": "q1",
            "request": {"query": {"match": {"t": "x"}}},
            "ratings": [{"_index": "i", "_id": "d1", "rating": 2}],
        }
    ]
}
LETOR = (
    "2 qid:10032 1:0.056537 2:0.000000 46:0.076923 #docid = GX029-35-5894638 "
    "inc = 0.0119881192468859 prob = 0.139842\n"
    "-1 qid:10032 1:0.1 #docid = GX030 inc = 1 prob = 0.1\n4 qid:1 1:12.3 # 7555 rambo\n"
)


@pytest.mark.parametrize(
    ("content", "format", "expected"),
    [
        (
            QUEPID_CSV,
            "quepid",
            [
                ("star trek", "", "1370", 3),
                ("star trek", "", "a,b", 0),
                ("-dash", "", "7", 2),
                ("nothing found", "", "", None),
            ],
        ),
        (
            "\ufeffquery,docid,rating\r\nstar trek,1370,3\r\n",
            "quepid",
            [("star trek", "", "1370", 3)],
        ),
        (
            QUEPID_BOOK_CSV,
            "quepid",
            [
                ("star trek", "", "1370", 2),
                ("star trek", "", "193", 0),
                ("lamp", "", "1", None),
            ],
        ),
        (QUEPID_BOOK, "quepid", [("star trek", "", "1370", 2)]),
        (QUEPID_CASE, "quepid", [("star trek", "", "1370", 3), ("lamp", "", "", None)]),
        (QUEPID_RATINGS, "quepid", [("star trek", "", "1370", 3), ("star trek", "", "193", 0)]),
        (QUEPID_HASH, "quepid", [("star trek", "", "1370", 3)]),
        (QUEPID_LTR, "quepid", [("star trek", "", "1370", 3), ("star trek", "", "193", 0)]),
        (QUEPID_RRE, "rre", [("star trek", "", "1370", 3)]),
        (
            RRE,
            "rre",
            [
                (query, "", item, grade)
                for query in ("fender", "Fender bass")
                for item, grade in (("1", 3), ("2", 1), ("9", 0))
            ],
        ),
        (WORKBENCH, "workbench", [("red dress", "", "B077", 3), ("blue jeans", "", "B07L", 0)]),
        (
            {"hits": {"hits": [{"_id": "x", "_source": WORKBENCH}]}},
            "workbench",
            [("red dress", "", "B077", 3), ("blue jeans", "", "B07L", 0)],
        ),
        (RANK_EVAL, "rank_eval", [("", "q1", "d1", 2)]),
        (
            LETOR,
            "letor",
            [
                ("", "10032", "GX029-35-5894638", 2),
                ("", "10032", "GX030", None),
                ("rambo", "1", "7555", 4),
            ],
        ),
        (
            "301 0 FBIS3-10082 1\n301\t0  CR93E -1\n",
            "trec",
            [
                ("", "301", "FBIS3-10082", 1),
                ("", "301", "CR93E", 0),
            ],
        ),
    ],
)
def test_a_sample_of_each_tool_is_told_and_read(
    tmp_path: Path, content: object, format: str, expected: list[Rated]
) -> None:
    path = tmp_path / "judged"
    path.write_text(content if isinstance(content, str) else json.dumps(content), newline="")
    assert looks_like(path) == format
    found = [(one.query, one.query_id, one.item, one.grade) for one in read_judgements(path)]
    assert found == expected


JUDGED = [
    Judged(Place("x", 1), "green sofa", "q1", "a", 3.0),
    Judged(Place("x", 2), "green sofa", "q1", "b", 0.0),
    Judged(Place("x", 3), '=sum("1"), x', "q2", "c", 1.5),
]


@pytest.mark.parametrize("format", ["trec", "quepid", "rre", "workbench", "letor"])
def test_what_is_written_comes_back(tmp_path: Path, format: str) -> None:
    writer = FORMATS[format].write
    assert writer is not None
    (tmp_path / "judged").write_text(writer(JUDGED))
    found = list(read_judgements(tmp_path / "judged"))
    if format in ("trec", "letor"):
        ids = ["q1", "q1", "q2"] if format == "trec" else ["1", "1", "2"]
        assert [one.query_id for one in found] == (ids if format == "trec" else [""] * 3)
    if format != "trec":
        assert [one.query for one in found] == [one.query for one in JUDGED]
    assert [(one.item, one.grade) for one in found] == [(one.item, one.grade) for one in JUDGED]


@pytest.mark.parametrize(
    ("grades", "expected"), [([3], 3), ([3, 0], 1.5), ([0, 3, 3, 3], 3), ([3, 2, 0, 1], 1)]
)
def test_several_judges_are_one_grade_as_in_quepid(
    grades: Sequence[float], expected: float
) -> None:
    assert consensus(grades) == expected


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ("a b c\n", "looks like no file of judgements"),
        ('{"x": 1}', "the JSON has none of judgmentRatings"),
        (
            '{"judgmentRatings": [{"query": "a", "ratings": [{"docId": "b"}]}]}',
            "'rating' is missing",
        ),
        ('{"judgmentRatings": 3}', "'judgmentRatings' is no list"),
        ("q 0 d 1\nq 0 d\n", "line 2: the line has 3 fields where qrels have 4"),
        ("q 0 d high\n", "line 1: 'grade' is 'high'"),
        ("query,docid,rating\na,1,x\n", "line 2: 'rating' is 'x'"),
        ("query,docid,rating\n ,1,2\n", "line 2: the query has no text"),
        ("2 qid:1 1:3\n", "line 1: the line is no 'grade qid:N ... # item'"),
        ('{"topics": [{"query_groups": [{"queries": []}]}, 3]}', "topic 2: the record is no JSON"),
        ('{"queries": [{"query": "a", "ratings": {"1": "x"}}]}', "'rating' is 'x'"),
        ('{"torn": ', "this is no JSON"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "judged").write_text(content)
    with pytest.raises(DataError, match=said):
        list(read_judgements(tmp_path / "judged"))
    with pytest.raises(DataError, match="is not there; name one"):
        list(read_judgements(tmp_path / "gone"))
