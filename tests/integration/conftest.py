"""Servers that a test may stop."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from temporalio.client import Client

from deploy.dev.postgres import Postgres
from inbox.store.migrate import migrate
from tests.support.hospital import HospitalServer
from tests.support.stack import Stack

pytest.register_assert_rewrite("tests.support.model")


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[Postgres]:
    """A server that this test may stop."""
    server = Postgres(tmp_path / "postgres")
    server.start()
    migrate(server.url)
    yield server
    server.stop()


@pytest.fixture
async def fragile(
    name: str, own_postgres: Postgres, temporal: Client, hospital: HospitalServer
) -> AsyncIterator[Stack]:
    """An inbox on it."""
    async with Stack(name, own_postgres.url, temporal, hospital) as made:
        yield made
