"""What a run is compared with: BM25 over the items' text, and the pair that `statistical` writes from the same labels.

Measured once a run, on the queries that nothing is trained on, and kept in its folder as `rivals.json`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cogr.errors import GeneratorError, MissingExtraError, SnapshotError
from cogr.records import SIDES, Side, Split
from cogr.snapshots import open_snapshot
from indexers.backends.memory import MemoryBackend
from indexers.workspace import Workspace
from trainers.comparison import bm25_row
from trainers.evaluation import evaluate
from trainers.training.building import build_snapshot
from trainers.training.contest import STATISTICAL, Contender
from trainers.training.holdout import is_set_apart
from trainers.training.runs import Run

Say = Callable[[str], None]
_SPLITS: tuple[Split, ...] = ("dev", "test")


@dataclass(frozen=True)
class Rivals:
    """The rivals of one run.

    Attributes:
        bm25: split -> figures of BM25.
        statistical: the pair of that generator; None where it is left out.
        left_out: name -> why there are no figures.
    """

    bm25: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    statistical: Contender | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)


def known_rivals(run: Run) -> Rivals | None:
    """What was measured for a run; None before."""
    path = f"{run.path}/rivals.json"
    if not run.store.exists(path):
        return None
    kept = run.store.read_json(path)
    pair = kept["statistical"]
    return Rivals(kept["bm25"], None if pair is None else Contender(**pair), kept["left_out"])


def rivals(workspace: Workspace, run: Run, say: Say) -> Rivals:
    """The rivals of a run, measured now where they are not known.

    Args:
        workspace: with the run's own data and dev split.
    """
    known = known_rivals(run)
    if known is not None and not known.left_out and _is_there(workspace, known.statistical):
        return known
    left_out: dict[str, str] = {}
    bm25: dict[str, Mapping[str, Any]] = {}
    statistical = None
    if known is None:
        say("measuring bm25 and statistical beside the rounds")
    try:
        bm25 = _bm25(workspace)
        statistical = _statistical(workspace)
    except (MissingExtraError, GeneratorError) as error:
        left_out = dict.fromkeys(("bm25", STATISTICAL) if not bm25 else (STATISTICAL,), str(error))
        if known is None:
            say(f"{' and '.join(left_out)}: not measured. {error}")
    found = Rivals(bm25, statistical, left_out)
    _keep(run, found)
    return found


def _keep(run: Run, found: Rivals) -> None:
    pair = None if found.statistical is None else vars(found.statistical)
    kept = {"bm25": found.bm25, "statistical": pair, "left_out": found.left_out}
    run.store.write_json(f"{run.path}/rivals.json", kept)


def _is_there(workspace: Workspace, pair: Contender | None) -> bool:
    """Whether its snapshots still are."""
    try:
        for id_ in () if pair is None else (pair.items, pair.queries):
            open_snapshot(workspace.store, id_, verify=False)
    except SnapshotError:
        return False
    return True


def _splits(workspace: Workspace) -> list[Split]:
    return [split for split in _SPLITS if workspace.dataset.queries.get(split)]


def _bm25(workspace: Workspace) -> dict[str, Mapping[str, Any]]:
    sizes = workspace.dataset.queries
    return {split: {**bm25_row(workspace.dataset, split), "queries": len(sizes[split])} for split in _splits(workspace)}


def _statistical(workspace: Workspace) -> Contender:
    built = statistical_pair(workspace)
    items, queries = (open_snapshot(workspace.store, built[side]) for side in ("item", "query"))
    backend = MemoryBackend(workspace.store)
    backend.push(items)
    figures: dict[str, Mapping[str, Any]] = {
        split: evaluate(backend, workspace.dataset, items, queries, split).as_dict() for split in _splits(workspace)
    }
    return Contender(STATISTICAL, items.id, queries.id, figures)


def statistical_pair(workspace: Workspace) -> Mapping[Side, str]:
    """Snapshot ids of the pair that `statistical` writes for a workspace's data, by side."""
    return {
        side: build_snapshot(workspace, side, round_=0, model=None, generator=STATISTICAL).id
        for side in reversed(SIDES)
    }


def to_serve(workspace: Workspace, chosen: Contender) -> Contender:
    """A chosen pair as it is to serve.

    Where dev queries were set apart, `statistical` is fitted once more with their labels, which were held back for the choice
    alone: it is then what `cogr-index rebuild` makes of the data.
    """
    if chosen.name != STATISTICAL or not is_set_apart(workspace.dataset):
        return chosen
    built = statistical_pair(Workspace(workspace.settings))
    return Contender(STATISTICAL, built["item"], built["query"], chosen.figures)
