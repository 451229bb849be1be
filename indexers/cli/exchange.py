"""`cogr-index import` and `cogr-index export`, with a command for each kind of data. Without a
command name, `export` writes a snapshot.

Options and output only; the work is in `indexers.imports` and `indexers.exports`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option
from typer.core import TyperGroup

from cogr.errors import SettingsError
from cogr.records import Split
from indexers.cli import console
from indexers.cli.console import Call, FormatName, SideOption, common_options, time_of

if TYPE_CHECKING:
    from indexers.workspace import Workspace

DEFAULT = "snapshot"


class _Group(TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        first = next((one for one in args if not one.startswith("-")), None)
        if args and first not in self.commands and args[0] not in ("--help", "-h"):
            args.insert(0, DEFAULT)
        return super().parse_args(ctx, args)


_IMPORT = "Bring in items and logs of a cluster, or judgements of other tools."
_EXPORT = "Write a snapshot (the default), judgements or results for other programs."
import_app = typer.Typer(no_args_is_help=True, help=_IMPORT)
export_app = typer.Typer(cls=_Group, no_args_is_help=True, help=_EXPORT)

ToArgument = Annotated[Path, Argument(help="File to write.")]
FormatOption = Annotated[
    FormatName, Option("--format", help="bulk is OpenSearch's (docs/exchange.md).")
]


@export_app.command("snapshot")
@common_options()
def export_snapshot(
    to: ToArgument,
    snapshot: Annotated[
        str | None, Option(help="Id; what serves, or the newest, by default.")
    ] = None,
    side: SideOption = "item",
    format_: FormatOption = "jsonl",
    *,
    call: Call,
) -> None:
    """Write a snapshot's keyword sets to a file for other systems."""
    from indexers.exports import export as write

    workspace = call.workspace
    opened = workspace.snapshot(snapshot or workspace.backend.serving().get(side), side)
    beside = write(opened, to, format_, prefix=workspace.settings.opensearch.prefix)
    facts = {"snapshot": opened.id, "file": str(to), "format": format_}
    call.show("Exported", {**facts, "entities": opened.manifest.entities, "beside": beside})


IndexOption = Annotated[str, Option(help="An index, an alias or a pattern of opensearch.url.")]
IdOption = Annotated[
    str | None, Option("--id", help="Field of the id; the document's own by default.")
]
TextOption = Annotated[
    list[str] | None,
    Option(metavar="FIELD,...", help="Field of the text; several are joined. Repeatable."),
]
UpdatedOption = Annotated[str, Option(help="Field with the time of the item's last change.")]
FieldOption = Annotated[
    list[str] | None,
    Option(metavar="NAME[=FIELD]", help="One more field, for publish.fields. Repeatable."),
]
ItemsOption = Annotated[
    Path | None, Option(help="File of JSON lines; the data set's items.jsonl by default.")
]


@import_app.command("items")
@common_options(backend=False)
def import_items(
    call: Call,
    index: IndexOption,
    id_: IdOption = None,
    title: Annotated[str, Option(help="Field of the title.")] = "title",
    text: TextOption = None,
    updated: UpdatedOption = "",
    field: FieldOption = None,
    to: ItemsOption = None,
) -> None:
    """Write the documents of an index to the data set's items.jsonl.

    Fields may be dotted paths, such as attributes.colour. The file is replaced when all are read.
    """
    from cogr.datasets.fields import Columns
    from indexers.backends.opensearch.client import Cluster
    from indexers.imports import documents, paths_of
    from indexers.imports import import_items as run

    path = to or _file_of(call.workspace, "items")
    texts = [name for one in text or () for part in one.split(",") if (name := part.strip())]
    pairs = (one.partition("=") for one in field or ())
    fields = {name.strip(): (source or name).strip() for name, _, source in pairs}
    source = Columns(id_ or "_id", title, tuple(texts) or ("text",), updated, fields)
    named = [(id_, "--id"), (updated, "--updated"), *((one, "--text") for one in texts)]
    named += [(title, "--title")] if title != "title" else []
    named += [(one, "--field") for one in fields.values()]
    asked = {name: option for name, option in named if name}
    cluster = Cluster(call.workspace.settings.opensearch)
    found = documents(cluster, index, paths_of(source))
    done = run(found, path, source, call.workspace.reading.columns, asked)
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
@common_options(backend=False)
def import_ubi(
    call: Call,
    to: Annotated[Path, Argument(help="File to write, one JSON object a line.")],
    index: Annotated[
        list[str] | None, Option(help="ubi_queries and ubi_events by default. Repeatable.")
    ] = None,
    since: Annotated[
        str | None, Option(metavar="TIME", help="Only records not older than this.")
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
    time = None if since is None else ("timestamp", time_of(since))
    names = index or ("ubi_queries", "ubi_events")
    texts = QueryFilter()
    records = copy_records(
        cluster, names, to, lambda record: texts.keeps(str(record.get("user_query") or "")), time
    )
    left_out = sum(texts.counts.values())
    call.show("Copied", {"file": str(to), "records": records, "left_out": left_out})


JudgementFormat = Literal["trec", "beir", "quepid"]
"""Those of `cogr.datasets.judgements`."""
ReadFormatOption = Annotated[
    JudgementFormat | None, Option("--format", help="Format of the files; recognised by default.")
]
TextsOption = Annotated[
    Path | None,
    Option(help="Texts of the queries, if the files have only ids: id, tab and text on each line."),
]
SplitOption = Annotated[Split | None, Option(help="Only the queries of this split.")]


@import_app.command("labels")
@common_options(backend=False)
def import_labels(
    call: Call,
    files: Annotated[list[Path], Argument(metavar="FILE...", help="Judgements.")],
    format_: ReadFormatOption = None,
    queries: TextsOption = None,
) -> None:
    """Add judgements of other tools to the data set's queries.jsonl and labels.jsonl.

    Of several grades of one pair the highest is kept; a pair that the data set has already gets the
    new grade.
    """
    from indexers.imports import import_labels as run

    folder = _file_of(call.workspace, "labels").parent
    found = run(files, folder, format=format_, texts=queries)
    for remark in found.remarks:
        console.note(remark)
    call.show("Imported", {"folder": str(folder), **asdict(found)}, hide="remarks")


@export_app.command("labels")
@common_options(backend=False)
def export_labels(
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
def export_run(
    call: Call,
    to: Annotated[Path, Argument(help="File to write, a TREC run.")],
    split: SplitOption = None,
    size: Annotated[int, Option(min=1, max=10_000, help="Most hits per query.")] = 1000,
) -> None:
    """Write what the serving pair finds for the data set's labelled queries."""
    from indexers.exports import queries_of, run_of, serving_pair, write_run

    workspace = call.workspace
    pair = serving_pair(workspace, queries_of(workspace.dataset, split))
    run = run_of(workspace, pair, size)
    found = {"file": str(to), "queries": len(run), "hits": write_run(run, pair, to)}
    call.show("Exported", {**found, "item": pair.item, "query": pair.query})
