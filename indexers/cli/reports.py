"""What cogr-index prints for people where it differs from the JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from indexers.exchange.search import Answered
from indexers.release import Released
from indexers.tables import Table


def rebuilt(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a rebuild or an update would do or did; figures of prompts and completions only if there
    were any.
    """
    told = {**values, "generator": f"{values['generator'].get('kind')} ({values['why']})"}
    first = ", ".join(one["id"] for one in values.get("empty_sets", ())[:3])
    if first:
        told["empty"] = f"{values['empty']:,}, such as {first}"
    hidden = {"why", "prompted", "empty_sets"}
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
