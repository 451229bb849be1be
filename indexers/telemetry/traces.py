"""OpenTelemetry spans, exported by OTLP over HTTP. Nothing is imported and nothing done unless
traces are switched on.

A span's context travels as a W3C carrier ({"traceparent": ...}): a coordinator puts it into a
shard's file, and the worker's spans become its children. A span carries ids and counts, never the
text of an item or of an error that is no sentence of ours.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cogr.errors import CogrError, MissingExtraError
from cogr.settings.telemetry import TracesSettings

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as OtelSpan
    from opentelemetry.trace import Tracer

Value = str | int | float | bool
Carrier = Mapping[str, str]

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PATH = "/v1/traces"


class _State:
    """What this process traces by; None while traces are off."""

    provider: TracerProvider | None = None
    tracer: Tracer | None = None


class Span:
    """A step of a run; does nothing when traces are off.

    `end` must be called once, as `span` does by itself.
    """

    def __init__(self, inner: OtelSpan | None = None) -> None:
        self._inner = inner

    def set(self, **attributes: Value | None) -> None:
        """Put attributes on it, named `cogr.<name>`."""
        if self._inner is not None:
            self._inner.set_attributes(_named(attributes))

    def link(self, carrier: Carrier) -> None:
        """Say that another span, maybe of another process, is the same work."""
        if self._inner is None or not carrier:
            return
        from opentelemetry.trace import get_current_span

        self._inner.add_link(get_current_span(_context(carrier)).get_span_context())

    def fail(self, error: BaseException) -> None:
        """Mark it as failed. Our own errors' sentences are shown, other errors' classes alone."""
        if self._inner is None:
            return
        from opentelemetry.trace import Status, StatusCode

        self._inner.set_status(
            Status(StatusCode.ERROR, str(error) if isinstance(error, CogrError) else None)
        )
        self._inner.set_attribute("error.type", type(error).__name__)

    @property
    def carrier(self) -> Carrier:
        """The W3C trace context that makes another process's spans children of this one; {} when
        traces are off.
        """
        if self._inner is None:
            return {}
        from opentelemetry.trace import set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, set_span_in_context(self._inner))
        return carrier

    def end(self) -> None:
        """It is over."""
        if self._inner is not None:
            self._inner.end()


def start(settings: TracesSettings, service: str) -> bool:
    """Switch traces on where settings or environment name a collector. Returns whether they are on.

    Args:
        service: the name of this kind of process; OTEL_SERVICE_NAME overrules it.

    Raises:
        MissingExtraError: a collector is named, and OpenTelemetry is not installed.
    """
    if _State.tracer is not None:
        return True
    if not _wanted(settings):
        return False
    if (
        any(importlib.util.find_spec(name) is None for name in ("opentelemetry", "requests"))
        or not _has_exporter()
    ):
        raise MissingExtraError("Traces (traces.endpoint or OTEL_EXPORTER_OTLP_ENDPOINT)", "traces")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME") or service})
    # A provider of our own: engines that trace too (vLLM) keep theirs.
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=_url(settings))))
    _State.provider, _State.tracer = provider, provider.get_tracer("cogr")
    atexit.register(stop)
    return True


def stop() -> None:
    """Send what is left and switch traces off."""
    if _State.provider is not None:
        _State.provider.shutdown()
    _State.provider = _State.tracer = None


def flush() -> None:
    """Send what has ended by now, for a process that replaces itself or may be killed."""
    if _State.provider is not None:
        _State.provider.force_flush(10_000)


def _wanted(settings: TracesSettings) -> bool:
    off = (
        os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
        or os.environ.get("OTEL_TRACES_EXPORTER") == "none"
    )
    return not off and bool(settings.endpoint or any(os.environ.get(name) for name in _ENDPOINTS))


def _has_exporter() -> bool:
    try:
        return (
            importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http.trace_exporter")
            is not None
        )
    except ModuleNotFoundError:
        return False


def _url(settings: TracesSettings) -> str | None:
    """The setting names a collector as OTEL_EXPORTER_OTLP_ENDPOINT does; None leaves it to the
    environment.
    """
    if settings.endpoint is None:
        return None
    base = settings.endpoint.rstrip("/")
    return base if base.endswith(_PATH) else base + _PATH


@contextmanager
def span(name: str, parent: Carrier | None = None, **attributes: Value | None) -> Iterator[Span]:
    """A span for the time of the block, a child of the one around it or of `parent`; an error in
    the block marks it.
    """
    if _State.tracer is None:
        yield Span()
        return
    from opentelemetry.trace import use_span

    made = begin(name, parent, **attributes)
    assert made._inner is not None
    with use_span(
        made._inner, end_on_exit=True, record_exception=False, set_status_on_exception=False
    ):
        try:
            yield made
        except BaseException as error:
            made.fail(error)
            raise


def begin(name: str, parent: Carrier | None = None, **attributes: Value | None) -> Span:
    """A span that the caller ends: a child of the one around it or of `parent`, and no span's
    parent by itself.
    """
    if _State.tracer is None:
        return Span()
    context = _context(parent) if parent else None
    return Span(_State.tracer.start_span(name, context, attributes=_named(attributes)))


def carrier() -> Carrier:
    """The context of the span under way, see `Span.carrier`; {} when there is none."""
    if _State.tracer is None:
        return {}
    from opentelemetry.trace import get_current_span

    inner = get_current_span()
    return Span(inner).carrier if inner.get_span_context().is_valid else {}


def present() -> dict[str, str]:
    """`trace_id` and `span_id` of the span under way, in hex; {} when there is none."""
    if _State.tracer is None:
        return {}
    from opentelemetry.trace import format_span_id, format_trace_id, get_current_span

    context = get_current_span().get_span_context()
    if not context.is_valid:
        return {}
    return {
        "trace_id": format_trace_id(context.trace_id),
        "span_id": format_span_id(context.span_id),
    }


def _context(carrier: Carrier) -> Context:
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    return TraceContextTextMapPropagator().extract(dict(carrier))


def _named(attributes: Mapping[str, Value | None]) -> dict[str, Value]:
    return {f"cogr.{name}": value for name, value in attributes.items() if value is not None}
