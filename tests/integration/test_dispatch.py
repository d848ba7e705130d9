"""Dispatch: one path for normal starts, lost starts, stuck rows and wakes."""

import asyncio
from datetime import timedelta
from typing import Any

import psycopg
from temporalio.client import Client
from temporalio.service import RPCError

from inbox.dispatch import Dispatcher
from inbox.store.due import MESSAGES
from tests.support.stack import TOKENS, Stack, event, survey
from tests.support.waiting import eventually

MINUTES = timedelta(minutes=1)


async def test_while_temporal_is_away_messages_are_accepted_and_start_when_it_is_back(stack: Stack) -> None:
    await stack.open()
    away = Dispatcher(stack.database, await Client.connect("127.0.0.1:1", lazy=True), stack.settings)
    messages = [survey() for _ in range(5)]
    for message in messages:
        assert (await stack.legacy(message)).headers["X-Result"] == "Y"
    assert await away.round() is False
    rows = await stack.sql("SELECT starts, dispatched_at, due_at > now() AS later FROM inbox.message ORDER BY id")
    assert [row["dispatched_at"] for row in rows] == [None] * 5
    assert {row["later"] for row in rows} == {True}  # put back, each with its own delay
    assert (await stack.http.get("/readyz")).status_code == 200
    async with stack.dispatching(), stack.working():
        for message in messages:
            assert (await stack.closed(message["srvyDrawupNo"]))["status"] == "COMPLETED"


async def test_while_temporal_is_away_only_one_row_is_used_to_look_for_it(stack: Stack) -> None:
    await stack.open()
    away = Dispatcher(stack.database, await Client.connect("127.0.0.1:1", lazy=True), stack.settings)
    await stack.legacy(survey())
    await away.round()
    for _ in range(10):
        await stack.legacy(survey())
    await away.round()
    assert (await stack.sql("SELECT count(*) AS n FROM inbox.message WHERE starts > 0"))[0]["n"] == 2


async def test_a_row_that_is_heard_of_is_put_off_without_a_start(stack: Stack) -> None:
    await stack.open()
    message = survey()
    await stack.legacy(message)
    await stack.sql("UPDATE inbox.message SET dispatched_at = now(), starts = 1, due_at = now() - interval '1 second'")
    await stack.dispatcher.round()
    row = await stack.row(message["srvyDrawupNo"])
    assert row["starts"] == 1
    assert row["due_at"] == row["updated_at"] + 15 * MINUTES


async def test_a_row_that_waits_for_a_later_try_is_put_off_from_there(stack: Stack) -> None:
    await stack.open()
    message = survey()
    await stack.legacy(message)
    await stack.sql(
        "UPDATE inbox.message SET dispatched_at = now(), starts = 1, due_at = now() - interval '1 second',"
        " updated_at = now() - interval '1 hour', next_try_at = now() + interval '1 hour'"
    )
    await stack.dispatcher.round()
    row = await stack.row(message["srvyDrawupNo"])
    assert (row["starts"], row["due_at"]) == (1, row["next_try_at"] + 15 * MINUTES)


async def test_a_stuck_row_is_started_again_and_wakes_the_run_that_it_finds(stack: Stack) -> None:
    await stack.open()
    message = survey()
    await stack.legacy(message)
    await stack.dispatcher.round()
    first = await stack.row(message["srvyDrawupNo"])
    assert first["run_id"]
    old = "UPDATE inbox.message SET updated_at = now() - interval '1 hour', due_at = now() - interval '1 second'"
    await stack.sql(old)
    await stack.dispatcher.round()
    second = await stack.row(message["srvyDrawupNo"])
    assert (second["starts"], second["run_id"]) == (2, first["run_id"])
    history = await stack.temporal.get_workflow_handle(first["workflow_id"]).fetch_history()
    signals = [e for e in history.events if e.HasField("workflow_execution_signaled_event_attributes")]
    assert len(signals) == 1
    async with stack.working():
        assert (await stack.closed(message["srvyDrawupNo"]))["tries"] == 1


async def test_a_row_that_is_open_under_a_completed_execution_is_run_again(stack: Stack) -> None:
    await stack.start()
    message = survey()
    await stack.legacy(message)
    row = await stack.closed(message["srvyDrawupNo"])
    handle = stack.temporal.get_workflow_handle(row["workflow_id"])
    await handle.result()
    other = survey()  # as though someone had completed its activity by hand: an open row, a Completed execution
    await stack.sql(
        "INSERT INTO inbox.message (tenant, source, message_id, type, payload_sha256, max_tries, workflow_id, due_at)"
        " VALUES ('', 'hospital', %s, 'survey.send', %s, 5, %s, now())",
        other["srvyDrawupNo"],
        b"x" * 32,
        row["workflow_id"],
    )
    stack.dispatcher.nudge()
    dead = await stack.closed(other["srvyDrawupNo"])
    assert dead["last_code"] == "PAYLOAD_GONE"  # it was run: this row has none


async def test_a_share_of_each_source_is_taken_in_order_of_arrival_up_to_the_cap(stack: Stack) -> None:
    stack.configure({"dispatch": {"share": 3, "cap": 5}})
    await stack.open()
    for _ in range(8):
        await stack.legacy(survey())
    for n in range(2):
        counted = event({"counter": "c"}, source="report-producer", type="report.count", id=f"R-{n}")
        await stack.post(counted, TOKENS["report-producer"])

    async def started() -> list[tuple[str, int]]:
        rows = await stack.sql("SELECT source, id FROM inbox.message WHERE dispatched_at IS NOT NULL ORDER BY id")
        return [(row["source"], row["id"]) for row in rows]

    await stack.dispatcher.round()
    hospital = [("hospital", n) for n in range(1, 9)]
    others = [("report-producer", 9), ("report-producer", 10)]
    assert await started() == hospital[:3] + others
    await stack.dispatcher.round()
    assert await started() == hospital[:5] + others
    await stack.dispatcher.round()  # five wait unclaimed in the task queue: the cap
    assert await started() == hospital[:5] + others
    await stack.sql("UPDATE inbox.message SET status = 'PROCESSING', tries = 1 WHERE id <= 2")
    await stack.dispatcher.round()
    assert await started() == hospital[:7] + others


async def test_two_dispatchers_start_each_row_once(stack: Stack) -> None:
    await stack.open()
    for _ in range(40):
        await stack.legacy(survey())
    other = Dispatcher(stack.database, stack.temporal, stack.settings)
    while any(await asyncio.gather(stack.dispatcher.round(), other.round())):
        pass
    rows = await stack.sql("SELECT DISTINCT starts, dispatched_at IS NULL AS lost FROM inbox.message")
    assert rows == [{"starts": 1, "lost": False}]


async def test_one_row_that_cannot_be_started_does_not_stop_the_others(stack: Stack) -> None:
    await stack.open()
    bad, good = survey(), survey()
    await stack.legacy(bad)
    await stack.legacy(good)
    # An empty workflow ID, which Temporal refuses, stands for any fault that is one row's own.
    await stack.sql("UPDATE inbox.message SET workflow_id = '' WHERE message_id = %s", bad["srvyDrawupNo"])
    async with stack.dispatching(), stack.working():
        assert (await stack.closed(good["srvyDrawupNo"]))["status"] == "COMPLETED"
    row = await stack.row(bad["srvyDrawupNo"])
    assert (row["status"], row["dispatched_at"]) == ("RECEIVED", None)
    assert row["due_at"] is not None


async def test_rows_that_temporal_refuses_do_not_count_as_temporal_away(stack: Stack) -> None:
    await stack.open()
    await stack.legacy(survey())
    await stack.sql("UPDATE inbox.message SET workflow_id = ''")
    await stack.dispatcher.round()
    for _ in range(5):
        await stack.legacy(survey())
    await stack.dispatcher.round()
    assert (await stack.sql("SELECT count(*) AS n FROM inbox.message WHERE dispatched_at IS NOT NULL"))[0]["n"] == 5


async def test_a_message_without_a_handler_here_waits_and_spends_no_try(stack: Stack) -> None:
    await stack.open()
    message = survey()
    async with stack.dispatching():
        await stack.legacy(message)
        async with stack.working(handlers={}):
            row = await stack.row(message["srvyDrawupNo"])
            handle = stack.temporal.get_workflow_handle(row["workflow_id"])

            async def refused() -> bool:
                try:
                    pending = (await handle.describe()).raw_description.pending_activities
                except RPCError:  # not started yet
                    return False
                return any(activity.attempt >= 2 for activity in pending)

            await eventually(refused)
        assert (await stack.row(message["srvyDrawupNo"]))["tries"] == 0
        async with stack.working():
            row = await stack.closed(message["srvyDrawupNo"])
    assert (row["status"], row["tries"]) == ("COMPLETED", 1)
    assert await stack.attempts(message["srvyDrawupNo"]) == []


async def test_the_statements_of_a_round_use_the_due_index(stack: Stack) -> None:
    await stack.open()
    async with await psycopg.AsyncConnection.connect(stack.url, autocommit=True) as connection:
        await connection.execute("""
            INSERT INTO inbox.message (source, message_id, type, payload_sha256, max_tries, workflow_id, status,
                                       closed_at, outcome)
            SELECT 'hospital', 'c' || n, 't', decode(repeat('00', 32), 'hex'), 5, 'w' || n, 'COMPLETED', now(), '{}'
              FROM generate_series(1, 20000) n""")
        await connection.execute("ANALYZE inbox.message")
        cursor = await connection.execute(
            "EXPLAIN " + MESSAGES.lease.sql,
            {"source": "hospital", "share": 50, "again": 900, "lease": 30, "order": "arrival"},
        )
        plan = "\n".join(line[0] for line in await cursor.fetchall())
    assert "message_due" in plan
    assert "Seq Scan" not in plan


class SlowTemporal:
    """A client whose first start is answered when the test lets it be; it notes every start."""

    def __init__(self, real: Client) -> None:
        self._real = real
        self.started: list[str] = []
        self.began, self.answers = asyncio.Event(), asyncio.Event()

    async def start_workflow(self, *args: Any, **kwargs: Any) -> Any:
        self.started.append(kwargs["id"])
        self.began.set()
        await self.answers.wait()
        return await self._real.start_workflow(*args, **kwargs)


async def test_a_row_whose_turn_comes_when_its_lease_is_nearly_over_is_left_to_the_next_lease(stack: Stack) -> None:
    stack.configure({"dispatch": {"concurrency": 1}, "timeouts": {"rpc": 0.5, "lease": 4}})
    await stack.open()
    for _ in range(5):
        await stack.legacy(survey())
    slow: Any = SlowTemporal(stack.temporal)
    outlasted = asyncio.create_task(Dispatcher(stack.database, slow, stack.settings).round())
    await slow.began.wait()
    over = "SELECT count(*) AS n FROM inbox.message WHERE due_at <= now()"
    await eventually(lambda: stack.sql(over), lambda found: found == [{"n": 5}])
    slow.answers.set()
    await outlasted
    assert len(slow.started) == 1
    while await stack.sql("SELECT id FROM inbox.message WHERE dispatched_at IS NULL"):
        await stack.dispatcher.round()
    rows = await stack.sql("SELECT workflow_id, starts FROM inbox.message ORDER BY starts")
    assert (rows[0]["workflow_id"], [row["starts"] for row in rows]) == (slow.started[0], [1, 2, 2, 2, 2])


async def test_a_lease_whose_answer_is_lost_holds_its_rows_no_longer_than_it_says(stack: Stack) -> None:
    stack.configure({"timeouts": {"rpc": 0.2, "lease": 0.5}})
    await stack.open()
    message = survey()
    await stack.legacy(message)
    lease = {"source": "hospital", "share": 5, "again": 900, "lease": 0.5, "order": "arrival"}
    assert len(await stack.database.run(MESSAGES.lease, lease)) == 1  # and nobody hears of it
    assert await stack.dispatcher.round() is False
    assert (await stack.row(message["srvyDrawupNo"]))["dispatched_at"] is None
    async with stack.dispatching(), stack.working():
        assert (await stack.closed(message["srvyDrawupNo"]))["starts"] == 2


async def test_a_row_that_was_started_often_waits_no_longer_for_a_temporal_that_was_away(stack: Stack) -> None:
    await stack.open()
    lost, refused = survey(), survey()
    await stack.legacy(lost)
    await stack.legacy(refused)
    # Held and released many times, say: each lease counts as a start.
    await stack.sql("UPDATE inbox.message SET starts = 20")
    held = "UPDATE inbox.message SET due_at = NULL WHERE message_id = %s"
    await stack.sql(held, refused["srvyDrawupNo"])
    away = Dispatcher(stack.database, await Client.connect("127.0.0.1:1", lazy=True), stack.settings)
    await away.round()
    await stack.sql(
        "UPDATE inbox.message SET due_at = now(), workflow_id = '' WHERE message_id = %s", refused["srvyDrawupNo"]
    )
    await stack.dispatcher.round()  # which finds Temporal, and is refused
    waits = await stack.sql(
        "SELECT extract(epoch FROM due_at - now())::float AS seconds FROM inbox.message ORDER BY id"
    )
    assert waits[0]["seconds"] < 10
    assert waits[1]["seconds"] > 20
