"""One step of a run, told three ways at once: as a span, as a duration in the metrics, as a line of
the run's report.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from indexers.telemetry import logs, metrics, traces

log = logging.getLogger(__name__)


@dataclass
class Step:
    """A stage under way or over.

    `facts` are counts and names that belong to it; the body of the stage adds them.
    """

    name: str
    side: str
    seconds: float = 0.0
    outcome: str = "finished"
    facts: dict[str, Any] = field(default_factory=dict)
    span: traces.Span = field(default_factory=traces.Span)

    def add(self, **facts: traces.Value | None) -> None:
        """Add facts, to the report and to the span."""
        self.facts |= {name: value for name, value in facts.items() if value is not None}
        self.span.set(**facts)

    def as_dict(self) -> dict[str, Any]:
        """For the report."""
        return {
            "stage": self.name,
            "seconds": round(self.seconds, 3),
            "outcome": self.outcome,
            **self.facts,
        }


_steps: ContextVar[list[Step] | None] = ContextVar("cogr_steps", default=None)


@contextmanager
def recording() -> Iterator[list[Step]]:
    """Collect the stages of the block, in the order in which they begin."""
    steps: list[Step] = []
    token = _steps.set(steps)
    try:
        yield steps
    finally:
        _steps.reset(token)


@contextmanager
def stage(name: str, side: str, **facts: traces.Value | None) -> Iterator[Step]:
    """A stage for the time of the block.

    Args:
        name: one of a small number: load, plan, generate, assemble, push, verify, gate, warm_up,
            publish.
        side: item or query; `pair` for what concerns both.
        facts: see `Step.add`.
    """
    step = Step(name, side)
    if (steps := _steps.get()) is not None:
        steps.append(step)
    started = time.monotonic()
    with logs.bound(stage=name), traces.span(name, side=side) as step.span:
        step.add(**facts)
        try:
            yield step
        except BaseException as error:
            step.outcome = type(error).__name__
            raise
        finally:
            step.seconds = time.monotonic() - started
            metrics.STAGE_SECONDS.labels(side, name).observe(step.seconds)
            log.info("%s (%s): %s after %.1f s", name, side, step.outcome, step.seconds)
