"""The report's figures: which facts stand in which picture, with what words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np

from cogr.records import SIDES, Side
from indexers.tables import short
from indexers.telemetry.terminal import duration
from trainers.report.drawing import COLOURS, LINES, Canvas, Figure, style
from trainers.report.facts import Facts, Pair, round_name

SIDE_NAMES: Mapping[Side, str] = {"query": "queries", "item": "items"}
_BUBBLES, _NAMED_BUBBLES = 120, 5
_LATIN_ENDS = 0x250
_LENGTHS = (("1 word", "grey"), ("2 words", "teal"), ("3 words", "blue"), ("4 or more", "purple"))
_LOST = (
    ("equal_groups", "equal rewards", "blue"),
    ("over_budget", "over the budget", "orange"),
    ("unfinished", "unfinished", "grey"),
)
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
    }
    with style():
        return {
            name: [one for make in makers for one in make(facts) if one.drawing.axes[0].has_data()]
            for name, makers in sections.items()
        }


def f1_figure(facts: Facts) -> Iterator[Figure]:
    """F1 of every split over the stages of the rounds."""
    canvas, pairs = Canvas("stage", "F1"), facts.pairs
    for split in facts.splits:
        _over(canvas, split, pairs, [pair.figures[split]["f1"] for pair in pairs])
    errors = [pair.figures[facts.split].get("f1_se", 0.0) for pair in pairs]
    values = [pair.figures[facts.split]["f1"] for pair in pairs]
    tone = COLOURS[LINES[facts.split][0]]
    canvas.axes.errorbar(range(len(errors)), values, errors, fmt="none", color=tone)
    canvas.axes.set_ylim(0)
    note = (
        f"Of the whole retrieved set. Whiskers on {facts.split}: one standard error over its "
        "queries. “1 queries”: the queries of round 1 on the items of the round before. Rings: "
        "rounds that are not built upon."
    )
    yield canvas.done("f1", "F1 after each stage", note)


def _over(canvas: Canvas, name: str, pairs: Sequence[Pair], values: Sequence[float]) -> None:
    """A mark a pair, a ring where it is rejected."""
    canvas.line(name, list(enumerate(values)), _rejected(pairs))
    canvas.names([pair.name for pair in pairs])


def _rejected(pairs: Sequence[Pair]) -> list[int]:
    return [at for at, pair in enumerate(pairs) if pair.verdict == "rejected"]


def steps_figure(facts: Facts) -> Iterator[Figure]:
    """F1 over all GRPO steps (paper, section 5.2)."""
    canvas, logs = Canvas("GRPO step", "F1"), [log for log in facts.logs if log.round and log.steps]
    begun = [0, *accumulate(len(log.steps) for log in logs)]
    for split in [split for split in facts.splits if split != "train"] or facts.splits:
        if logs:
            canvas.line(split, steps_line(facts, split))
    canvas.rules(begun, [f"{log.side} {log.round}" for log in logs])
    note = "A dotted line is where a side begins to be trained."
    yield canvas.done("f1-steps", "F1 over training steps", note)


def steps_line(facts: Facts, split: str) -> list[tuple[float, float]]:
    """(step, F1) of a split over all GRPO steps."""
    logs = [log for log in facts.logs if log.round and log.steps]
    begun = [0, *accumulate(len(log.steps) for log in logs)]
    after = {(pair.round, pair.verdict is None): pair.figures for pair in facts.pairs}
    points = [(0.0, after[0, False][split]["f1"])]
    for end, log in zip(begun[1:], logs, strict=False):
        if (figures := after.get((log.round, log.side == "query"))) is not None:
            points.append((float(end), figures[split]["f1"]))
    return points


def precision_recall_figure(facts: Facts) -> Iterator[Figure]:
    """The path of the rounds through precision and recall, over lines of equal F1."""
    canvas = Canvas("recall", "precision")
    paths = {
        split: [(pair.figures[split]["r"], pair.figures[split]["p"]) for pair in facts.whole]
        for split in facts.splits
    }
    for split, points in paths.items():
        canvas.line(split, points, _rejected(facts.whole))
    canvas.equal_f1(list(chain(*paths.values())))
    for pair, point in zip(facts.whole, paths[facts.split], strict=True):
        canvas.axes.annotate(pair.name, point, (7, 5), textcoords="offset points", fontsize=8)
    note = "Thin lines join points of equal F1. Points are in the order of the rounds."
    yield canvas.done("precision-recall", "Precision and recall of each round", note)


def reliability_figure(facts: Facts) -> Iterator[Figure]:
    """How far the confidence of `statistical` is its F1."""
    canvas = Canvas("confidence", "F1")
    for split, points in facts.reliability.items():
        canvas.line(split, [(sure, f1) for sure, f1, _ in points])
    if facts.reliability:
        canvas.axes.axline((0, 0), slope=1, color=COLOURS["grey"], lw=1)
    canvas.axes.set(xlim=(0, 1), ylim=(0, 1))
    note = (
        "Each mark: a tenth of the queries, by how sure statistical is of its answer, and the F1 "
        "of what it retrieves. On the thin line the two are equal."
    )
    yield canvas.done("reliability", "Is the confidence right?", note)


def training_figures(facts: Facts) -> Iterator[Figure]:
    """Figures of every step: of GRPO over all rounds, and of SFT."""
    for side in SIDES:
        of_side = [log for log in facts.logs if log.side == side]
        logs = [log for log in of_side if log.round and log.steps and "reward" in log.steps[0]]
        steps = {key: [float(one[key]) for log in logs for one in log.steps] for key in _KEYS}
        begun = [0, *accumulate(len(log.steps) for log in logs)]
        rules = [round_name(log.round) for log in logs]
        canvas = Canvas("step", "reward")
        canvas.steps("reward", "blue", steps["reward"], steps["reward_std"])
        canvas.rules(begun, rules)
        note = "Line: the mean of a step. Band: one standard deviation over its completions."
        yield canvas.done(f"reward-{side}", f"Reward of the {side} side", note)
        canvas = Canvas("step", "share of a step")
        for key, name, tone in _LOST:
            canvas.steps(name, tone, steps[key], ())
        canvas.rules(begun, rules)
        note = (
            "Groups whose completions all have one reward teach nothing; lists over the budget or "
            "cut at the length limit are punished."
        )
        yield canvas.done(f"shares-{side}", f"What is lost in steps of the {side} side", note)
        canvas = Canvas("step", "keywords")
        canvas.steps("keywords", "teal", steps["keywords"], ())
        yield canvas.done(f"completion-{side}", f"Keywords a completion, {side} side")
        losses = [float(one["loss"]) for log in of_side if not log.round for one in log.steps]
        canvas = Canvas("step", "loss a token (nats)")
        canvas.steps("loss", "purple", losses, ())
        yield canvas.done(f"loss-{side}", f"Loss of supervised fine-tuning, {side} side")


_KEYS = ("reward", "reward_std", "keywords", *(key for key, *_ in _LOST))


def vocabulary_figures(facts: Facts) -> Iterator[Figure]:
    """Distinct keywords of both sides and those that they share; the mean size of their sets."""
    distinct, size = Canvas("round", "distinct keywords"), Canvas("round", "keywords an entity")
    for side, name in SIDE_NAMES.items():
        found = facts.vocabularies
        _over(distinct, name, facts.whole, [float(one.distinct[side]) for one in found])
        _over(size, name, facts.whole, [one.size[side] for one in found])
    _over(distinct, "both", facts.whole, [float(one.shared) for one in facts.vocabularies])
    distinct.axes.set_yscale("symlog")
    note = (
        "Both: keywords that items and queries have in common; only these can match. The scale is "
        "logarithmic."
    )
    yield distinct.done("vocabulary", "Vocabulary", note)
    yield size.done("size", "Size of keyword sets")


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
    parts = zip(_LENGTHS, np.transpose(shares), strict=True)
    canvas = Canvas("round", "share of the distinct keywords")
    names = [pair.name for pair in facts.whole]
    canvas.bars(names, [(name, tone, share.tolist()) for (name, tone), share in parts], means)
    note = "Every keyword counts once, however many queries and items have it. Above: the mean."
    yield canvas.done("words", "Length of keywords", note)


def moved_figure(facts: Facts) -> Iterator[Figure]:
    """Keywords added and dropped since SFT, each by how well it matches alone (paper, section
    5.4).
    """
    if facts.moved is None:
        return
    shown, canvas = facts.moved.bubbles[:_BUBBLES], Canvas("recall", "precision")
    most = max((one.entities for one in shown), default=1)
    for kind, tone, added in (("added", "blue", True), ("dropped", "red", False)):
        own = [one for one in shown if one.added == added]
        sizes = [12 + 588 * one.entities / most for one in own]
        look: dict[str, Any] = {"color": COLOURS[tone], "alpha": 0.35, "label": kind}
        canvas.axes.scatter([one.r for one in own], [one.p for one in own], sizes, **look)
        # matplotlib's own font has Latin letters alone.
        named = [one for one in own if max(map(ord, one.keyword)) < _LATIN_ENDS]
        for one in named[:_NAMED_BUBBLES]:
            word = short(one.keyword, 24)
            canvas.axes.annotate(word, (one.r, one.p), fontsize=8, parse_math=False)
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
        kinds = [("gained", "green", gained), ("lost", "red", lost)]
        canvas.bars([round_name(number) for number in found], kinds if found else [])
        shares = [f"{len(one.changed) / max(1, one.entities):.0%}" for one in found.values()]
        note = f"Share of {SIDE_NAMES[side]} that changed: {', '.join(shares)}."
        yield canvas.done(f"movement-{side}", f"Keywords gained and lost, {SIDE_NAMES[side]}", note)


def acceptance_figure(facts: Facts) -> Iterator[Figure]:
    """What moving the items was to bring, and brought."""
    found = acceptance(facts)
    canvas = Canvas("round", "change of training F1")
    kinds = [(name, tone, [float(notes[key]) for _, notes in found]) for key, name, tone in _GAINS]
    canvas.bars([round_name(number) for number, _ in found], kinds if found else [])
    note = (
        "Promised: the sum of the items' gains, each measured as if it moved alone. All at once: "
        "what taking every new set would change. Realised: what the sets that were taken changed."
    )
    yield canvas.done("acceptance", "What new item keywords bring", note)


def acceptance(facts: Facts) -> list[tuple[int, Mapping[str, float]]]:
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
    totals = {k: sum(seconds[k] for seconds in steps) for k in ("rollout", "reward", "update")}
    whole = sum(totals.values())
    shares = ", ".join(f"{key} {value / whole:.1%}" for key, value in totals.items() if whole)
    yield canvas.done("time", "Time of each round", f"Of the GRPO steps: {shares}." * bool(shares))
