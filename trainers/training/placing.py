"""Where the outputs of a run lie now: a run's folder may have been renamed, or moved to another
store, since it wrote them.
"""

from __future__ import annotations

import re

from cogr.errors import TrainingError
from cogr.store import Store
from trainers.training.state import Round, StageRecord, State

_MODEL = re.compile(r"runs/[a-z0-9][a-z0-9_-]*/(models/[A-Za-z0-9][\w.-]*)")


def located(store: Store, run: str, state: State) -> State:
    """A state whose model folders are where they lie.

    A folder's name holds a digest of its content, and its files are compared with their sums before
    they are used: one of the same name below this run, or below another one, is the very same.

    Args:
        run: name of the run's folder.

    Raises:
        TrainingError: an output names something outside the store's runs.
    """
    runs = [run, *(name for name in store.list("runs") if name != run)]
    rounds = tuple(_round(store, runs, round_) for round_ in state.rounds)
    return state if rounds == state.rounds else state.model_copy(update={"rounds": rounds})


def _round(store: Store, runs: list[str], round_: Round) -> Round:
    stages = tuple(_stage(store, runs, record) for record in round_.stages)
    return round_.model_copy(update={"stages": stages})


def _stage(store: Store, runs: list[str], record: StageRecord) -> StageRecord:
    output = record.output
    if not output.startswith("runs/"):
        return record  # A snapshot, a model's name, or nothing: whoever opens it looks.
    found = _MODEL.fullmatch(output)
    if found is None:
        raise TrainingError(
            f"The run's state says that {record.name} wrote {output!r}, which is no model of "
            "this store; restore the state."
        )
    if store.exists(output):
        return record
    moved = (f"runs/{run}/{found[1]}" for run in runs)
    return record.model_copy(update={"output": next(filter(store.exists, moved), output)})
