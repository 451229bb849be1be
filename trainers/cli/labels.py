"""The commands `cogr-train labels ...`: options and output only."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from cogr.errors import SettingsError
from indexers.cli import console
from indexers.cli.options import JsonOption, VerboseOption, set_verbosity

if TYPE_CHECKING:
    from trainers.labels.from_clicks import Made

app = typer.Typer(
    name="labels",
    help="Make relevance labels: from what shoppers clicked, or by asking a language model.",
    no_args_is_help=True,
)

OutOption = Annotated[
    Path,
    typer.Option(
        "--out", help="Folder for queries.jsonl, labels.jsonl and lineage.json.", show_default=True
    ),
]
ReplaceOption = Annotated[
    bool, typer.Option("--replace", help="Replace labels that the folder has.")
]


@app.command("from-clicks")
def from_clicks(
    logs: Annotated[
        list[Path], typer.Argument(help="UBI records: files with one JSON object a line, parquet.")
    ],
    out: OutOption = Path("data"),
    model: Annotated[
        Literal["pbm", "coec", "dbn", "ctr"],
        typer.Option(
            "--model",
            help="Click model: position-based, clicks over expected clicks, dynamic Bayesian "
            "network, or the plain click rate, which needs no positions.",
        ),
    ] = "pbm",
    weight: Annotated[
        list[str] | None,
        typer.Option(
            "--weight",
            metavar="ACTION=NUMBER",
            help="What an action counts, 1 for a click, 0 to ignore it. Repeatable.",
        ),
    ] = None,
    impression: Annotated[
        list[str] | None,
        typer.Option("--impression", help="Action that says an item was shown. Repeatable."),
    ] = None,
    half_life: Annotated[
        float,
        typer.Option(
            "--half-life",
            min=0,
            help="Days after which a visit counts half; 0: all count the same.",
        ),
    ] = 90.0,
    k: Annotated[
        int, typer.Option("--k", min=0, help="Leave out queries that fewer clients asked.")
    ] = 5,
    scrub: Annotated[
        bool, typer.Option("--scrub/--no-scrub", help="Leave out queries with personal data.")
    ] = True,
    min_impressions: Annotated[
        int, typer.Option("--min-impressions", min=1, help="Visits that must have shown a pair.")
    ] = 10,
    min_confidence: Annotated[
        float,
        typer.Option(
            "--min-confidence", min=0.5, max=1, help="How sure a pair must be relevant, or not."
        ),
    ] = 0.7,
    replace: ReplaceOption = False,
    json_: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Graded judgements from searches and clicks as User Behavior Insights (UBI) records them.

    Bots and personal data are left out and counted; what was read and left out is printed and kept
    in lineage.json. See docs/labels.md for the rules.
    """
    from trainers.labels.events import Rules
    from trainers.labels.from_clicks import Wanted, labels_from_clicks

    set_verbosity(verbose)
    weights = {**Rules().weights, **_weights(weight or [])}
    rules = Rules(
        weights={action: value for action, value in weights.items() if value},
        impressions=tuple(impression or Rules().impressions),
        half_life=half_life or None,
    )
    wanted = Wanted(model, k, scrub, min_impressions, min_confidence)
    made = labels_from_clicks(logs, out, rules, wanted, replace=replace)
    console.emit(json_, made.as_dict(), lambda shown: _show(shown, made))
    console.next_command("cogr-index inspect")


def _weights(given: list[str]) -> dict[str, float]:
    found = {}
    for one in given:
        action, _, number = one.rpartition("=")
        try:
            found[action] = float(number)
        except ValueError:
            found[action] = -1.0
        if not action or not 0 <= found[action] <= 1000:
            raise SettingsError(
                f"--weight is {one!r}; write ACTION=NUMBER with a number from 0 to 1000, such as "
                "purchase=3."
            )
    return found


def _show(out: Console, made: Made) -> None:
    from trainers.labels.output import configuration

    levels = ", ".join(f"{count:,} {level}" for level, count in reversed([*made.grades.items()]))
    out.print(f"{made.labels:,} labels of {made.queries:,} queries in {made.folder}: {levels}.")
    for name, count in made.counts.items():
        out.print(f"  {name}: {count:,}")
    if made.bias:
        shown = ", ".join(f"{at}: {share:.2f}" for at, share in list(made.bias.items())[:10])
        out.print(f"Looked at, by position: {shown}.")
    out.print(
        f"With items.jsonl beside them, cogr.toml reads them so:\n\n{configuration(made.folder)}"
    )
