"""Traces by OpenTelemetry's standard environment (``OTEL_*``): off unless an OTLP endpoint is set."""

from __future__ import annotations

import os

from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


def configure_tracing(service: str) -> TracerProvider | None:
    """Install the tracer provider of this process; None, and no cost, where no endpoint is set.

    Sampler, resource, headers and limits are read from the environment by the SDK. Over HTTP with protobuf
    (``OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf``). The caller shuts the provider down.
    """
    if not any(os.environ.get(name) for name in ENDPOINTS) or os.environ.get("OTEL_SDK_DISABLED") == "true":
        return None
    named = "OTEL_SERVICE_NAME" in os.environ or SERVICE_NAME in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    resource = Resource.create({} if named else {SERVICE_NAME: service})
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider
