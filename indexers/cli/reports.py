"""What cogr-index prints for people, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from cogr.datasets.inspection import Report
from cogr.records import SIDES, Side
from indexers.exchange.diff import Diff
from indexers.exchange.search import Answered
from indexers.inspection import Findings
from indexers.rebuild.run import Outcome
from indexers.rebuild.update import Updated
from indexers.release import Released
from indexers.tables import Table, pick
from indexers.workspace import Workspace


def facts(out: Console, title: str, values: Mapping[Any, Any], *names: str) -> None:
    """Names and values, one a line; only these names where some are given."""
    Table.of(title, {name: values[name] for name in names} if names else values).show(out)


def planned(out: Console, values: Mapping[str, Any]) -> None:
    """What a rebuild would do; figures of prompts only if there are any."""
    hidden = {"prompted"} if values["prompted"] else {"prompted", "prompts", "cut_prompts"}
    facts(out, "This would be done", {k: v for k, v in values.items() if k not in hidden})


def rebuilt(out: Console, outcome: Outcome, *, show_empty: bool = False) -> None:
    """What a rebuild did; figures of prompts and completions only if there were any."""
    values = outcome.as_dict()
    first = ", ".join(one["id"] for one in outcome.empty[:3])
    such = f", such as {first} (--show-empty names them)" if first else ""
    values["generator"] = f"{values['generator'].get('kind')} ({outcome.why})"
    values["empty"] = f"{values['empty']:,}{such}"
    shown = ["snapshot", "items", "generator", "generated", "failures", "keywords", "vocabulary"]
    shown += ["empty", *["cut_prompts"] * outcome.prompted, "cut_to_budget", "seconds", "index"]
    facts(out, "Rebuilt", values, *shown, "published", *["fields"] * bool(values.get("fields")))
    if outcome.rebuilt.generated and outcome.prompted:
        facts(out, "Completions", values["parse"])
    if show_empty:
        rows = pick(outcome.empty, {"id": "without keywords", "text": "text", "reason": "why"})
        Table("", rows, () if rows else ["No keyword set is empty."]).show(out)


def updated(out: Console, values: Mapping[str, Any]) -> None:
    """What an update did."""
    values = {**values, "generator": f"{values['generator'].get('kind')} ({values['why']})"}
    shown = ["parent", "snapshot", "generator", "changed", "gone", "carried", "generated"]
    shown += ["failures", "items", "keywords", "seconds", "index", "published"]
    facts(out, "Updated", values, *shown, *["fields"] * bool(values.get("fields")))
    if "log" in values:
        facts(out, "Log", values["log"])


def released(title: str, found: Released) -> Table:
    """What serves now, and the switches that were made."""
    values = {side: id_ or "nothing" for side, id_ in found.serving.items()}
    for side, before in found.before.items():
        same = before == found.serving[side]
        values[side] += " (as before)" if same else f" (before: {before or 'nothing'})"
    return Table.of(title, values)


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
        shown = {name: value for name, value in values.items() if name not in ("first", "snapshot")}
        facts(out, f"{id_}: {'not equal' if values.get('differences') else 'equal'}", shown)
        Table("", pick(values.get("first", ()), _DIFFERENCE)).show(out)


_DIFFERENCE = {
    "kind": "difference",
    "id": "id",
    "field": "field",
    "found": "in the backend",
    "expected": "in the snapshot",
}
_CHANGED = {"id": "most changed", "text": "text", "gained": "gained", "lost": "lost"}
_RESULTS = {
    "id": "query",
    "text": "text",
    "overlap": "overlap of the top 10",
    "before": "items before",
    "after": "after",
}
_SOURCES = {
    "given": "given",
    "index": "precomputed",
    "generator": "generated now",
    "none": "the query text alone",
}


def answer(out: Console, found: Answered, *, explain: bool) -> None:
    """A search's keywords and hits."""
    by = f"{len(found.keywords)} keywords ({_SOURCES[found.source]})"
    modes = {
        "keywords": by,
        "both": f"{by} and the words in titles",
        "text": "the words in titles alone",
    }
    sure = "" if found.confidence is None else f", confidence {found.confidence:.2f}"
    out.print(f"{found.total:,} items by {modes[found.mode]}, {found.backend}{sure}")
    words = (w if weight == 1 else f"{w} ({weight:g})" for w, weight in found.keywords.items())
    out.print(f"keywords: {', '.join(words)}")
    if found.rules:
        out.print(f"rules: {'; '.join(found.rules)}")
    rows, names = [], sorted({name for hit in found.hits for name in hit.fields})
    for hit in found.hits:
        parts = sorted(hit.matched.items(), key=lambda pair: -pair[1])
        parts += [("words of the title", hit.words)] if hit.words else []
        matched = ", ".join(f"{word} {part:.3f}" if explain else word for word, part in parts)
        row = {"score": f"{hit.score:.4f}", "id": hit.id, "title": hit.text}
        rows.append({**row, **dict.fromkeys(names, ""), **hit.fields, "matched": matched})
    Table("", rows).show(out)


def differing(out: Console, found: Diff) -> None:
    """A comparison of two snapshots."""
    shown = ["before", "after", "new", "gone", "changed", *["other_fields"] * found.other_fields]
    facts(out, "Differences", asdict(found), *shown, "compared_queries", "mean_overlap")
    for title, words in (("keywords gained", found.gained), ("keywords lost", found.lost)):
        counted = ", ".join(f"{word} ({count:,})" for word, count in words)
        out.print(f"{title}: {counted or 'none'}")
    for records, headings in ((found.entities, _CHANGED), (found.queries, _RESULTS)):
        Table("", pick(records, headings)).show(out)


def inspected(out: Console, report: Report) -> None:
    """The inspection of a data set."""
    values = report.as_dict()
    notes = [f"What to do: {values.pop('verdict')}.", *values.pop("advice")]
    Table.of("Data set", values, ["", *filter(None, notes)]).show(out)


def examined(out: Console, found: Findings, page: Path | None) -> None:
    """The inspection of a data set, and what to do."""
    values = found.counts.as_dict()
    del values["verdict"], values["advice"]
    facts(out, "Data set", values)
    rows = [
        {
            "retriever": f"{name}, first {one.depth}",
            "judged": f"{one.judged_share:.1%}",
            "relevant of them": f"{one.relevant_share:.1%}",
        }
        for name, one in found.holes.items()
    ]
    Table("", rows).show(out)
    notes = ["", f"What to do: {found.verdict}.", *found.advice]
    Table.of("Trust", _trust(found), [*notes, *[f"Written: {page}"] * bool(page)]).show(out)


def _trust(found: Findings) -> dict[str, Any]:
    leaks, gain, noise, gap = found.leakage, found.gain, found.disagreement, found.gap
    known = leaks.equal + leaks.same_words
    values: dict[str, Any] = {
        "relevant pairs without a common word": f"{gap.without:,} of {gap.pairs:,}",
        "judgements that disagree": f"{noise.differ:,} of {noise.compared:,} compared",
        "test and dev queries near a training query": f"{known:,} of {leaks.queries:,}",
    }
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
        more = f" and {len(imports)} imports" if (imports := found.lineage.get("imports")) else ""
        values["labels from"] = f"{found.lineage.get('source', 'a file')}{more}"
    return {**values, **{f"not measured: {name}": why for name, why in found.not_measured.items()}}
