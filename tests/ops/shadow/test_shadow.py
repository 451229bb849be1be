"""Logs, bodies and figures of `cogr-ops shadow`, without any server; its bad input, sentence by
sentence.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from cogr.datasets.query_logs import Searched
from cogr.errors import ServiceError
from indexers.backends.opensearch.search import query_body
from ops.cli import app
from ops.shadow import (
    IN_A_ROW,
    Compared,
    ExpanderClient,
    FailedError,
    Replayed,
    SearchAnswer,
    replay,
)
from ops.shadow.bodies import NOTHING, SERVED, Body
from ops.shadow.summary import rows, summary
from tests.commands import Command
from tests.documents import DOCS, examples
from tests.web_server import serve


def test_a_filled_body_holds_the_query_as_data(tmp_path: Path) -> None:
    should = [{"match": {"title": "x {{query}}"}}, "{{clause own}}", "{{clause}}"]
    template = {"query": {"bool": {"should": should}}}
    (tmp_path / "body.json").write_text(json.dumps(template))
    hostile = '"}}{{clause}} {{query}}'
    body = Body.read(tmp_path / "body.json", keywords=True)
    filled = body.fill(hostile, expanded({hostile: 1.0, "b": 2.5}))
    text, own, clause = filled["query"]["bool"]["should"]
    assert text == {"match": {"title": f"x {hostile}"}}
    assert own == query_body({hostile: 1.0, "b": 2.5}, "own")
    assert clause["bool"]["should"] == [
        {"match": {"keywords": {"query": hostile}}},
        {"match": {"keywords": {"query": "b", "boost": 2.5}}},
    ]
    assert SERVED.fill("", NOTHING) == {"query": {"match_none": {}}}
    assert Body({"query": "{{clause own}}"}, "").fill("", NOTHING) == {"query": {"match_none": {}}}


def expanded(keywords: dict[str, float], **more: Any) -> dict[str, Any]:
    """As the expander answers."""
    answer = {"keywords": list(keywords), "weights": list(keywords.values()), "clause": {}}
    return answer | more


def compared(
    text: str,
    count: int,
    present: str,
    candidate: str,
    clicked: str = "",
    kept: float | None = None,
) -> Compared:
    return Compared(
        Searched(text, count, set(clicked)),
        SearchAnswer(tuple(present), 0.01, kept=1.0),
        SearchAnswer(tuple(candidate), 0.02, "index", 0.005, kept or 0.0),
        0 if kept is None else 4,
    )


def test_the_summary_weighs_by_searches() -> None:
    done = Replayed(
        [
            compared("a", 3, "xy", "xz", "xz", 0.25),
            compared("b", 1, "", "q"),
            compared("c", 1, "q", ""),
            compared("d", 5, "", ""),
        ],
        Counter({"timeout": 2}),
    )
    found = summary(done)
    assert (found["searches"], found["queries"], found["failed"]) == (10, 4, {"timeout": 2})
    assert found["overlap"]["mean"] == pytest.approx((3 * 0.5 + 0 + 0 + 5) / 10)
    assert found["clicked"]["queries"] == 1
    of = ("present", "candidate", "difference")
    assert [found["clicked"][one]["mean"] for one in of] == [0.5, 1.0, 0.5]
    literal = found["literal"]
    assert (literal["queries"], literal["difference"]["mean"]) == (1, -0.75)
    zero = found["zero_results"]
    assert (zero["present"]["mean"], zero["candidate"]["mean"]) == (0.6, 0.6)
    assert (zero["gained"], zero["gained_searches"]) == (["b"], 1)
    assert (zero["lost"], zero["lost_searches"]) == (["c"], 1)
    assert found["sources"] == {"index": 10}
    assert found["milliseconds"] == {
        "present": {"p50": 10, "p95": 10},
        "candidate": {"p50": 20, "p95": 20},
        "expanding": {"p50": 5, "p95": 5},
    }
    assert [row["query"] for row in rows(done)] == ["b", "c", "a", "d"]
    without = summary(Replayed([compared("a", 1, "x", "x")]))
    assert without["clicked"] is without["literal"] is None
    assert compared("", 1, "abc", "a").overlap == pytest.approx(1 / 3)


class Scripted:
    """A search that fails for the texts that it is told."""

    def __init__(self, failing: frozenset[str] = frozenset()) -> None:
        self.failing, self.asked = failing, list[str]()

    def literal(self, _: str) -> list[str]:
        return []

    def ask(self, query: str, literal: Sequence[str]) -> SearchAnswer:
        self.asked.append(query)
        if query in self.failing:
            raise FailedError("away", "timeout")
        return SearchAnswer((query,), 0.001)


def test_failed_queries_are_left_out_until_there_are_too_many() -> None:
    log = [Searched(f"q{number}", 1) for number in range(2 * IN_A_ROW)]
    present, candidate = Scripted(frozenset({"q3", "q5"})), Scripted()
    done = replay(log, present, candidate, 1e6)
    assert len(done.compared) == len(log) - 2
    assert done.failed == {"timeout": 2}
    # By turns: the candidate is asked first for odd queries, and not at all for those that fail
    # before.
    assert [query.text for query in log if query.text not in candidate.asked] == []
    assert candidate.asked[3] == "q3"
    out = Scripted(frozenset(f"q{number}" for number in range(IN_A_ROW)))
    with pytest.raises(ServiceError, match="away"):
        replay(log, Scripted(), out, 1e6)
    with pytest.raises(ServiceError, match="away"):
        replay(log[3:4], present, candidate, 1e6)


@pytest.mark.parametrize("said", [b"<h1>It works!</h1>", b"\xff", b"[]", b'{"keywords": []}'])
def test_an_address_of_something_else_is_one_sentence(said: bytes) -> None:
    with serve(lambda _: (200, said)) as url:
        with pytest.raises(FailedError, match=f"from {url} is not an expander's; check --expander"):
            ExpanderClient(url).expand("sofa")


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cogr_ops: Command) -> Command:
    """Runs `cogr-ops shadow` in a folder with a configuration, a log and a body; nothing listens
    anywhere.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cogr.toml").write_text(
        '[dataset]\nloader = "jsonl"\n[opensearch]\nurl = "http://127.0.0.1:9"\n'
    )
    (tmp_path / "log.jsonl").write_text('{"query": "sofa"}')
    (tmp_path / "today.json").write_text('{"query": {"match": {"text": "{{query}}"}}}')
    return partial(cogr_ops, "shadow", "--present", "today.json", "--index", "products")


@pytest.mark.parametrize(
    ("name", "content", "arguments", "status", "sentence"),
    [
        ("x", "", ("nowhere",), 2, "nowhere can't be read"),
        ("log", '{"query": "a", "clicked": "b"}', ("log",), 2, "log, line 1: 'clicked'"),
        ("log", "", ("log", "--item-path", "/p/"), 2, "--item-path is '/p/'"),
        ("today.json", '{"query":\n {"match"}}', ("log.jsonl",), 2, "today.json, line 2:"),
        ("today.json", "{}", ("log.jsonl",), 2, "today.json has no {{query}}"),
        ("new.json", "{}", ("log.jsonl", "--candidate", "new.json"), 2, 'no "{{clause}}"'),
        ("x", "", ("log.jsonl", "--candidate", "new.json"), 2, "no request body new.json"),
        ("x", "", ("log.jsonl",), 3, "127.0.0.1:9 can't be reached"),
    ],
)
def test_bad_input_is_one_sentence(
    command: Command,
    tmp_path: Path,
    name: str,
    content: str,
    arguments: tuple[str, ...],
    status: int,
    sentence: str,
) -> None:
    (tmp_path / name).write_text(content)
    command(*arguments).check_refused(sentence, status=status)


def test_the_guides_commands_are_commands() -> None:
    page = (DOCS / "shadow.md").read_text("utf-8")
    lines = re.findall(r"^cogr-ops shadow (.*)$", page, re.MULTILINE)
    assert len(lines) >= 3
    command: Any = get_command(app)
    for line in lines:
        asked = command.commands["shadow"].make_context("shadow", shlex.split(line)).params
        assert asked["index"] == "products"


def test_the_guides_sample_sizes_are_what_its_program_prints() -> None:
    (program,), (shown,) = examples("shadow.md", "python"), examples("shadow.md", "text")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(program, {})
    assert printed.getvalue() == shown
