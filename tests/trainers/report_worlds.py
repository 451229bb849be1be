"""A training run as its files say it, made without training: real snapshots, real figures, step
logs of the real layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from cogr.records import SIDES, Side, self_text
from cogr.snapshots import Provenance, Row, Snapshot
from cogr.snapshots.writing import write_snapshot
from indexers.workspace import Workspace
from tests.shops import write_jsonl, write_sample_part
from trainers.evaluation import split_figures
from trainers.training.rounds import (
    ROUND_STAGES,
    SFT_STAGES,
    Round,
    RoundVerdict,
    Run,
    StageRecord,
    State,
    create,
    with_dev,
)

HOSTILE = (
    "<script>document.title='broken'</script>",
    "</svg></figure><img src=x onerror=\"document.title='broken'\">",
    "' onmouseover='document.title=`broken`' {{ 7 * 7 }} {% raw %}",
    "&lt;b&gt; &amp; \u202eturned\u202c \x00\x1b[31m",
    "<style>body{display:none}</style><link rel=stylesheet href=https://example.org/x.css>",
    "x" * 2000,
)


class Told:
    """A shop with a run whose rounds are written down here."""

    def __init__(self, folder: Path, *overrides: str) -> None:
        there = (folder / "cogr.toml").exists()
        self.config = folder / "cogr.toml" if there else write_sample_part(folder)
        self.workspace = with_dev(Workspace.open(self.config, overrides))
        self.run = create(self.workspace)
        self.state = State()

    def add(
        self, number: int, verdict: RoundVerdict = "accepted", *, hostile: bool = False
    ) -> Round:
        """A finished round with other keywords than the one before."""
        items, queries = (self.snapshot(side, number, hostile).id for side in ("item", "query"))
        wrote = {"index-item": items, "accept-items": items, "index-query": queries}
        wrote |= {f"train-{side}": f"runs/main/models/r{number:03d}-{side}-0" for side in SIDES}
        notes = {"evaluate": split_figures(self.workspace, items, queries)}
        stages = [
            StageRecord(
                name=name, output=wrote.get(name, ""), seconds=1.5, notes=notes.get(name, {})
            )
            for name in (ROUND_STAGES if number else SFT_STAGES)
        ]
        for side in SIDES:
            self._log(number, side, HOSTILE if hostile else ("oak, teal", "sofa"))
        reason = "dev F1 0.5000 -> 0.4000" if verdict == "rejected" else ""
        done = Round(number=number, stages=tuple(stages), verdict=verdict, reason=reason)
        self.state = State(rounds=(*self.state.rounds, done))
        self.run.save(self.state)
        return done

    def snapshot(self, side: Side, number: int, hostile: bool) -> Snapshot:
        """The words of each entity's text, other ones in each round; texts and keywords that
        attack, where asked.
        """
        rows = []
        entities = sorted(self.workspace.dataset.entities(side), key=lambda entity: entity.id)
        for at, entity in enumerate(entities):
            text = self_text(entity)
            words = dict.fromkeys(text.casefold().replace(",", "").split())
            kept = (*list(words)[number % 2 :], *([f"round {number}"] if at % 3 == 0 else []))
            if hostile:
                # A query is found by its text, so that of the data stays.
                told = HOSTILE[at % len(HOSTILE)]
                text = told if side == "item" else text
                kept = (f"{told.strip().casefold()} {number}",)
            rows.append(Row(entity.id, text, kept))
        return write_snapshot(self.workspace.store, side, rows, Provenance(round=number))

    def _log(self, number: int, side: Side, texts: Sequence[str]) -> None:
        """Step figures as `step_log` writes them; after SFT, the last step's completions as TRL
        writes them, in messages.
        """
        folder, name = self.run.folder("logs"), f"r{number:03d}-{side}"
        scored = {"reward_std": 0.2, "equal_groups": 0.1, "keywords": 3.0} if number else {}
        steps = [
            {"step": n, **scored, "reward" if number else "loss": 0.1 * n} for n in range(1, 7)
        ]
        write_jsonl(folder / f"{name}.jsonl", steps)
        rows = [
            {"step": 6, "completion": [{"role": "assistant", "content": text}]}
            | {"retrieval": 0.25 * at, "entity": f"{side}-{at}", "advantage": 0.0}
            for at, text in enumerate(texts)
        ]
        if number:
            parquet.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")


def whole_run(folder: Path, *, hostile: bool = False) -> tuple[Workspace, Run]:
    """SFT, an accepted round and a rejected one."""
    told = Told(folder)
    verdicts: Sequence[RoundVerdict] = ("accepted", "accepted", "rejected")
    for number, verdict in enumerate(verdicts):
        told.add(number, verdict, hostile=hostile)
    return told.workspace, told.run
