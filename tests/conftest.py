"""Real servers for the whole session, and for each test a database of its own and an inbox name of its own.

Under xdist each worker is a session: it starts servers of its own, when a test first needs them.
"""

from __future__ import annotations

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
from tests.support.leaving import pytest_sessionfinish, pytest_unconfigure  # noqa: F401  hooks of this session
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
        # Databases come and go by the hundred, and nobody pulls its plug: it need not wait for the disk.
        admin.execute("ALTER SYSTEM SET fsync = off")
        admin.execute("SELECT pg_reload_conf()")
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


ROOT = Path(__file__).parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--record`` writes the histories of tests/replay anew."""
    parser.addoption("--record", action="store_true", help="write the histories of tests/replay anew")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what tests have measured, and do not judge: ``record_property("measured", text)``."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "measured":
                terminalreporter.write_line(f"{report.nodeid}: {value}")
