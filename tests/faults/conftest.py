"""Servers that a test may stop, fill up or leave without a disk."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client

from deploy.dev.postgres import Postgres
from deploy.dev.temporal import SEARCH_ATTRIBUTES, Temporal
from inbox.store.migrate import migrate
from inbox.temporal import DATA_CONVERTER
from tests.support.hospital import HospitalServer
from tests.support.stack import Stack

# What an operator's server may have switched on: pausing executions, and retention of seconds.
LENIENT = {
    "frontend.WorkflowPauseEnabled": "true",
    "system.namespaceMinRetentionLocal": '"1s"',
    "history.retentionTimerJitterDuration": '"1s"',
}
RETENTION = Duration(seconds=3)


@pytest.fixture
def own_temporal(tmp_path: Path) -> Iterator[Temporal]:
    """A server on a file."""
    server = Temporal(tmp_path / "temporal")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[Postgres]:
    """A server with a migrated database."""
    server = Postgres(tmp_path / "postgres", log=tmp_path / "postgres.log")
    server.start()
    migrate(server.url)
    yield server
    server.stop()


@pytest.fixture
def lenient_temporal(tmp_path: Path) -> Iterator[Temporal]:
    """A server that lets executions be paused, and namespaces keep them for seconds."""
    server = Temporal(tmp_path / "temporal", in_memory=True, dynamic=LENIENT)
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def lenient(
    name: str, database_url: str, lenient_temporal: Temporal, hospital: HospitalServer
) -> AsyncIterator[Stack]:
    """An inbox on it."""
    client = await Client.connect(lenient_temporal.address, data_converter=DATA_CONVERTER)
    async with Stack(name, database_url, client, hospital) as made:
        yield made


@pytest.fixture
async def forgetful(
    name: str, database_url: str, lenient_temporal: Temporal, hospital: HospitalServer
) -> AsyncIterator[Stack]:
    """An inbox in a namespace of it whose closed executions are kept for seconds."""
    client = await Client.connect(lenient_temporal.address, namespace=name, data_converter=DATA_CONVERTER)
    await client.workflow_service.register_namespace(
        RegisterNamespaceRequest(namespace=name, workflow_execution_retention_period=RETENTION)
    )
    attributes = dict.fromkeys(SEARCH_ATTRIBUTES, IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD)
    await client.operator_service.add_search_attributes(
        AddSearchAttributesRequest(namespace=name, search_attributes=attributes)
    )
    async with Stack(name, database_url, client, hospital) as made:
        yield made
