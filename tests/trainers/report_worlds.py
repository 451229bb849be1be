"""A training run as its files say it, made without training: real snapshots, real figures, step
logs of the real layout.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from cogr.records import SIDES, Side, self_text
from cogr.snapshots import Provenance, Row, Snapshot
from cogr.snapshots.writing import write_snapshot
from indexers.workspace import Workspace
from tests.shops import write_sample_part
from trainers.evaluation import figures_of_pair
from trainers.training.rounds import (
    ROUND_STAGES,
    SFT_STAGES,
    Round,
    Run,
    StageRecord,
    State,
    Verdict,
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
        self.config = (
            folder / "cogr.toml" if (folder / "cogr.toml").exists() else write_sample_part(folder)
        )
        self.workspace = with_dev(Workspace.open(self.config, overrides))
        self.run = create(self.workspace)
        self.state = State()

    def add(
        self, number: int, verdict: Verdict = "accepted", *, steps: int = 6, hostile: bool = False
    ) -> Round:
        """A finished round with other keywords than the one before."""
        pair = {side: self.snapshot(side, number, hostile=hostile) for side in SIDES}
        stages = [
            StageRecord(
                name=name,
                output=self._output(name, number, pair),
                seconds=1.5,
                notes=self._notes(name, pair),
            )
            for name in (ROUND_STAGES if number else SFT_STAGES)
        ]
        for side in SIDES:
            self.log(number, side, steps)
            if number:
                self.completions(number, side, HOSTILE if hostile else ("oak, teal", "sofa"))
        reason = "dev F1 0.5000 -> 0.4000" if verdict == "rejected" else ""
        done = Round(number=number, stages=tuple(stages), verdict=verdict, reason=reason)
        self.state = State(rounds=(*self.state.rounds, done))
        self.run.save(self.state)
        return done

    def snapshot(self, side: Side, number: int, *, hostile: bool = False) -> Snapshot:
        """The words of each entity's text, other ones in each round; texts and keywords that
        attack, where asked.
        """
        rows = []
        for at, entity in enumerate(
            sorted(self.workspace.dataset.entities(side), key=lambda entity: entity.id)
        ):
            words = dict.fromkeys(self_text(entity).casefold().replace(",", "").split())
            kept = tuple(list(words)[number % 2 :]) + (f"round {number}",) * (at % 3 == 0)
            bad = HOSTILE[at % len(HOSTILE)] if hostile else ""
            rows.append(
                Row(
                    entity.id,
                    bad or self_text(entity),
                    (*kept, f"{bad.strip().casefold()} {number}") if bad else kept,
                )
            )
        return write_snapshot(self.workspace.store, side, rows, Provenance(round=number))

    def log(self, number: int, side: Side, steps: int) -> None:
        """Step figures as `steplog` writes them."""
        folder = self.run.folder("logs")
        lines = [
            json.dumps(sft_step(step) if number == 0 else grpo_step(step))
            for step in range(1, steps + 1)
        ]
        (folder / f"r{number:03d}-{side}.jsonl").write_text("\n".join(lines) + "\n")

    def completions(self, number: int, side: Side, texts: Sequence[str]) -> None:
        """The last step's completions as TRL writes them, in messages."""
        rows = [
            {"step": 6, "completion": [{"role": "assistant", "content": text}]}
            | {"retrieval": 0.25 * at, "entity": f"{side}-{at}", "advantage": 0.0}
            for at, text in enumerate(texts)
        ]
        file = self.run.folder("logs") / f"r{number:03d}-{side}.parquet"
        parquet.write_table(pa.Table.from_pylist(rows), file)

    def _output(self, name: str, number: int, pair: Mapping[Side, Snapshot]) -> str:
        if name.startswith("train-"):
            return f"runs/main/models/r{number:03d}-{name.removeprefix('train-')}-0"
        if name.startswith("index-"):
            return pair["query" if name == "index-query" else "item"].id
        return pair["item"].id if name == "accept-items" else ""

    def _notes(self, name: str, pair: Mapping[Side, Snapshot]) -> Mapping[str, Any]:
        if name.startswith("train-"):
            return {"steps": 6, "seconds": {"rollout": 2.0, "reward": 0.01, "update": 4.0}}
        if name == "accept-items":
            return {"moved": 40, "accepted": 30, "train_f_before": 0.5, "realised": 0.06}
        return self._figures(pair) if name == "evaluate" else {}

    def _figures(self, pair: Mapping[Side, Snapshot]) -> Mapping[str, Any]:
        return figures_of_pair(self.workspace, pair["item"].id, pair["query"].id)


def sft_step(step: int) -> Mapping[str, Any]:
    return {"step": step, "loss": 8 / step, "learning_rate": 1e-3, "seconds": 0.1}


def grpo_step(step: int) -> Mapping[str, Any]:
    shares = {
        "equal_groups": 0.1,
        "over_budget": 0.0,
        "unfinished": 0.2,
        "empty": 0.0,
    }
    means = {"reward": 0.1 * step, "reward_std": 0.2, "keywords": 3.0}
    return {
        "step": step,
        **means,
        **shares,
        "seconds": {"rollout": 1.0, "reward": 0.1, "update": 2.0},
    }


def whole_run(folder: Path, *, hostile: bool = False) -> tuple[Workspace, Run]:
    """SFT, an accepted round and a rejected one."""
    told = Told(folder)
    verdicts: Sequence[Verdict] = ("accepted", "accepted", "rejected")
    for number, verdict in enumerate(verdicts):
        told.add(number, verdict, hostile=hostile)
    return told.workspace, told.run
