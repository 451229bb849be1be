"""Every entry to going live against every refusal: it ends with its error, what served before
serves still, and the history is as it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cogr.errors import CheckFailedError, CogrError, ServiceError
from cogr.records import Side
from cogr.snapshots import Snapshot
from cogr.store import Store
from indexers.backends import Verified
from indexers.backends.memory import MemoryBackend
from indexers.lease import held_lease, lease_to_switch
from indexers.workspace import Workspace
from tests.commands import Command, Ended, sets
from tests.indexers.release.conftest import CANDIDATES, FAILING, Catalogue
from tests.shops import write_jsonl
from trainers.project import Project


def distrust(store: Store, snapshot: str) -> None:
    """Take the mark of a passed verification back."""
    path = f"memory/{snapshot}.json"
    store.write_json(path, {**store.read_json(path), "verified": False})


class Faulty(MemoryBackend):
    """The backend of memory with one fault."""

    fault = ""

    def verify(self, snapshot: Snapshot, queries: Any, **how: Any) -> Verified:
        verified = super().verify(snapshot, queries, **how)
        if self.fault == "verify":
            distrust(self._store, snapshot.id)
            raise CheckFailedError(f"{snapshot.id} differs from what was pushed.")
        return verified

    def publish(
        self, snapshots: Mapping[Side, str], expected: Mapping[Side, str | None] | None = None
    ) -> Mapping[Side, str | None]:
        if self.fault == "refuse":
            raise ServiceError("The cluster refuses to switch.")
        return super().publish(snapshots, expected)


@dataclass
class Cell:
    """A shop in which a pair serves, and a candidate that would serve next."""

    shop: Catalogue
    command: Command
    stack: ExitStack
    candidate: str = "fine"
    overrides: list[str] = field(default_factory=lambda: ["publish.tolerance=1"])

    @property
    def id(self) -> str:
        return self.shop.ids[self.candidate]

    def enter(self, entry: str) -> Ended:
        """By a command, or from Python."""
        # The candidate as data, for entries that generate.
        for file in ("data/items.jsonl", "changes.jsonl"):
            write_jsonl(self.shop.folder / file, CANDIDATES[self.candidate])
        if entry != "Project.release":
            words = entry.format(self.id).split()
            return self.command("cogr-index", *words, *sets(*self.overrides))
        workspace = Workspace.open(self.shop.folder / "cogr.toml", self.overrides)
        try:
            Project(workspace, say=lambda _: None).release(self.id)
        except CogrError as error:
            return Ended(error.exit_status, "", str(error))
        return Ended(0, "", "")


ENTRIES = (
    "update --side item --changed changes.jsonl",
    "rebuild --side item",
    "publish {}",
    "rollback --to {}",
    "Project.release",
)


def gate(cell: Cell) -> None:
    cell.candidate = "worse"
    cell.overrides.remove("publish.tolerance=1")


def verification_fails(cell: Cell) -> None:
    """Entries that push find a difference; the others find a snapshot that did not pass."""
    Faulty.fault = "verify"
    distrust(cell.shop.store, cell.id)


def too_many_set_aside(cell: Cell) -> None:
    cell.candidate = "set aside"


def lease_held(cell: Cell) -> None:
    lease = held_lease(cell.shop.store, lease_to_switch("memory"), "another publish", 60)
    cell.stack.enter_context(lease)


def cluster_refuses(cell: Cell) -> None:
    Faulty.fault = "refuse"


REFUSALS = {
    gate: (1, r"The gate keeps (item|query)-.* from serving: .* would go from"),
    verification_fails: (1, r"differs from what was pushed|not passed|verif"),
    too_many_set_aside: (1, r"2 of 6 entities were set aside \(33\.3%.*the first 'e': broken"),
    lease_held: (2, r"is refused: .*another publish.*holds"),
    cluster_refuses: (3, r"The cluster refuses to switch"),
}
# What served once must be able to serve again.
CELLS = [
    (entry, refusal)
    for entry in ENTRIES
    for refusal in REFUSALS
    if not (entry.startswith("rollback") and refusal in (gate, too_many_set_aside))
]


@pytest.fixture
def cell(
    template: Catalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_any: Command
) -> Iterator[Cell]:
    shop = template.copied(tmp_path / "shop")
    monkeypatch.chdir(shop.folder)
    monkeypatch.setattr("indexers.backends.memory.MemoryBackend", Faulty)
    monkeypatch.setattr("indexers.lease.PATIENCE", 0.0)
    monkeypatch.setattr("indexers.generators.extractive.Scripted", FAILING)
    monkeypatch.setattr(Faulty, "fault", "")
    with ExitStack() as stack:
        yield Cell(shop, run_any, stack)


@pytest.mark.parametrize(("entry", "refusal"), CELLS)
def test_every_entry_is_refused_and_changes_nothing(cell: Cell, entry: str, refusal: Any) -> None:
    before = cell.shop.found
    refusal(cell)
    ended = cell.enter(entry)
    status, sentence = REFUSALS[refusal]
    assert ended.status == status, ended.err
    assert re.search(sentence, ended.err), ended.err
    assert cell.shop.found == before
    if refusal is too_many_set_aside and "--side" in entry:
        assert "pushed" not in ended.err, "what can't go live is not pushed"


@pytest.mark.parametrize("entry", ENTRIES)
def test_every_entry_goes_live_where_nothing_refuses(cell: Cell, entry: str) -> None:
    serving, history = cell.shop.found
    ended = cell.enter(entry)
    assert ended.status == 0, ended.err
    after = {**serving, "item": cell.id}
    assert cell.shop.found == (after, [*history, after])
    assert after != serving
