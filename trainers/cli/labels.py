"""`cogr-train labels`: relevance labels from clicks and from a judge. Options and output only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from typer import Argument, Option, Typer

from cogr.errors import SettingsError
from indexers.cli import console
from indexers.cli.console import (
    Call,
    GeneratorOption,
    JsonOption,
    VerboseOption,
    common_options,
)
from indexers.tables import Table
from indexers.telemetry import logs

if TYPE_CHECKING:
    from trainers.labels.from_clicks import Made
    from trainers.labels.judge import JudgedLabels

labels_app = Typer(
    name="labels",
    help="Make relevance labels: from what shoppers clicked, or by asking a language model.",
    no_args_is_help=True,
)
LabelsOption = Annotated[
    Path, Option("--out", help="Folder for queries.jsonl, labels.jsonl and lineage.json.")
]
ReplaceOption = Annotated[bool, Option("--replace", help="Replace labels in the folder.")]


@labels_app.command("from-clicks")
def from_clicks(
    files: Annotated[
        list[Path],
        Argument(
            metavar="LOG...",
            help="UBI records: one JSON object a line, or parquet; or access logs.",
        ),
    ],
    out: LabelsOption = Path("data"),
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
    min_impressions: Annotated[int, Option(min=1, help="Fewest visits that showed the pair.")] = 10,
    min_confidence: Annotated[
        float, Option(min=0.5, max=1, help="Least confidence that a label is right.")
    ] = 0.7,
    min_days: Annotated[
        int, Option(min=1, help="Least days with searches for a query (docs/labels.md); 1: off.")
    ] = 3,
    replace: ReplaceOption = False,
    encoding: console.EncodingOption = None,
    json_: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Graded judgements from searches and clicks, as User Behavior Insights (UBI) or a web server
    records them.

    Bots and personal data are left out. Counts of what was read and left out are printed and
    written to lineage.json. See docs/labels.md for the rules.
    """
    from cogr.datasets.access_logs import AccessLog
    from cogr.datasets.reading import use_encoding
    from trainers.labels.events import ClickRules
    from trainers.labels.from_clicks import labels_from_clicks

    logs.begin(verbose=verbose)
    use_encoding(encoding or "")
    weights = {**ClickRules().weights, **_weights(weight or [])}
    rules = ClickRules(
        weights={action: value for action, value in weights.items() if value},
        impressions=tuple(impression or ClickRules().impressions),
        k=k,
        min_days=min_days,
        min_impressions=min_impressions,
        min_confidence=min_confidence,
    )
    access = AccessLog(parameter, item_path) if item_path else None
    made = labels_from_clicks(files, out, rules, access, replace=replace)
    said = f"{made.labels:,} labels of {made.labelled:,} queries; {made.queries:,} queries in all"
    looks = ", ".join(f"{at}: {share:.2f}" for at, share in list(made.bias.items())[:10])
    note = f"Looked at, by position: {looks}."
    console.emit(json_, asdict(made), lambda shown: _show_labels(shown, made, said, note))


@labels_app.command()
@common_options()
def judge(
    call: Call,
    out: LabelsOption = Path("judged"),
    generator: GeneratorOption = None,
    queries: Annotated[int, Option(min=1, help="Number of most frequent queries to judge.")] = 100,
    known: Annotated[
        int, Option(min=0, help="Pairs with human labels to judge too, to measure agreement.")
    ] = 200,
    dry_run: console.DryRunOption = False,
    replace: ReplaceOption = False,
) -> None:
    """Grade pairs of query and item by a language model, in the paper's five levels.

    Pairs are pooled from BM25 and what serves. Prints the expected cost first. Answers are cached:
    after an interruption the same command continues. Agreement with human labels is measured if
    there are any.
    """
    from trainers.labels.from_clicks import check_free
    from trainers.labels.judge import Judge, write_judged

    if not dry_run:
        check_free(out, replace=replace)
    asked = Judge(call.workspace, queries, known, generator)
    with asked.generator:
        cost = asked.estimate()
        told = (
            f"{cost['pairs']:,} pairs ({cost['known']:,} of them judged by people), "
            f"{cost['cached']:,} answered already; the others take about "
            f"{cost['prompt_tokens']:,} prompt and {cost['answer_tokens']:,} answer tokens."
        )
        console.note(told)
        if dry_run:
            call.emit(cost, lambda shown: shown.print(told))
            return
        asked.run()
    made = write_judged(asked, out, replace=replace)
    said, note = f"{made.labels:,} labels of the judge", made.said
    payload = {**made.as_dict(), "estimate": cost}
    call.emit(payload, lambda shown: _show_labels(shown, made, said, note))


def _weights(given: Sequence[str]) -> dict[str, float]:
    weights: dict[str, float] = {}
    for one in given:
        action, _, number = one.rpartition("=")
        try:
            weights[action] = float(number)
        except ValueError:
            weights[action] = -1
        if not action or not 0 <= weights[action] <= 1000:
            raise SettingsError(
                f"--weight is {one!r}; write ACTION=NUMBER with a number from 0 to 1000, such as "
                "purchase=3."
            )
    return weights


def _show_labels(out: Console, made: Made | JudgedLabels, labels: str, note: str) -> None:
    from trainers.labels.from_clicks import configuration

    levels = ", ".join(f"{count:,} {level}" for level, count in reversed([*made.grades.items()]))
    Table.of(f"{labels} in {made.folder}: {levels}.", made.counts, [note]).show(out)
    out.print("With items.jsonl beside them, cogr.toml reads them so:\n")
    out.print(configuration(made.folder))
