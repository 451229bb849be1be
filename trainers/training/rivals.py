"""What a run is compared with: BM25 over the items' text, and the pair that `statistical` writes
from the same labels.

Measured once a run, on the queries that nothing is trained on, and kept in its folder as
`rivals.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from typing import Any

from cogr.errors import GeneratorError, MissingExtraError, SnapshotError
from cogr.progress import Say
from cogr.records import SIDES, Side, Split
from cogr.snapshots import open_snapshot
from indexers.backends.memory import MemoryBackend
from indexers.workspace import Workspace
from trainers.baselines import bm25_row
from trainers.evaluation import evaluate
from trainers.training.building import build_snapshot
from trainers.training.contest import STATISTICAL, Contender
from trainers.training.holdout import is_set_apart
from trainers.training.runs import Run

_SPLITS: tuple[Split, ...] = ("dev", "test")


@dataclass(frozen=True)
class Rivals:
    """The rivals of one run.

    Attributes:
        bm25: split -> figures of BM25.
        statistical: the pair of that generator; None where it is left out.
        left_out: name -> why there are no figures.
        extra_missing: that is because the extra `statistical` was not installed.
    """

    bm25: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    statistical: Contender | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    extra_missing: bool = False


def known_rivals(run: Run) -> Rivals | None:
    """What was measured for a run; None before."""
    path = f"{run.path}/rivals.json"
    if not run.store.exists(path):
        return None
    kept = run.store.read_json(path)
    pair = kept["statistical"]
    return Rivals(**{**kept, "statistical": None if pair is None else Contender(**pair)})


def rivals(workspace: Workspace, run: Run, say: Say) -> Rivals:
    """The rivals of a run, measured now where they are not known, and where the extra was missing
    and is not any more.

    Args:
        workspace: with the run's own data and dev split.
    """
    known = known_rivals(run)
    if (
        known is not None
        and not (known.extra_missing and _installed())
        and _is_there(workspace, known.statistical)
    ):
        return known
    say("measuring bm25 and statistical beside the rounds")
    found = _measured(workspace, say)
    run.store.write_json(f"{run.path}/rivals.json", asdict(found))
    return found


def _measured(workspace: Workspace, say: Say) -> Rivals:
    bm25: dict[str, Mapping[str, Any]] = {}
    try:
        bm25 = _bm25(workspace)
        return Rivals(bm25, _statistical(workspace))
    except (MissingExtraError, GeneratorError) as error:
        left_out = dict.fromkeys([STATISTICAL] if bm25 else ["bm25", STATISTICAL], str(error))
        say(f"{' and '.join(left_out)}: not measured. {error}")
        return Rivals(bm25, None, left_out, isinstance(error, MissingExtraError))


def _installed() -> bool:
    return all(find_spec(package) for package in ("bm25s", "lightgbm"))


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
    found: dict[str, Mapping[str, Any]] = {}
    cutoff = None
    for split in _splits(workspace):
        row = bm25_row(workspace.dataset, split, cutoff)
        cutoff = row["cutoff"]
        found[split] = {**row, "queries": len(workspace.dataset.queries[split])}
    return found


def _statistical(workspace: Workspace) -> Contender:
    built = statistical_pair(workspace)
    items, queries = (open_snapshot(workspace.store, built[side]) for side in ("item", "query"))
    backend = MemoryBackend(workspace.store)
    backend.push(items)
    figures: dict[str, Mapping[str, Any]] = {
        split: evaluate(backend, workspace.dataset, items, queries, split).as_dict()
        for split in _splits(workspace)
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

    Where dev queries were set apart, `statistical` is fitted once more with their labels, which
    were held back for the choice
    alone: it is then what `cogr-index rebuild` makes of the data.
    """
    if chosen.name != STATISTICAL or not is_set_apart(workspace.dataset):
        return chosen
    built = statistical_pair(Workspace(workspace.settings))
    return Contender(STATISTICAL, built["item"], built["query"], chosen.figures)
