"""The report's figures: which facts stand in which picture, with what words.

Keywords and, in the table of two runs, texts of entities are in them as `clean` leaves them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from cogr.records import SIDES, Side
from trainers.report.drawing import COLOURS, LINES, Canvas, Figure, Row, clean, fifth_above, style
from trainers.report.facts import Beside, Facts, StageLog, round_name
from trainers.report.keywords import Moved, Vocabulary

SIDE_NAMES: Mapping[Side, str] = {"query": "queries", "item": "items"}
_BUBBLES = 120
_DECADES = 5
"""A vocabulary that is so many times another one is shown on a logarithmic scale."""
_LONGEST = 4
"""Keywords of so many words or more are shown as one."""
_GAINS = (
    ("promised", "promised", "grey"),
    ("all_at_once", "all at once", "orange"),
    ("realised", "realised", "green"),
)
_TIMES = (
    ("training queries", "teal", ("train-query",)),
    ("training items", "purple", ("train-item",)),
    ("writing keywords", "orange", ("index-item", "index-query", "accept-items")),
    ("targets, figures", "grey", ("targets", "evaluate")),
)


# Quality


def f1_figure(facts: Facts) -> Figure:
    """F1 of every split over the stages of the rounds."""
    names = [pair.name for pair in facts.pairs]
    rejected = [at for at, pair in enumerate(facts.pairs) if pair.verdict == "rejected"]
    canvas = Canvas("stage", "F1")
    for split in facts.splits:
        points = [(float(at), pair.figures[split]["f1"]) for at, pair in enumerate(facts.pairs)]
        canvas.marks(split, points, names, rejected)
        if split == facts.split:
            errors = [pair.figures[split].get("f1_se", 0.0) for pair in facts.pairs]
            colour = COLOURS[LINES[split][0]]
            x, y = zip(*points, strict=True)
            canvas.axes.errorbar(x, y, errors, fmt="none", color=colour)
    canvas.names(names, 7)
    canvas.from_zero(0.5)
    note = (
        f"Of the whole retrieved set. Whiskers on {facts.split}: one standard error over its "
        "queries."
    )
    if any(pair.verdict is None for pair in facts.pairs):
        note += " “1 queries”: the queries of round 1 on the items of the round before."
    if rejected:
        note += " Rings: rounds that are not built upon."
    return canvas.done("f1", "F1 after each stage", note)


def steps_figure(facts: Facts) -> Figure:
    """F1 over all GRPO steps, inside a phase too where it was measured (paper, section 5.2)."""
    canvas, logs = Canvas("GRPO step", "F1"), [log for log in facts.logs if log.round and log.steps]
    begun = [0, *accumulate(len(log.steps) for log in logs)]
    after = {(pair.round, pair.verdict is None): pair.figures for pair in facts.pairs}
    for split in [split for split in facts.splits if split != "train"] or facts.splits:
        points = [(0.0, after[0, False][split]["f1"])]
        for start, end, log in zip(begun, begun[1:], logs, strict=False):
            points += [
                (float(start + one["step"]), float(one[split]))
                for one in log.measured
                if split in one and one["step"] < len(log.steps)
            ]
            if (figures := after.get((log.round, log.side == "query"))) is not None:
                points.append((float(end), figures[split]["f1"]))
        if logs:
            canvas.marks(split, points, [f"step {x:,.0f}" for x, _ in points])
    canvas.rules(
        [(float(at), f"{log.side} {log.round}") for at, log in zip(begun, logs, strict=False)]
    )
    canvas.from_zero(0.5)
    note = (
        "A dashed line is where a side begins to be trained. Inside a phase of the item side all "
        "items have their new keywords; at its end those that were accepted."
    )
    return canvas.done("f1-steps", "F1 over training steps", note)


def precision_recall_figure(facts: Facts) -> Figure:
    """The path of the rounds through precision and recall, over lines of equal F1."""
    rejected = [at for at, pair in enumerate(facts.whole) if pair.verdict == "rejected"]
    names, canvas = [pair.name for pair in facts.whole], Canvas("recall", "precision")
    paths = {
        split: [(pair.figures[split]["r"], pair.figures[split]["p"]) for pair in facts.whole]
        for split in facts.splits
    }
    for split, points in paths.items():
        canvas.marks(split, points, names, rejected)
    right, top = map(fifth_above, canvas.axes.dataLim.max)
    r, p = np.meshgrid(np.linspace(1e-3, right, 100), np.linspace(1e-3, top, 100))
    levels = np.arange(1, 10) / 10 if max(right, top) <= 0.5 else np.arange(1, 5) / 5
    look: dict[str, Any] = {"colors": COLOURS["line"], "linewidths": 1.2}
    lines = canvas.axes.contour(r, p, 2 * p * r / (p + r), levels, **look)
    canvas.axes.clabel(lines, fmt="F1 %.1f", fontsize=10.5, colors=COLOURS["quiet"])
    canvas.axes.set(xlim=(0, right), ylim=(0, top))
    canvas.axes.grid(visible=False)
    canvas.label(paths[facts.split], names)
    note = "Thin lines join points of equal F1. Points are in the order of the rounds."
    return canvas.done("precision-recall", "Precision and recall of each round", note)


def reliability_figure(facts: Facts) -> Figure:
    """How far the confidence of `statistical` is its F1."""
    canvas = Canvas("confidence", "F1")
    for split, points in facts.reliability.items():
        labels = [f"{round(count)} queries, confidence {sure:.2f}" for sure, _, count in points]
        canvas.marks(split, [(sure, f1) for sure, f1, _ in points], labels)
    canvas.axes.plot([0, 1], [0, 1], color=COLOURS["line"], zorder=0)
    canvas.axes.set(xlim=(0, 1), ylim=(0, 1))
    note = (
        "Each mark: a tenth of the queries, by how sure `statistical` is of its answer, and the F1 "
        "of what it retrieves. On the thin line the two are equal."
    )
    return canvas.done("reliability", "Is the confidence right?", note)


# Training


def reward_figure(facts: Facts, side: Side) -> Figure:
    """Mean reward and its spread over the GRPO steps of all rounds."""
    canvas, logs = Canvas("step", "reward"), _grpo(facts, side)
    canvas.steps(SIDE_NAMES[side], _values(logs, "reward"), _values(logs, "reward_std"))
    canvas.from_zero()
    canvas.rules(_rounds(logs))
    note = "Line: the mean of a step. Band: one standard deviation over the completions of a step."
    return canvas.done(f"reward-{side}", f"Reward of the {side} side", note)


def shares_figure(facts: Facts, side: Side) -> Figure:
    """What goes wrong in GRPO, as shares of a step."""
    canvas, logs = Canvas("step", "share of a step"), _grpo(facts, side)
    canvas.steps("equal rewards", _values(logs, "equal_groups"))
    canvas.steps("over the budget", _values(logs, "over_budget"))
    canvas.steps("unfinished", _values(logs, "unfinished"))
    canvas.from_zero(1.0)
    canvas.rules(_rounds(logs))
    note = (
        "Groups whose completions all have one reward teach nothing; lists over the budget or "
        "cut at the length limit are punished."
    )
    return canvas.done(f"shares-{side}", f"What is lost in steps of the {side} side", note)


def list_figure(facts: Facts) -> Figure:
    """How long the lists are that GRPO draws."""
    canvas = Canvas("step", "keywords")
    for side in SIDES:
        canvas.steps(SIDE_NAMES[side], _values(_grpo(facts, side), "keywords"))
    canvas.from_zero()
    note = "Steps are counted over all rounds."
    return canvas.done("completion", "Keywords a completion in GRPO", note)


def loss_figure(facts: Facts) -> Figure:
    """The loss of SFT on both sides."""
    canvas = Canvas("step", "loss a token (nats)")
    for log in facts.logs:
        if log.round == 0:
            canvas.steps(SIDE_NAMES[log.side], _values([log], "loss"))
    canvas.from_zero()
    return canvas.done("loss", "Loss of supervised fine-tuning")


def _grpo(facts: Facts, side: Side) -> list[StageLog]:
    return [
        log
        for log in facts.logs
        if log.side == side and log.round and log.steps and "reward" in log.steps[0]
    ]


def _rounds(logs: Iterable[StageLog]) -> list[tuple[float, str]]:
    """The step at which each round begins, and its name."""
    begun = accumulate((len(log.steps) for log in logs), initial=0)
    return [(float(at), round_name(log.round)) for at, log in zip(begun, logs, strict=False)]


def _values(logs: Iterable[StageLog], key: str) -> list[float]:
    return [float(step[key]) for log in logs for step in log.steps]


# Keywords


def words_figure(facts: Facts) -> Figure:
    """How long the distinct keywords of both sides are, in words, round by round (paper, section
    5.4).
    """
    rows = []
    for one in facts.lengths:
        total = max(1, sum(one.words.values()))
        shares = [one.words.get(n, 0) / total for n in range(1, _LONGEST)]
        mean = sum(n * times for n, times in one.words.items()) / total
        lengths = [*shares, max(0.0, 1 - sum(shares))]
        rows.append(Row(round_name(one.round), lengths, f"{mean:.2f} words"))
    names = ["1 word", *(f"{n} words" for n in range(2, _LONGEST)), f"{_LONGEST} or more"]
    parts = [(name, f"ramp{at}") for at, name in enumerate(names, 1)]
    canvas = Canvas.of_rows("share of the distinct keywords", parts, rows)
    note = (
        "Every keyword counts once, however many queries and items have it. At the right: the "
        "mean. Words are what spaces divide."
    )
    return canvas.done("words", "Length of keywords", note)


def moved_figure(facts: Facts, moved: Moved) -> Figure:
    """Keywords added and dropped since SFT, each by how well it matches alone (paper, section
    5.4).
    """
    canvas, shown = Canvas("recall", "precision"), moved.bubbles[:_BUBBLES]
    canvas.bubbles(
        [
            ("added" if one.added else "dropped", one.r, one.p, one.entities, clean(one.keyword))
            for one in shown
        ]
    )
    note = (
        f"From SFT to {round_name(facts.base.number)} {moved.added:,} keywords were added "
        f"(blue) and {moved.dropped:,} dropped (red). Shown are the {len(shown):,} that most "
        "queries and items have (the area), of those that both sides have: only these match. "
        "Precision and recall are of the pairs of a query and an item that the keyword alone "
        "brings together."
    )
    return canvas.done("moved", "Keywords added and dropped", note)


def vocabulary_figure(facts: Facts) -> Figure:
    """Distinct keywords of both sides, and those that they share."""
    lines = {SIDE_NAMES[side]: [one.distinct for one in _of(facts, side)] for side in SIDES}
    lines["both"] = [one.shared for one in _of(facts, "item")]
    note = "Both: keywords that items and queries have in common; only these can match."
    numbers = [number for line in lines.values() for number in line]
    log = min(numbers) > 0 and max(numbers) >= _DECADES * min(numbers)
    words = ("vocabulary", "Vocabulary", note + " The scale is logarithmic." * log)
    return _over_rounds(facts, lines, "distinct keywords", words, log=log)


def size_figure(facts: Facts) -> Figure:
    """Mean size of the keyword sets of both sides."""
    lines = {
        SIDE_NAMES[side]: [one.keywords / max(1, one.entities) for one in _of(facts, side)]
        for side in SIDES
    }
    return _over_rounds(facts, lines, "keywords an entity, mean", ("size", "Size of keyword sets"))


def _of(facts: Facts, side: Side) -> list[Vocabulary]:
    return [one for one in facts.vocabularies if one.side == side]


def _over_rounds(
    facts: Facts,
    lines: Mapping[str, Sequence[float]],
    y: str,
    words: tuple[str, ...],
    *,
    log: bool = False,
) -> Figure:
    canvas, names = Canvas("round", y), [pair.name for pair in facts.whole]
    for name, values in lines.items():
        canvas.marks(name, list(enumerate(values)), names)
    canvas.names(names)
    if log:
        canvas.logarithmic()
    else:
        canvas.from_zero()
    return canvas.done(*words)


def movement_figure(facts: Facts, side: Side) -> Figure:
    """Keywords gained and lost in each round."""
    found = [one.changes for one in facts.movements if one.side == side]
    canvas = Canvas("round", "keywords of all entities")
    gained = [float(one.gained.total()) for one in found]
    lost = [-float(one.lost.total()) for one in found]
    rounds = [round_name(one.round) for one in facts.movements if one.side == side]
    canvas.bars(rounds, [("gained", "green", gained), ("lost", "red", lost)])
    shares = ", ".join(f"{len(one.changed) / max(1, one.entities):.0%}" for one in found)
    return canvas.done(
        f"movement-{side}",
        f"Keywords gained and lost, {SIDE_NAMES[side]}",
        f"Share of {SIDE_NAMES[side]} that changed: {shares}.",
    )


def beside_figure(beside: Beside) -> Figure:
    """The keywords of two runs beside one another, as a table for a paper; the page has it as
    text.
    """
    rows = [
        (clean(one.text), *(", ".join(map(clean, (*one.kept, *own))) for own in two))
        for one in beside.rows
        for two in [(one.lost, one.gained)]
    ]
    return Canvas.of_table(("", *beside.names), rows).done("beside", "Keywords of two runs")


# Acceptance and time


def acceptance_figure(facts: Facts) -> Figure:
    """What moving the items was to bring, and brought."""
    found = acceptance(facts)
    canvas = Canvas("round", "change of training F1")
    kinds = [(name, tone, [float(notes[key]) for _, notes in found]) for key, name, tone in _GAINS]
    canvas.bars([round_name(number) for number, _ in found], kinds)
    note = (
        "Promised: the sum of the items' gains, each measured as if it moved alone. All at once: "
        "what taking every new set would change. Realised: what the sets that were taken changed."
    )
    return canvas.done("acceptance", "What new item keywords bring", note)


def acceptance(facts: Facts) -> list[tuple[int, Mapping[str, Any]]]:
    """(round, notes of its acceptance)."""
    stages = ((round_.number, round_.stage("accept-items")) for round_ in facts.rounds)
    return [(number, stage.notes) for number, stage in stages if stage is not None]


def time_figure(facts: Facts) -> Figure:
    """Where the time of each round went."""
    rows = []
    for round_ in facts.rounds:
        parts = [sum(s.seconds for s in round_.stages if s.name in names) for *_, names in _TIMES]
        rows.append(Row(round_name(round_.number), parts, duration(sum(parts))))
    canvas = Canvas.of_rows("seconds", [part[:2] for part in _TIMES], rows)
    steps = [s.notes["seconds"] for r in facts.rounds[1:] for s in r.stages if "seconds" in s.notes]
    totals = {
        key: sum(seconds[key] for seconds in steps) for key in ("rollout", "reward", "update")
    }
    whole = sum(totals.values())
    shares = ", ".join(f"{key} {value / whole:.1%}" for key, value in totals.items() if whole)
    note = f"Of the GRPO steps: {shares}." if shares else ""
    return canvas.done("time", "Time of each round", note)


def duration(seconds: float) -> str:
    """5.2 s, 3:07 min, 2:05 h."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"


def draw(facts: Facts) -> Mapping[str, Sequence[Figure]]:
    """Section of the page -> its figures; those with nothing to draw are left out."""

    def sides(maker: Callable[[Facts, Side], Figure]) -> list[Figure]:
        return [maker(facts, side) for side in SIDES]

    with style():
        sections = {
            "quality": [f1_figure(facts), steps_figure(facts), precision_recall_figure(facts),
                        reliability_figure(facts)],
            "training": [*sides(reward_figure), *sides(shares_figure),
                         list_figure(facts), loss_figure(facts)],
            "keywords": [vocabulary_figure(facts), size_figure(facts),
                         words_figure(facts),
                         *([moved_figure(facts, facts.moved)] if facts.moved else []),
                         *sides(movement_figure)],
            "time": [acceptance_figure(facts), time_figure(facts)],
            "tables": [beside_figure(facts.beside)] if facts.beside else [],
        }  # fmt: skip
    return {name: [one for one in made if one.tips] for name, made in sections.items()}
