"""Spans that say of an error its class alone: others' error texts hold keys, URLs and inputs (spec section 11)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from opentelemetry import context as current_context
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

tracer = trace.get_tracer("temporal-inbox")


@contextmanager
def span(
    name: str,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    context: Context | None = None,
    attributes: Mapping[str, str] | None = None,
    links: Sequence[Link] = (),
) -> Iterator[Span]:
    """Make a span current, a child of ``context`` or of the current one; an error leaves its class in it."""
    with tracer.start_as_current_span(
        name,
        context,
        kind,
        attributes,
        list(links),
        record_exception=False,
        set_status_on_exception=False,
    ) as current:
        try:
            yield current
        except Exception as error:
            current.set_attribute("error.type", type(error).__name__)
            current.set_status(StatusCode.ERROR)
            raise


@contextmanager
def within(traceparent: str | None) -> Iterator[None]:
    """Make a stored trace current (W3C Trace Context), so that what is begun joins it, hours later too."""
    if traceparent is None:
        yield
        return
    token = current_context.attach(TraceContextTextMapPropagator().extract({"traceparent": traceparent}, Context()))
    try:
        yield
    finally:
        current_context.detach(token)
