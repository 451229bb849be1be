"""Judgements of other tools: samples as those tools write them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from cogr.datasets.judgements import consensus, looks_like, read_judgements
from cogr.errors import DataError

QUEPID = 'query,docid,rating\nstar trek,1370,3\nstar trek,"a,b",0\n -dash,7,2\nnone,,\n'
BOOK = "query,docid,Ann B,Anonymous,C\nstar trek,1370,3,1,\nstar trek,193,3,2,0\nlamp,1,,,\n"

DETAILED = (
    "Team Name,Case Name,Case ID,Query Text,Doc ID,Doc Position,Title,Rating,price\n"
    "shop,lamps,8,red lamp,a,1,Lamp,3,9\nshop,lamps,8,red lamp,b,2,Rug,,7\n"
)
RANKLIB = (
    "# qid:1: red lamp\n# qid:2: rug\n#\n4\tqid:1 #\t7555\tRed lamp\n"
    "0 qid:1 1:0.2 2:3e-4 # 1370 Rug\n3 qid:2 #x-1\n"
)
GAINS = '{"3": ["a"], "1": ["b", "c"]}'
OTHER_GAINS = '[{"a": {"gain": 3}}, {"b": {"gain": 0}}]'
RRE = f"""{{"index": "shop", "topics": [{{"description": "lamps", "query_groups": [
  {{"name": "lamp", "queries": [{{"template": "q.json", "placeholders": {{"$query": "red lamp"}}}}],
  "relevant_documents": {GAINS}}}]}}]}}"""
WORKBENCH = """{"name": "lamps", "judgmentRatings": [
  {"query": "red lamp", "ratings": [{"docId": "a", "rating": "3"}, {"docId": 7, "rating": 0}]},
  {"query": "rug", "ratings": [{"docId": "b", "rating": "0.5"}]}]}"""
RANK_EVAL = """{"requests": [
  {"id": "r1", "request": {"query": {"bool": {"must": {"match": {"title": "red lamp"}}}}},
   "ratings": [{"_index": "shop", "_id": "a", "rating": 2}, {"_id": "b", "rating": 0}]},
  {"id": "r2", "template_id": "t", "params": {"query_string": "rug"},
   "ratings": [{"_id": "c", "rating": 1}]}], "metric": {}}"""


@pytest.mark.parametrize(
    ("content", "format", "expected"),
    [
        (
            QUEPID,
            "quepid",
            "star trek::1370:3.0 star trek::a,b:0.0 -dash::7:2.0 none:::None",
        ),
        (BOOK, "quepid", "star trek::1370:2.0 star trek::193:0.0 lamp::1:None"),
        ("301 0 FBIS3-10 1\n301\t0  CR93E -1\n", "trec", ":301:FBIS3-10:1.0 :301:CR93E:0.0"),
        ("query-id\tcorpus-id\tscore\nq1\td 1\t2\n", "beir", ":q1:d 1:2.0"),
        ("a,b Q0 d,1 2\nc 0 d 1\n", "trec", ":a,b:d,1:2.0 :c:d:1.0"),
        (DETAILED, "quepid", "red lamp::a:3.0 red lamp::b:None"),
        (RANKLIB, "ranklib", "red lamp:1:7555:4.0 red lamp:1:1370:0.0 rug:2:x-1:3.0"),
        ("3 qid:q9 1:0.5 2:1 #docid = GX1 inc = 1\n", "ranklib", ":q9:GX1:3.0"),
        (RRE, "rre", "red lamp::a:3.0 red lamp::b:1.0 red lamp::c:1.0"),
        (RRE.replace(GAINS, OTHER_GAINS), "rre", "red lamp::a:3.0 red lamp::b:0.0"),
        (WORKBENCH, "workbench", "red lamp::a:3.0 red lamp::7:0.0 rug::b:0.5"),
        (RANK_EVAL, "rank_eval", "red lamp:r1:a:2.0 red lamp:r1:b:0.0 rug:r2:c:1.0"),
    ],
)
def test_a_sample_of_each_tool_is_told_and_read(
    tmp_path: Path, content: str, format: str, expected: str
) -> None:
    path = tmp_path / "judged"
    path.write_text(content, newline="")
    assert looks_like(path) == format
    every = read_judgements(path)
    found = [f"{one.query}:{one.query_id}:{one.item}:{one.grade}" for one in every]
    assert " ".join(found) == expected


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
        ("", "format"),
        ("q 0 d 1\nq 0 d\n", "line 2: .*3 fields .*4"),
        ("4 qid:1 1:2\n", "line 1: .*qid:ID"),
        ('{"requests": [{"ratings": [{"_id": "a"}]}]}', "line 1: a query has no text"),
        ('{"topics": {}}', "line 1: 'topics' is not a list; write one of objects"),
        ('{"judgmentRatings": [[]]}', "line 1: the record is not a JSON object but list"),
        ('{"hits": []}', "no known format .* with --format"),
        ("query,docid,rating\n ,1,2\n", "line 2: .*text"),
        ("query-id\tcorpus-id\tscore\nq\t\t1\n", "line 2: 'corpus-id' .*empty"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "judged").write_text(content)
    with pytest.raises(DataError, match=said):
        list(read_judgements(tmp_path / "judged"))
    with pytest.raises(DataError, match="read"):
        list(read_judgements(tmp_path / "gone"))
