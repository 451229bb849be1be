"""The rows of a comparison in its folder: one for each method and seed, written when it is
finished, so that a killed comparison keeps them and `--resume` goes on.
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
from trainers.rivals import Family, Ranked

FORMAT = 3
_MARK = "comparison.json"
State = Literal["done", "not run", "failed"]


@dataclass(frozen=True)
class Trial:
    """One set of hyperparameters that was tried: F1 on the dev queries, and the seconds it took."""

    params: Mapping[str, Any]
    dev_f1: float
    seconds: float


@dataclass(frozen=True)
class MethodRow:
    """The result of a method with one seed.

    Attributes:
        reason: why it failed or did not run; of a finished row a remark, such as random weights.
        params: the hyperparameters that were chosen.
        sets: a description of how its retrieved sets were made.
        cutoff, dev_cutoff: items a query, by the training and the dev queries; None for sets of
            the method's own.
        threshold, dev_threshold: the score that maximises F1; None as above, or for none.
        dev_f1: F1 on the dev queries, of a ranking by `dev_cutoff`.
        figures: measure -> mean over the test queries.
        per_query: measure -> one value a test query.
        cost: name -> number.
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
    """The rows of one comparison. Rows with another key are not reused; `anew` removes those of an
    earlier comparison.

    Raises UserError where the folder has other things in it.
    """

    def __init__(self, folder: Store, key: str, *, anew: bool) -> None:
        self.folder, self.key = folder, key
        there = folder.list("")
        if there and _MARK not in there:
            raise UserError(
                f"The folder {folder.url} has other files than a comparison's; name another one "
                "with --out."
            )
        for name in ("rows", "runs", "sets", "work") if anew else ():
            folder.remove(name)
        folder.write_json(_MARK, {"format": FORMAT, "key": key})

    def row(self, method: str, seed: int) -> MethodRow | None:
        """A finished row; None where there is none of this key."""
        found = self._read(f"rows/{method}.{seed}.json")
        if found is None or found["state"] != "done":
            return None
        return MethodRow(**{**found, "trials": [Trial(**one) for one in found["trials"]]})

    def keep(self, row: MethodRow) -> None:
        """Write a row. Raises StorageError."""
        self._write(f"rows/{row.method}.{row.seed}.json", asdict(row))

    def trials(self, method: str) -> list[Trial]:
        """The trials that a killed comparison finished."""
        found = self._read(f"rows/{method}.trials.json")
        return [Trial(**one) for one in found["trials"]] if found else []

    def keep_trials(self, method: str, trials: Sequence[Trial]) -> None:
        """Write what was tried. Raises StorageError."""
        self._write(f"rows/{method}.trials.json", {"trials": [asdict(one) for one in trials]})

    def keep_run(self, kind: Literal["runs", "sets"], row: MethodRow, run: Ranked) -> None:
        """Write a run as TREC has it: query, Q0, item, rank, score, name. Raises StorageError."""
        name = f"{row.method}.{row.seed}"
        lines = [
            f"{_word(query)} Q0 {_word(id_)} {rank} {score!r} {name}\n"
            for query, pairs in run.items()
            for rank, (id_, score) in enumerate(pairs, 1)
        ]
        self.folder.write(f"{kind}/{name}.trec", "".join(lines).encode("utf-8", "replace"))

    def sets(self, method: str) -> dict[str, list[str]]:
        """Query id -> ids of the retrieved set, as the first seed's file has them."""
        path = f"sets/{method}.0.trec"
        lines = self.folder.read(path).decode() if self.folder.exists(path) else ""
        found: dict[str, list[str]] = {}
        for line in lines.splitlines():
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


def key_of(dataset: Dataset, settings: Settings, budget: Sequence[Any]) -> str:
    """A hash of everything that decides a row."""
    parts = {"dataset", "keywords", "prompts", "generator", "training", "compare"}
    decisive = settings.model_dump(mode="json", include=parts)
    text = json.dumps([FORMAT, dataset.dataset_hash, decisive, budget], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _word(id_: str) -> str:
    """An id without white space, which divides a run file's columns."""
    return "_".join(id_.split()) or "_"
