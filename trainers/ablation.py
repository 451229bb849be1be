"""The paper's ablations: variants of one configuration, each trained with several seeds, and their
table.

Every variant and seed is a run of its own in the store. Its name has a hash of settings and data,
so that a finished run is not trained again and a killed one goes on. A run counts by its last
accepted round.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev
from typing import Any

from cogr.errors import CogrError, SettingsError
from cogr.records import Dataset, Say, Split
from cogr.settings import Settings
from indexers.workspace import Workspace
from trainers.training.contest import of_round
from trainers.training.driver import Driver
from trainers.training.rounds import Round, State, with_dev
from trainers.training.run_folder import Run, create, frozen_settings
from trainers.training.stage import Launcher
from trainers.training.trainer_config import check_settings, items_from

FULL = "full"
MEASURES = ("p", "r", "f1")
Changes = Mapping[str, Any]


def _without_descriptions(settings: Settings) -> Changes:
    user = settings.prompts.template("item").user
    if "{description}" not in user:
        raise SettingsError("Item prompts show no description that could be left out.")
    if settings.prompts.item_user is None and settings.prompts.item_variant == "full":
        return {"prompts.item_variant": "title"}
    lines = (line for line in user.splitlines() if "{description}" not in line or "{item}" in line)
    return {"prompts.item_user": "\n".join(lines).replace("{description}", "").rstrip()}


def _with_search_results(settings: Settings) -> Changes:
    user = settings.prompts.template("query").user
    if "{search_results}" in user:
        raise SettingsError("Query prompts show search results already.")
    if settings.prompts.query_user is None:
        return {"prompts.query_variant": "search"}
    return {"prompts.query_user": user + "\nSearch results: {search_results}"}


def _frozen(settings: Settings) -> Changes:
    frozen = {"training.variant": "frozen-items"}
    if items_from(settings.training) != "labels":
        return frozen
    # The paper's frozen items are written by an untrained model, which has seen no labels.
    return {**frozen, "training.sft.items_from": "extractive"}


VARIANTS: Mapping[str, tuple[str, Callable[[Settings], Changes]]] = {
    FULL: ("CoGR (full)", lambda _: {}),
    "transposed": (
        "Transposed F1",
        lambda _: {"training.item.reward": "cogr.rewards:transposed_reward"},
    ),
    "shared": ("Shared generator", lambda _: {"training.variant": "shared"}),
    "no-sft": ("No SFT", lambda _: {"training.variant": "no-sft"}),
    "frozen": ("CoGR-frozen (items never trained)", _frozen),
    "no-description": ("- Description", _without_descriptions),
    "search": ("+ Search results", _with_search_results),
}
"""Name -> title in the table, and from settings to what the variant changes: the paper's tables on
training design, information and frozen items. The function raises SettingsError where the
configuration has nothing of the kind to change.
"""


@dataclass(frozen=True)
class Row:
    """The result of one variant with one seed: the number of the round that was measured, and its
    p, r and f1; or why the run failed, or why the variant is left out.
    """

    variant: str
    seed: int
    run: str = ""
    round: int | None = None
    figures: Mapping[str, float] | None = None
    failed: str = ""
    left_out: str = ""


def chosen(names: str) -> list[str]:
    """Variants by name, comma between them, or `all`. Raises SettingsError for an unknown one."""
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if wanted == ["all"]:
        return list(VARIANTS)
    unknown = next((name for name in wanted if name not in VARIANTS), None)
    if unknown is not None or not wanted:
        raise SettingsError(
            f"There is no variant {unknown or ''!r}; --variants takes all, or some of "
            f"{', '.join(VARIANTS)} with commas between them."
        )
    return list(dict.fromkeys(wanted))


@dataclass(frozen=True)
class Ablation:
    """Variants of one configuration, with so many rounds after SFT; `launcher` has the
    configuration's file and overrides.
    """

    launcher: Launcher
    rounds: int
    say: Say

    def rows(self, variants: Sequence[str], seeds: int) -> Iterator[Row]:
        """Every variant with every seed, seed by seed, so that a table of all variants is complete
        early. An error goes into the row of its run, and the others go on.

        Raises DataError where there are neither test nor dev queries.
        """
        base = Workspace.open(self.launcher.config, self.launcher.overrides)
        with_dev(base).dataset.require(split_of(base.dataset))
        first = base.settings.training.seed
        for seed in range(first, first + seeds):
            for name in variants:
                yield self._row(base, name, seed)

    def _row(self, base: Workspace, name: str, seed: int) -> Row:
        try:
            changes = {**VARIANTS[name][1](base.settings), "training.seed": seed}
        except SettingsError as error:
            return Row(name, seed, left_out=str(error))
        own = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in changes.items()]
        launcher = replace(self.launcher, overrides=(*self.launcher.overrides, *own))
        opened = Workspace.open(launcher.config, launcher.overrides).with_dataset(base.dataset)
        run = run_name(opened, name, seed)
        try:
            done = self._trained(opened, run, launcher)
        except CogrError as error:
            self.say(f"{name}, seed {seed}: {error}")
            return Row(name, seed, run, failed=str(error))
        found = of_round(done).figures[split_of(base.dataset)]
        return Row(name, seed, run, done.number, {key: float(found[key]) for key in MEASURES})

    def _trained(self, workspace: Workspace, name: str, launcher: Launcher) -> Round:
        """The last accepted round of a run, which is trained now where it is not finished."""
        run = Run(workspace.store, name)
        if not run.exists or run.state().rounds_done < self.rounds:
            self.say(f"training {name}")
            check_settings(workspace)
            Driver(workspace, create(workspace, name), launcher, self.say, alone=True).reach(
                self.rounds
            )
        done = State(rounds=run.state().finished[: self.rounds + 1]).base
        assert done is not None, "round 0 is always built upon"
        return done


def run_name(workspace: Workspace, variant: str, seed: int) -> str:
    """The name of a variant's run. Other settings or other data give another name."""
    trained_with = [frozen_settings(workspace.settings), workspace.dataset.dataset_hash]
    named = hashlib.sha256(json.dumps(trained_with, sort_keys=True).encode()).hexdigest()
    return f"ablate-{variant}-{seed}-{named[:8]}"


def split_of(dataset: Dataset) -> Split:
    """The split that variants are compared on: test where there is one, otherwise dev."""
    return "test" if dataset.queries.get("test") else "dev"


def table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One line a variant, in the order of the rows: mean and standard deviation over its seeds, and
    the difference of its F1 from that of `full` with the same seeds.
    """
    full = {row.seed: row.figures["f1"] for row in rows if row.variant == FULL and row.figures}
    lines = []
    for name in dict.fromkeys(row.variant for row in rows):
        own = [row for row in rows if row.variant == name]
        found = {row.seed: row.figures for row in own if row.figures}
        over = [figures["f1"] - full[seed] for seed, figures in found.items() if seed in full]
        lines.append(
            {
                "variant": name,
                "title": VARIANTS[name][0],
                "seeds": len(found),
                **{key: _spread([one[key] for one in found.values()]) for key in MEASURES},
                "f1_over_full": None if name == FULL else _spread(over),
                "failed": {row.seed: row.failed for row in own if row.failed},
                "left_out": own[0].left_out,
            }
        )
    return lines


def _spread(values: Sequence[float]) -> dict[str, float | None] | None:
    """Mean and sample standard deviation; the latter None for a single value."""
    if not values:
        return None
    sd = round(stdev(values), 6) if len(values) > 1 else None
    return {"mean": round(mean(values), 6), "sd": sd}
