"""What cogr-index prints for people.

Text from items is untrusted: the console reads no markup in it and shows characters that control a
terminal as escapes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cogr.datasets.inspection import Report
from cogr.errors import visible
from cogr.records import SIDES, Side
from indexers.exchange.diff import Diff
from indexers.exchange.search import Answered
from indexers.inspection import Findings
from indexers.rebuild.run import Outcome
from indexers.rebuild.update import Updated
from indexers.release import Released
from indexers.workspace import Workspace

SHOWN = 120


def plain(value: Any) -> dict[str, Any]:
    """A flat dataclass as a dict."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def facts(out: Console, title: str, values: Mapping[Any, Any]) -> None:
    """Names and values, one a line."""
    table = Table(title=title, show_header=False, title_justify="left", box=None)
    for name, value in values.items():
        table.add_row(str(name).replace("_", " "), _spell(value))
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


def planned(out: Console, values: Mapping[str, Any]) -> None:
    """What a rebuild would do; figures of prompts only if there are any."""
    hidden = {"prompted"} if values["prompted"] else {"prompted", "prompts", "cut_prompts"}
    facts(
        out,
        "This would be done",
        {name: value for name, value in values.items() if name not in hidden},
    )


def rebuilt(out: Console, outcome: Outcome, *, show_empty: bool = False) -> None:
    """What a rebuild did; figures of prompts and completions only if there were any."""
    values = _in_words(outcome)
    shown = (
        "snapshot",
        "items",
        "generator",
        "generated",
        "failures",
        "keywords",
        "vocabulary",
        "empty",
    )
    cut = ("cut_prompts", "cut_to_budget") if outcome.prompted else ("cut_to_budget",)
    facts(
        out,
        "Rebuilt",
        {name: values[name] for name in (*shown, *cut, "seconds", "index", "published")}
        | _fields(values),
    )
    if outcome.rebuilt.generated and outcome.prompted:
        facts(out, "Completions", values["parse"])
    if show_empty:
        _empty_sets(out, outcome.empty)


def _in_words(outcome: Outcome) -> dict[str, Any]:
    """An outcome's values, with the generator and empty sets in words."""
    values = outcome.as_dict()
    first = ", ".join(one["id"] for one in outcome.empty[:3])
    such = f", such as {first} (--show-empty names them)" if first else ""
    kind = values["generator"].get("kind")
    return values | {"generator": f"{kind} ({outcome.why})", "empty": f"{values['empty']:,}{such}"}


def _empty_sets(out: Console, found: Sequence[Mapping[str, str]]) -> None:
    """Entities without keywords."""
    table = Table("without keywords", "text", "why")
    for one in found:
        table.add_row(*(Text(_short(one[name])) for name in ("id", "text", "reason")))
    out.print(table if found else "No keyword set is empty.")


def _fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """Item fields and their types, where there are any."""
    return {"fields": values["fields"]} if values.get("fields") else {}


def updated(out: Console, values: Mapping[str, Any]) -> None:
    """What an update did."""
    values = {**values, "generator": f"{values['generator'].get('kind')} ({values['why']})"}
    shown = (
        "parent",
        "snapshot",
        "generator",
        "changed",
        "gone",
        "carried",
        "generated",
        "failures",
        "items",
        "keywords",
    )
    facts(
        out,
        "Updated",
        {name: values[name] for name in (*shown, "seconds", "index", "published")}
        | _fields(values),
    )
    if "log" in values:
        facts(out, "Log", values["log"])


def released(out: Console, title: str, found: Released) -> None:
    """What serves now, and the switches that were made."""
    values = {side: id_ or "nothing" for side, id_ in found.serving.items()}
    for side, before in found.before.items():
        values[side] += (
            f" (before: {before or 'nothing'})" if before != found.serving[side] else " (as before)"
        )
    facts(out, title, values)


def after_switch(serving: Mapping[Side, str | None]) -> str:
    """The next useful command after a switch: what is missing for a search, or a search."""
    missing = next((side for side in SIDES if not serving.get(side)), None)
    return f"cogr-index rebuild --side {missing}" if missing else 'cogr-index search "some query"'


def after_look(workspace: Workspace, id_: str) -> str:
    """The next useful command after a look at a snapshot: to push it, to publish it, or to search
    where it serves.
    """
    serving = workspace.backend.serving()
    if id_ in serving.values():
        return after_switch(serving)
    pushed = any(one.snapshot == id_ and one.complete for one in workspace.backend.list())
    return f"cogr-index {'publish' if pushed else 'push'} {id_}"


def after_rebuild(workspace: Workspace, outcome: Outcome) -> str:
    """The next useful command after a rebuild."""
    snapshot = outcome.rebuilt.snapshot
    if outcome.index is None:
        return f"cogr-index export sample.jsonl --snapshot {snapshot.id} (to read the keywords)"
    if not outcome.published:
        return f"cogr-index publish {snapshot.id}"
    serving = workspace.backend.serving()
    measurable = all(serving.get(side) for side in SIDES) and workspace.dataset.queries.get("test")
    return after_switch(serving) + (", or cogr-train evaluate --split test" if measurable else "")


def after_update(updated: Updated, serving: Mapping[Side, str | None]) -> str | None:
    """The next useful command after an update; None where nothing changed."""
    snapshot = updated.outcome.rebuilt.snapshot
    if snapshot.id == updated.parent:
        return None
    refits = snapshot.manifest.generator.get("kind") == "statistical"
    if snapshot.side == "item" and refits and updated.outcome.published and serving.get("query"):
        return (
            "cogr-index rebuild --side query (its keywords were written before the update: they "
            "find the old items less often, and the new ones seldom)"
        )
    return f"cogr-index diff {updated.parent} {snapshot.id}"


def verified(out: Console, found: Mapping[str, Mapping[str, Any]]) -> None:
    """What a verification compared, and the first differences."""
    for id_, values in found.items():
        first = values.get("first", [])
        shown = {name: value for name, value in values.items() if name not in ("first", "snapshot")}
        facts(out, f"{id_}: {'not equal' if values.get('differences') else 'equal'}", shown)
        if first:
            table = Table("difference", "id", "field", "in the backend", "in the snapshot")
            for one in first:
                table.add_row(
                    one["kind"],
                    *(_short(one[name]) for name in ("id", "field", "found", "expected")),
                )
            out.print(table)


def answer(out: Console, found: Answered, *, explain: bool) -> None:
    """A search's keywords and hits."""
    where = {
        "given": "given",
        "index": "precomputed",
        "generator": "generated now",
        "none": "the query text alone",
    }
    by = f"{len(found.keywords)} keywords ({where[found.source]})"
    modes = {
        "keywords": by,
        "both": f"{by} and the words in titles",
        "text": "the words in titles alone",
    }
    sure = "" if found.confidence is None else f", confidence {found.confidence:.2f}"
    out.print(f"{found.total:,} items by {modes[found.mode]}, {found.backend}{sure}")
    out.print(
        "keywords: "
        + ", ".join(
            word if weight == 1 else f"{word} ({weight:g})"
            for word, weight in found.keywords.items()
        )
    )
    names = sorted({name for hit in found.hits for name in hit.fields})
    table = Table("score", "id", "title", *names, "matched")
    for hit in found.hits:
        parts = sorted(hit.matched.items(), key=lambda pair: -pair[1])
        parts += [("words of the title", hit.words)] if hit.words else []
        matched = ", ".join(f"{word} {part:.3f}" if explain else word for word, part in parts)
        fields = (_short(_spell(hit.fields[name])) if name in hit.fields else "" for name in names)
        table.add_row(f"{hit.score:.4f}", hit.id, _short(hit.text), *fields, _short(matched))
    if found.hits:
        out.print(table)


def differing(out: Console, found: Diff) -> None:
    """A comparison of two snapshots."""
    values = found.as_dict()
    shown = (
        "before",
        "after",
        "new",
        "gone",
        "changed",
        "other_fields",
        "compared_queries",
        "mean_overlap",
    )
    facts(
        out,
        "Differences",
        {name: values[name] for name in shown if name != "other_fields" or found.other_fields},
    )
    for title, words in (("keywords gained", found.gained), ("keywords lost", found.lost)):
        out.print(
            f"{title}: " + (", ".join(f"{word} ({count:,})" for word, count in words) or "none")
        )
    if found.entities:
        table = Table("most changed", "text", "gained", "lost")
        for one in found.entities:
            sets = (_short(", ".join(some)) for some in (one.gained, one.lost))
            table.add_row(one.id, _short(one.text), *sets)
        out.print(table)
    if found.queries:
        table = Table("query", "text", "overlap of the top 10", "items before", "after")
        for query in found.queries:
            figures = (f"{query.overlap:.3f}", f"{query.before:,}", f"{query.after:,}")
            table.add_row(query.id, _short(query.text), *figures)
        out.print(table)


def _short(text: str) -> str:
    line = visible(" ".join(text.split()))
    return line if len(line) <= SHOWN else line[: SHOWN - 1] + "…"


def examined(out: Console, found: Findings, page: Path | None) -> None:
    """The inspection of a data set, and what to do."""
    values = found.counts.as_dict()
    expectation = values.pop("expectation")
    del values["advice"]
    facts(out, "Data set", values)
    table = Table("retriever", "judged", "relevant of them", "not judged, a query", box=None)
    for name, one in found.holes.items():
        shares = (f"{share:.1%}" for share in (one.judged_share, one.relevant_share))
        table.add_row(f"{name}, first {one.depth}", *shares, f"{one.holes_per_query:.1f}")
    if found.holes:
        out.print()
        out.print(table)
    out.print()
    facts(out, "Trust", _trust(found))
    out.print(f"\nWhat to do: {found.verdict}.")
    for sentence in filter(None, (*found.advice, expectation)):
        out.print(sentence)
    if page:
        out.print(f"Written: {page}")


def _trust(found: Findings) -> dict[str, Any]:
    leaks, duplicates, gain = found.leakage, found.near_duplicates, found.gain
    noise, gap = found.disagreement, found.gap
    values: dict[str, Any] = {
        "relevant pairs without a common word": f"{gap.without:,} of {gap.pairs:,}",
        "judgements that disagree": f"{noise.differ:,} of {noise.compared:,} compared",
    }
    if leaks is not None:
        known = leaks.equal + leaks.same_words + leaks.near
        values["test and dev queries near a training query"] = f"{known:,} of {leaks.queries:,}"
    if duplicates is not None:
        values["items with a near-duplicate"] = f"{duplicates.items:,} of {duplicates.looked_at:,}"
    if found.ceiling is not None:
        values["F1 of BM25, and with the best cut for each query"] = (
            f"{found.ceiling.bm25:.3f}, {found.ceiling.best_cut:.3f}"
        )
        values["relevant items among BM25's first 1,000"] = f"{found.ceiling.reach:.1%}"
    if gain is not None:
        values["held-out F1: BM25, statistical, its oracle"] = (
            f"{gain.bm25:.3f}, {gain.statistical:.3f}, {gain.oracle:.3f}"
        )
    if found.lineage:
        values["labels from"] = found.lineage.get("source", "a file")
    return {**values, **{f"not measured: {name}": why for name, why in found.not_measured.items()}}


def inspected(out: Console, report: Report) -> None:
    """The inspection of a data set."""
    values = report.as_dict()
    advice, expectation = values.pop("advice"), values.pop("expectation")
    facts(out, "Data set", values)
    out.print(f"\n{advice}")
    if expectation:
        out.print(expectation)
