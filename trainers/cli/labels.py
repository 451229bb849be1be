"""The commands `cogr-train labels ...`: options and output only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from typer import Argument, Option

from cogr.errors import SettingsError
from indexers.cli import console
from indexers.cli.console import Call, GeneratorOption, JsonOption, VerboseOption, common_options
from indexers.tables import Table
from indexers.telemetry.logs import set_verbosity

if TYPE_CHECKING:
    from trainers.labels.from_clicks import Made
    from trainers.labels.judge import Judged

app = typer.Typer(
    name="labels",
    help="Make relevance labels: from what shoppers clicked, or by asking a language model.",
    no_args_is_help=True,
)

OutOption = Annotated[
    Path, Option(help="Folder for queries.jsonl, labels.jsonl and lineage.json.", show_default=True)
]
MinDaysOption = Annotated[
    int, Option(min=1, help="Least days with searches for a query (docs/labels.md); 1: off.")
]
ReplaceOption = Annotated[bool, Option("--replace", help="Replace labels in the folder.")]


@app.command("from-clicks")
def from_clicks(
    logs: Annotated[
        list[Path],
        Argument(help="UBI records: one JSON object a line, or parquet."),
    ],
    out: OutOption = Path("data"),
    model: Annotated[
        Literal["pbm", "ctr"],
        Option(help="Click model; ctr, the plain click rate, needs no positions (docs/labels.md)."),
    ] = "pbm",
    weight: Annotated[
        list[str] | None,
        Option(
            metavar="ACTION=NUMBER",
            help="Weight of an action: 1 for a click, 0 to ignore it. Repeatable.",
        ),
    ] = None,
    impression: Annotated[
        list[str] | None, Option(help="Action that says an item was shown. Repeatable.")
    ] = None,
    half_life: Annotated[
        float, Option(min=0, help="Days after which a visit counts half; 0: all count the same.")
    ] = 90.0,
    k: Annotated[
        int, Option(min=0, help="Leave out queries asked by fewer clients than this.")
    ] = 5,
    scrub: Annotated[bool, Option(help="Leave out queries with personal data.")] = True,
    min_impressions: Annotated[
        int, Option(min=1, help="Least number of visits with the pair.")
    ] = 10,
    min_confidence: Annotated[
        float, Option(min=0.5, max=1, help="Least confidence that a label is right.")
    ] = 0.7,
    min_days: MinDaysOption = 3,
    replace: ReplaceOption = False,
    json_: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Graded judgements from searches and clicks, as User Behavior Insights (UBI) records them.

    Bots and personal data are left out. Counts of what was read and left out are printed and
    written to lineage.json. See docs/labels.md for the rules.
    """
    from trainers.labels.events import Rules
    from trainers.labels.from_clicks import Wanted, labels_from_clicks

    set_verbosity(verbose)
    how = "ACTION=NUMBER with a number from 0 to 1000, such as purchase=3"
    weights = {**Rules().weights, **_numbers("--weight", weight, float, (), how)}
    rules = Rules(
        weights={action: value for action, value in weights.items() if value},
        impressions=tuple(impression or Rules().impressions),
        half_life=half_life or None,
        min_days=min_days,
    )
    wanted = Wanted(model, k, scrub, min_impressions, min_confidence)
    made = labels_from_clicks(logs, out, rules, wanted, replace=replace)
    console.emit(json_, made.as_dict(), lambda shown: _show(shown, made))


@app.command()
@common_options()
def judge(
    call: Call,
    out: OutOption = Path("judged"),
    generator: GeneratorOption = None,
    queries: Annotated[int, Option(min=1, help="Number of most frequent queries to judge.")] = 100,
    depth: Annotated[
        list[str] | None,
        Option(
            metavar="RETRIEVER=NUMBER",
            help="Items per query from bm25, keywords, neighbours or random. Repeatable.",
        ),
    ] = None,
    known: Annotated[
        int, Option(min=0, help="Pairs with human labels to judge too, to measure agreement.")
    ] = 200,
    budget: Annotated[
        int | None, Option(min=1, help="Most tokens to spend in this call, by estimate.")
    ] = None,
    dry_run: console.DryRunOption = False,
    replace: ReplaceOption = False,
) -> None:
    """Grade pairs of query and item by a language model, in the paper's five levels.

    Pairs are pooled from BM25, what serves, neighbours and a random sample. Prints the expected
    cost first. Answers are cached: after an interruption the same command continues. Agreement with
    human labels is measured if there are any.
    """
    from indexers.inspection import RETRIEVERS
    from trainers.labels.from_clicks import check_free
    from trainers.labels.judge import Judge, Wanted, write

    how = f"RETRIEVER=NUMBER with one of {', '.join(RETRIEVERS)} and a number up to 1000, such as "
    asked_for = _numbers("--depth", depth, int, RETRIEVERS, f"{how}bm25=20")
    depths = {**Wanted().depths, **asked_for}
    wanted = Wanted(queries, depths, known, budget, generator)
    if not dry_run:
        check_free(out, replace=replace)
    asked = Judge(call.workspace, wanted)
    with asked.generator:
        cost = asked.estimate()
        console.note(_cost(cost))
        if dry_run:
            call.emit(cost, lambda shown: shown.print(_cost(cost)))
            return
        asked.run(console.note)
    made = write(asked, out, replace=replace)
    call.emit({**made.as_dict(), "estimate": cost}, lambda shown: _show_judged(shown, made))


def _cost(cost: Mapping[str, Any]) -> str:
    return (
        f"{cost['pairs']:,} pairs ({cost['known']:,} of them judged by people), {cost['cached']:,} "
        f"answered already; the others take about {cost['prompt_tokens']:,} prompt and "
        f"{cost['answer_tokens']:,} answer tokens."
    )


def _numbers(
    option: str, given: list[str] | None, kind: type[float], names: Sequence[str], how: str
) -> dict[Any, Any]:
    """Values of an option NAME=NUMBER; any name if there are no `names`."""
    found: dict[str, float] = {}
    for one in given or []:
        name, _, number = one.rpartition("=")
        try:
            found[name] = kind(number)
        except ValueError:
            found[name] = -1
        if not name or (names and name not in names) or not 0 <= found[name] <= 1000:
            raise SettingsError(f"{option} is {one!r}; write {how}.")
    return found


def _show_judged(out: Console, made: Judged) -> None:
    _counts(made, f"{made.labels:,} labels of the judge").show(out)
    if made.agreement is None:
        out.print("Agreement with people is not measured: too few pairs that people judged.")
    else:
        confusion = made.agreement.confusion.items()
        rows = [{"people's grade": grade, **row} for grade, row in confusion]
        Table(made.agreement.sentence(), rows).show(out)
    out.print(_configured(made.folder))


def _counts(made: Judged | Made, labels: str) -> Table:
    levels = ", ".join(f"{count:,} {level}" for level, count in reversed([*made.grades.items()]))
    return Table.of(f"{labels} in {made.folder}: {levels}.", made.counts)


def _configured(folder: Path) -> str:
    from trainers.labels.from_clicks import configuration

    return f"cogr.toml reads them so:\n\n{configuration(folder)}"


def _show(out: Console, made: Made) -> None:
    _counts(made, f"{made.labels:,} labels of {made.queries:,} queries").show(out)
    if texts := made.changed:
        more = f" and {len(texts) - 10:,} more" if len(texts) > 10 else ""
        told = f"Look at {len(texts):,} queries with labels that changed sides since the last run: "
        out.print(f"{told}{', '.join(texts[:10])}{more}.")
    if made.bias:
        shown = ", ".join(f"{at}: {share:.2f}" for at, share in list(made.bias.items())[:10])
        out.print(f"Looked at, by position: {shown}.")
    out.print(f"With items.jsonl beside them, {_configured(made.folder)}")
