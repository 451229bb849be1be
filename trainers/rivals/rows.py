"""Rows of a comparison, one a method and seed, and how they are kept: JSON beside TREC run files.

A row is written when it is finished, so that a killed comparison keeps what it has. `--resume`
takes a row that was made from the same data and settings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from cogr.errors import UserError
from cogr.records import Dataset
from cogr.settings import Settings
from cogr.store import Store
from trainers.rivals.measuring import Scored
from trainers.rivals.protocol import Family

FORMAT = 2
_MARK = "comparison.json"
State = Literal["done", "not run", "failed"]


@dataclass(frozen=True)
class Trial:
    """One set of hyperparameters that was tried: F1 on the dev queries, and the seconds it took."""

    params: Mapping[str, Any]
    dev_f1: float
    seconds: float


@dataclass(frozen=True)
class Row:
    """What a method reached with one seed.

    Attributes:
        state: failed and not run have no figures.
        reason: of that; of a finished row what its reader must know, such as random weights.
        params: the hyperparameters that were chosen.
        trials: those that were tried.
        sets: how its retrieved sets came about, for people.
        cutoff: items a query; None for sets of the method's own.
        threshold: score that maximises F1 on the training queries; None as above, or for none.
        dev_cutoff, dev_threshold: the same, by the dev queries.
        dev_f1: F1 on the dev queries, of a ranking by `dev_cutoff`.
        figures: measure -> mean over the test queries.
        per_query: measure -> one value a test query.
        cost: name -> number, as `compare` measures it.
    """

    method: str
    family: Family
    seed: int
    state: State
    reason: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    trials: Sequence[Trial] = ()
    sets: str = ""
    cutoff: int | None = None
    threshold: float | None = None
    dev_cutoff: int | None = None
    dev_threshold: float | None = None
    dev_f1: float = 0.0
    figures: Mapping[str, float] = field(default_factory=dict)
    per_query: Mapping[str, Sequence[float]] = field(default_factory=dict)
    cost: Mapping[str, float] = field(default_factory=dict)


class Kept:
    """The rows of one comparison in its folder.

    Args:
        folder: of the comparison.
        key: names data and settings; rows of another key are not taken up.
    """

    def __init__(self, folder: Store, key: str) -> None:
        self.folder, self.key = folder, key

    def begin(self, *, anew: bool) -> None:
        """Make the folder a comparison's.

        Args:
            anew: what a comparison left there goes.

        Raises:
            UserError: the folder has other things in it.
        """
        there = self.folder.list("")
        if there and _MARK not in there:
            raise UserError(
                f"The folder {self.folder.url} has other files than a comparison's; name another "
                "one with --out."
            )
        for name in ("rows", "runs", "sets", "work") if anew else ():
            self.folder.remove(name)
        self.folder.write_json(_MARK, {"format": FORMAT, "key": self.key})

    def row(self, method: str, seed: int) -> Row | None:
        """A finished row; None where there is none of this key."""
        found = self._read(f"rows/{method}.{seed}.json")
        if found is None or found["state"] != "done":
            return None
        trials = [Trial(**one) for one in found.pop("trials")]
        return Row(**found, trials=trials)

    def keep(self, row: Row) -> None:
        """Write a row. Raises StorageError."""
        self._write(f"rows/{row.method}.{row.seed}.json", asdict(row))

    def trials(self, method: str) -> list[Trial]:
        """The trials that a killed comparison finished."""
        found = self._read(f"rows/{method}.trials.json")
        return [Trial(**one) for one in found["trials"]] if found else []

    def keep_trials(self, method: str, trials: Sequence[Trial]) -> None:
        """Write what was tried. Raises StorageError."""
        self._write(f"rows/{method}.trials.json", {"trials": [asdict(one) for one in trials]})

    def keep_run(self, kind: Literal["runs", "sets"], row: Row, run: Scored) -> None:
        """Write a run as TREC has it: query, Q0, item, rank, score, name. Raises StorageError."""
        name = f"{row.method}.{row.seed}"
        lines = [
            f"{_word(query)} Q0 {_word(id_)} {rank} {score!r} {name}\n"
            for query, pairs in run.items()
            for rank, (id_, score) in enumerate(pairs, 1)
        ]
        self.folder.write(f"{kind}/{name}.trec", "".join(lines).encode("utf-8", "replace"))

    def sets(self, method: str) -> dict[str, list[str]]:
        """Query id -> ids of the retrieved set, as the first seed's file has them; {} without
        one.
        """
        path = f"sets/{method}.0.trec"
        if not self.folder.exists(path):
            return {}
        found: dict[str, list[str]] = {}
        for line in self.folder.read(path).decode().splitlines():
            query, _, id_, *_ = line.split()
            found.setdefault(query, []).append(id_)
        return found

    def _read(self, path: str) -> dict[str, Any] | None:
        if not self.folder.exists(path):
            return None
        found = self.folder.read_json(path, "remove it, and its method runs again")
        same = isinstance(found, dict) and found.pop("key", None) == self.key
        return found if same else None

    def _write(self, path: str, value: Mapping[str, Any]) -> None:
        self.folder.write_json(path, {"key": self.key, **value})


def key_of(dataset: Dataset, settings: Settings) -> str:
    """Names what decides a row: the data, and every setting of models, keywords and budget."""
    told = settings.model_dump(
        mode="json",
        include={"dataset", "keywords", "prompts", "generator", "training", "compare"},
    )
    text = json.dumps([FORMAT, dataset.dataset_hash, told], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _word(id_: str) -> str:
    """An id without white space, which divides a run file's columns."""
    return "_".join(id_.split()) or "_"
