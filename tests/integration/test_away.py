"""Postgres away, and back; workers that are told to go."""

import signal
from pathlib import Path

from temporalio.service import RPCError

from deploy.dev.postgres import Postgres
from tests.support.processes import environment, process
from tests.support.stack import Stack, event, survey
from tests.support.waiting import eventually


async def test_without_postgres_nothing_is_acknowledged_and_service_returns_by_itself(
    fragile: Stack, own_postgres: Postgres
) -> None:
    await fragile.open()
    before = survey()
    assert (await fragile.legacy(before)).status_code == 200
    own_postgres.kill()
    for answer in (await fragile.legacy(survey()), await fragile.post(event({}, id="E-1"))):
        assert answer.status_code == 503
        assert int(answer.headers["Retry-After"]) > 0
        assert answer.headers["Content-Type"] == "application/problem+json"
        assert "X-Result" not in answer.headers
    assert (await fragile.http.get("/readyz")).status_code == 503
    assert (await fragile.get("/backlog")).status_code == 503
    assert (await fragile.http.get("/healthz")).status_code == 200
    own_postgres.start()
    after = survey()

    async def accepted() -> int:
        return (await fragile.legacy(after)).status_code

    assert await eventually(accepted, lambda status: status == 200) == 200
    assert (await fragile.http.get("/readyz")).status_code == 200
    assert (await fragile.legacy(before)).json()["duplicate"] is True


async def test_a_restart_of_postgres_fails_no_more_than_one_request(fragile: Stack, own_postgres: Postgres) -> None:
    await fragile.open()
    for _ in range(20):
        await fragile.legacy(survey())
    own_postgres.restart()
    first = (await fragile.legacy(survey())).status_code
    assert first in (200, 503)

    async def accepted() -> int:
        return (await fragile.legacy(survey())).status_code

    await eventually(accepted, lambda status: status == 200)
    assert [(await fragile.legacy(survey())).status_code for _ in range(20)] == [200] * 20


async def test_postgres_away_spends_no_try(fragile: Stack, own_postgres: Postgres) -> None:
    await fragile.open()
    message = survey()
    await fragile.legacy(message)
    await fragile.dispatcher.round()
    handle = fragile.temporal.get_workflow_handle((await fragile.row(message["srvyDrawupNo"]))["workflow_id"])
    own_postgres.kill()

    async def refused() -> bool:
        try:
            pending = (await handle.describe()).raw_description.pending_activities
        except RPCError:
            return False
        return any(activity.attempt >= 2 for activity in pending)

    async with fragile.working():
        await eventually(refused)
        own_postgres.start()
        row = await fragile.closed(message["srvyDrawupNo"])
    assert (row["status"], row["tries"]) == ("COMPLETED", 1)
    assert await fragile.attempts(message["srvyDrawupNo"]) == []


async def test_a_worker_that_is_told_to_go_finishes_the_try_it_is_at(stack: Stack, tmp_path: Path) -> None:
    await stack.open()
    await stack.hospital.control(delays=True)
    message = survey()
    async with stack.dispatching(), process(environment(stack, tmp_path), "worker") as worker:
        await stack.legacy(message)
        await eventually(lambda: stack.row(message["srvyDrawupNo"]), lambda row: row["status"] == "PROCESSING")
        worker.send_signal(signal.SIGTERM)
        assert await worker.wait() == 0
        row = await stack.row(message["srvyDrawupNo"])
        assert (row["status"], row["tries"]) == ("COMPLETED", 1)
    assert await stack.attempts(message["srvyDrawupNo"]) == []
