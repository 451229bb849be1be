"""`cogr-ops shadow`: options and output only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from typer import Argument, Option

from cogr.errors import CheckFailedError
from indexers.cli import console
from indexers.cli.console import Call, common_options
from indexers.tables import Table

if TYPE_CHECKING:
    from indexers.workspace import Workspace


@common_options(files=True)
def shadow(
    call: Call,
    logs: Annotated[list[Path], Argument(metavar="LOG...", help="Query logs; .gz is fine.")],
    present: Annotated[
        Path, Option(help="JSON body of today's search, with {{query}} where the text goes.")
    ],
    index: Annotated[str, Option(help="Index or alias that --present searches.")],
    candidate: Annotated[
        Path | None,
        Option(help="JSON body of the other search, with {{clause}}; by default what serves."),
    ] = None,
    candidate_index: Annotated[
        str | None,
        Option(help="Index for --candidate; by default the one that the expander names."),
    ] = None,
    expander: Annotated[str, Option(help="Address of the expander.")] = "http://127.0.0.1:8600",
    size: Annotated[int, Option(min=1, max=1000, help="Hits that are compared.")] = 10,
    limit: Annotated[int, Option(min=1, help="Most queries; a larger log is sampled.")] = 1000,
    rate: Annotated[float, Option(min=0.01, help="Most queries a second.")] = 20.0,
    id_field: Annotated[
        str | None,
        Option(help="Field with the item's id in --index; by default that of serving.into."),
    ] = None,
    item_path: console.ItemPathOption = None,
    parameter: console.ParameterOption = "q",
) -> None:
    """Send the queries of a log to today's search and to what serves, and compare the results.

    Only reads; shoppers notice nothing. --json also has the results of every query. Ends with
    status 1 where no hit of one search has the id of an item, or what serves is not a whole pair.
    """
    from cogr.datasets.access_logs import AccessLog
    from cogr.datasets.query_logs import read_log, sample
    from indexers.backends.opensearch.client import Cluster
    from indexers.serving import what_serves
    from indexers.telemetry.terminal import progress_bar
    from ops.shadow import ExpanderClient, Search, replay
    from ops.shadow.bodies import SERVED, Body
    from ops.shadow.summary import rows, strangers, summary

    today = Body.read(present, keywords=False)
    other = SERVED if candidate is None else Body.read(candidate, keywords=True)
    log = read_log(logs, AccessLog(parameter, item_path) if item_path else None)
    queries = sample(log.queries, limit)
    settings = call.workspace.settings
    cluster = Cluster(settings.opensearch)
    ids = id_field or settings.serving.into.id_field
    old = Search(cluster, today, index, size, ids)
    token = settings.serving.token.get_secret_value() if settings.serving.token else None
    new = Search(cluster, other, candidate_index, size, ids, ExpanderClient(expander, token))
    with progress_bar("Asking both", len(queries)) as advance:
        done = replay(queries, old, new, rate, advance)
    read = {"lines": log.lines, "without": log.without, "queries": len(log.queries)}
    read["left_out"] = sum(log.left_out.values())
    payload = {"log": read, "size": size, "index": index, **summary(done)}
    payload |= {"body": today.source, "other_body": other.source}
    call.emit({**payload, "rows": rows(done)}, lambda out: show(out, payload))
    if problems := what_serves(call.workspace).problems:
        raise CheckFailedError(" ".join(problems))
    if strange := strangers(done, _known_ids(call.workspace)):
        raise CheckFailedError(
            f"No hit of the search {' or '.join(strange)} has the id of an item, so recall says "
            f"nothing; name the field that has it in {index} with --id-field, not {ids}."
        )


def _known_ids(workspace: Workspace) -> Callable[[str], bool] | None:
    from cogr.snapshots import open_snapshot

    id_ = workspace.backend.serving()["item"]
    if id_ not in workspace.store.list("snapshots"):
        return None
    items = open_snapshot(workspace.store, str(id_)).ids()
    return lambda id_: items.find(id_) >= 0


def show(out: Console, report: Mapping[str, Any]) -> None:
    """The figures for people, today's search beside the other one."""
    zero, took = report["zero_results"], report["milliseconds"]
    rows = []
    titles = {"clicked": "recall of clicked items", "literal": "literal matches kept"}
    for name in (name for name in titles if report[name]):
        of = report[name]
        change = f"{_spell(of['difference'], sign='+')}, {of['queries']:,} queries"
        rows.append((titles[name], _spell(of["present"]), _spell(of["candidate"]), change))
    counts = f"{zero['gained_searches']:,} gained, {zero['lost_searches']:,} lost"
    zeros = _spell(zero["present"]), _spell(zero["candidate"])
    rows.append(("searches without results", *zeros, counts))
    for name in ("p50", "p95"):
        old, new, expanding = (f"{took[part][name]:.1f} ms" for part in took)
        rows.append((f"latency {name}", old, new, f"expanding {expanding}"))
    sources = ", ".join(f"{name} {count:,}" for name, count in report["sources"].items())
    notes = [f"overlap {_spell(report['overlap'])}", f"keywords from: {sources}"]
    for title, texts in (("new results for", zero["gained"]), ("results lost for", zero["lost"])):
        notes += [f"{title}: {', '.join(texts)}"] * bool(texts)
    failed = sum(report["failed"].values())
    left_out = f", {failed:,} queries failed and are left out" if failed else ""
    title = (
        f"{report['searches']:,} searches, {report['queries']:,} queries, the best "
        f"{report['size']} hits{left_out}"
    )
    names = ("", "today", "with keywords", " ")
    Table(title, [dict(zip(names, row, strict=True)) for row in rows], notes).show(out)


def _spell(figure: Mapping[str, float], sign: str = "") -> str:
    return f"{figure['mean']:{sign}.3f} ± {figure['error']:.3f}"
