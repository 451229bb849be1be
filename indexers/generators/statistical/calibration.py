"""Confidence from expected F1.

The expected F1 of a selected set is already an estimate of its F1. A line through its logit
straightens it; `assessment` fits the line on training queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize

from indexers.generators.statistical.keyword_selection import Floats

PRIOR = 4.0
"""Weight, in queries, of the prior that confidence equals expected F1."""


def logit(value: Floats) -> Floats:
    """ln(value / (1 - value)), of values clipped to 0.01 ... 0.99."""
    clipped = np.clip(value, 0.01, 0.99)
    logits: Floats = np.log(clipped / (1 - clipped))
    return logits


@dataclass(frozen=True)
class Calibration:
    """Confidence from expected F1: a line through its logit."""

    intercept: float = 0.0
    slope: float = 1.0

    def __call__(self, expected: Floats) -> Floats:
        """In (0, 1)."""
        sure: Floats = 1 / (1 + np.exp(-(self.intercept + self.slope * logit(expected))))
        return sure


def calibrate(expected: Floats, f1: Floats) -> Calibration:
    """The line of highest likelihood, with a prior of no change (`PRIOR`); its slope is never
    negative.
    """
    x = logit(expected)

    def loss(line: Floats) -> float:
        logits = line[0] + line[1] * x
        pull = PRIOR / 2 * (line[0] ** 2 + (line[1] - 1) ** 2)
        return float((np.logaddexp(0, logits) - f1 * logits).sum() + pull)

    found = minimize(loss, np.array([0.0, 1.0]), bounds=[(-5, 5), (0.1, 5)], method="L-BFGS-B").x
    return Calibration(round(float(found[0]), 4), round(float(found[1]), 4))


def out_of_sample(expected: Floats, f1: Floats, seed: int) -> Floats:
    """Confidence of each query by a calibration on four fifths of the others."""
    folds = np.random.default_rng(seed).permutation(expected.size) % 5
    found = np.zeros(expected.size)
    for fold in range(5):
        held = folds == fold
        found[held] = calibrate(expected[~held], f1[~held])(expected[held])
    return found
