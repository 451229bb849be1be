"""What cogr-index prints for people. Text from items is untrusted: it is printed as `Text`, never read as markup."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from cogr.inspect import Report
from indexers.console import stderr_console
from indexers.diffing import Diff
from indexers.rebuild import Advance
from indexers.rebuilding import Outcome
from indexers.searching import Answered
from indexers.telemetry import logs
from indexers.workspace import Workspace

SHOWN = 120


class _Rate(ProgressColumn):
    """Entities a second."""

    def render(self, task: Task) -> Text:
        return Text(f"{task.speed:,.1f}/s" if task.speed else "", style="progress.data.speed")


@contextmanager
def progress_bar(what: str, total: int) -> Iterator[Advance]:
    """A bar on standard error with rate and time left; none where there is nothing to do, or where a log has to stay JSON."""
    if not total or logs.structured():
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    with Progress(*columns, console=stderr_console()) as progress:
        task = progress.add_task(what, total=total)
        yield lambda count: progress.advance(task, count)


def plain(value: Any) -> dict[str, Any]:
    """A flat dataclass as a dict."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def facts(out: Console, title: str, values: Mapping[Any, Any]) -> None:
    """Names and values, one a line."""
    table = Table(title=title, show_header=False, title_justify="left", box=None)
    for name, value in values.items():
        table.add_row(Text(str(name).replace("_", " ")), Text(_spell(value)))
    out.print(table)


def _spell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.3f}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_spell(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return ", ".join(map(_spell, value)) or "none"
    return "none" if value is None else str(value)


def rebuilt(out: Console, outcome: Outcome) -> None:
    """What a rebuild did."""
    values = outcome.as_dict()
    shown = (
        "snapshot",
        "items",
        "generated",
        "failures",
        "keywords",
        "vocabulary",
        "empty",
        "cut_prompts",
        "cut_to_budget",
    )
    facts(out, "Rebuilt", {name: values[name] for name in (*shown, "seconds", "index", "published")} | _fields(values))
    if outcome.rebuilt.generated:
        facts(out, "Completions", values["parse"])


def _fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Item fields and their types, where there are any."""
    return {"fields": values["fields"]} if values.get("fields") else {}


def updated(out: Console, values: Mapping[str, Any]) -> None:
    """What an update did."""
    shown = ("parent", "snapshot", "changed", "gone", "carried", "generated", "failures", "items", "keywords")
    facts(out, "Updated", {name: values[name] for name in (*shown, "seconds", "index", "published")} | _fields(values))
    if "drift" in values:
        facts(out, "Drift of the statistics behind scores (relative errors)", values["drift"])


def after_rebuild(workspace: Workspace, outcome: Outcome) -> str:
    """The next useful command after a rebuild."""
    snapshot = outcome.rebuilt.snapshot
    if outcome.index is None:
        return f"cogr-index export sample.jsonl --snapshot {snapshot.id} (to read the keywords)"
    if not outcome.published:
        return f"cogr-index publish {snapshot.id}"
    if workspace.backend.serving().get("query") is None:
        return "cogr-index rebuild --side query"
    return 'cogr-index search "some query", or cogr-train evaluate --split test'


def verified(out: Console, found: Mapping[str, Mapping[str, Any]]) -> None:
    """What a verification compared, and the first differences."""
    for id_, values in found.items():
        first = values.get("first", [])
        shown = {name: value for name, value in values.items() if name not in ("first", "snapshot")}
        facts(out, f"{id_}: {'not equal' if values.get('differences') else 'equal'}", shown)
        if first:
            table = Table("difference", "id", "field", "in the backend", "in the snapshot")
            for one in first:
                table.add_row(one["kind"], *(Text(_short(one[name])) for name in ("id", "field", "found", "expected")))
            out.print(table)


def answer(out: Console, found: Answered, *, explain: bool) -> None:
    """A search's keywords and hits."""
    where = {"given": "given", "index": "precomputed", "generator": "generated now", "none": "the query text alone"}
    out.print(Text(f"{found.total:,} items by {len(found.keywords)} keywords ({where[found.source]}), {found.backend}"))
    out.print(Text("keywords: " + ", ".join(found.keywords)))
    names = sorted({name for hit in found.hits for name in hit.fields})
    table = Table("score", "id", "title", *map(escape, names), "matched")
    for hit in found.hits:
        parts = sorted(hit.matched.items(), key=lambda pair: -pair[1])
        matched = ", ".join(f"{word} {part:.3f}" if explain else word for word, part in parts)
        fields = (Text(_short(_spell(hit.fields[name]))) if name in hit.fields else "" for name in names)
        table.add_row(f"{hit.score:.4f}", Text(hit.id), Text(_short(hit.text)), *fields, Text(_short(matched)))
    if found.hits:
        out.print(table)


def differing(out: Console, found: Diff) -> None:
    """A comparison of two snapshots."""
    values = found.as_dict()
    shown = ("before", "after", "new", "gone", "changed", "other_fields", "compared_queries", "mean_overlap")
    facts(out, "Differences", {name: values[name] for name in shown if name != "other_fields" or found.other_fields})
    for title, words in (("keywords gained", found.gained), ("keywords lost", found.lost)):
        out.print(Text(f"{title}: " + (", ".join(f"{word} ({count:,})" for word, count in words) or "none")))
    if found.entities:
        table = Table("most changed", "text", "gained", "lost")
        for one in found.entities:
            sets = (_short(", ".join(some)) for some in (one.gained, one.lost))
            table.add_row(Text(one.id), Text(_short(one.text)), *map(Text, sets))
        out.print(table)
    if found.queries:
        table = Table("query", "text", "overlap of the top 10", "items before", "after")
        for query in found.queries:
            figures = (f"{query.overlap:.3f}", f"{query.before:,}", f"{query.after:,}")
            table.add_row(Text(query.id), Text(_short(query.text)), *figures)
        out.print(table)


def _short(text: str) -> str:
    clean = "".join(c if c.isprintable() else " " for c in text)
    return clean if len(clean) <= SHOWN else clean[: SHOWN - 1] + "…"


def inspected(out: Console, report: Report) -> None:
    """The inspection of a data set."""
    values = report.as_dict()
    advice = values.pop("advice")
    facts(out, "Data set", values)
    out.print(Text(f"\n{advice}"))
