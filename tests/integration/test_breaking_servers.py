"""A Postgres that is stopped and not gone, and processes that are told to go in the middle of a round."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from temporalio.client import Client

from deploy.dev.postgres import Postgres
from tests.support.hospital import HospitalServer
from tests.support.processes import environment, process
from tests.support.stack import Stack, event, survey
from tests.support.upstream import Upstream, hang
from tests.support.waiting import eventually

# In the product's order, only shorter.
TIMEOUTS = {
    "lock": 0.3,
    "heartbeat": 0.8,
    "statement": 1,
    "transaction": 2,
    "start_to_close": 4,
    "connect": 2,
    "rpc": 1,
    "lease": 3,
}
# Of a statement and of a connection, each with its grace: whatever waits for Postgres is let go of then.
LIMIT = TIMEOUTS["statement"] + 1 + TIMEOUTS["connect"] + 1
UNSTARTED = """
    SELECT message_id, starts, due_at - now() AS wait FROM inbox.message
     WHERE dispatched_at IS NULL AND starts > 0 AND due_at > now() + interval '5 s'"""
STARTED = "SELECT count(*) AS n FROM inbox.message WHERE dispatched_at IS NOT NULL"


def processes_of(server: Postgres) -> list[int]:
    """Return the postmaster's number, and those of all its children."""
    postmaster = int((server._data / "postmaster.pid").read_text().split()[0])
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    return [postmaster, *(int(child) for child in children)]


@contextmanager
def stopped(server: Postgres) -> Iterator[None]:
    """Stop it as a hanging disk would: every connection stays, and nobody answers."""
    numbers = processes_of(server)
    try:
        for number in numbers:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGSTOP)
        yield
    finally:
        for number in numbers:
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGCONT)


async def test_the_doors_do_not_wait_for_a_postgres_that_hangs(fragile: Stack, own_postgres: Postgres) -> None:
    fragile.configure({"timeouts": TIMEOUTS})
    await fragile.start()
    before = survey()
    await fragile.legacy(before)
    await fragile.closed(before["srvyDrawupNo"])
    held = [survey() for _ in range(30)]
    with stopped(own_postgres):
        answers = asyncio.gather(
            *(fragile.legacy(message) for message in held),
            fragile.post(event({}, id="E-1")),
            fragile.http.get("/readyz"),
            fragile.get("/backlog"),
            fragile.get("/messages/hospital/E-1"),
        )
        statuses = {answer.status_code for answer in await asyncio.wait_for(answers, LIMIT)}
    assert statuses == {503}

    async def accepted(message: dict[str, Any]) -> bool:
        return (await fragile.legacy(message)).status_code == 200

    for message in held:
        await eventually(lambda message=message: accepted(message))
    assert (await fragile.http.get("/readyz")).status_code == 200
    for message in held:
        row = await fragile.closed(message["srvyDrawupNo"])
        assert row["status"] == "COMPLETED"
        assert await fragile.bundles(message["srvyDrawupNo"]) == (1, 1, 1, 1)


async def test_messages_that_were_under_way_when_postgres_hung_complete_once(
    fragile: Stack, own_postgres: Postgres
) -> None:
    fragile.configure({"timeouts": TIMEOUTS}, tries=50)
    await fragile.start()
    messages = [survey() for _ in range(30)]
    for message in messages:
        await fragile.legacy(message)
    with stopped(own_postgres):
        await eventually(lambda: hung(fragile), lambda count: count > 0)
    for message in messages:
        row = await fragile.closed(message["srvyDrawupNo"], 60)
        assert row["status"] == "COMPLETED"
        assert await fragile.bundles(message["srvyDrawupNo"]) == (1, 1, 1, 1)


async def hung(stack: Stack) -> int:
    """Count the tries that have met the server's silence, as Temporal tells it."""
    count = 0
    async for execution in stack.temporal.list_workflows(f"TaskQueue = '{stack.name}' AND ExecutionStatus = 'Running'"):
        described = await stack.temporal.get_workflow_handle(execution.id).describe()
        count += sum(activity.attempt > 1 for activity in described.raw_description.pending_activities)
    return count


ONE_BY_ONE = {"dispatch": {"concurrency": 1}}


async def test_a_dispatcher_that_is_cancelled_in_a_round_leaves_no_row_leased_and_unstarted(stack: Stack) -> None:
    stack.configure(ONE_BY_ONE)
    await stack.open()
    for _ in range(50):
        await stack.legacy(survey())
    async with stack.dispatching():
        await eventually(lambda: stack.sql(STARTED), lambda found: found[0]["n"] > 0)
    assert await stack.sql(UNSTARTED) == []
    assert (await stack.sql(STARTED))[0]["n"] == 50  # a round under way is ended first


async def test_a_worker_that_is_told_to_go_in_a_round_leaves_no_row_leased_and_unstarted(
    stack: Stack, tmp_path: Path
) -> None:
    stack.configure(ONE_BY_ONE)
    await stack.open()
    for _ in range(50):
        await stack.legacy(survey())
    async with process(environment(stack, tmp_path), "worker") as worker:
        await eventually(lambda: stack.sql(STARTED), lambda found: found[0]["n"] > 0)
        worker.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(worker.wait(), 60) == 0
    assert await stack.sql(UNSTARTED) == []


async def test_a_dispatcher_that_is_cancelled_while_temporal_hangs_puts_its_rows_back(
    name: str, database_url: str, hospital: HospitalServer
) -> None:
    async with Upstream(lambda _: hang) as silent:
        client = await Client.connect(silent.url.removeprefix("http://"), lazy=True)
        stack = Stack(name, database_url, client, hospital)
        stack.configure({"dispatch": {"concurrency": 5}, "timeouts": {"rpc": 1, "lease": 3600}})
        await stack.open()
        for _ in range(50):
            await stack.legacy(survey())
        async with stack.dispatching():
            await eventually(lambda: stack.sql("SELECT message_id FROM inbox.message WHERE starts > 0"))
        leased = "SELECT message_id FROM inbox.message WHERE due_at > now() + interval '10 min'"
        assert await stack.sql(leased) == []
        await stack._exit.aclose()
        await stack.http.aclose()
