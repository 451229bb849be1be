"""The paper's ablations: variants of one configuration, each trained with several seeds, and their
table.

    python benchmarks/ablation.py -c cogr.toml --variants all --seeds 3 --rounds 5

Every variant and seed is a run of its own in the store. Its name has a hash of settings and data,
so that a finished run is not trained again and a killed one goes on. A run counts by its last
accepted round.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks.compare import selected_names
from cogr.errors import CogrError
from cogr.records import Dataset, Say, Split
from indexers.tables import Table, pick_columns
from indexers.telemetry import logs
from indexers.telemetry.terminal import console_of
from indexers.workspace import Workspace
from trainers.training.driver import Driver
from trainers.training.rounds import Run, State, create, frozen_settings, with_dev
from trainers.training.stage import Launcher
from trainers.training.trainer_config import check_settings, items_from

FULL = "full"
MEASURES = ("p", "r", "f1")
VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    FULL: ("CoGR (full)", {}),
    "transposed": ("Transposed F1", {"training.item.reward": "cogr.rewards:transposed_reward"}),
    "shared": ("Shared generator", {"training.variant": "shared"}),
    "no-sft": ("No SFT", {"training.variant": "no-sft"}),
    "frozen": ("CoGR-frozen (items never trained)", {"training.variant": "frozen-items"}),
    "no-description": ("- Description", {}),
}
"""Name -> title in the table and changed settings: the paper's tables on training design,
information and frozen items. The last one has a template of its own (`without_description`).
"""


@dataclass(frozen=True)
class Row:
    """One variant with one seed: the number of its run's last accepted round, and figures of this
    round; or why the run failed.
    """

    variant: str
    seed: int
    run: str
    round: int | None = None
    figures: Mapping[str, float] = field(default_factory=dict)
    failed: str = ""


def ablate(
    launcher: Launcher, rounds: int, variants: Sequence[str], seeds: int, say: Say
) -> Iterator[Row]:
    """Every variant with every seed, seed by seed, so that a table of all variants is complete
    early. An error goes into the row of its run, and the others go on. A variant that the
    configuration is already has no row.

    Raises DataError where there are neither test nor dev queries.
    """
    base = Workspace.open(launcher.config, launcher.overrides)
    split, first = split_of(base.dataset), base.settings.training.seed
    with_dev(base).dataset.require(split)
    for seed, name in product(range(first, first + seeds), variants):
        own = {**VARIANTS[name][1], **without_description(base, name), "training.seed": seed}
        if name == "frozen" and items_from(base.settings.training) == "labels":
            # The paper's frozen items are written by an untrained model, which saw no labels.
            own["training.sft.items_from"] = "extractive"
        added = [f"{key}={json.dumps(one, ensure_ascii=False)}" for key, one in own.items()]
        varied = replace(launcher, overrides=(*launcher.overrides, *added))
        workspace = Workspace.open(varied.config, varied.overrides).with_dataset(base.dataset)
        plain = {**frozen_settings(base.settings), "training.seed": seed}
        if name != FULL and frozen_settings(workspace.settings) == plain:
            say(f"{name} is left out: the configuration is this variant already")
            continue
        row = Row(name, seed, run_name(workspace, name, seed))
        try:
            yield _trained(row, workspace, varied, rounds, split, say)
        except CogrError as error:
            say(f"{name}, seed {seed}: {error}")
            yield replace(row, failed=str(error))


def without_description(base: Workspace, variant: str) -> dict[str, str]:
    """The changed setting of `no-description`; its file of templates is written to the store."""
    items, queries = map(base.settings.prompts.template, ("item", "query"))
    if variant != "no-description" or "{description}" not in items.user:
        return {}
    user = "\n".join(line for line in items.user.split("\n") if "{description}" not in line)
    text = "".join(
        f"[{one.side}]\nsystem = {json.dumps(one.system)}\nuser = {json.dumps(one.user)}\n"
        for one in (replace(items, user=user), queries)
    )
    file = f"ablation/prompts-{items.hash}-{queries.hash}.toml"
    base.store.write(file, text.encode())
    return {"prompts.templates": str(base.store.local(file))}


def _trained(
    row: Row, workspace: Workspace, launcher: Launcher, rounds: int, split: Split, say: Say
) -> Row:
    run = Run(workspace.store, row.run)
    if not run.exists or run.state().rounds_done < rounds:
        say(f"training {row.run}")
        check_settings(workspace)
        Driver(workspace, create(workspace, row.run), launcher, say).reach(rounds)
    done = State(rounds=run.state().finished[: rounds + 1]).base
    assert done is not None, "round 0 is always built upon"
    found = done.figures[split]
    return replace(row, round=done.number, figures={key: float(found[key]) for key in MEASURES})


def run_name(workspace: Workspace, variant: str, seed: int) -> str:
    """The name of a variant's run. Other settings or other data give another name."""
    trained_with = [frozen_settings(workspace.settings), workspace.dataset.dataset_hash]
    named = hashlib.sha256(json.dumps(trained_with, sort_keys=True).encode()).hexdigest()
    return f"ablate-{variant}-{seed}-{named[:8]}"


def split_of(dataset: Dataset) -> Split:
    """The split that variants are compared on: test where there is one, otherwise dev."""
    return "test" if dataset.queries.get("test") else "dev"


def table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One line a variant, in the order of the rows: means over its seeds, the sample deviation of
    F1 (None for one seed), and the mean of what its F1 has over that of `full` with the same seed.
    """
    full = {row.seed: row.figures["f1"] for row in rows if row.variant == FULL and row.figures}
    lines = []
    for name in dict.fromkeys(row.variant for row in rows):
        own = [row for row in rows if row.variant == name]
        done = [row for row in own if row.figures]
        f1 = [row.figures["f1"] for row in done]
        over = [row.figures["f1"] - full[row.seed] for row in done if row.seed in full]
        line: dict[str, Any] = {"variant": name, "title": VARIANTS[name][0], "seeds": len(done)}
        line |= {key: _mean([row.figures[key] for row in done]) for key in MEASURES}
        line["f1_sd"] = round(stdev(f1), 6) if len(f1) > 1 else None
        line["f1_over_full"] = _mean([] if name == FULL else over)
        lines.append({**line, "failed": {row.seed: row.failed for row in own if row.failed}})
    return lines


def _mean(values: Sequence[float]) -> float | None:
    return round(mean(values), 6) if values else None


_COLUMNS = {
    "title": "",
    "seeds": "seeds",
    "p": "P",
    "r": "R",
    "f1": "F1",
    "f1_sd": "sd",
    "f1_over_full": "F1 over full",
    "failed": "failed",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Train the variants and print their table. Finished variants are kept, so that the same
    command continues after an interruption. Returns 1 where a run failed.
    """
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("-c", "--config", type=Path, help="configuration; ./cogr.toml by default")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--variants", default="all", help=f"all, or some of {', '.join(VARIANTS)}")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args(arguments)
    launcher = Launcher(asked.config, tuple(asked.set))
    names = selected_names(asked.variants, VARIANTS, "variant")
    rows = [*ablate(launcher, asked.rounds, names, asked.seeds, logs.say)]
    title = f"{asked.rounds} rounds after SFT; means and deviations over seeds"
    Table(title, pick_columns(table(rows), _COLUMNS)).show(console_of(sys.stdout))
    return int(any(row.failed for row in rows))


if __name__ == "__main__":
    sys.exit(main())
