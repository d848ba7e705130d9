"""Servers that a test may stop, fill up or leave without a disk."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.dev.postgres import Postgres
from deploy.dev.temporal import Temporal
from inbox.store.migrate import migrate


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
