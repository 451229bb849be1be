"""A judge end to end with scripted endpoints, its cache, and agreement with people."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from cogr.datasets import load_dataset
from cogr.datasets.builder import DatasetOptions
from tests.commands import Command, rebuilt_pair, sets
from tests.indexers.generators.fake_endpoint import FakeEndpoint, completion, refused
from tests.shops import read_jsonl, write_shop
from tests.web_server import Answer, json_answer
from trainers.labels.judge import agreement, parse_grade

PAIRS = list(product(("red", "green", "blue"), ("chair", "lamp", "sofa", "table", "desk", "rug")))
ITEMS = [
    {"id": f"{colour}-{thing}", "title": f"{colour} {thing}", "text": f"a {thing} for the home"}
    for colour, thing in PAIRS
]
QUERIES = [{"id": f"q{n}", "text": f"{colour} {thing}"} for n, (colour, thing) in enumerate(PAIRS)]
LABELS = [
    {"query": query["id"], "item": item["id"], "grade": int(item["title"] == query["text"])}
    for query in QUERIES[:9]
    for item in ITEMS
    if set(item["title"].split()) & set(query["text"].split())
]


ASKED = re.compile(r"Item: (?P<item>.*)\nDescription: .*\n\nSearch: (?P<query>.*)\n")


def grade(number: int, body: dict[str, Any]) -> Answer:
    """The answer of a perfect judge: by the words that search and item share."""
    found = ASKED.search(body["messages"][-1]["content"])
    level = ("bad", "poor", "excellent")[len({*found[1].split()} & {*found[2].split()})]
    return json_answer(completion(json.dumps({"grade": level})))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_shop(tmp_path, ITEMS, QUERIES, LABELS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def at(endpoint: FakeEndpoint) -> list[str]:
    return ["--generator", "openai", *sets(*endpoint.settings)]


def test_a_judge_makes_a_data_set_and_says_how_far_it_agrees_with_people(
    shop: Path, cogr_train: Command
) -> None:
    with FakeEndpoint(grade) as endpoint:
        ended = cogr_train("labels", "judge", *at(endpoint), "--json")
        asked = len(endpoint.bodies)
        again = cogr_train("labels", "judge", *at(endpoint), "--out", "again", "--json")
        assert len(endpoint.bodies) == asked  # all of it is cached
    found = ended.json
    assert found["counts"] == {"pairs judged": found["estimate"]["pairs"]} == again.json["counts"]
    assert found["estimate"]["known"] == len(LABELS)
    assert found["agreement"]["kappa"] == 1
    dataset = load_dataset("jsonl", shop / "judged", DatasetOptions(threshold=2))
    assert len(dataset.items) == len(ITEMS)
    for query in dataset.all_queries():
        assert dataset.relevant[query.id] == {query.text.replace(" ", "-")}
    assert len(dataset.all_queries()) == len(QUERIES)
    assert dataset.lineage["judge"]["model"] == "fake"
    assert dataset.lineage["agreement"]["pairs"] == len(LABELS)
    assert endpoint.bodies[0]["temperature"] == 0
    shown = cogr_train("labels", "judge", *at(endpoint), "--out", "shown")
    assert "kappa 1.00, accuracy 100%" in shown.out
    for arguments, words in (
        (("--generator", "statistical"), "The generator statistical can't judge"),
        (("--out", "judged"), "already has labels.jsonl and queries.jsonl"),
    ):
        ended = cogr_train("labels", "judge", *at(endpoint), "--out", "new", *arguments)
        assert (ended.status, words in ended.sentence) == (2, True), ended.sentence


def test_answers_without_one_level_are_counted_and_give_no_label(
    shop: Path, cogr_train: Command, cogr_index: Command
) -> None:
    def odd(number: int, body: dict[str, Any]) -> Answer:
        thing = ASKED.search(body["messages"][-1]["content"])["item"].split()[1]
        answers = {"rug": "I can't judge that.", "desk": "excellent or bad", "table": "Is: Poor."}
        said = answers.get(thing)
        return json_answer(completion(said)) if said else grade(number, body)

    rebuilt_pair(cogr_index, "--generator", "extractive")
    with FakeEndpoint(odd) as endpoint:
        found = cogr_train("labels", "judge", *at(endpoint), "--known", 0, "--json").json
    counts = found["counts"]
    assert counts["pairs without a readable answer"] > 0
    assert counts["pairs judged"] == found["labels"]
    assert sum(counts.values()) == found["estimate"]["pairs"]
    labels = read_jsonl(shop / "judged" / "labels.jsonl")
    judged = [row for row in labels if row["source"] == "judge"]
    assert {row["item"].split("-")[1] for row in judged} == {"sofa", "table", "chair", "lamp"}
    assert found["agreement"] is None


def test_an_endpoint_that_goes_away_keeps_what_it_answered(shop: Path, cogr_train: Command) -> None:
    def dies(number: int, body: dict[str, Any]) -> Answer:
        return refused(403, "no credit") if number > 40 else grade(number, body)

    with FakeEndpoint(dies) as endpoint:
        options = ["--known", 0, "--json"]
        ended = cogr_train("labels", "judge", *at(endpoint), *options)
        assert ended.status == 3
        assert "returned 403 (no credit)" in ended.sentence
        cost = cogr_train("labels", "judge", *at(endpoint), *options, "--dry-run").json
        assert cost["cached"] >= 5


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ('{"grade": "excellent"}', 4),
        ('Sure!\n```json\n{"grade": "Poor", "reason": "bad colour"}\n```', 1),
        ("The item is acceptable.", 2),
        ("", None),
        ("good or poor", None),
        ('{"grade": "superb"} good', None),
        ("goodness", None),
    ],
)
def test_an_answer_counts_only_when_it_names_one_level(answer: str, expected: int | None) -> None:
    assert parse_grade(answer) == expected


def test_agreement_counted_by_hand() -> None:
    pairs = [(True, 4)] * 6 + [(True, 1)] * 2 + [(False, 2)] * 3 + [(False, 0)] * 9
    found = agreement(pairs)
    assert found.accuracy == 15 / 20
    assert found.kappa == pytest.approx((0.75 - (0.4 * 0.45 + 0.6 * 0.55)) / (1 - 0.51), abs=1e-4)
    assert found.lean == 0.05
    assert agreement(pairs[:9]) is None
    assert agreement([(True, 4)] * 12).kappa == 1
