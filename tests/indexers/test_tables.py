"""One table for terminal, notebook and page: values are spelled alike, and texts stay texts."""

from __future__ import annotations

import sys

import pytest

from indexers.tables import Table, show_all
from indexers.telemetry.terminal import console_of

ROWS = [
    {"id": "a|b", "F1": 0.25, "<b>": "\x1b[31m\u202ered"},
    {"id": "c", "F1": 1234, "more": [True, None]},
]


def test_every_place_shows_the_same_cells(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("Title", ROWS, ["A note."])
    assert table.columns == ["id", "F1", "<b>", "more"]
    assert table.cells() == [
        ["a|b", "0.250", r"\x1b[31m\u202ered", ""],
        ["c", "1,234", "", "yes, none"],
    ]
    page = table._repr_html_()
    assert page == table.__html__()
    for part in ("<bdi>&lt;b&gt;</bdi>", "<bdi>1,234</bdi>", '<p class="note"><bdi>A note.'):
        assert part in page
    assert list(table.to_pandas().columns) == table.columns
    table.show(console_of(sys.stdout))
    shown = capsys.readouterr().out
    assert "Title" in shown
    assert shown.splitlines()[-1] == "A note."
    assert "\x1b[31m" not in shown


def test_any_result_is_names_and_values_and_its_records_are_tables(
    capsys: pytest.CaptureFixture[str],
) -> None:
    records = [{"id": "a", "why": "no"}, {"id": "b", "why": "yes"}]
    values = {"some_items": 2, "flat": {"x": 1}, "deep": {"rows": records, "n": 3}, "rows": []}
    show_all(console_of(sys.stdout), "Done", values, ["A note."])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[:4] == ["Done", "some items  2", "flat        x 1", "rows        none"]
    assert lines[4:7] == ["deep", "n  3", "rows"]
    assert lines[-1] == "A note."
    assert "<thead>" not in Table.of("Done", values)._repr_html_()
