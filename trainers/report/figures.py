"""The report's figures: which facts stand in which picture, with what words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Any

import numpy as np

from cogr.records import SIDES, Side
from indexers.tables import short
from trainers.report.drawing import COLOURS, LINES, Canvas, Figure, style
from trainers.report.facts import Facts, Pair, round_name

SIDE_NAMES: Mapping[Side, str] = {"query": "queries", "item": "items"}
_BUBBLES, _NAMED_BUBBLES = 120, 5
_LATIN_ENDS = 0x250
_LENGTHS = (("1 word", "grey"), ("2 words", "teal"), ("3 words", "blue"), ("4 or more", "purple"))


def draw(facts: Facts) -> Mapping[str, Sequence[Figure]]:
    """Section of the page -> its figures; those with nothing to draw are left out."""
    sections = {
        "quality": (f1_figure, steps_figure, precision_recall_figure),
        "training": (training_figures,),
        "keywords": (vocabulary_figures, words_figure, moved_figure),
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


def training_figures(facts: Facts) -> Iterator[Figure]:
    """The reward of every GRPO step over all rounds, and the loss of SFT."""
    for side in SIDES:
        of_side = [log for log in facts.logs if log.side == side and log.steps]
        logs = [log for log in of_side if log.round and "reward" in log.steps[0]]
        mean, spread = (
            [float(one[key]) for log in logs for one in log.steps]
            for key in ("reward", "reward_std")
        )
        canvas = Canvas("step", "reward")
        canvas.steps("reward", "blue", mean, spread)
        begun = [0, *accumulate(len(log.steps) for log in logs)]
        canvas.rules(begun, [round_name(log.round) for log in logs])
        note = "Line: the mean of a step. Band: one standard deviation over its completions."
        yield canvas.done(f"reward-{side}", f"Reward of the {side} side", note)
        losses = [float(one["loss"]) for log in of_side if not log.round for one in log.steps]
        canvas = Canvas("step", "loss a token (nats)")
        canvas.steps("loss", "purple", losses, ())
        yield canvas.done(f"loss-{side}", f"Loss of supervised fine-tuning, {side} side")


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
    shown, canvas = facts.moved[:_BUBBLES], Canvas("recall", "precision")
    most = max((one.entities for one in shown), default=1)
    for kind, tone, added in (("added", "blue", True), ("dropped", "red", False)):
        own = [one for one in shown if one.added == added]
        sizes = [12 + 588 * one.entities / most for one in own]
        look: dict[str, Any] = {"color": COLOURS[tone], "alpha": 0.35, "label": kind}
        if own:
            canvas.axes.scatter([one.r for one in own], [one.p for one in own], sizes, **look)
        # matplotlib's own font has Latin letters alone.
        named = [one for one in own if max(map(ord, one.keyword)) < _LATIN_ENDS]
        for one in named[:_NAMED_BUBBLES]:
            word = short(one.keyword, 24)
            canvas.axes.annotate(word, (one.r, one.p), fontsize=8, parse_math=False)
    note = (
        f"From SFT to {round_name(facts.base.number)}: the {len(shown):,} keywords that most "
        "queries and items have (the area), of those that both sides have: only these match. "
        "Precision and recall are of the pairs of a query and an item that the keyword alone "
        "brings together."
    )
    yield canvas.done("moved", "Keywords added and dropped", note)
