"""Traces and metrics by OpenTelemetry's standard environment (``OTEL_*``): off unless an endpoint is set."""

from __future__ import annotations

import os
from collections.abc import Callable
from wsgiref.simple_server import WSGIServer

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from prometheus_client import start_http_server

from inbox.errors import SettingsError


def _exported(signal: str) -> bool:
    names = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT")
    return any(os.environ.get(name) for name in names) and not _disabled()


def _disabled() -> bool:
    return os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"


def _resource(service: str) -> Resource:
    named = "OTEL_SERVICE_NAME" in os.environ or SERVICE_NAME in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return Resource.create({} if named else {SERVICE_NAME: service})


def configure_tracing(service: str) -> TracerProvider | None:
    """Install the tracer provider of this process; None, and no cost, where no endpoint is set.

    Sampler, resource, headers and limits are read from the environment by the SDK. Over HTTP with protobuf
    (``OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf``). The caller shuts the provider down.
    """
    if not _exported("TRACES"):
        return None
    provider = TracerProvider(resource=_resource(service))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider


def _serve(address: str) -> WSGIServer:
    host, _, port = address.rpartition(":")
    try:
        return start_http_server(int(port), host.strip("[]"))[0]
    except OSError as error:
        cause = os.strerror(error.errno) if error.errno and error.errno > 0 else "no such host"
        raise SettingsError(f"INBOX_METRICS_LISTEN: cannot listen on {address}: {cause}") from None


def configure_metrics(service: str, listen: str | None = None) -> Callable[[], None] | None:
    """Install the meter provider of this process; return what ends it, or None where nobody asked for metrics.

    They go out by OTLP where an endpoint is set, every ``OTEL_METRIC_EXPORT_INTERVAL`` ms, and are served to
    Prometheus at ``listen`` (host:port, path /metrics). Raises SettingsError where nothing can listen there.
    """
    readers: list[MetricReader] = [PeriodicExportingMetricReader(OTLPMetricExporter())] if _exported("METRICS") else []
    server: WSGIServer | None = None
    if listen and not _disabled():
        readers.append(PrometheusMetricReader())
        server = _serve(listen)
    if not readers:
        return None
    provider = MeterProvider(readers, _resource(service))
    metrics.set_meter_provider(provider)

    def end() -> None:
        provider.shutdown()
        if server:
            server.shutdown()
            server.server_close()

    return end
