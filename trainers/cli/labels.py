"""The commands `cogr-train labels ...`: options and output only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
ReplaceOption = Annotated[bool, Option("--replace", help="Replace labels in the folder.")]


@app.command("from-clicks")
def from_clicks(
    logs: Annotated[
        list[Path],
        Argument(
            metavar="LOG...",
            help="UBI records: one JSON object a line, or parquet; or access logs.",
        ),
    ],
    out: OutOption = Path("data"),
    item_path: console.ItemPathOption = None,
    parameter: console.ParameterOption = "q",
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
    k: Annotated[
        int, Option(min=0, help="Leave out queries asked by fewer clients than this.")
    ] = 5,
    min_impressions: Annotated[
        int, Option(min=1, help="Least number of visits with the pair.")
    ] = 10,
    min_confidence: Annotated[
        float, Option(min=0.5, max=1, help="Least confidence that a label is right.")
    ] = 0.7,
    min_days: Annotated[
        int, Option(min=1, help="Least days with searches for a query (docs/labels.md); 1: off.")
    ] = 3,
    replace: ReplaceOption = False,
    json_: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Graded judgements from searches and clicks, as User Behavior Insights (UBI) or a web server
    records them.

    Bots and personal data are left out. Counts of what was read and left out are printed and
    written to lineage.json. See docs/labels.md for the rules.
    """
    from cogr.datasets.query_logs import AccessLog
    from trainers.labels.events import Rules
    from trainers.labels.from_clicks import labels_from_clicks

    set_verbosity(verbose)
    weights = {**Rules().weights, **_weights(weight or [])}
    rules = Rules(
        weights={action: value for action, value in weights.items() if value},
        impressions=tuple(impression or Rules().impressions),
        k=k,
        min_days=min_days,
        min_impressions=min_impressions,
        min_confidence=min_confidence,
    )
    access = AccessLog(parameter, item_path) if item_path else None
    made = labels_from_clicks(logs, out, rules, access, replace=replace)
    console.emit(json_, made.as_dict(), lambda shown: _show(shown, made))


@app.command()
@common_options()
def judge(
    call: Call,
    out: OutOption = Path("judged"),
    generator: GeneratorOption = None,
    queries: Annotated[int, Option(min=1, help="Number of most frequent queries to judge.")] = 100,
    known: Annotated[
        int, Option(min=0, help="Pairs with human labels to judge too, to measure agreement.")
    ] = 200,
    dry_run: console.DryRunOption = False,
    replace: ReplaceOption = False,
) -> None:
    """Grade pairs of query and item by a language model, in the paper's five levels.

    Pairs are pooled from BM25, what serves, neighbours and a random sample. Prints the expected
    cost first. Answers are cached: after an interruption the same command continues. Agreement with
    human labels is measured if there are any.
    """
    from trainers.labels.from_clicks import check_free
    from trainers.labels.judge import Judge, write

    if not dry_run:
        check_free(out, replace=replace)
    asked = Judge(call.workspace, queries, known, generator)
    with asked.generator:
        cost = asked.estimate()
        console.note(_cost(cost))
        if dry_run:
            call.emit(cost, lambda shown: shown.print(_cost(cost)))
            return
        asked.run()
    made = write(asked, out, replace=replace)
    call.emit({**made.as_dict(), "estimate": cost}, lambda shown: _show_judged(shown, made))


def _cost(cost: Mapping[str, Any]) -> str:
    return (
        f"{cost['pairs']:,} pairs ({cost['known']:,} of them judged by people), {cost['cached']:,} "
        f"answered already; the others take about {cost['prompt_tokens']:,} prompt and "
        f"{cost['answer_tokens']:,} answer tokens."
    )


def _weights(given: Sequence[str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for one in given:
        action, _, number = one.rpartition("=")
        try:
            found[action] = float(number)
        except ValueError:
            found[action] = -1
        if not action or not 0 <= found[action] <= 1000:
            raise SettingsError(
                f"--weight is {one!r}; write ACTION=NUMBER with a number from 0 to 1000, such as "
                "purchase=3."
            )
    return found


def _show_judged(out: Console, made: Judged) -> None:
    _counts(made, f"{made.labels:,} labels of the judge").show(out)
    if made.agreement is None:
        out.print("Agreement with people is not measured: too few pairs that people judged.")
    else:
        out.print(made.agreement.sentence())
    out.print(_configured(made.folder))


def _counts(made: Judged | Made, labels: str) -> Table:
    levels = ", ".join(f"{count:,} {level}" for level, count in reversed([*made.grades.items()]))
    return Table.of(f"{labels} in {made.folder}: {levels}.", made.counts)


def _configured(folder: Path) -> str:
    from trainers.labels.from_clicks import configuration

    return f"cogr.toml reads them so:\n\n{configuration(folder)}"


def _show(out: Console, made: Made) -> None:
    _counts(made, f"{made.labels:,} labels of {made.queries:,} queries").show(out)
    shown = ", ".join(f"{at}: {share:.2f}" for at, share in list(made.bias.items())[:10])
    out.print(f"Looked at, by position: {shown}.")
    out.print(f"With items.jsonl beside them, {_configured(made.folder)}")
