"""Whatever races for one message, its reports go on: none is left open that nobody will ever send."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from temporalio.exceptions import ApplicationError

from activities.register import RegisterActivity
from activities.report import ReportActivities
from handlers.report_counter import Count
from inbox.burial import NotDead, bury, redrive
from inbox.errors import BusinessError, StaleTry
from inbox.handler import Notice, Outcome, ReportKind
from inbox.message import Key
from inbox.references import BuryInput, ReportInput
from inbox.states import ReportState
from inbox.store.engine import Statement
from inbox.store.reports import BEGIN_REPORT, LOCK_MESSAGE_OF
from inbox.verdict import Verdict
from tests.support.stack import Stack, event
from tests.support.upstream import Upstream, answer
from tests.support.waiting import eventually

STUCK = """
    SELECT r.message, r.number, r.kind, r.state FROM inbox.report r
     WHERE r.closed_at IS NULL AND r.due_at IS NULL AND NOT EXISTS (
           SELECT FROM inbox.report p
            WHERE p.message = r.message AND p.number < r.number AND p.closed_at IS NULL)"""
SHOWN_WRONG = """
    SELECT m.id, m.report_state, l.state FROM inbox.message m LEFT JOIN LATERAL (
           SELECT state FROM inbox.report r WHERE r.message = m.id ORDER BY number DESC LIMIT 1) l ON true
     WHERE m.report_state IS DISTINCT FROM l.state"""
WAITING = """
    SELECT count(*) AS n FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"""
HELD = "UPDATE inbox.message SET status = 'PROCESSING', tries = tries + 1, dispatched_at = now() WHERE id = %s"


async def late(_: Any) -> Outcome:
    """Complete with a notice."""
    return Outcome({}, Notice(ReportKind.NOT_SENT, "late"))


@dataclass
class Life:
    """One message, and all that can befall its reports, by the product's own code."""

    stack: Stack
    id: int
    key: Key

    def __post_init__(self) -> None:
        database, settings = self.stack.database, self.stack.settings
        self.source: Any = settings.source("hospital")
        self.tries = RegisterActivity(database, {}, settings, "w", lambda: None)
        self.calls = ReportActivities(database, {}, settings, None, lambda: None)  # type: ignore[arg-type]

    async def claim(self) -> None:
        await self.stack.sql(HELD, self.id)

    async def _claimed(self) -> Any:
        (row,) = await self.stack.sql("SELECT * FROM inbox.message WHERE id = %s", self.id)
        return SimpleNamespace(**row | {"began_at": row["updated_at"]})

    async def fail(self) -> None:
        verdict = Verdict("NOPE", "no", "no", non_retryable=True)
        with suppress(ApplicationError, StaleTry):
            await self.tries._endings.fail(await self._claimed(), verdict, self.source)

    async def complete(self) -> None:
        with suppress(StaleTry):
            await self.tries._bundle(await self._claimed(), self.source, late)

    async def bury(self) -> None:
        work = BuryInput(self.id, "hospital", (await self._claimed()).generation, "DISCARDED")
        await bury(self.stack.database, self.stack.settings, work, "r")

    async def redrive(self) -> None:
        with suppress(NotDead):
            await redrive(self.stack.database, self.key)

    async def _first_report(self) -> int:
        (row,) = await self.stack.sql("SELECT id FROM inbox.report WHERE message = %s AND number = 1", self.id)
        return int(row["id"])

    async def begin(self, report: int | None = None) -> None:
        report = report or await self._first_report()
        await self.stack.database.locked(BEGIN_REPORT, {"id": report}, before=[LOCK_MESSAGE_OF])

    async def close(self, report: int | None = None) -> None:
        state = random.choice([ReportState.SENT, ReportState.GIVEN_UP])
        await self.calls._close(ReportInput(report or await self._first_report(), "hospital"), state)


async def life(stack: Stack, message_id: str) -> Life:
    """Bring a message to DEAD with its first report owed."""
    await stack.post(event({"counter": "c"}, id=message_id))
    made = Life(stack, (await stack.row(message_id))["id"], Key("", "hospital", message_id))
    await made.claim()
    await made.fail()
    return made


async def all_goes_on(stack: Stack) -> None:
    assert await stack.sql(STUCK) == []
    assert await stack.sql(SHOWN_WRONG) == []


@asynccontextmanager
async def held(stack: Stack, life: Life) -> AsyncIterator[Callable[[int], Awaitable[Any]]]:
    """Hold the message's row; yield what waits until so many statements wait for it."""
    async with await psycopg.AsyncConnection.connect(stack.url) as connection:
        await connection.execute("SELECT FROM inbox.message WHERE id = %s FOR UPDATE", (life.id,))

        async def look() -> int:
            return int((await stack.sql(WAITING))[0]["n"])

        yield lambda count: eventually(look, lambda found: found == count, 2)
        await connection.commit()


def ordered_pairs() -> Iterator[Any]:
    """Yield what came before, and two events that meet then, each pair in both orders."""
    meetings = {
        ("begin", "redrive", "claim"): ["close", "begin", "fail", "bury", "complete", "redrive"],
        ("begin",): ["close", "redrive", "begin"],
        (): ["begin", "redrive"],
        ("begin", "close"): ["redrive", "begin", "close"],
    }
    for before, names in meetings.items():
        for first in names:
            for second in names:
                if first != second:
                    yield pytest.param(before, first, second, id=f"{'-'.join(before) or 'dead'}: {first}, {second}")


@pytest.mark.parametrize(("before", "first", "second"), list(ordered_pairs()))
async def test_two_that_wait_for_one_message_leave_its_reports_going_on(
    stack: Stack, before: tuple[str, ...], first: str, second: str
) -> None:
    await stack.open()
    subject = await life(stack, "C1")
    for step in before:
        await getattr(subject, step)()
    tasks = []
    async with held(stack, subject) as waiting:
        for count, step in enumerate((first, second), 1):
            tasks.append(asyncio.create_task(getattr(subject, step)()))
            await waiting(count)
    await asyncio.gather(*tasks)
    await all_goes_on(stack)


DUE = Statement("due", SimpleNamespace, "SELECT id FROM inbox.report WHERE message = %(id)s AND due_at <= now()")


async def test_whatever_races_with_whatever_every_report_of_a_message_is_sent_in_the_end(stack: Stack) -> None:
    await stack.open()

    async def send_due(subject: Life) -> bool:
        due = await stack.database.run(DUE, {"id": subject.id})
        for report in due:
            await subject.begin(report.id)
            await asyncio.gather(*(subject.close(report.id) for _ in range(2)))
        return bool(due)

    async def one_life(number: int) -> None:
        subject = await life(stack, f"C{number}")
        ended = asyncio.Event()

        async def go_through() -> None:
            for _ in range(6):
                await subject.redrive()
                await subject.claim()
                await asyncio.gather(*random.sample([subject.fail(), subject.bury(), subject.complete()], 3))
                if (await subject._claimed()).status == "COMPLETED":
                    break
            ended.set()

        async def send() -> None:
            while await send_due(subject) or not ended.is_set():
                await asyncio.sleep(0)

        await asyncio.gather(go_through(), send(), send())

    for _ in range(3):
        numbers = [random.randrange(10**9) for _ in range(6)]
        await asyncio.gather(*(one_life(number) for number in numbers))
    await all_goes_on(stack)
    assert await stack.sql("SELECT * FROM inbox.report WHERE closed_at IS NULL") == []


class Mendable:
    """Refuses until it is ``well``; then its bundle stays open until it may ``go``."""

    type = "survey.send"
    payload = Count

    def __init__(self) -> None:
        self.well = False
        self.inside, self.go = asyncio.Event(), asyncio.Event()

    async def prepare(self, _: Any) -> None:
        if not self.well:
            raise BusinessError("NOPE", "no")

    async def register(self, *_: Any) -> Outcome:
        self.inside.set()
        await self.go.wait()
        return Outcome({})


async def test_the_correction_follows_the_report_that_was_under_way_while_its_bundle_committed(stack: Stack) -> None:
    taken = asyncio.Event()
    async with Upstream(lambda _: answer(after=taken)) as upstream:
        stack.configure(tries=1, report={"url": upstream.url})
        handler = Mendable()
        await stack.start(handlers={"survey.send": handler})
        await stack.post(event({"counter": "c"}, id="C1"))
        await stack.reported("C1", "SENDING")
        handler.well = True
        await redrive(stack.database, Key("", "hospital", "C1"))
        await handler.inside.wait()
        taken.set()  # its report is closed as SENT now, as soon as the bundle lets go of the row
        await eventually(lambda: stack.sql(WAITING), lambda found: found[0]["n"] > 0, 10)
        handler.go.set()
        await stack.reported("C1")
        sent = [(report["kind"], report["state"]) for report in await stack.reports("C1")]
    assert sent == [("DEAD", "SENT"), ("CORRECTION", "SENT")]
