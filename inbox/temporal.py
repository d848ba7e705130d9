"""The connection to Temporal, by its own standard environment and profiles; and the search attributes we use."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Mapping
from datetime import timedelta

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.failure.v1 import Failure
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.contrib.opentelemetry import TracingInterceptor
from temporalio.converter import DataConverter, DefaultFailureConverter, PayloadConverter
from temporalio.envconfig import ClientConfig
from temporalio.exceptions import ApplicationError
from temporalio.runtime import PrometheusConfig, Runtime, TelemetryConfig
from temporalio.service import RPCError, RPCStatusCode

from inbox.errors import InboxError, SettingsError, TemporalUnfit
from inbox.logs import LimitedLog

log = logging.getLogger(__name__)
limited = LimitedLog(log, interval=10)
SEARCH_ATTRIBUTES = ("InboxStatus", "InboxSource", "InboxType", "InboxCode")
KEYWORD = IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD
# How the client says that nobody answered in time.
NO_ANSWER = (RPCStatusCode.CANCELLED, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.UNAVAILABLE)
# How a server says that search attributes are not this client's business.
HIDDEN = (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED)


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


def answer_of(error: Exception) -> str:
    """Say what a call to Temporal failed of, without its text, which may name what was asked."""
    if isinstance(error, RPCError) and error.status not in NO_ANSWER:
        return f"Temporal says {error.status.name}"
    return "Temporal gives no answer"


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
    try:
        runtime = Runtime(telemetry=telemetry)
    except (RuntimeError, ValueError):
        raise SettingsError(f"INBOX_METRICS_LISTEN: cannot listen on {metrics}; is the address in use?") from None
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

    Raises TemporalAway, TemporalUnfit where one is there with another type (Temporal would say OK and then refuse every
    start), and temporalio.service.RPCError where the server refuses.
    """
    try:
        client = await Client.connect(**_config())  # type: ignore[arg-type]
    except RuntimeError:
        raise TemporalAway("Temporal gives no answer") from None
    operator = client.operator_service
    found = await operator.list_search_attributes(ListSearchAttributesRequest(namespace=client.namespace))
    _refuse_other_types(found.custom_attributes)
    missing = [name for name in SEARCH_ATTRIBUTES if name not in found.custom_attributes]
    if missing:
        await operator.add_search_attributes(
            AddSearchAttributesRequest(namespace=client.namespace, search_attributes=dict.fromkeys(missing, KEYWORD))
        )
    return missing


async def check_search_attributes(client: Client, rpc: float) -> None:
    """Look whether the namespace has our search attributes, waiting ``rpc`` seconds.

    Raises TemporalAway, and TemporalUnfit. Where the server lets nobody look (a hosted one may), nothing is said.
    """
    request = ListSearchAttributesRequest(namespace=client.namespace)
    try:
        found = await client.operator_service.list_search_attributes(request, timeout=timedelta(seconds=rpc))
    except RuntimeError:
        raise TemporalAway("Temporal gives no answer") from None
    except RPCError as error:
        if error.status in HIDDEN:
            log.warning("the search attributes were not checked: %s", error.status.name)
            return
        if error.status is RPCStatusCode.NOT_FOUND:
            raise TemporalUnfit(f"Temporal has no namespace {client.namespace}") from None
        raise TemporalAway("Temporal gives no answer") from None
    _refuse_other_types(found.custom_attributes)
    missing = [name for name in SEARCH_ATTRIBUTES if name not in found.custom_attributes]
    if missing:
        raise TemporalUnfit(f"search attribute {', '.join(missing)} is missing in Temporal: run inbox migrate")


def _refuse_other_types(found: Mapping[str, IndexedValueType.ValueType]) -> None:
    for name in SEARCH_ATTRIBUTES:
        if (kind := found.get(name, KEYWORD)) != KEYWORD:
            shown = IndexedValueType.Name(kind).removeprefix("INDEXED_VALUE_TYPE_").title().replace("_", "")
            raise TemporalUnfit(
                f"search attribute {name} is of type {shown} in Temporal and must be Keyword: remove it"
                f" (temporal operator search-attribute remove --name {name}), then run inbox migrate"
            )
