"""Real servers for the whole session, and for each test a database of its own and an inbox name of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from temporalio.client import Client
from temporalio.contrib.opentelemetry import TracingInterceptor

from deploy.dev.postgres import Postgres
from deploy.dev.temporal import Temporal
from inbox.store.migrate import migrate
from inbox.temporal import DATA_CONVERTER
from tests.support.hospital import HospitalServer
from tests.support.stack import Stack

TEMPLATE = "template_inbox"
_names = iter(range(1, 1_000_000))


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Postgres]:
    """One server, with a migrated database to copy."""
    server = Postgres(tmp_path_factory.mktemp("postgres"))
    server.start()
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {TEMPLATE}")
    migrate(_on(server, TEMPLATE))
    yield server
    server.stop()


@pytest.fixture(scope="session")
def temporal_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Temporal]:
    """One dev server, in memory."""
    server = Temporal(tmp_path_factory.mktemp("temporal"), in_memory=True)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
async def temporal(temporal_server: Temporal) -> Client:
    """A client of the dev server."""
    return await Client.connect(
        temporal_server.address, data_converter=DATA_CONVERTER, interceptors=[TracingInterceptor()]
    )


@pytest.fixture
def name() -> str:
    """An inbox name, and so a task queue, that no other test uses."""
    return f"inbox{next(_names)}"


@pytest.fixture
def database_url(postgres: Postgres, name: str) -> Iterator[str]:
    """A migrated database of this test's own."""
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(TEMPLATE)))
    yield _on(postgres, name)
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


def _on(server: Postgres, database: str) -> str:
    return f"{server.url.rpartition('/')[0]}/{database}"


@pytest.fixture
async def hospital() -> AsyncIterator[HospitalServer]:
    """The stand-in hospital of the sample day, without its delays."""
    async with HospitalServer() as server:
        yield server


@pytest.fixture
async def stack(name: str, database_url: str, temporal: Client, hospital: HospitalServer) -> AsyncIterator[Stack]:
    """Doors, dispatcher and worker in this process; each started by the test that needs it."""
    async with Stack(name, database_url, temporal, hospital) as made:
        yield made


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave at once: a thread of Temporal's client can abort the interpreter's own way out (sdk-python issue 300)."""
    status = getattr(config, "inbox_exit_status", None)
    if status is not None and "PYTEST_XDIST_WORKER" not in os.environ:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Remember how it ended."""
    session.config.inbox_exit_status = int(exitstatus)  # type: ignore[attr-defined]


ROOT = Path(__file__).parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--record`` writes the histories of tests/replay anew."""
    parser.addoption("--record", action="store_true", help="write the histories of tests/replay anew")
