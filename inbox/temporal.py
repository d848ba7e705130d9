"""The connection to Temporal, by its own standard environment and profiles; and the search attributes we use."""

from __future__ import annotations

import asyncio
import dataclasses
import logging

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.failure.v1 import Failure
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.contrib.opentelemetry import TracingInterceptor
from temporalio.converter import DataConverter, DefaultFailureConverter, PayloadConverter
from temporalio.envconfig import ClientConfig
from temporalio.exceptions import ApplicationError
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig

from inbox.errors import InboxError
from inbox.logs import LimitedLog

limited = LimitedLog(logging.getLogger(__name__), interval=10)
SEARCH_ATTRIBUTES = ("InboxStatus", "InboxSource", "InboxType", "InboxCode")
KEYWORD = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD


class PlainFailureConverter(DefaultFailureConverter):
    """Leaves our own errors without a stack trace: their code says all, and an operator reads it at a glance."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Convert as the default does, without the trace of an ApplicationError."""
        super().to_failure(exception, payload_converter, failure)
        if isinstance(exception, ApplicationError):
            failure.stack_trace = ""


DATA_CONVERTER = dataclasses.replace(DataConverter.default, failure_converter_class=PlainFailureConverter)


class TemporalAway(InboxError):
    """Temporal gave no answer."""


class WrongSearchAttribute(InboxError):
    """A search attribute exists with another type; Temporal would say OK and then refuse every start."""


def _config() -> dict[str, object]:
    config: dict[str, object] = dict(ClientConfig.load_client_connect_config())
    config.setdefault("target_host", "localhost:7233")
    return config | {"data_converter": DATA_CONVERTER, "interceptors": [TracingInterceptor()]}


async def lazy_client() -> Client:
    """Return a client that connects at its first call: ingest goes on while Temporal is away."""
    return await Client.connect(**_config(), lazy=True)  # type: ignore[arg-type]


async def connect(metrics: str | None = None) -> Client:
    """Connect for a worker, waiting for Temporal as long as it is away.

    ``metrics`` is the address (host:port) where the SDK serves its metrics to Prometheus.
    """
    telemetry = TelemetryConfig(metrics=PrometheusConfig(bind_address=metrics) if metrics else None)
    runtime = Runtime(telemetry=telemetry)
    wait = 1.0
    while True:
        try:
            return await Client.connect(**_config(), runtime=runtime)  # type: ignore[arg-type]
        except RuntimeError:  # what the client raises when nobody answers
            limited.warning("connect", "the worker waits: Temporal gives no answer")
            await asyncio.sleep(wait)
            wait = min(wait * 2, 5.0)


async def register_search_attributes() -> list[str]:
    """Add our search attributes to the namespace and return those that were missing.

    Raises TemporalAway, WrongSearchAttribute, and temporalio.service.RPCError where the server refuses.
    """
    try:
        client = await Client.connect(**_config())  # type: ignore[arg-type]
    except RuntimeError:
        raise TemporalAway("Temporal gives no answer") from None
    operator = client.operator_service
    found = await operator.list_search_attributes(ListSearchAttributesRequest(namespace=client.namespace))
    missing = [name for name in SEARCH_ATTRIBUTES if name not in found.custom_attributes]
    if missing:
        await operator.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=dict.fromkeys(missing, KEYWORD))
        )
    for name in SEARCH_ATTRIBUTES:
        if found.custom_attributes.get(name, KEYWORD) != KEYWORD:
            raise WrongSearchAttribute(f"search attribute {name} exists and is not a Keyword")
    return missing
