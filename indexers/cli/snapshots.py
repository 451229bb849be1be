"""The commands that read snapshots, data sets and runs: list, search, diff, inspect, status.

Options and output only; the work is in the packages beside.
"""

from __future__ import annotations

import getpass
import logging
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from typer import Argument, Option

from cogr.errors import UserError
from cogr.records import SIDES, Side
from indexers.cli import console
from indexers.cli.console import Call, common_options
from indexers.tables import Table

if TYPE_CHECKING:
    from indexers.search import Answered

log = logging.getLogger(__name__)


@common_options()
def list_(call: Call) -> None:
    """List all snapshots: whether they serve, their contents, size, age, and F1 where it was
    measured.
    """
    from indexers.release.inventory import listing

    rows = listing(call.workspace)
    call.emit({"snapshots": rows}, listed(rows).show)


def listed(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The listing as a table. --json has the rest."""
    shown = [
        {
            "snapshot": row["snapshot"],
            "state": row["state"],
            "F1": "" if row["f1"] is None else f"{row['f1']:.4f}",
            "created": row["created"],
            "entities": "" if row["entities"] is None else row["entities"],
            "MB": "" if row["bytes"] is None else f"{row['bytes'] / 1e6:.1f}",
        }
        for row in rows
    ]
    notes = [
        f"{row['damage']}{' It serves.' if row['serving'] else ''}"
        for row in rows
        if row["state"] == "damaged"
    ]
    return Table("" if rows else "No snapshot yet: run cogr-index rebuild.", shown, notes)


@common_options()
def search(
    text: Annotated[str, Argument(help="The shopper's query.")],
    call: Call,
    size: Annotated[int, Option(min=1, max=10_000, help="Hits to show.")] = 10,
    keywords: Annotated[
        str | None, Option(help="Use these, comma-separated, instead of generated ones.")
    ] = None,
    keywords_only: Annotated[
        bool, Option("--keywords-only", help="Search by keywords alone, not in texts.")
    ] = False,
    explain: Annotated[
        bool, Option("--explain", help="Show each keyword's part of each score.")
    ] = False,
) -> None:
    """Search what serves, and show the query's keywords, the items, and which keywords matched.

    First comes the set: items that the keywords find, and those that have every word of the query
    in one field. Then come more, by the words of their titles.
    """
    from indexers.search import search as run_search

    if not text.strip() and not keywords:
        raise UserError('The query is empty: give a text, such as cogr-index search "green sofa".')
    workspace = call.workspace
    answer = run_search(workspace, text, size=size, keywords=keywords, keywords_only=keywords_only)
    if answer.note:
        console.note(answer.note)
    call.emit(answer.as_dict(), lambda out: _show(out, answer, explain=explain))


_SOURCES = {
    "given": "given",
    "index": "precomputed",
    "generator": "generated now",
    "none": "the query text alone",
}


def _show(out: Console, found: Answered, *, explain: bool) -> None:
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


@common_options()
def diff(
    before: Annotated[str, Argument(help="Id of the older snapshot.")],
    after: Annotated[str, Argument(help="Id of the newer snapshot, of the same side.")],
    call: Call,
    top: Annotated[int, Option(min=1, help="Number of keywords and entities to name.")] = 10,
) -> None:
    """Show what changed between two snapshots: keywords, and items or queries."""
    from cogr.snapshots import open_snapshot
    from indexers.search import diff as compare

    workspace = call.workspace
    old, new = (open_snapshot(workspace.store, id_) for id_ in (before, after))
    found = compare(old, new, top=top)
    words = {
        f"keywords {name}": ", ".join(f"{word} ({count:,})" for word, count in counted)
        for name, counted in (("gained", found.gained), ("lost", found.lost))
    }
    hidden = {"gained", "lost", *["other_fields"] * (not found.other_fields)}
    told = {name: value for name, value in asdict(found).items() if name not in hidden}
    call.show("Differences", asdict(found), told={**told, **words})


@common_options()
def inspect(
    quick: Annotated[
        bool, Option("--quick", help="Only count: no searches, no comparisons.")
    ] = False,
    *,
    call: Call,
) -> None:
    """Show what is in the data set, what is wrong with it, and what to do: train, label more, or
    keep BM25.

    Checks how many of the found items were judged, leaks between splits, and relevant pairs without
    a common word. See docs/datasets.md.
    """
    from indexers.inspection import examine, inspect_dataset

    if quick:
        payload = inspect_dataset(call.workspace.dataset).as_dict()
    else:
        payload = examine(call.workspace, log.info).as_dict()
    told = {name: value for name, value in payload.items() if name not in ("verdict", "advice")}
    notes = ["", f"What to do: {payload['verdict']}.", *payload["advice"]]
    call.show("Data set", payload, told=told, notes=notes)


@common_options(backend=False)
def status(
    call: Call,
    side: Annotated[Side | None, Option(help="Only this side.")] = None,
    stop: Annotated[
        bool, Option("--cancel", help="Stop the rebuild of --side; what was generated is kept.")
    ] = False,
) -> None:
    """Show the state of rebuilds on workers: answers, shards, workers, time left; or stop one.

    Reads the store; needs no broker.
    """
    from indexers.fleet.run_files import cancel, overview
    from indexers.tables import show_all

    store = call.workspace.store
    if stop and side is None:
        raise UserError("--cancel stops the rebuild of one side; name it with --side.")
    if stop and side is not None:
        cancel(store, side, f"{getpass.getuser()} on {socket.gethostname()}")
    sides = SIDES if side is None else [side]
    found = [run for one in sides if (run := overview(store, one)) is not None]

    def show(out: Console) -> None:
        if not found:
            out.print("No rebuild on workers yet: cogr-index rebuild --side item --workers celery.")
        for run in found:
            note = f" ({run.note})" if run.note else ""
            in_title = {"id", "side", "state", "note", "fingerprint", "generator"}
            title = f"{run.side}s, run {run.id}: {run.state}{note}"
            show_all(out, title, run.model_dump(exclude=in_title))

    call.emit({"runs": [run.model_dump() for run in found]}, show)
