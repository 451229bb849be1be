"""OpenTelemetry spans, and the stages of a run: each is a span, a duration in the metrics and a
line of the log.

Spans are made by OpenTelemetry's own API, which does nothing until `start` or the program around
us sets up its SDK. A span carries ids and counts named `cogr.*`. It never carries the text of an
item, nor the text of an error that is not one of ours, since that may quote an item.

A span's context travels as a W3C carrier ({"traceparent": ...}). A coordinator puts it into a
shard's message, so that the worker's spans are children of the shard's.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opentelemetry import propagate, trace
from opentelemetry.trace import Span, Status, StatusCode

from cogr.errors import CogrError, MissingExtraError
from indexers.telemetry import logs
from indexers.telemetry.prometheus import STAGE_SECONDS

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

log = logging.getLogger(__name__)

Value = str | int | float | bool
Carrier = Mapping[str, str]

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")

_provider: TracerProvider | None = None
"""Set where the environment names a collector. It is not the process's global provider:
engines that trace too (vLLM) keep theirs, and a test can switch traces off again."""


def start(service: str) -> bool:
    """Send spans where the environment names a collector. Returns whether they are sent. Raises
    MissingExtraError.
    """
    global _provider
    said = os.environ.get
    off = said("OTEL_SDK_DISABLED", "").lower() == "true" or said("OTEL_TRACES_EXPORTER") == "none"
    if _provider is not None or off or not any(map(said, _ENDPOINTS)):
        return _provider is not None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ModuleNotFoundError as error:
        raise MissingExtraError("Traces (OTEL_EXPORTER_OTLP_ENDPOINT)", "traces") from error
    resource = Resource.create({"service.name": said("OTEL_SERVICE_NAME") or service})
    _provider = TracerProvider(resource=resource)
    _provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return True


def stop() -> None:
    """Send what is left and switch traces off."""
    global _provider
    if _provider is not None:
        _provider.shutdown()
    _provider = None


def flush() -> None:
    """Send finished spans now, for a process that may be killed."""
    if _provider is not None:
        _provider.force_flush(10_000)


@contextmanager
def span(name: str, parent: Carrier | None = None, **attributes: Value) -> Iterator[Span]:
    """`start_as_current_span` with attributes named `cogr.<name>` and without the text of errors.

    A failed span has the error's class in `error.type`. The sentence of a `CogrError` is its
    status; the text of any other error may quote an item and is left out.
    """
    # The tracer that sends to the collector, else the process's own.
    tracer = trace.get_tracer("cogr", tracer_provider=_provider)
    with tracer.start_as_current_span(
        name,
        propagate.extract(parent) if parent else None,
        attributes=named(attributes),
        record_exception=False,
        set_status_on_exception=False,
    ) as made:
        try:
            yield made
        except BaseException as error:
            description = str(error) if isinstance(error, CogrError) else None
            made.set_status(Status(StatusCode.ERROR, description))
            made.set_attribute("error.type", type(error).__name__)
            raise


def named(attributes: Mapping[str, Value | None]) -> dict[str, Value]:
    """Attributes as spans carry them: `cogr.<name>`, without those that are None."""
    return {f"cogr.{name}": value for name, value in attributes.items() if value is not None}


def carrier() -> dict[str, str]:
    """The W3C trace context of the span under way; {} while nothing is traced."""
    found: dict[str, str] = {}
    propagate.inject(found)
    return found


@dataclass
class Step:
    """A stage that is under way or over."""

    span: Span
    outcome: str = "finished"

    def add(self, **facts: Value | None) -> None:
        """Add counts and names to the span; those that are None are left out."""
        self.span.set_attributes(named(facts))


@contextmanager
def stage(name: str, side: str, **facts: Value | None) -> Iterator[Step]:
    """A stage for the time of the block."""
    started = time.monotonic()
    with logs.bound(stage=name), span(name, side=side) as made:
        step = Step(made)
        step.add(**facts)
        try:
            yield step
        except BaseException as error:
            step.outcome = type(error).__name__
            raise
        finally:
            seconds = time.monotonic() - started
            STAGE_SECONDS.labels(side, name).observe(seconds)
            log.info("%s (%s): %s after %.1f s", name, side, step.outcome, seconds)
