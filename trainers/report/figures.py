"""The report's figures: which facts stand in which picture, with what words. Keywords are in them
as `clean` leaves them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np

from cogr.records import SIDES, Side
from indexers.telemetry.terminal import duration
from trainers.report.drawing import COLOURS, LINES, Canvas, Figure, clean, spell, style
from trainers.report.facts import Facts, Pair, StageLog, round_name

SIDE_NAMES: Mapping[Side, str] = {"query": "queries", "item": "items"}
_BUBBLES, _NAMED_BUBBLES = 120, 5
_LONGEST_NAME = 24
_LATIN_ENDS = 0x250
_DECADES = 5
"""A vocabulary that is so many times another one is shown on a logarithmic scale."""
_LENGTHS = ("1 word", "2 words", "3 words", "4 or more")
_LOST = {
    "equal_groups": "equal rewards",
    "over_budget": "over the budget",
    "unfinished": "unfinished",
}
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


def draw(facts: Facts) -> Mapping[str, Sequence[Figure]]:
    """Section of the page -> its figures; those with nothing to draw are left out."""
    sections = {
        "quality": (f1_figure, steps_figure, precision_recall_figure, reliability_figure),
        "training": (training_figures,),
        "keywords": (vocabulary_figures, words_figure, moved_figure, movement_figures),
        "time": (acceptance_figure, time_figure),
        "tables": (beside_figure,),
    }
    with style():
        return {
            name: [one for make in makers for one in make(facts) if one.tips]
            for name, makers in sections.items()
        }


# Quality


def f1_figure(facts: Facts) -> Iterator[Figure]:
    """F1 of every split over the stages of the rounds."""
    lines: dict[str, list[float]] = {
        split: [pair.figures[split]["f1"] for pair in facts.pairs] for split in facts.splits
    }
    canvas = _over("stage", "F1", facts.pairs, lines)
    errors = [pair.figures[facts.split].get("f1_se", 0.0) for pair in facts.pairs]
    colour = COLOURS[LINES[facts.split][0]]
    canvas.axes.errorbar(range(len(errors)), lines[facts.split], errors, fmt="none", color=colour)
    canvas.from_zero(0.5)
    note = (
        f"Of the whole retrieved set. Whiskers on {facts.split}: one standard error over its "
        "queries."
    )
    if any(pair.verdict is None for pair in facts.pairs):
        note += " “1 queries”: the queries of round 1 on the items of the round before."
    if _rejected(facts.pairs):
        note += " Rings: rounds that are not built upon."
    yield canvas.done("f1", "F1 after each stage", note)


def _over(x: str, y: str, pairs: Sequence[Pair], lines: Mapping[str, Sequence[float]]) -> Canvas:
    """A mark a pair on each line, a ring where it is rejected."""
    canvas, names = Canvas(x, y), [pair.name for pair in pairs]
    for name, values in lines.items():
        canvas.marks(name, list(enumerate(values)), names, _rejected(pairs))
    canvas.names(names)
    canvas.from_zero()
    return canvas


def _rejected(pairs: Sequence[Pair]) -> list[int]:
    return [at for at, pair in enumerate(pairs) if pair.verdict == "rejected"]


def steps_figure(facts: Facts) -> Iterator[Figure]:
    """F1 over all GRPO steps (paper, section 5.2)."""
    canvas, logs = Canvas("GRPO step", "F1"), [log for log in facts.logs if log.round and log.steps]
    begun = [0, *accumulate(len(log.steps) for log in logs)]
    after = {(pair.round, pair.verdict is None): pair.figures for pair in facts.pairs}
    for split in [split for split in facts.splits if split != "train"] or facts.splits:
        points = [(0.0, after[0, False][split]["f1"])]
        for end, log in zip(begun[1:], logs, strict=False):
            if (figures := after.get((log.round, log.side == "query"))) is not None:
                points.append((float(end), figures[split]["f1"]))
        if logs:
            canvas.marks(split, points, [f"step {x:,.0f}" for x, _ in points])
    canvas.rules(begun, [f"{log.side} {log.round}" for log in logs])
    canvas.from_zero(0.5)
    note = (
        "A dashed line is where a side begins to be trained. Inside a phase of the item side all "
        "items have their new keywords; at its end those that were accepted."
    )
    yield canvas.done("f1-steps", "F1 over training steps", note)


def precision_recall_figure(facts: Facts) -> Iterator[Figure]:
    """The path of the rounds through precision and recall, over lines of equal F1."""
    names, canvas = [pair.name for pair in facts.whole], Canvas("recall", "precision")
    paths = {
        split: [(pair.figures[split]["r"], pair.figures[split]["p"]) for pair in facts.whole]
        for split in facts.splits
    }
    for split, points in paths.items():
        canvas.marks(split, points, names, _rejected(facts.whole))
    canvas.equal_f1(chain(*paths.values()))
    canvas.label(paths[facts.split], names)
    note = "Thin lines join points of equal F1. Points are in the order of the rounds."
    yield canvas.done("precision-recall", "Precision and recall of each round", note)


def reliability_figure(facts: Facts) -> Iterator[Figure]:
    """How far the confidence of `statistical` is its F1."""
    canvas = Canvas("confidence", "F1")
    for split, points in facts.reliability.items():
        labels = [f"{round(count)} queries, confidence {sure:.2f}" for sure, _, count in points]
        canvas.marks(split, [(sure, f1) for sure, f1, _ in points], labels)
    canvas.axes.axline((0, 0), slope=1, color=COLOURS["line"], zorder=0)
    canvas.axes.set(xlim=(0, 1), ylim=(0, 1))
    note = (
        "Each mark: a tenth of the queries, by how sure `statistical` is of its answer, and the F1 "
        "of what it retrieves. On the thin line the two are equal."
    )
    yield canvas.done("reliability", "Is the confidence right?", note)


# Training


def training_figures(facts: Facts) -> Iterator[Figure]:
    """Figures of every step: of GRPO over all rounds, and of SFT."""
    grpo = {
        side: [
            log
            for log in facts.logs
            if log.side == side and log.round and log.steps and "reward" in log.steps[0]
        ]
        for side in SIDES
    }
    note = "Line: the mean of a step. Band: one standard deviation over the completions of a step."
    for side, logs in grpo.items():
        line = (SIDE_NAMES[side], _values(logs, "reward"), _values(logs, "reward_std"))
        canvas = _over_steps("reward", [line], logs)
        yield canvas.done(f"reward-{side}", f"Reward of the {side} side", note)
    note = (
        "Groups whose completions all have one reward teach nothing; lists over the budget or "
        "cut at the length limit are punished."
    )
    for side, logs in grpo.items():
        lost = [(name, _values(logs, key)) for key, name in _LOST.items()]
        canvas = _over_steps("share of a step", lost, logs)
        canvas.from_zero(1.0)
        yield canvas.done(f"shares-{side}", f"What is lost in steps of the {side} side", note)
    lists = [(SIDE_NAMES[side], _values(logs, "keywords")) for side, logs in grpo.items()]
    note = "Steps are counted over all rounds."
    yield _over_steps("keywords", lists).done("completion", "Keywords a completion in GRPO", note)
    losses = [(SIDE_NAMES[log.side], _values([log], "loss")) for log in facts.logs if not log.round]
    canvas = _over_steps("loss a token (nats)", losses)
    yield canvas.done("loss", "Loss of supervised fine-tuning")


def _over_steps(
    y: str, lines: Iterable[tuple[Any, ...]], rounds: Sequence[StageLog] = ()
) -> Canvas:
    """Lines of (name, values) or (name, values, spread); a rule where a round begins."""
    canvas = Canvas("step", y)
    for line in lines:
        canvas.steps(*line)
    canvas.from_zero()
    begun = accumulate((len(log.steps) for log in rounds), initial=0)
    canvas.rules(begun, [round_name(log.round) for log in rounds])
    return canvas


def _values(logs: Iterable[StageLog], key: str) -> list[float]:
    return [float(step[key]) for log in logs for step in log.steps]


# Keywords


def vocabulary_figures(facts: Facts) -> Iterator[Figure]:
    """Distinct keywords of both sides and those that they share; the mean size of their sets."""
    found = facts.vocabularies
    distinct = {name: [one.distinct[side] for one in found] for side, name in SIDE_NAMES.items()}
    distinct["both"] = [one.shared for one in found]
    numbers = [number for line in distinct.values() for number in line]
    log = min(numbers) > 0 and max(numbers) >= _DECADES * min(numbers)
    note = "Both: keywords that items and queries have in common; only these can match."
    note += " The scale is logarithmic." * log
    canvas = _over("round", "distinct keywords", facts.whole, distinct)
    if log:
        canvas.logarithmic()
    yield canvas.done("vocabulary", "Vocabulary", note)
    sizes = {name: [one.size[side] for one in found] for side, name in SIDE_NAMES.items()}
    canvas = _over("round", "keywords an entity, mean", facts.whole, sizes)
    yield canvas.done("size", "Size of keyword sets")


def words_figure(facts: Facts) -> Iterator[Figure]:
    """How long the distinct keywords of both sides are, in words, round by round (paper, section
    5.4).
    """
    shares, means = [], []
    for one in facts.vocabularies:
        words, times = (np.array([*them], int) for them in (one.lengths, one.lengths.values()))
        total = max(1, times.sum())
        counts = np.bincount(np.minimum(words, len(_LENGTHS)), times, len(_LENGTHS) + 1)
        shares.append(counts[1:] / total)
        means.append(f"{words @ times / total:.2f} words")
    parts = enumerate(zip(_LENGTHS, np.transpose(shares), strict=True), 1)
    kinds = [(name, f"ramp{length}", share.tolist()) for length, (name, share) in parts]
    canvas = Canvas("round", "share of the distinct keywords")
    canvas.bars([pair.name for pair in facts.whole], kinds, means)
    note = (
        "Every keyword counts once, however many queries and items have it. Above: the mean. "
        "Words are what spaces divide."
    )
    yield canvas.done("words", "Length of keywords", note)


def moved_figure(facts: Facts) -> Iterator[Figure]:
    """Keywords added and dropped since SFT, each by how well it matches alone (paper, section
    5.4).
    """
    if facts.moved is None:
        return
    shown = facts.moved.bubbles[:_BUBBLES]
    canvas, most = Canvas("recall", "precision"), max((one.entities for one in shown), default=1)
    canvas.axes.update_datalim([(0, 0)])
    canvas.axes.margins(0.1)
    for kind, tone, added in (("added", "blue", True), ("dropped", "red", False)):
        own = [(one, clean(one.keyword)) for one in shown if one.added == added]
        look: dict[str, Any] = {"color": COLOURS[tone], "alpha": 0.35, "lw": 0.5}
        for one, word in own:
            drawn = canvas.axes.scatter(one.r, one.p, 12 + 588 * one.entities / most, **look)
            shares = f"precision {spell(one.p)}, recall {spell(one.r)}"
            canvas.tip(drawn, word, kind, spell(one.entities), shares)
        if own:
            drawn.set_label(kind)
        # matplotlib's own font has Latin letters alone.
        own = [(one, word) for one, word in own if max(map(ord, word)) < _LATIN_ENDS]
        named = own[:_NAMED_BUBBLES]
        canvas.label([(one.r, one.p) for one, _ in named], [w[:_LONGEST_NAME] for _, w in named])
    note = (
        f"From SFT to {round_name(facts.base.number)} {facts.moved.added:,} keywords were added "
        f"(blue) and {facts.moved.dropped:,} dropped (red). Shown are the {len(shown):,} that most "
        "queries and items have (the area), of those that both sides have: only these match. "
        "Precision and recall are of the pairs of a query and an item that the keyword alone "
        "brings together."
    )
    yield canvas.done("moved", "Keywords added and dropped", note)


def movement_figures(facts: Facts) -> Iterator[Figure]:
    """Keywords gained and lost in each round."""
    for side, found in facts.movements.items():
        canvas = Canvas("round", "keywords of all entities")
        gained = [float(one.gained.total()) for one in found.values()]
        lost = [-float(one.lost.total()) for one in found.values()]
        canvas.bars(
            list(map(round_name, found)), [("gained", "green", gained), ("lost", "red", lost)]
        )
        shares = [f"{len(one.changed) / max(1, one.entities):.0%}" for one in found.values()]
        note = f"Share of {SIDE_NAMES[side]} that changed: {', '.join(shares)}."
        yield canvas.done(f"movement-{side}", f"Keywords gained and lost, {SIDE_NAMES[side]}", note)


def beside_figure(facts: Facts) -> Iterator[Figure]:
    """The keywords of two runs beside one another, as a table for a paper; the page has it as
    text.
    """
    if facts.beside is not None:
        rows = [
            (clean(one.text), *(", ".join(map(clean, (*one.kept, *own))) for own in two))
            for one in facts.beside.rows
            for two in [(one.lost, one.gained)]
        ]
        table = Canvas.of_table(("", *facts.beside.names), rows)
        yield table.done("beside", "Keywords of two runs")


# Acceptance and time


def acceptance_figure(facts: Facts) -> Iterator[Figure]:
    """What moving the items was to bring, and brought."""
    found = acceptance(facts)
    canvas = Canvas("round", "change of training F1")
    kinds = [(name, tone, [float(notes[key]) for _, notes in found]) for key, name, tone in _GAINS]
    canvas.bars([round_name(number) for number, _ in found], kinds)
    note = (
        "Promised: the sum of the items' gains, each measured as if it moved alone. All at once: "
        "what taking every new set would change. Realised: what the sets that were taken changed."
    )
    yield canvas.done("acceptance", "What new item keywords bring", note)


def acceptance(facts: Facts) -> list[tuple[int, Mapping[str, Any]]]:
    """(round, notes of its acceptance)."""
    stages = ((round_.number, round_.stage("accept-items")) for round_ in facts.rounds)
    return [(number, stage.notes) for number, stage in stages if stage is not None]


def time_figure(facts: Facts) -> Iterator[Figure]:
    """Where the time of each round went."""
    kinds = [
        (part, tone, [sum(s.seconds for s in r.stages if s.name in names) for r in facts.rounds])
        for part, tone, names in _TIMES
    ]
    tops = [duration(sum(parts)) for parts in zip(*(values for *_, values in kinds), strict=True)]
    canvas = Canvas("round", "seconds")
    canvas.bars([round_name(r.number) for r in facts.rounds], kinds, tops)
    steps = [s.notes["seconds"] for r in facts.rounds[1:] for s in r.stages if "seconds" in s.notes]
    totals = {
        key: sum(seconds[key] for seconds in steps) for key in ("rollout", "reward", "update")
    }
    whole = sum(totals.values())
    shares = ", ".join(f"{key} {value / whole:.1%}" for key, value in totals.items() if whole)
    note = f"Of the GRPO steps: {shares}." if shares else ""
    yield canvas.done("time", "Time of each round", note)
