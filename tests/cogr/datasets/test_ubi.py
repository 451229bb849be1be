"""Records of User Behavior Insights: what its schema allows is read, what it forbids is named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cogr.datasets.query_logs import UbiEvent, UbiQuery, read_ubi, seconds, ubi_record, ubi_records
from cogr.datasets.reading import Place
from cogr.errors import DataError

PLACE = Place("ubi_events", 1)
TIME = "2018-11-13T20:20:39"


def test_the_two_required_fields_of_an_event_are_enough() -> None:
    event = ubi_record(PLACE, {"action_name": "login", "timestamp": TIME})
    assert event == UbiEvent(PLACE, "login", "", None, None, None, TIME, None, None)


def test_an_event_with_everything_is_read_whole() -> None:
    record = {
        "action_name": "click",
        "timestamp": f"{TIME}+01:00",
        "user_query": " sofa",
        "query_id": "q",
        "client_id": "c",
        "session_id": "s",
        "user_id": "",
        "event_attributes": {"object": {"object_id": 7}, "position": {"ordinal": 3}},
    }
    event = ubi_record(PLACE, {"_source": record})
    assert event == UbiEvent(PLACE, "click", "sofa", "q", "c", "s", f"{TIME}+01:00", "7", 3)
    assert seconds(event) == 1542136839


def test_a_query_has_what_was_found(tmp_path: Path) -> None:
    record = {"user_query": "sofa", "query_response_hit_ids": ["a", 2], "timestamp": 1542140439000}
    (tmp_path / "log").write_text(json.dumps(record) + "\n")
    (query,) = read_ubi([tmp_path / "log"])
    place = Place(tmp_path / "log", 1)
    assert query == UbiQuery(place, "sofa", None, None, None, 1542140439000, ("a", "2"))
    assert seconds(query) == 1542140439
    assert seconds(query._replace(timestamp="2018-11-13T20:20:39Z")) == 1542140439
    assert seconds(query._replace(timestamp=None)) is None


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"action_name": 5}, "'action_name' is a number"),
        ({"action_name": "click", "event_attributes": []}, "'event_attributes' is no object"),
        (
            {"action_name": "click", "event_attributes": {"position": {"ordinal": 1.5}}},
            "the position's 'ordinal' is 1.5",
        ),
        (
            {"action_name": "click", "event_attributes": {"position": {"ordinal": True}}},
            "the position's 'ordinal' is True",
        ),
        ({"user_query": "a", "query_response_hit_ids": "b"}, "'query_response_hit_ids' is no list"),
        ({"user_query": "a", "query_id": 1.5}, "'query_id' is"),
        ({"_source": "x"}, "'_source' is no object"),
    ],
)
def test_a_bad_record_is_named_by_its_place(record: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=f"^ubi_events, line 1: {said}"):
        list(ubi_records([(PLACE, record)]))


def test_a_bad_time_is_named_when_it_is_asked_for() -> None:
    event = ubi_record(PLACE, {"action_name": "click", "timestamp": "noon"})
    with pytest.raises(DataError, match="'timestamp' is 'noon'"):
        seconds(event)
