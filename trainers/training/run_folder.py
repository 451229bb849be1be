"""The run folder: `runs/NAME` in the store, with the frozen configuration and the state that each
stage replaces atomically.

It holds `run.json` (what the run was begun with), `state.json`, `models/`, `sft/`, `logs/`, and
`trainer/` with the checkpoints inside the stage under way.
Snapshots lie in the store with all others. `rounds` has the order of the stages, `stage` does them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from cogr.errors import TrainingError
from cogr.keywords import NORMALISER
from cogr.settings import Settings
from cogr.store import Store
from indexers.workspace import Workspace
from trainers.training.rounds import FORMAT, State, with_dev

DEFAULT_RUN = "main"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")

_FREE = frozenset(
    {
        "dataset.path",
        "training.processes",
        "training.save_steps",
        "training.accelerate",
        "training.report_to",
        "generator.statistical.evidence",
        "training.rollouts.by",
        "training.rollouts.vllm_url",
    }
)
"""Settings without influence on what is learned: places of data, memory of a step, logging."""


def frozen_settings(settings: Settings) -> dict[str, Any]:
    """The settings that a run may not change: dotted key -> value, of the tables that decide what
    is learned.
    """
    values = settings.model_dump(
        mode="json", include={"dataset", "keywords", "prompts", "training"}
    )
    values["generator"] = settings.model_dump(mode="json")["generator"]
    own = {
        "generator": {
            name: values["generator"][name]
            for name in ("dtype", "max_model_len", "constrained", "sampling", "statistical")
        }
    }
    return {key: value for key, value in _flat({**values, **own}) if key not in _FREE}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


class _Frozen(BaseModel):
    """The content of `run.json`."""

    model_config = ConfigDict(extra="allow", frozen=True)

    format: int
    normaliser: str
    dataset_hash: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One run in a store on the local disk. Make one with `create`, open it with `open_run`."""

    store: Store
    name: str

    @property
    def path(self) -> str:
        """Its folder, relative to the store."""
        return f"runs/{self.name}"

    def folder(self, *parts: str) -> Path:
        """A folder of the run on the local disk, made when it is not there."""
        folder = self.store.local("/".join((self.path, *parts)))
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def exists(self) -> bool:
        return self.store.exists(f"{self.path}/run.json")

    def state(self) -> State:
        """The state of the run. Raises TrainingError when its file is broken."""
        path = f"{self.path}/state.json"
        if not self.store.exists(path):
            return State()
        try:
            return State.model_validate_json(self.store.read(path))
        except (OSError, ValidationError) as error:
            raise TrainingError(
                f"The state of run {self.name} ({self.store.full(path)}) is broken; restore it, "
                "or remove it and the run begins again."
            ) from error

    def rows(self) -> list[dict[str, Any]]:
        """Every round as one row of figures, for --json."""
        return [done.as_dict(self.name) for done in self.state().rounds]

    def save(self, state: State) -> None:
        """Replace the state atomically."""
        self.store.write(f"{self.path}/state.json", state.model_dump_json(indent=1).encode())

    def frozen(self) -> Mapping[str, Any]:
        """The content of `run.json`. Raises TrainingError when it is broken."""
        path = f"{self.path}/run.json"
        try:
            return _Frozen.model_validate_json(self.store.read(path)).model_dump()
        except (OSError, ValidationError) as error:
            raise TrainingError(
                f"What the run {self.name} was begun with ({self.store.full(path)}) is broken; "
                "restore it, or, if data and "
                f"settings are the same, remove it and run cogr-train run --run {self.name}: "
                "its rounds stay."
            ) from error

    def check(self, workspace: Workspace) -> None:
        """Refuse to go on with other data, other settings or another version.

        Raises TrainingError.
        """
        if not self.exists:
            raise TrainingError(
                f"There is no run {self.name} in {self.store.url}: begin one with cogr-train run."
            )
        frozen = self.frozen()
        if frozen["format"] != FORMAT or frozen["normaliser"] != NORMALISER:
            raise TrainingError(
                f"The run {self.name} was begun by another version (format {frozen['format']}, "
                "normaliser "
                f"{frozen['normaliser']}; this one has {FORMAT}, {NORMALISER}); begin a new run "
                "under another name: cogr-train run --run NAME."
            )
        if changed := changes(frozen["settings"], frozen_settings(workspace.settings)):
            raise TrainingError(
                f"The run {self.name} was begun with other settings: {'; '.join(changed[:5])}; "
                "set them back, or go on under a new name with --branch NAME."
            )
        dataset = with_dev(workspace).dataset
        if frozen["dataset_hash"] != dataset.dataset_hash:
            raise TrainingError(
                f"The run {self.name} was begun on other data than {dataset.name} has now (hash "
                f"{frozen['dataset_hash'][:12]}, now {dataset.dataset_hash[:12]}); restore the "
                "data, or begin a new run."
            )


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """One phrase for each setting that differs."""
    return [
        f"{key} was {before.get(key)!r} and is {now.get(key)!r}"
        for key in sorted({*before, *now})
        if before.get(key) != now.get(key)
    ]


def open_run(workspace: Workspace, name: str) -> Run:
    """Open a run without checking it. Raises TrainingError where there is none."""
    run = _named(workspace.store, name)
    if not run.exists:
        known = ", ".join(workspace.store.list("runs")) or "none"
        raise TrainingError(
            f"There is no run {name} in {workspace.store.url} (it has {known}): begin one with "
            "cogr-train run."
        )
    return run


def create(workspace: Workspace, name: str = DEFAULT_RUN) -> Run:
    """Begin a run: freeze data hash and settings into its folder. An existing run with the same
    ones is returned.

    Raises:
        TrainingError: a run of that name with other data or settings.
        StorageError: the store is full, read-only, or not on a local disk.
    """
    run = _named(workspace.store, name)
    if run.exists:
        run.check(workspace)
        return run
    _write(run, workspace, None)
    return run


def branch(workspace: Workspace, name: str, new: str) -> Run:
    """A new run with the present settings that goes on from the finished rounds of another.

    Raises TrainingError.
    """
    parent, run = open_run(workspace, name), _named(workspace.store, new)
    if run.exists:
        raise TrainingError(
            f"There is a run {new} already; give the branch another name, or go on with --run "
            f"{new}."
        )
    if parent.frozen()["dataset_hash"] != with_dev(workspace).dataset.dataset_hash:
        raise TrainingError(
            f"The run {name} was begun on other data; a branch needs the same, so begin a new run."
        )
    run.save(State(rounds=parent.state().finished))
    _write(run, workspace, name)
    return run


def _write(run: Run, workspace: Workspace, parent: str | None) -> None:
    run.folder()
    workspace = with_dev(workspace)
    frozen = {
        "format": FORMAT,
        "normaliser": NORMALISER,
        "dataset": workspace.dataset.name,
        "dataset_hash": workspace.dataset.dataset_hash,
        "settings": frozen_settings(workspace.settings),
        "parent": parent,
    }
    run.store.write_json(f"{run.path}/run.json", frozen)


def _named(store: Store, name: str) -> Run:
    if not _NAME.fullmatch(name):
        raise TrainingError(f"{name!r} is not a run name; use lower-case letters, digits, - and _.")
    return Run(store, name)
