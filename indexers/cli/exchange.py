"""`cogr-index import` and `cogr-index export`, with a command for each kind of data. Without a
command name, the data are a snapshot.

Options and output only; the work is in `indexers.exchange`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from cogr.errors import SettingsError
from cogr.records import Side
from indexers.cli import console
from indexers.cli.console import Call, FormatName, SideOption, common_options, time_of

if TYPE_CHECKING:
    from cogr.datasets.fields import Columns
    from indexers.exchange.items import Mapped, Record
    from indexers.workspace import Workspace

DEFAULT = "snapshot"


class _Group(TyperGroup):
    """A group whose command name may be omitted: `cogr-index import FILE` is `import snapshot
    FILE`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        first = next((one for one in args if not one.startswith("-")), None)
        if args and first not in self.commands and args[0] not in ("--help", "-h"):
            args.insert(0, DEFAULT)
        return super().parse_args(ctx, args)


import_app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    help="Bring in items, judgements, or a snapshot (the default).",
)
export_app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    help="Write a snapshot (the default), judgements or results for other programs.",
)


@export_app.command("snapshot")
@common_options()
def export_snapshot(
    to: Annotated[Path, typer.Argument(help="File to write.")],
    snapshot: Annotated[
        str | None,
        typer.Option(
            "--snapshot",
            help="Id, or its beginning; by default what serves, or the newest if nothing does.",
        ),
    ] = None,
    side: SideOption = "item",
    format_: Annotated[
        FormatName,
        typer.Option(
            "--format",
            help="Format of the file; bulk is OpenSearch's, synonyms Solr's. See docs/exchange.md.",
        ),
    ] = "jsonl",
    *,
    call: Call,
) -> None:
    """Write a snapshot's keyword sets to a file for other systems."""
    from indexers.cli import reports
    from indexers.exchange.export import export as write

    workspace = call.workspace
    opened = workspace.snapshot(snapshot or workspace.backend.serving().get(side), side)
    written = write(opened, to, format_, prefix=workspace.settings.opensearch.prefix)
    payload = {
        "snapshot": opened.id,
        "file": str(to),
        "format": format_,
        **reports.plain(written),
    }
    call.emit(payload, lambda out: reports.facts(out, "Exported", payload))


@import_app.command("snapshot")
@common_options(backend=False)
def import_snapshot(
    file: Annotated[
        Path, typer.Argument(help="A jsonl or parquet file, as cogr-index export writes it.")
    ],
    side: Annotated[
        Side,
        typer.Option(
            "--side", help="Side of the keywords, if there is no manifest beside the file."
        ),
    ] = "item",
    *,
    call: Call,
) -> None:
    """Make a snapshot from a file of keyword sets: an exported snapshot, or keywords from
    elsewhere.
    """
    from indexers.cli import reports
    from indexers.exchange.imports import import_snapshot as read

    workspace = call.workspace
    manifest = read(workspace.store, file, side, workspace.settings.keywords.k_max).manifest
    payload = {
        "snapshot": manifest.id,
        "side": manifest.side,
        "entities": manifest.entities,
        "keywords": manifest.keywords,
    }
    call.emit(payload, lambda out: reports.facts(out, "Imported", payload))
    console.next_command(f"cogr-index push {manifest.id}")


TextOption = Annotated[
    list[str] | None,
    typer.Option(
        "--text",
        metavar="FIELD,...",
        help="Field of the text; several are joined, one a line. Repeatable.",
    ),
]
FieldOption = Annotated[
    list[str] | None,
    typer.Option(
        "--field", metavar="NAME[=FIELD]", help="One more field, for publish.fields. Repeatable."
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="TIME",
        help=(
            "Only items not older than this by --updated, added to the existing file; last: "
            "since the newest item in it."
        ),
    ),
]
SourceFormatOption = Annotated[
    str | None,
    typer.Option(
        "--format", help="csv, jsonl, json or parquet; by default recognised by the file."
    ),
]
BadShareOption = Annotated[
    float,
    typer.Option(
        "--bad-share", min=0, max=1, help="Highest share of bad records; they are left out."
    ),
]


@import_app.command("items")
@common_options(backend=False)
def import_items(
    call: Call,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="FILE...", help="CSV, TSV, JSON lines, JSON or parquet; .gz is fine."
        ),
    ] = None,
    index: Annotated[
        str | None,
        typer.Option("--index", help="Read this index, alias or pattern of opensearch.url."),
    ] = None,
    sql: Annotated[
        str | None,
        typer.Option("--sql", metavar="URL", help="Read a database, given by its SQLAlchemy URL."),
    ] = None,
    query: Annotated[
        str | None, typer.Option("--query", help="With --sql: a table, or a SELECT.")
    ] = None,
    format_: SourceFormatOption = None,
    id_: Annotated[
        str | None, typer.Option("--id", help="Field of the id; for an index _id by default.")
    ] = None,
    title: Annotated[str | None, typer.Option("--title", help="Field of the title.")] = None,
    text: TextOption = None,
    updated: Annotated[
        str | None,
        typer.Option("--updated", help="Field with the time of the item's last change."),
    ] = None,
    field: FieldOption = None,
    since: SinceOption = None,
    bad_share: BadShareOption = 0.01,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="File of JSON lines; the data set's items.jsonl by default."),
    ] = None,
) -> None:
    """Write items of files, an index or a database to the data set's items.jsonl.

    Fields may be dotted paths, such as attributes.colour. The file is replaced when all are read.
    """
    from cogr.datasets.fields import Columns
    from indexers.cli import reports
    from indexers.exchange.items import Mapped
    from indexers.exchange.items import import_items as run

    if bool(files) + (index is not None) + (sql is not None) != 1:
        raise SettingsError(
            "Name what to read: one or more files, or an index with --index, or a database with "
            "--sql."
        )
    path = to or _file_of(call.workspace, "items")
    texts, fields = _listed(text), _fields(field or ())
    named = [("--id", id_), ("--title", title), ("--updated", updated)]
    named += [("--text", one) for one in texts] + [("--field", one) for one in fields.values()]
    columns = Columns(id="_id") if index else Columns()
    columns = replace(
        columns,
        id=id_ or columns.id,
        title=title or columns.title,
        text=tuple(texts) or columns.text,
        updated=columns.updated if updated is None else updated,
        fields=fields,
    )
    target = call.workspace.reading.columns
    asked = {name: option for option, name in named if name}
    mapped = Mapped(columns, target, _since(since, path, target), asked)
    name, records = _source(call, mapped, files or [], index, sql, query, format_)
    found = run(records, path, mapped, name=name, bad_share=bad_share, say=console.note)
    for problem in found.problems:
        console.note(problem)
    payload = {"source": name, "file": str(path), **found.as_dict()}
    shown = {name: value for name, value in payload.items() if name != "problems"}
    call.emit(payload, lambda out: reports.facts(out, "Imported", shown))
    console.next_command("cogr-index inspect")


def _source(
    call: Call,
    mapped: Mapped,
    files: Sequence[Path],
    index: str | None,
    sql: str | None,
    query: str | None,
    format_: str | None,
) -> tuple[str, Iterable[Record]]:
    """The source's name and records."""
    from indexers.exchange.items import file_records, sql_records

    if index is not None:
        from indexers.backends.opensearch.client import Cluster
        from indexers.exchange.index_source import documents

        since = (mapped.columns.updated, mapped.since) if mapped.since else None
        cluster = Cluster(call.workspace.settings.opensearch)
        return f"the index {index}", documents(cluster, index, mapped.paths, since)
    if sql is None:
        return ", ".join(map(str, files)), file_records(files, format_, mapped.asked)
    if query is None:
        raise SettingsError("--sql needs --query: name a table, or write a SELECT.")
    return sql_records(sql, query)


def _listed(given: Sequence[str] | None) -> list[str]:
    return [part.strip() for one in given or () for part in one.split(",") if part.strip()]


def _fields(given: Sequence[str]) -> dict[str, str]:
    """Name -> field."""
    pairs = (one.partition("=") for one in given)
    return {name.strip(): (field or name).strip() for name, _, field in pairs}


def _file_of(workspace: Workspace, name: str) -> Path:
    """The data set's file of JSON lines of this name."""
    dataset = workspace.settings.dataset
    if dataset.loader != "jsonl" or dataset.path is None:
        raise SettingsError(
            'Set dataset.loader = "jsonl" and dataset.path to a folder, where '
            f"{name}.jsonl goes, or name a file with --to."
        )
    return Path(dataset.path).expanduser() / f"{name}.jsonl"


def _since(since: str | None, path: Path, target: Columns) -> datetime | None:
    from indexers.exchange.items import newest

    if since is None:
        return None
    if since != "last":
        return time_of(since)
    time = newest(path, target) if path.is_file() else None
    if time is None:
        raise SettingsError(
            f"--since last: no item of {path} says when it changed; import all of them first, with "
            "--updated."
        )
    return time


@import_app.command("ubi")
@common_options(backend=False)
def import_ubi(
    call: Call,
    to: Annotated[Path, typer.Argument(help="File to write, one JSON object a line.")],
    index: Annotated[
        list[str] | None,
        typer.Option("--index", help="ubi_queries and ubi_events by default. Repeatable."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="TIME", help="Only records not older than this."),
    ] = None,
) -> None:
    """Copy the indexes of User Behavior Insights to a file, for cogr-train labels from-clicks,
    cogr-ops shadow and cogr-index update --from-log.
    """
    from cogr.datasets.query_logs import ubi_record
    from indexers.backends.opensearch.client import Cluster
    from indexers.cli import reports
    from indexers.exchange.index_source import copy_records

    cluster = Cluster(call.workspace.settings.opensearch)
    time = None if since is None else ("timestamp", time_of(since))
    names = index or ("ubi_queries", "ubi_events")
    records, bad, first = copy_records(cluster, names, to, ubi_record, time)
    if first:
        console.note(first)
    payload = {"file": str(to), "records": records, "bad": bad}
    call.emit(payload, lambda out: reports.facts(out, "Copied", payload))


JudgementFormat = Literal["trec", "beir", "quepid"]
"""Those of `cogr.datasets.judgements`."""
SplitOption = Annotated[
    str | None, typer.Option("--split", help="Only the queries of this split: train, dev or test.")
]


@import_app.command("labels")
@common_options(backend=False)
def import_labels(
    call: Call,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Judgements.")],
    format_: Annotated[
        JudgementFormat | None,
        typer.Option("--format", help="Format of the files; by default recognised by each file."),
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(
            "--queries",
            help="Texts of the queries, if the files have only ids: id, tab and text on each line.",
        ),
    ] = None,
) -> None:
    """Add judgements of other tools to the data set's queries.jsonl and labels.jsonl.

    Of several grades of one pair the highest is kept; a pair that the data set has already gets the
    new grade.
    """
    from indexers.cli import reports
    from indexers.exchange.labels import import_labels as run

    folder = _file_of(call.workspace, "labels").parent
    found = run(files, folder, format=format_, texts=queries)
    for remark in found.remarks:
        console.note(remark)
    payload = {"folder": str(folder), **found.as_dict()}
    shown = {name: value for name, value in payload.items() if name != "remarks"}
    call.emit(payload, lambda out: reports.facts(out, "Imported", shown))
    console.next_command("cogr-index inspect")


@export_app.command("labels")
@common_options(backend=False)
def export_labels(
    call: Call,
    to: Annotated[Path, typer.Argument(help="File to write.")],
    format_: Annotated[
        JudgementFormat,
        typer.Option("--format", help="Tool that the file is for; see docs/exchange.md."),
    ],
    split: SplitOption = None,
) -> None:
    """Write the data set's judgements for another tool."""
    from indexers.cli import reports
    from indexers.exchange.results import queries_of, write_labels

    dataset = call.workspace.dataset
    queries = queries_of(dataset, split)
    count = write_labels(dataset, queries, to, format_)
    payload = {"file": str(to), "format": format_, "queries": len(queries), "judgements": count}
    call.emit(payload, lambda out: reports.facts(out, "Exported", payload))


@export_app.command("run")
@common_options()
def export_run(
    call: Call,
    to: Annotated[
        Path, typer.Argument(help="File to write: a table if it ends in .csv, else a TREC run.")
    ],
    split: SplitOption = None,
    size: Annotated[
        int, typer.Option("--size", min=1, max=10_000, help="Most hits per query.")
    ] = 1000,
) -> None:
    """Write what the serving pair finds for the data set's labelled queries."""
    from indexers.cli import reports
    from indexers.exchange.results import queries_of, run_of, serving_pair, write_run

    workspace = call.workspace
    pair = serving_pair(workspace, queries_of(workspace.dataset, split))
    run = run_of(workspace, pair, size)
    payload = {
        "file": str(to),
        "queries": len(run),
        "hits": write_run(run, pair, to),
        "item": pair.item,
        "query": pair.query,
    }
    call.emit(payload, lambda out: reports.facts(out, "Exported", payload))


@common_options(backend=False)
def score(
    call: Call,
    run: Annotated[Path, typer.Argument(help="A TREC run.")],
    split: SplitOption = None,
) -> None:
    """Compute precision, recall, F1 and rank metrics of any system's results by the data set's
    labels.
    """
    from cogr.datasets.judgements import read_run
    from indexers.cli import reports
    from indexers.exchange.results import score as figures_of

    found = {"run": str(run), **figures_of(call.workspace.dataset, read_run(run), split)}
    call.emit(found, lambda out: reports.facts(out, "Figures", found))


@export_app.command("workbench")
@common_options()
def export_workbench(
    call: Call,
    name: Annotated[str, typer.Option("--name", help="Name of the created objects.")] = "cogr",
    split: SplitOption = None,
    index: Annotated[
        str | None,
        typer.Option("--index", help="Index to search; the serving index by default."),
    ] = None,
    field: Annotated[
        str,
        typer.Option(
            "--field", help="Field of keywords in that index, such as one of publish --into."
        ),
    ] = "keywords",
    present: Annotated[
        Path | None,
        typer.Option("--present", help="JSON body of today's search, with %SearchText% in it."),
    ] = None,
    size: Annotated[int, typer.Option("--size", min=1, max=1000, help="Hits of a query.")] = 10,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="Write the bodies to this file instead of sending them."),
    ] = None,
) -> None:
    """Create a query set with keywords, judgements, searches and experiments in the Search
    Relevance Workbench (OpenSearch 3.8 or newer).
    """
    from cogr.store import replacing
    from indexers.backends.opensearch.client import Cluster
    from indexers.backends.opensearch.indexes import pushed_index
    from indexers.cli import reports
    from indexers.exchange.results import (
        judged_of,
        queries_of,
        send_workbench,
        serving_pair,
        workbench,
    )

    workspace, cluster = call.workspace, Cluster(call.workspace.settings.opensearch)
    queries = queries_of(workspace.dataset, split)
    pair, today = serving_pair(workspace, queries), None if present is None else _body(present)
    index = index or pushed_index(cluster, cluster.settings.prefix, pair.item).name
    judged = list(judged_of(workspace.dataset, queries))
    bodies = workbench(name, index, pair.rows, judged, today, field)
    payload: dict[str, Any] = {"queries": len(queries)}
    if to is None:
        payload |= send_workbench(cluster, bodies, size)
    else:
        with replacing(to) as file:
            file.write(json.dumps(bodies, ensure_ascii=False, indent=1).encode() + b"\n")
        payload["file"] = str(to)
    call.emit(payload, lambda out: reports.facts(out, "Workbench", payload))


def _body(path: Path) -> str:
    """Today's search for the workbench. Raises SettingsError."""
    text = path.read_text("utf-8") if path.is_file() else ""
    try:
        if "%SearchText%" in text:
            return json.dumps(json.loads(text))
    except ValueError:
        pass
    raise SettingsError(
        f"--present {path} is no JSON body with %SearchText% in it; write one search, with that "
        "where the shopper's text goes."
    )
