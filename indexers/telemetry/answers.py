"""Counts what a generator answers, whoever asks it: a local rebuild or a worker."""

from __future__ import annotations

from cogr.records import Side
from indexers.generators.protocol import Answer, Completion
from indexers.telemetry import metrics


class AnswerCounts:
    """Of one side. Labels are looked up once, since it is called for every answer."""

    def __init__(self, side: Side) -> None:
        kinds = ("completion", "lasting_failure", "passing_failure")
        self._completions, self._permanent, self._passing = (
            metrics.ANSWERS.labels(side, kind) for kind in kinds
        )
        self._tokens = metrics.TOKENS.labels(side)
        self._flushes = metrics.FLUSHES.labels(side)

    def add(self, answer: Answer) -> None:
        """Count one answer."""
        if isinstance(answer, Completion):
            self._completions.inc()
            self._tokens.inc(answer.tokens)
        else:
            (self._permanent if answer.permanent else self._passing).inc()

    def flushed(self) -> None:
        """Count one segment of the cache."""
        self._flushes.inc()
