"""DATABASE_URL and TEMPORAL_ADDRESS: the stack uses servers that run, and starts none (spec section 15)."""

import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from temporalio.client import Client as TemporalClient
from temporalio.client import WorkflowExecutionStatus

from deploy.dev.postgres import Postgres
from deploy.dev.temporal import Temporal
from tests.acceptance.client import Client, survey
from tests.acceptance.launcher import Launcher, up
from tests.support.processes import free_port

DATABASE = "acceptance with a space"


@pytest.fixture
def empty_database(postgres: Postgres) -> Iterator[str]:
    """An empty database: the stack has to migrate it."""
    name = sql.Identifier(DATABASE)
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(name))
    yield f"{postgres.url.rpartition('/')[0]}/{DATABASE.replace(' ', '%20')}"
    with psycopg.connect(postgres.url, autocommit=True) as admin:
        admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


async def test_servers_that_run_are_used_and_left_running(
    folder: Path, postgres: Postgres, temporal_server: Temporal, temporal: TemporalClient, empty_database: str
) -> None:
    with up(folder, DATABASE_URL=empty_database, TEMPORAL_ADDRESS=temporal_server.address) as stack:
        ready = stack.ready
        assert (ready["database"], ready["temporal"]) == (empty_database, temporal_server.address)
        assert (ready["pids"]["postgres"], ready["pids"]["temporal"]) == (None, None)
        children = {stack.pid(name) for name in ("ingest", "worker", "hospital")}
        assert set(stack.processes()) == {stack.process.pid, *children}
        assert not (stack.data / "postgres").exists()
        assert not (stack.data / "temporal.db").exists()
        with Client(stack) as client:
            message = survey()
            rows = client.all_completed([client.send(message)])
        workflow = temporal.get_workflow_handle(rows[message["srvyDrawupNo"]]["workflow_id"])
        await workflow.result()
        assert (await workflow.describe()).status is WorkflowExecutionStatus.COMPLETED
        stack.signal(signal.SIGTERM)
        assert stack.ended() == 0, stack.said
        stack.nothing_left()
    assert postgres.alive()
    assert postgres.answers()
    assert temporal_server.alive()
    assert temporal_server.answers()


def test_a_server_that_is_away_is_named_in_one_line_with_exit_code_3(folder: Path, postgres: Postgres) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    no_database = {"DATABASE_URL": f"postgresql://someone:a-secret@{nobody}/inbox", "TEMPORAL_ADDRESS": nobody}
    no_temporal = {"DATABASE_URL": postgres.url, "TEMPORAL_ADDRESS": nobody}
    with (
        Launcher(folder, data=folder / "one", **no_database) as one,
        Launcher(folder, data=folder / "other", **no_temporal) as other,
    ):
        for launcher, name in ((one, "DATABASE_URL"), (other, "TEMPORAL_ADDRESS")):
            assert launcher.ended() == 3, launcher.said
            launcher.nothing_left()
            last = launcher.said.splitlines()[-1]
            assert name in last
            assert "does not answer" in last
            assert "Traceback" not in launcher.said
            assert "a-secret" not in launcher.said
            assert not launcher.ready_path.exists()
