"""The report's figures: which facts stand in which picture, with what caption.

Shapes are `drawing`'s, text is the page's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cogr.records import SIDES, Side
from trainers.report.drawing import Bars, Series, StackedRow, bar_chart, line_chart, row_chart
from trainers.report.facts import Facts, StageLog, round_name
from trainers.report.scales import Axis, thin

_MOST_POINTS = 240
_LONGEST = 4
"""Keywords of so many words or more are shown as one."""
SIDE_NAMES: Mapping[Side, str] = {"query": "queries", "item": "items"}
_SHARES = (
    ("equal_groups", "equal rewards", "a"),
    ("over_budget", "over the budget", "b"),
    ("unfinished", "unfinished", "c"),
)


@dataclass(frozen=True)
class Figure:
    """One picture with its words.

    Attributes:
        svg: markup made by `drawing`.
        legend: (name, class of its colour).
        note: what to see in it, or how it was measured.
    """

    title: str
    svg: str
    legend: Sequence[tuple[str, str]] = ()
    note: str = ""


# Quality


def f1_figure(facts: Facts) -> Figure:
    """F1 of every split over the stages of the rounds."""
    pairs = facts.pairs
    names = [pair.name for pair in pairs]
    rejected = frozenset(at for at, pair in enumerate(pairs) if pair.verdict == "rejected")
    series = []
    for split in reversed(facts.splits):
        places = [(float(at), pair.figures[split]["f1"]) for at, pair in enumerate(pairs)]
        errors = (
            [pair.figures[split].get("f1_se", 0.0) for pair in pairs]
            if split == facts.split
            else []
        )
        series.append(Series(split, split, places, errors, hollow=rejected, whiskers=True))
    values = [y for one in series for _, y in one.points]
    middles = any(pair.verdict is None for pair in pairs)
    note = (
        f"Of the whole retrieved set. Whiskers on {facts.split}: one standard error over its "
        "queries."
    )
    if middles:
        note += " “1 queries”: the queries of round 1 on the items of the round before."
    if rejected:
        note += " Rings: rounds that are not built upon."
    return Figure(
        "F1 after each stage",
        line_chart(
            "F1 after each stage",
            Axis.of_names("stage", names, 7),
            Axis.over("F1", [*values, 0.5]),
            series,
        ),
        [(split, split) for split in facts.splits],
        note,
    )


def precision_recall_figure(facts: Facts) -> Figure:
    """The path of the rounds through precision and recall, over lines of equal F1."""
    lines = [_equal_f1(f1) for f1 in (0.2, 0.4, 0.6, 0.8)]
    rejected = frozenset(at for at, pair in enumerate(facts.whole) if pair.verdict == "rejected")
    paths = []
    for split in reversed(facts.splits):
        places = [(pair.figures[split]["r"], pair.figures[split]["p"]) for pair in facts.whole]
        names = [pair.name for pair in facts.whole] if split == facts.split else ()
        paths.append(Series(split, split, places, labels=names, hollow=rejected))
    axes = Axis.over("recall", [0, 1]), Axis.over("precision", [0, 1])
    title = "Precision and recall of each round"
    note = "Thin lines join points of equal F1. Points are in the order of the rounds."
    return Figure(
        title,
        line_chart(title, *axes, [*lines, *paths]),
        [(split, split) for split in facts.splits],
        note,
    )


def _equal_f1(f1: float) -> Series:
    """p = f1 * r / (2 r - f1), from F1 = 2 p r / (p + r)."""
    least = f1 / (2 - f1)
    recalls = [least + (1 - least) * at / 40 for at in range(41)]
    places = [(r, min(1.0, f1 * r / (2 * r - f1))) for r in recalls]
    labels = [*[""] * 40, f"F1 {f1:g}"]
    return Series("", "iso", places, labels=labels, marks=False)


# Training


def reward_figure(facts: Facts, side: Side) -> Figure | None:
    """Mean reward and its spread over the GRPO steps of all rounds."""
    means, spreads, rules = (
        _over_steps(facts, side, "reward"),
        _over_steps(facts, side, "reward_std"),
        _rules(facts, side),
    )
    if not means:
        return None
    spread = [value for _, value in spreads]
    values = [y + s * sign for (_, y), s in zip(means, spread, strict=True) for sign in (-1, 1)]
    tone = side
    title = f"Reward of the {side} side"
    y = Axis.over("reward", values)
    svg = line_chart(
        title, _step_axis(means), y, [Series("reward", tone, means, spread, marks=False)], rules
    )
    return Figure(
        title,
        svg,
        [("mean of a step", tone)],
        "Band: one standard deviation over the completions of a step.",
    )


def shares_figure(facts: Facts, side: Side) -> Figure | None:
    """What goes wrong in GRPO, as shares of a step."""
    found = {name: _over_steps(facts, side, key) for key, name, _ in _SHARES}
    if not any(found.values()):
        return None
    tones = {name: tone for _, name, tone in _SHARES}
    series = [Series(name, tones[name], places, marks=False) for name, places in found.items()]
    title = f"What is lost in steps of the {side} side"
    axis = Axis.over("share of a step", [0, 1])
    svg = line_chart(title, _step_axis(series[0].points), axis, series, _rules(facts, side))
    note = (
        "Groups whose completions all have one reward teach nothing; lists over the budget or "
        "cut at the length limit are punished."
    )
    return Figure(title, svg, list(tones.items()), note)


def list_figure(facts: Facts) -> Figure | None:
    """How long the lists are that GRPO draws."""
    series = [
        Series(SIDE_NAMES[side], side, _over_steps(facts, side, "keywords"), marks=False)
        for side in SIDES
    ]
    series = [one for one in series if one.points]
    if not series:
        return None
    title = "Keywords a completion in GRPO"
    y = Axis.over("keywords", [value for one in series for _, value in one.points])
    longest = max((one.points for one in series), key=len)
    svg = line_chart(title, _step_axis(longest), y, series)
    return Figure(
        title, svg, [(one.name, one.tone) for one in series], "Steps are counted over all rounds."
    )


def loss_figure(facts: Facts) -> Figure | None:
    """The loss of SFT on both sides."""
    series = []
    for log in facts.logs:
        if log.round == 0 and log.steps:
            losses = thin([step["loss"] for step in log.steps], _MOST_POINTS)
            places = [
                ((at + 1) * len(log.steps) / len(losses), loss) for at, loss in enumerate(losses)
            ]
            series.append(Series(SIDE_NAMES[log.side], log.side, places, marks=False))
    if not series:
        return None
    values = [y for one in series for _, y in one.points]
    longest = max((one.points for one in series), key=len)
    title = "Loss of supervised fine-tuning"
    svg = line_chart(title, _step_axis(longest), Axis.over("loss a token (nats)", values), series)
    return Figure(title, svg, [(one.name, one.tone) for one in series])


def _grpo(facts: Facts, side: Side) -> list[StageLog]:
    return [log for log in facts.logs if log.side == side and log.round and log.steps]


def _over_steps(facts: Facts, side: Side, key: str) -> list[tuple[float, float]]:
    """(step counted over all rounds, value), thinned."""
    values = [float(step[key]) for log in _grpo(facts, side) for step in log.steps]
    shown = thin(values, _MOST_POINTS)
    return [((at + 1) * len(values) / len(shown), value) for at, value in enumerate(shown)]


def _rules(facts: Facts, side: Side) -> list[tuple[float, str]]:
    found, begun = [], 0
    for log in _grpo(facts, side):
        found.append((float(begun), f"round {log.round}"))
        begun += len(log.steps)
    return found


def _step_axis(points: Sequence[tuple[float, float]]) -> Axis:
    axis = Axis.over("step", [0.0, *(x for x, _ in points)])
    return Axis(
        axis.name,
        0.0,
        max(1.0, max(x for x, _ in points)),
        [tick for tick in axis.ticks if tick[0] <= points[-1][0]],
    )


# Keywords


def words_figure(facts: Facts, side: Side) -> Figure:
    """How long keywords are, in words, round by round."""
    tones = [
        (f"{n} word{'s' * (n > 1)}" if n < _LONGEST else f"{n} or more", f"step{n}")
        for n in range(1, _LONGEST + 1)
    ]
    rows = []
    for one in facts.vocabularies:
        if one.side == side:
            total = max(1, one.keywords)
            parts = [one.words.get(n, 0) / total for n in range(1, _LONGEST)]
            mean = sum(n * times for n, times in one.words.items()) / total
            rows.append(
                StackedRow(
                    round_name(one.round), [*parts, max(0.0, 1 - sum(parts))], f"{mean:.2f} words"
                )
            )
    title = f"Length of keywords, {SIDE_NAMES[side]}"
    svg = row_chart(title, "share of all keywords", tones, rows, Axis.over("", [0, 1]))
    return Figure(
        title,
        svg,
        tones,
        "At the right: the mean. Words are what spaces divide.",
    )


def vocabulary_figure(facts: Facts) -> Figure:
    """Distinct keywords of both sides, and those that they share."""
    names = [pair.name for pair in facts.whole]
    lines: list[Series] = []
    for side in SIDES:
        sizes = [float(one.distinct) for one in facts.vocabularies if one.side == side]
        lines.append(Series(SIDE_NAMES[side], side, list(enumerate(sizes))))
    shared = [float(one.shared) for one in facts.vocabularies if one.side == "item"]
    lines.append(Series("both", "shared", list(enumerate(shared))))
    values = [y for one in lines for _, y in one.points]
    title = "Vocabulary"
    axes = Axis.of_names("round", names), Axis.over("distinct keywords", values)
    note = "Both: keywords that items and queries have in common; only these can match."
    return Figure(
        title, line_chart(title, *axes, lines), [(one.name, one.tone) for one in lines], note
    )


def size_figure(facts: Facts) -> Figure:
    """Mean size of the keyword sets of both sides."""
    names, lines = [pair.name for pair in facts.whole], []
    for side in SIDES:
        means = [
            one.keywords / max(1, one.entities) for one in facts.vocabularies if one.side == side
        ]
        lines.append(Series(SIDE_NAMES[side], side, list(enumerate(means))))
    title = "Size of keyword sets"
    axes = (
        Axis.of_names("round", names),
        Axis.over("keywords an entity, mean", [y for one in lines for _, y in one.points]),
    )
    return Figure(title, line_chart(title, *axes, lines), [(one.name, one.tone) for one in lines])


def movement_figure(facts: Facts, side: Side) -> Figure | None:
    """Keywords gained and lost in each round."""
    found = [one for one in facts.movements if one.side == side]
    if not found:
        return None
    gained = [float(one.changes.gained.total()) for one in found]
    lost = [-float(one.changes.lost.total()) for one in found]
    title = f"Keywords gained and lost, {SIDE_NAMES[side]}"
    bars = [Bars("gained", "gained", gained), Bars("lost", "lost", lost)]
    groups = [round_name(one.round) for one in found]
    svg = bar_chart(
        title, "round", groups, bars, Axis.over("keywords of all entities", [*gained, *lost])
    )
    shares = ", ".join(
        f"{len(one.changes.changed) / max(1, one.changes.entities):.0%}" for one in found
    )
    return Figure(
        title,
        svg,
        [(one.name, one.tone) for one in bars],
        f"Share of {SIDE_NAMES[side]} that changed: {shares}.",
    )


# Acceptance and time


def acceptance_figure(facts: Facts) -> Figure | None:
    """What moving the items was to bring, and brought."""
    kinds = (
        ("promised", "promised", "c"),
        ("all_at_once", "all at once", "b"),
        ("realised", "realised", "gained"),
    )
    found = acceptance(facts)
    if not found:
        return None
    bars = [
        Bars(name, tone, [float(notes[key]) for _, notes in found]) for key, name, tone in kinds
    ]
    title = "What new item keywords bring"
    axis = Axis.over("change of training F1", [value for one in bars for value in one.values])
    svg = bar_chart(title, "round", [round_name(number) for number, _ in found], bars, axis)
    note = (
        "Promised: the sum of the items' gains, each measured as if it moved alone. All at once: "
        "what taking every new set would change. Realised: what the sets that were taken changed."
    )
    return Figure(title, svg, [(name, tone) for _, name, tone in kinds], note)


def acceptance(facts: Facts) -> list[tuple[int, Mapping[str, Any]]]:
    """(round, notes of its acceptance)."""
    stages = ((round_.number, round_.stage("accept-items")) for round_ in facts.rounds)
    return [(number, stage.notes) for number, stage in stages if stage is not None]


_TIMES = (
    ("training queries", "query", ("train-query",)),
    ("training items", "item", ("train-item",)),
    ("writing keywords", "b", ("index-item", "index-query", "accept-items")),
    ("targets, figures", "c", ("targets", "evaluate")),
)


def time_figure(facts: Facts) -> Figure:
    """Where the time of each round went."""
    rows = []
    for round_ in facts.rounds:
        parts = [sum(s.seconds for s in round_.stages if s.name in names) for _, _, names in _TIMES]
        rows.append(StackedRow(round_name(round_.number), parts, duration(sum(parts))))
    title = "Time of each round"
    axis = Axis.over("", [sum(row.parts) for row in rows])
    return Figure(
        title,
        row_chart(title, "seconds", [t[:2] for t in _TIMES], rows, axis),
        [t[:2] for t in _TIMES],
        _split_note(facts),
    )


def _split_note(facts: Facts) -> str:
    """How GRPO steps spend their time, over all rounds."""
    stages = [
        stage
        for r in facts.rounds
        if r.number
        for stage in r.stages
        if stage.name.startswith("train-")
    ]
    totals = {
        key: sum(stage.notes["seconds"][key] for stage in stages)
        for key in ("rollout", "reward", "update")
    }
    whole = sum(totals.values())
    if not whole:
        return ""
    return (
        "Of the GRPO steps: "
        + ", ".join(f"{key} {value / whole:.1%}" for key, value in totals.items())
        + "."
    )


def duration(seconds: float) -> str:
    """5.2 s, 3:07 min, 2:05 h."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d} min" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02d} h"


Maker = Callable[[Facts], Figure | None]


def made(facts: Facts, *makers: Maker) -> Iterator[Figure]:
    """The figures for which there is something to draw."""
    for maker in makers:
        if (figure := maker(facts)) is not None:
            yield figure
