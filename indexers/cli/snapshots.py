"""The commands on snapshots and data sets: list, search, diff, inspect, import, export.

Options and output only; the work is in the packages beside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from cogr.errors import SettingsError
from cogr.records import Split
from indexers.cli import console
from indexers.cli.console import Call, SideOption, common_options
from indexers.tables import Table

if TYPE_CHECKING:
    from indexers.workspace import Workspace


@common_options()
def _list(call: Call) -> None:
    """Say what serves and where, and list all snapshots: the pairs that they were published in,
    their contents and age.
    """
    from indexers.serving import listing

    serving, rows = listing(call.workspace)
    columns = ("snapshot", "state", "pair", "created", "entities")
    told = [{**row, "pair": ", ".join(row["pairs"][-2:])} for row in rows]
    shown = [{name: row[name] for name in columns} for row in told]
    damaged = [row for row in rows if row["state"] == "damaged"]
    notes = [f"{row['damage']}{' It serves.' if row['serving'] else ''}" for row in damaged]
    title = _serves(serving) if rows else "No snapshot yet: run cogr-index rebuild --side item."
    table = Table(title, shown, [*notes, *serving["problems"]])
    call.emit({"serving": serving, "snapshots": rows}, table.show)


def _serves(serving: Mapping[str, Any]) -> str:
    if not serving["item"] and not serving["query"]:
        return f"Nothing serves{' in ' if serving['index'] else ''}{serving['index']}"
    where = f"{serving['index']} (field {serving['field']})" if serving["field"] else "CoGR's index"
    named = f"the pair of {serving['pair']}" if serving["pair"] else "an unpublished pair"
    rules = f", {serving['rules']} rules" if serving["rules"] else ""
    share = f", {serving['coverage']:.0%} of the documents" if serving["coverage"] else ""
    return f"In {where} serves {named}{rules}{share}"


@common_options()
def _search(
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
        bool,
        Option("--explain", help="Show weights, each keyword's part of each score, and fields."),
    ] = False,
) -> None:
    """Search what serves, and show the query's keywords, the items, and which keywords matched.

    First comes the set: items that the keywords find, and those that have every word of the query
    in one field. Then come more, by the words of their titles.
    """
    from indexers.search import search

    workspace = call.workspace
    answer = search(workspace, text, size=size, keywords=keywords, keywords_only=keywords_only)
    if answer.note:
        console.note(answer.note)
    call.emit(answer.as_dict(), answer.table(explain=explain).show)


@common_options()
def _diff(
    before: Annotated[str, Argument(help="Id of the older snapshot.")],
    after: Annotated[str, Argument(help="Id of the newer snapshot, of the same side.")],
    call: Call,
) -> None:
    """Show what changed between two snapshots: keywords, and items or queries."""
    from cogr.snapshots import open_snapshot
    from indexers.search import diff

    store = call.workspace.store
    changes = diff(open_snapshot(store, before), open_snapshot(store, after))
    words = {
        f"keywords {name}": ", ".join(f"{word} ({count:,})" for word, count in changes[name])
        for name in ("gained", "lost")
    }
    told = {name: value for name, value in changes.items() if name not in ("gained", "lost")}
    call.show("Differences", changes, told={**told, **words})


@common_options()
def _inspect(call: Call) -> None:
    """Show what is in the data set, what is wrong with it, and what to do: train, label more, or
    keep BM25.

    Checks how many of the found items were judged, and leaks between splits. See docs/datasets.md.
    """
    from indexers.inspection import examine

    payload = asdict(examine(call.workspace))
    told = {name: value for name, value in payload.items() if name not in ("verdict", "advice")}
    title = f"What to do: {payload['verdict']}"
    call.show(title, payload, told=told, notes=["", *payload["advice"]])


_IMPORT = "Bring in items and logs of a cluster, or judgements of other tools."
_EXPORT = "Write keyword sets, judgements or results for other programs."
import_app = typer.Typer(no_args_is_help=True, help=_IMPORT)
export_app = typer.Typer(no_args_is_help=True, help=_EXPORT)

ToArgument = Annotated[Path, Argument(help="File to write.")]


@export_app.command("keywords")
@common_options()
def _export_keywords(
    to: ToArgument,
    snapshot: Annotated[
        str | None, Option(help="Id; what serves, or the newest, by default.")
    ] = None,
    side: SideOption = "item",
    *,
    call: Call,
) -> None:
    """Write a snapshot's keyword sets as JSON lines for other systems."""
    from indexers.exports import export_keywords

    workspace = call.workspace
    opened = workspace.snapshot(snapshot or workspace.backend.serving().get(side), side)
    export_keywords(opened, to)
    facts = {"snapshot": opened.id, "file": str(to), "entities": opened.manifest.entities}
    call.show("Exported", facts)


@import_app.command("items")
@common_options()
def _import_items(
    call: Call,
    index: Annotated[str, Option(help="An index, an alias or a pattern of opensearch.url.")],
    id_: Annotated[
        str, Option("--id", help="Field of the id; the document's own by default.")
    ] = "_id",
    title: Annotated[str, Option(help="Field of the title.")] = "title",
    text: Annotated[
        list[str] | None,
        Option(metavar="FIELD,...", help="Field of the text; several are joined. Repeatable."),
    ] = None,
    updated: Annotated[str, Option(help="Field with the time of the item's last change.")] = "",
    field: Annotated[
        list[str] | None,
        Option(metavar="NAME[=FIELD]", help="One more field, for publish.fields. Repeatable."),
    ] = None,
    to: Annotated[
        Path | None, Option(help="File of JSON lines; the data set's items.jsonl by default.")
    ] = None,
) -> None:
    """Write the documents of an index to the data set's items.jsonl.

    Fields may be dotted paths, such as attributes.colour. The file is replaced when all are read.
    """
    from cogr.datasets.fields import Columns
    from indexers.backends.opensearch.client import Cluster
    from indexers.imports import import_items, index_documents, paths_of

    path = to or _file_of(call.workspace, "items")
    texts = [name for one in text or () for part in one.split(",") if (name := part.strip())]
    pairs = (one.partition("=") for one in field or ())
    fields = {name.strip(): (source or name).strip() for name, _, source in pairs}
    source = Columns(id_, title, tuple(texts), updated, fields)
    documents = index_documents(
        Cluster(call.workspace.settings.opensearch), index, paths_of(source)
    )
    done = import_items(documents, path, source, call.workspace.reading.columns)
    for problem in done.problems:
        console.note(problem)
    facts = {"source": f"the index {index}", "file": str(path), **asdict(done)}
    call.show("Imported", facts, hide="problems")


def _file_of(workspace: Workspace, name: str) -> Path:
    dataset = workspace.settings.dataset
    if dataset.loader != "jsonl" or dataset.path is None:
        raise SettingsError(
            'Set dataset.loader = "jsonl" and dataset.path to a folder, where '
            f"{name}.jsonl goes, or name a file with --to."
        )
    return Path(dataset.path).expanduser() / f"{name}.jsonl"


@import_app.command("ubi")
@common_options()
def _import_ubi(
    call: Call,
    to: Annotated[Path, Argument(help="File to write, one JSON object a line.")],
    index: Annotated[
        list[str] | None, Option(help="ubi_queries and ubi_events by default. Repeatable.")
    ] = None,
    since: Annotated[
        datetime | None, console.time_option("Only records not older than this.")
    ] = None,
) -> None:
    """Copy the indexes of User Behavior Insights to a file, for cogr-train labels from-clicks,
    cogr-ops shadow and cogr-index update --from-log. Records whose query holds personal data are
    left out and counted.
    """
    from cogr.privacy import QueryFilter
    from indexers.backends.opensearch.client import Cluster
    from indexers.imports import copy_records

    cluster = Cluster(call.workspace.settings.opensearch)
    time = None if since is None else ("timestamp", since)
    names = index or ("ubi_queries", "ubi_events")
    texts = QueryFilter()
    records = copy_records(
        cluster, names, to, lambda record: texts.keeps(str(record.get("user_query") or "")), time
    )
    left_out = sum(texts.counts.values())
    call.show("Copied", {"file": str(to), "records": records, "left_out": left_out})


JudgementFormat = Literal["trec", "beir", "quepid"]
"""Those of `cogr.datasets.judgements` that are written."""
ReadFormat = Literal["trec", "beir", "quepid", "ranklib", "rre", "workbench", "rank_eval"]
_TEXTS = "Texts of the queries, if the files have only ids: id, tab and text on each line."
SplitOption = Annotated[Split | None, Option(help="Only the queries of this split.")]


@import_app.command("labels")
@common_options(files=True)
def _import_labels(
    call: Call,
    files: Annotated[list[Path], Argument(metavar="FILE...", help="Judgements.")],
    queries: Annotated[Path | None, Option(help=_TEXTS)] = None,
    format_: Annotated[
        ReadFormat | None, Option("--format", help="Of the files, where it is not recognised.")
    ] = None,
) -> None:
    """Add judgements of other tools to the data set's queries.jsonl and labels.jsonl.

    Of several grades of one pair the highest is kept; a pair that the data set has already gets the
    new grade.
    """
    from indexers.imports import import_labels

    folder = _file_of(call.workspace, "labels").parent
    result = import_labels(files, folder, texts=queries, format=format_)
    call.show("Imported", {"folder": str(folder), **asdict(result)})


@export_app.command("labels")
@common_options()
def _export_labels(
    call: Call,
    to: ToArgument,
    format_: Annotated[JudgementFormat, Option("--format", help="See docs/exchange.md.")],
    split: SplitOption = None,
) -> None:
    """Write the data set's judgements for another tool."""
    from indexers.exports import queries_of, write_labels

    dataset = call.workspace.dataset
    queries = queries_of(dataset, split)
    count = write_labels(dataset, queries, to, format_)
    facts = {"file": str(to), "format": format_, "queries": len(queries)}
    call.show("Exported", {**facts, "judgements": count})


@export_app.command("run")
@common_options()
def _export_run(
    call: Call,
    to: Annotated[Path, Argument(help="File to write, a TREC run.")],
    split: SplitOption = None,
    size: Annotated[int, Option(min=1, max=10_000, help="Most hits per query.")] = 1000,
) -> None:
    """Write what the serving pair finds for the data set's labelled queries."""
    from indexers.exports import queries_of, run_of, write_run
    from indexers.search import Searcher

    workspace = call.workspace
    serving = Searcher(workspace)
    run = run_of(serving, queries_of(workspace.dataset, split), size)
    payload = {"file": str(to), "queries": len(run), "hits": write_run(run, serving.query, to)}
    call.show("Exported", {**payload, "item": serving.item, "query": serving.query or "none"})


COMMANDS = {
    "search": _search,
    "diff": _diff,
    "inspect": _inspect,
    "list": _list,
}
"""Name -> command, in the order of --help."""
