"""The report as one HTML file, and its figures as files."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from cogr.records import Say
from indexers.tables import Table, page, pick, write_page
from indexers.telemetry.terminal import duration
from indexers.workspace import Workspace
from trainers.report.drawing import Figure, check_extra
from trainers.report.facts import Facts, round_name
from trainers.report.figures import draw
from trainers.training.rounds import Run

__all__ = ["check_extra", "drawn", "render", "write_report"]
PACKAGE = "trainers.report"
MEASURES = {"p": "P", "r": "R", "f1": "F1", "f1_se": "standard error", "ndcg@10": "nDCG@10"}
_ACCEPTED = {
    "moved": "items with a new set",
    "accepted": "taken",
    "train_f_before": "F1 before",
    "promised": "promised",
    "all_at_once": "all at once",
    "realised": "realised",
}


def write_report(
    workspace: Workspace,
    run: Run,
    file: Path,
    say: Say = lambda _: None,
    figures: Path | None = None,
) -> list[Path]:
    """Write a run's report, replacing the file atomically; returns the files written, it first.
    A folder `figures` gets every figure as SVG and PNG.

    Raises:
        MissingExtraError: without the extra `report`.
        TrainingError: the run has no finished round.
        SnapshotError: a snapshot of the run is gone or broken.
        StorageError: the file can't be written.
    """
    check_extra()
    facts = Facts(workspace, run, say)
    made = draw(facts)
    write_page(file, PACKAGE, **values_of(facts, made))
    if figures is None:
        return [file]
    return [file, *(path for one in chain(*made.values()) for path in one.write(figures))]


def drawn(workspace: Workspace, run: Run) -> list[Figure]:
    """Every figure of a run's report."""
    return list(chain(*draw(Facts(workspace, run)).values()))


def render(facts: Facts, figures: Mapping[str, Sequence[Figure]]) -> str:
    """The page of some facts with their figures, by section (`figures.draw`)."""
    return page(PACKAGE, **values_of(facts, figures))


def values_of(facts: Facts, figures: Mapping[str, Sequence[Figure]]) -> dict[str, Any]:
    """What the template is filled with."""
    return {
        "facts": facts,
        "compared": _compared(facts),
        "rounds": _rounds(facts),
        "acceptance": _acceptance(facts),
        "changed": _changed(facts),
        "stages": _stages(facts),
        "settings": Table.of("", dict(sorted(facts.frozen["settings"].items()))),
        "base": round_name(facts.base.number),
        "written": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        **figures,
    }


def _row(figures: Mapping[str, Any], names: Sequence[str] = (*MEASURES,)) -> dict[str, str]:
    return {MEASURES[name]: f"{figures[name]:.3f}" for name in names if name in figures}


def _compared(facts: Facts) -> Table:
    """BM25, statistical and distilled beside SFT and the last round that is built upon."""
    rivals = {} if facts.rivals is None else facts.rivals.rows()
    pairs = {one.name: one.figures for one in (facts.whole[0], facts.whole[facts.base.number])}
    best = "" if facts.choice is None else facts.choice.chosen.name
    rows = []
    for name, of in {**rivals, **pairs}.items():
        if (figures := of.get(facts.split)) is not None:
            cut = f"the best {figures.get('cutoff')} items of each ranking" * ("cutoff" in figures)
            words = figures.get("keywords_per_item")
            row = {facts.split: name, **_row(figures), "MRR@10": f"{figures['mrr@10']:.3f}"}
            row["keywords an item"] = "" if words is None else f"{words:.1f}"
            marks = {"serves": facts.serves, "best on dev": best}
            told = [mark for mark, of in marks.items() if of == name.lower()]
            rows.append(row | {"": ", ".join([*told, *filter(None, [cut])])})
    notes = [
        "P, R and F1 are of the whole retrieved set, averaged over queries; nDCG@10 and MRR@10 are "
        "of the whole ranking. bm25 searches the items' own text, cut at the number of items that "
        "serves the training queries best; statistical writes keywords from the same labels "
        "without a language model."
    ]
    if facts.choice:
        notes.append(f"What should serve is {best}: {facts.choice.reason()}.")
    return Table("", rows, notes)


def _rounds(facts: Facts) -> Table:
    """Every round and rival on every split."""
    rows = []
    rivals = {} if facts.rivals is None else facts.rivals.rows()
    for name, of in rivals.items():
        rows += [{"": name, "split": s, **_row(of[s])} for s in facts.splits if s in of]
    for pair, round_ in zip(facts.whole, facts.rounds, strict=True):
        verdict = f"{pair.verdict}: {round_.reason}" if round_.reason else pair.verdict or ""
        rows += [
            {"": pair.name, "split": split, **_row(pair.figures[split]), "verdict": verdict}
            for split in facts.splits
        ]
    return Table("", rows)


def _acceptance(facts: Facts) -> Table:
    """What moving the items was to bring, and brought."""
    found = [(one.number, one.stage("accept-items")) for one in facts.rounds]
    rows = [
        {"round": round_name(number), **pick([stage.notes], _ACCEPTED)[0]}
        for number, stage in found
        if stage is not None
    ]
    note = "Which new item sets were taken. Figures are changes of mean training F1."
    return Table("", rows, [note])


def _changed(facts: Facts) -> Table:
    """The keywords that most entities gained and lost."""
    rows = []
    for side, found in facts.overall.items():
        for kind in ("gained", "lost"):
            counted = Counter(word for one in found for word in getattr(one, kind))
            words = ", ".join(f"{word} ({times:,})" for word, times in counted.most_common(10))
            rows.append({"side": side, "most often": kind, "keywords": words})
    return Table("", rows)


def _stages(facts: Facts) -> Table:
    stages = [(round_name(one.number), stage) for one in facts.rounds for stage in one.stages]
    rows = [
        {"round": name, "stage": of.name, "time": duration(of.seconds), "wrote": of.output}
        for name, of in stages
    ]
    return Table("", rows)
