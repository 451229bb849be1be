"""`cogr-ops shadow`: options and output only."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer import Argument, Option

from cogr.datasets.reading import safe_cell
from cogr.errors import StorageError
from cogr.records import CLICKS, LogFormat
from indexers.cli.console import (
    Call,
    ColumnOption,
    CountColumnOption,
    FormatOption,
    ParameterOption,
    common_options,
)

if TYPE_CHECKING:
    from indexers.workspace import Workspace
    from ops.shadow.replay import ExpanderClient, Reader


CandidateOption = Annotated[
    Path | None,
    Option(
        "--candidate",
        help="JSON body of the other search, with {{clause}}; the clause alone by default.",
    ),
]
ClickOption = Annotated[
    list[str] | None,
    Option(
        "--click",
        help=f"UBI action that counts as a click; repeatable.  [default: {', '.join(CLICKS)}]",
    ),
]
IdFieldOption = Annotated[
    str,
    Option("--id-field", help="Field with the item's id in --index; _id for the documents' own."),
]
ReportOption = Annotated[
    Path | None,
    Option(
        "--report",
        help=(
            "Write the figures and every query's results to this file, as JSON; as a table of the "
            "queries alone if it ends in .csv."
        ),
    ),
]


@common_options(backend=False)
def shadow(
    call: Call,
    logs: Annotated[list[Path], Argument(metavar="LOG...", help="Query logs; .gz is fine.")],
    present: Annotated[
        Path, Option(help="JSON body of today's search, with {{query}} where the text goes.")
    ],
    index: Annotated[str, Option(help="Index or alias that --present searches.")],
    format_: FormatOption = LogFormat.auto,
    column: ColumnOption = None,
    count_column: CountColumnOption = None,
    candidate: CandidateOption = None,
    candidate_index: Annotated[
        str | None,
        Option(help="Index for --candidate; by default the one that the expander names."),
    ] = None,
    expander: Annotated[
        str | None, Option(help="Address of the expander.  [default: http://127.0.0.1:8600]")
    ] = None,
    size: Annotated[int, Option(min=1, max=1000, help="Hits that are compared.")] = 10,
    limit: Annotated[int, Option(min=1, help="Most queries; a larger log is sampled.")] = 1000,
    rate: Annotated[float, Option(min=0.01, help="Most queries a second.")] = 20.0,
    parameter: ParameterOption = "q",
    click: ClickOption = None,
    id_field: IdFieldOption = "_id",
    report: ReportOption = None,
) -> None:
    """Send the queries of a log to today's search and to one with keywords, and compare the
    results.

    Only reads; shoppers notice nothing.
    """
    from cogr.datasets.query_logs import LogOptions, read_log, sample
    from indexers.telemetry.terminal import progress_bar
    from ops.shadow.comparison import rows, summary
    from ops.shadow.replay import CLAUSE_ALONE, Body, Candidate, Present, check, replay

    bodies = Body.read(present), CLAUSE_ALONE if candidate is None else Body.read(candidate)
    for body, keywords in zip(bodies, (False, True), strict=True):
        body.need(keywords=keywords)
    log = read_log(logs, LogOptions(format_, column, count_column, parameter, click or CLICKS))
    queries = sample(log.queries, limit)
    reader = _reader(call.workspace, size)
    old = Present(replace(reader, id_field=id_field), index, bodies[0])
    # An index that a snapshot was pushed to has the items' ids as the documents' own.
    new_reader = replace(reader, id_field=id_field) if candidate_index == index else reader
    new = Candidate(new_reader, _expander(call.workspace, expander), bodies[1], candidate_index)
    check(old, new)
    with progress_bar("Asking both", len(queries)) as advance:
        done = replay(queries, old, new, rate, advance)
    read = {"lines": log.lines, "without": log.without, "queries": len(log.queries)}
    read["left_out"] = sum(log.left_out.values())
    payload = {
        "log": read,
        "size": size,
        "index": index,
        "body": bodies[0].source,
        "other_body": bodies[1].source,
        **summary(done),
    }
    if report is not None:
        _write(report, {**payload, "rows": rows(done)})
    call.emit({**payload, "report": report}, lambda out: show(out, payload))


def _reader(workspace: Workspace, size: int) -> Reader:
    from indexers.backends.opensearch.client import Cluster
    from ops.shadow.replay import Reader

    return Reader(Cluster(workspace.settings.opensearch), size)


def _expander(workspace: Workspace, url: str | None) -> ExpanderClient:
    from ops.shadow.replay import ExpanderClient

    serving = workspace.settings.serving
    token = serving.token.get_secret_value() if serving.token else None
    return ExpanderClient(url or "http://127.0.0.1:8600", token)


def _write(path: Path, report: Mapping[str, Any]) -> None:
    text = json.dumps(report, ensure_ascii=False, indent=1)
    try:
        path.write_text(_table(report["rows"]) if path.suffix == ".csv" else text, "utf-8")
    except OSError as error:
        raise StorageError(
            f"The report can't be written to {path} ({error.strerror}); name another file."
        ) from error


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A row a query; ids as JSON."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(rows[0])
    for row in rows:
        cells = (
            json.dumps(cell, ensure_ascii=False) if isinstance(cell, list | dict) else cell
            for cell in row.values()
        )
        writer.writerow([safe_cell(cell) if isinstance(cell, str) else cell for cell in cells])
    return text.getvalue()


def show(out: Console, found: Mapping[str, Any]) -> None:
    """The figures for people, today's search beside the other one."""
    table = Table("", "today", "with keywords", "", title=_title(found), title_justify="left")
    zero, took = found["zero_results"], found["milliseconds"]
    for name in ("clicked", "shown"):
        if of := found[name]:
            change = f"{_spell(of['difference'], sign='+')}, {of['queries']:,} queries"
            recalls = (_spell(of[side]) for side in ("present", "candidate"))
            table.add_row(f"recall of {name} items", *recalls, change)
    counts = f"{zero['gained_searches']:,} gained, {zero['lost_searches']:,} lost"
    table.add_row(
        "searches without results", _spell(zero["present"]), _spell(zero["candidate"]), counts
    )
    expanding = took["expanding"]
    for name in ("p50", "p95"):
        shown = f"expanding {expanding[name]:.1f} ms"
        table.add_row(
            f"latency {name}",
            f"{took['present'][name]:.1f} ms",
            f"{took['candidate'][name]:.1f} ms",
            shown,
        )
    out.print(table)
    alike = {"same results": "same", "overlap": "overlap", "rank-biased overlap": "rbo"}
    out.print(", ".join(f"{title} {_spell(found[name])}" for title, name in alike.items()))
    out.print(
        "keywords from: "
        + ", ".join(f"{name} {count:,}" for name, count in found["sources"].items())
    )
    for title, texts in (("new results for", zero["gained"]), ("results lost for", zero["lost"])):
        if texts:
            out.print(Text(f"{title}: {', '.join(texts)}"))


def _title(found: Mapping[str, Any]) -> str:
    failed = sum(found["failed"].values())
    aside = f", {failed:,} queries failed and are left out" if failed else ""
    return (
        f"{found['searches']:,} searches, {found['queries']:,} queries, the best {found['size']} "
        f"hits{aside}"
    )


def _spell(figure: Mapping[str, float], sign: str = "") -> str:
    return f"{figure['mean']:{sign}.3f} ± {figure['error']:.3f}"
