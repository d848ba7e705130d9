"""A subject that is parked for a week costs nothing meanwhile, and is worked off in order when it is let go."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable

from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio.client import WorkflowExecution

from inbox.burial import release
from inbox.handler import BusinessError, Message, Outcome
from inbox.message import Key
from tests.support.stack import TOKENS, Stack, event
from tests.support.waiting import eventually

SUCCESSORS = int(os.environ.get("PARKED_SUCCESSORS", "300"))
SIDE_BY_SIDE = 16  # deliveries
DAYS = 7


class Step(BaseModel):
    """What a message makes the handler do."""

    fail: bool = False


class Recorder:
    """Applies messages, or fails for ever."""

    type = "report.count"
    payload = Step

    async def prepare(self, message: Message[Step]) -> None:
        if message.payload.fail:
            raise BusinessError("NOT_YET", "not yet")

    async def register(self, tx: AsyncConnection, message: Message[Step], _: None) -> Outcome:
        await tx.execute(text("INSERT INTO public.applied (message_id) VALUES (:m)"), {"m": message.id})
        return Outcome()


async def send(stack: Stack, source: str, message_id: str, subject: str, *, fail: bool = False) -> None:
    cloudevent = event({"fail": fail}, source=source, type="report.count", id=message_id, partitionkey=subject)
    (await stack.post(cloudevent, TOKENS["report-producer" if source == "p" else "seq-producer"])).raise_for_status()


async def executions(stack: Stack, source: str) -> dict[str, int]:
    """Return every run of a source's messages, with the length of its history."""

    async def runs() -> AsyncIterator[WorkflowExecution]:
        async for found in stack.temporal.list_workflows(f"TaskQueue = '{stack.name}' AND InboxSource = '{source}'"):
            yield found

    lengths = {}
    async for found in runs():
        described = await stack.temporal.get_workflow_handle(found.id, run_id=found.run_id).describe()
        lengths[f"{found.id} {found.run_id}"] = described.history_length
    return lengths


async def test_a_parked_subject_costs_nothing_for_a_week_and_is_then_worked_off_in_order(
    stack: Stack, record_property: Callable[[str, object], None]
) -> None:
    day = 24 * 3600
    sources = {
        "p": {"types": ["report.count"], "tokens": stack.tokens("report-producer"), "tries": 1, "on_dead": "park"},
        "clock": {
            "types": ["report.count"],
            "tokens": stack.tokens("seq-producer"),
            "tries": DAYS + 1,
            "retry_interval": day,
        },
    }
    stack.configure({"sources": sources, "legacy": None})
    await stack.sql("CREATE TABLE public.applied (n bigint GENERATED ALWAYS AS IDENTITY, message_id text)")
    await stack.start({"report.count": Recorder()})
    await send(stack, "p", "first", "s", fail=True)
    assert (await stack.closed("first"))["parked"] is True
    names = [f"m{n:05}" for n in range(SUCCESSORS)]
    for start in range(0, SUCCESSORS, SIDE_BY_SIDE):
        await asyncio.gather(*(send(stack, "p", name, "s") for name in names[start : start + SIDE_BY_SIDE]))

    async def held() -> int:
        rows = await stack.sql(
            "SELECT count(*) AS n FROM inbox.message WHERE held_since IS NOT NULL AND due_at IS NULL"
        )
        return int(rows[0]["n"])

    await eventually(held, lambda found: found == SUCCESSORS, 30 + SUCCESSORS / 20)

    async def load() -> dict[str, object]:
        """All that dispatch or a try would move."""
        (row,) = await stack.sql(
            "SELECT sum(starts) AS starts, sum(tries) AS tries, count(run_id) AS runs, count(dispatched_at) AS marked,"
            " max(xmin::text::bigint) AS newest FROM inbox.message WHERE source = 'p'"
        )
        return row

    before = await eventually(lambda: executions(stack, "p"), lambda found: len(found) == 1)
    record = await load()
    assert record["runs"] == 1  # the parked one's
    # The record's own clock: all that is there is a week old. Temporal's: another source's message fails for a week.
    await stack.sql(
        "UPDATE inbox.message SET held_since = held_since - make_interval(days => %s),"
        " updated_at = updated_at - make_interval(days => %s), dispatched_at = dispatched_at - make_interval(days => %s),"
        " delivered_at = delivered_at - make_interval(days => %s) WHERE source = 'p'",
        *[DAYS] * 4,
    )
    record |= {"newest": (await load())["newest"]}
    await send(stack, "clock", "week", "w", fail=True)
    row = await stack.closed("week", limit=300)
    handle = stack.temporal.get_workflow_handle(row["workflow_id"])
    described = await eventually(handle.describe, lambda found: found.close_time is not None)
    assert described.close_time is not None
    assert (described.close_time - described.start_time).total_seconds() >= DAYS * day
    for _ in range(20):
        stack.dispatcher.nudge()
        await stack.dispatcher.round()
    assert await load() == record  # not one version of a row was written
    assert await executions(stack, "p") == before
    arrived = [
        row["message_id"]
        for row in await stack.sql("SELECT message_id FROM inbox.message WHERE held_since IS NOT NULL ORDER BY id")
    ]
    assert sorted(arrived) == names
    began = await stack.sql("SELECT clock_timestamp() AS at")
    await release(stack.database, stack.settings, Key("", "p", "first"))

    async def applied() -> int:
        return int((await stack.sql("SELECT count(*) AS n FROM public.applied"))[0]["n"])

    done = 0
    while done < SUCCESSORS:  # however slow the machine, it goes on
        done = await eventually(applied, lambda found, least=done + 1: found >= least, 120)
    last = await stack.closed(arrived[-1])
    assert [row["message_id"] for row in await stack.sql("SELECT message_id FROM public.applied ORDER BY n")] == arrived
    rows = await stack.sql("SELECT count(*) AS n FROM inbox.message WHERE closed_at IS NULL OR held_since IS NOT NULL")
    assert rows == [{"n": 0}]
    (history,) = before.values()
    seconds = (last["closed_at"] - began[0]["at"]).total_seconds()
    record_property(
        "measured",
        f"{SUCCESSORS} held for {DAYS} days by one whose history has {history} events: no row written, no execution"
        f" started, no event added; then worked off in order in {seconds:.1f} s, {SUCCESSORS / seconds:.0f} a second",
    )
