"""Whether a finished round is built upon: its dev F1 against that of the round it was built on."""

from __future__ import annotations

from cogr.settings.training import GateSettings
from trainers.training.scene import Scene
from trainers.training.state import Round, StageRecord, Verdict


def dev_f1(stage: StageRecord | None) -> float | None:
    """Dev F1 of an evaluation; None where there is no dev split."""
    figures = stage.notes.get("dev") if stage else None
    return None if figures is None else float(figures["f1"])


def verdict(gate: GateSettings, scene: Scene, evaluation: StageRecord) -> tuple[Verdict, str]:
    """Accepted, or rejected with the reason.

    Without a dev split, or with the gate off, every round is accepted.
    """
    now, before = dev_f1(evaluation), dev_f1(_evaluation_of(scene.base))
    if not gate.on or now is None or before is None:
        return "accepted", "no dev split to judge by" if gate.on and now is None else ""
    if now >= before - gate.tolerance:
        return "accepted", f"dev F1 {before:.4f} -> {now:.4f}"
    return (
        "rejected",
        f"dev F1 {before:.4f} -> {now:.4f}, which loses more than the tolerance of "
        f"{gate.tolerance:g}",
    )


def _evaluation_of(round_: Round | None) -> StageRecord | None:
    return round_.stage("evaluate") if round_ else None
