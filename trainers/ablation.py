"""The paper's ablations: variants of one configuration, each trained with several seeds, and their
table.

A variant is the configuration with a few other settings (`VARIANTS`). Every variant and seed is a
run of its own in the store, named by what it is trained with, so that a finished one is never
trained again and a killed one goes on. What a run reached is that of its last round that is built
upon.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
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
BETA = 2.0
MEASURES = ("p", "r", "f1")
Launch = Callable[[Sequence[str]], Launcher]
"""`--set` values -> what starts the processes of a run that is trained with them."""


@dataclass(frozen=True)
class Variant:
    """One row of the table.

    Attributes:
        title: what it is, for people.
        changes: settings -> dotted key -> another value. Raises SettingsError where the
            configuration has no such thing to change.
    """

    title: str
    changes: Callable[[Settings], Mapping[str, Any]]


def _without_descriptions(settings: Settings) -> Mapping[str, Any]:
    user = settings.prompts.template("item").user
    if "{description}" not in user:
        raise SettingsError("Item prompts show no description that could be left out.")
    if settings.prompts.item_user is None and settings.prompts.item_variant == "full":
        return {"prompts.item_variant": "title"}
    lines = (line for line in user.splitlines() if "{description}" not in line or "{item}" in line)
    return {"prompts.item_user": "\n".join(lines).replace("{description}", "").rstrip()}


def _with_search_results(settings: Settings) -> Mapping[str, Any]:
    user = settings.prompts.template("query").user
    if "{search_results}" in user:
        raise SettingsError("Query prompts show search results already.")
    if settings.prompts.query_user is None:
        return {"prompts.query_variant": "search"}
    return {"prompts.query_user": user + "\nSearch results: {search_results}"}


def _frozen(settings: Settings) -> Mapping[str, Any]:
    frozen = {"training.variant": "frozen-items"}
    if items_from(settings.training) != "labels":
        return frozen
    # The paper's frozen items are an untrained model's, which knows no labels.
    return {**frozen, "training.sft.items_from": "extractive"}


VARIANTS: Mapping[str, Variant] = {
    FULL: Variant("CoGR (full)", lambda _: {}),
    "transposed": Variant(
        "Transposed F1", lambda _: {"training.item.reward": "cogr.rewards:transposed_reward"}
    ),
    "shared": Variant("Shared generator", lambda _: {"training.variant": "shared"}),
    "no-sft": Variant("No SFT", lambda _: {"training.variant": "no-sft"}),
    "frozen": Variant("CoGR-frozen (items never trained)", _frozen),
    "no-description": Variant("- Description", _without_descriptions),
    "search": Variant("+ Search results", _with_search_results),
    "f-beta": Variant(f"F-beta, beta {BETA:g}", lambda _: {"training.f_beta": BETA}),
}
"""Name -> variant: the paper's tables of training design, of information and of frozen items, and
the F measure that its section 2.3 speaks of.
"""


@dataclass(frozen=True)
class Row:
    """What one variant reached with one seed.

    Attributes:
        run: name of its run; "" where it has none.
        round: number of the round that was measured.
        figures: p, r and f1 of that round's pair; none where it failed or is left out.
        failed: why there are no figures, though there should be.
        left_out: why the variant is none of this configuration.
    """

    variant: str
    seed: int
    run: str = ""
    round: int | None = None
    figures: Mapping[str, float] | None = None
    failed: str = ""
    left_out: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self)


def chosen(names: str) -> list[str]:
    """Variants by name, comma between them, or `all`. Raises SettingsError for one that is none."""
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
    """Variants of one configuration.

    Attributes:
        config: the configuration file, None for the default one.
        overrides: `--set` values, which all variants have.
        rounds: rounds after SFT.
        launch: starts the processes of a run.
        say: where it says what it does.
    """

    config: Path | None
    overrides: Sequence[str]
    rounds: int
    launch: Launch
    say: Say

    def rows(self, variants: Sequence[str], seeds: int) -> Iterator[Row]:
        """Every variant with every seed, seed by seed, so that a whole table is there early.

        An error of one is its row's, and the others go on.

        Raises DataError where there are neither test nor dev queries.
        """
        base = Workspace.open(self.config, self.overrides)
        with_dev(base).dataset.require(split_of(base.dataset))
        first = base.settings.training.seed
        for seed in range(first, first + seeds):
            for name in variants:
                yield self._row(base, name, seed)

    def _row(self, base: Workspace, name: str, seed: int) -> Row:
        try:
            changes = VARIANTS[name].changes(base.settings)
        except SettingsError as error:
            return Row(name, seed, left_out=str(error))
        more = {**changes, "training.seed": seed}
        own = (f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in more.items())
        overrides = [*self.overrides, *own]
        opened = Workspace.open(self.config, overrides).with_dataset(base.dataset)
        run = run_name(opened, name, seed)
        try:
            done = self._trained(opened, run, overrides)
        except CogrError as error:
            self.say(f"{name}, seed {seed}: {error}")
            return Row(name, seed, run, failed=str(error))
        found = of_round(done).figures[split_of(base.dataset)]
        return Row(name, seed, run, done.number, {key: float(found[key]) for key in MEASURES})

    def _trained(self, workspace: Workspace, name: str, overrides: Sequence[str]) -> Round:
        """The last round that is built upon, of so many; trained now where it is not yet."""
        run = Run(workspace.store, name)
        if not run.exists or run.state().rounds_done < self.rounds:
            self.say(f"training {name}")
            check_settings(workspace)
            launcher = self.launch(overrides)
            driver = Driver(workspace, create(workspace, name), launcher, self.say, alone=True)
            driver.sft()
            while driver.run.state().rounds_done < self.rounds:
                driver.round()
        done = State(rounds=run.state().finished[: self.rounds + 1]).base
        assert done is not None, "round 0 is always built upon"
        return done


def run_name(workspace: Workspace, variant: str, seed: int) -> str:
    """The name of a variant's run: other settings or other data are another run."""
    trained_with = [frozen_settings(workspace.settings), workspace.dataset.dataset_hash]
    named = hashlib.sha256(json.dumps(trained_with, sort_keys=True).encode()).hexdigest()
    return f"ablate-{variant}-{seed}-{named[:8]}"


def split_of(dataset: Dataset) -> Split:
    """The split that variants are compared on: test, else dev."""
    return "test" if dataset.queries.get("test") else "dev"


def table(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """One line a variant, in the order of the rows: mean and standard deviation over its seeds, and
    how far its F1 is from the full one's with the same seeds.
    """
    full = {row.seed: row.figures["f1"] for row in rows if row.variant == FULL and row.figures}
    lines = []
    for name in dict.fromkeys(row.variant for row in rows):
        own = [row for row in rows if row.variant == name]
        found = {row.seed: row.figures for row in own if row.figures}
        line: dict[str, Any] = {"variant": name, "title": VARIANTS[name].title, "seeds": len(found)}
        for key in MEASURES:
            line[key] = _spread([figures[key] for figures in found.values()])
        pairs = [figures["f1"] - full[seed] for seed, figures in found.items() if seed in full]
        line["f1_over_full"] = None if name == FULL else _spread(pairs)
        line["failed"] = {row.seed: row.failed for row in own if row.failed}
        line["left_out"] = own[0].left_out
        lines.append(line)
    return lines


def _spread(values: Sequence[float]) -> dict[str, float | None] | None:
    """Mean and sample standard deviation; the latter None for a single value."""
    if not values:
        return None
    spread = stdev(values) if len(values) > 1 else None
    return {
        "mean": round(mean(values), 6),
        "sd": None if spread is None else round(spread, 6),
    }
