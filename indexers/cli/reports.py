"""What cogr-index prints for people where it differs from the JSON, and the next command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from cogr.records import SIDES, Side
from indexers.exchange.search import Answered
from indexers.generators.statistical.generator import JOINED
from indexers.rebuild.run import Outcome
from indexers.rebuild.update import Updated
from indexers.release import Released
from indexers.tables import Table
from indexers.workspace import Workspace


def rebuilt(values: Mapping[str, Any], *, show_empty: bool = False) -> dict[str, Any]:
    """What a rebuild or an update would do or did; figures of prompts and completions only if there
    were any.
    """
    told = {**values, "generator": f"{values['generator'].get('kind')} ({values['why']})"}
    first = ", ".join(one["id"] for one in values.get("empty_sets", ())[:3])
    if first:
        told["empty"] = f"{values['empty']:,}, such as {first} (--show-empty names them)"
    hidden = {"why", "prompted", "report"} | (set() if show_empty else {"empty_sets"})
    if not values["prompted"]:
        hidden |= {"prompts", "cut_prompts"}
    if values["prompted"] and values.get("generated"):
        told["Completions"] = values["parse"]
    return {name: value for name, value in told.items() if name not in {*hidden, "parse"}}


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
    """The next useful command after a look at a snapshot: to publish it, or to search where it
    serves.
    """
    serving = workspace.backend.serving()
    return after_switch(serving) if id_ in serving.values() else f"cogr-index publish {id_}"


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
    written = snapshot.manifest.generator
    refits = written.get("kind") == "statistical" and JOINED not in written
    if snapshot.side == "item" and refits and updated.outcome.published and serving.get("query"):
        return (
            "cogr-index rebuild --side query (its keywords were written before the update: they "
            "find the old items less often, and the new ones seldom)"
        )
    return f"cogr-index diff {updated.parent} {snapshot.id}"


_SOURCES = {
    "given": "given",
    "index": "precomputed",
    "generator": "generated now",
    "none": "the query text alone",
}


def answer(out: Console, found: Answered, *, explain: bool) -> None:
    """A search's keywords and hits."""
    by = f"{len(found.keywords)} keywords ({_SOURCES[found.source]})"
    sure = "" if found.confidence is None else f", confidence {found.confidence:.2f}"
    more = f" and {found.more:,} more by text" if found.more else ""
    out.print(f"{found.total:,} items by {by}{more}, {found.backend}{sure}")
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
        row |= {"tier": hit.tier} if found.more else {}
        rows.append({**row, **dict.fromkeys(names, ""), **hit.fields, "matched": matched})
    Table("", rows).show(out)
