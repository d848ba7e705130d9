"""Direct mode, editions and order under races, misbehaving handlers and odd input: what once broke them."""

from __future__ import annotations

import asyncio
import logging
from base64 import b64encode
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError

from inbox.burial import discard
from inbox.errors import BusinessError, NotRegistered
from inbox.handler import Message, Notice, Outcome, ReportKind
from inbox.ingest.accept import Acceptor, Incoming
from inbox.message import Key
from inbox.store.editions import LOCK_DEAD_SUBJECT, LOCK_KEY, LOCK_NEWEST, REDELIVER
from inbox.store.engine import driver, one, rows
from inbox.store.order import DECIDE_SEQUENCE, LOCK_SUBJECT, RELEASE_ARRIVAL
from inbox.store.statements import ACCEPT, CLAIM, LOCK_MESSAGE, TAKE_FENCE
from tests.support.rows import acceptance, claim
from tests.support.stack import Stack, event, survey
from tests.support.waiting import eventually

MOST = 2**63 - 1
WAITS = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


def incoming(number: str = "m", content: bytes = b"x" * 32, **changes: Any) -> Incoming:
    given = {"tenant": "", "source": "hospital", "id": number, "type": "survey.send", "subject": "s", "sequence": None}
    given |= {"content_type": "application/json", "body": b"{}", "sha256": content}
    return Incoming(**given | changes)


class Anything(BaseModel):
    """Takes every object."""


class Acting:
    """A handler that does what a test says."""

    type = "survey.send"
    payload = Anything
    resends = True

    def __init__(self, act: Callable[[AsyncConnection], Awaitable[Any]]) -> None:
        self._act = act

    async def prepare(self, message: Message[Anything]) -> None:
        """Nothing."""

    async def register(self, tx: AsyncConnection, message: Message[Anything], prepared: None) -> Outcome:
        """Act."""
        return await self._act(tx) or Outcome()


def acceptor(stack: Stack, act: Callable[[AsyncConnection], Awaitable[Any]]) -> Acceptor:
    handler = Acting(act)
    return Acceptor(
        stack.database, stack.settings, lambda: None, {"survey.send": handler, "survey.send.resend": handler}
    )


async def nothing(_: AsyncConnection) -> None:
    """Write nothing."""


@pytest.mark.parametrize("gap", [False, True])
async def test_the_highest_number_twice_is_decided(stack: Stack, gap: bool) -> None:
    await stack.open()
    start = 7 if gap else MOST - 1
    both = [
        await stack.database.one(ACCEPT, acceptance(name, source="seq-producer", sequence=MOST, position=start))
        for name in "ab"
    ]
    answers = []
    for row in both:
        assert row
        question = {"id": row.id, "gap": 3600.0}
        decision = await stack.database.locked(DECIDE_SEQUENCE, question, before=[LOCK_SUBJECT])
        assert decision
        answers.append((decision.answer, decision.missing))
    assert answers == ([("HELD", 8)] * 2 if gap else [("FREE", None)] * 2)


async def test_a_duplicate_of_an_older_edition_and_the_end_of_its_try_do_not_wait_for_each_other(stack: Stack) -> None:
    stack.configure(redelivery="resend")
    await stack.open()
    doors = acceptor(stack, nothing)
    first = await doors.accept(incoming(content=b"1" * 32))
    await doors.accept(incoming(content=b"2" * 32))
    claimed = await stack.database.one(CLAIM, claim(first.id))
    assert claimed
    async with stack.database.transaction() as tx:  # the bundle of the first
        connection = await driver(tx)
        fence = {"id": first.id, "generation": 1, "tries": 1}
        await one(connection, LOCK_SUBJECT, fence)
        assert await one(connection, TAKE_FENCE, fence)
        # The ID was found used just before the fence was taken.
        source = stack.settings.declared.sources["hospital"]
        row = doors._row(incoming(content=b"1" * 32), source)
        locks = [LOCK_KEY, LOCK_DEAD_SUBJECT, LOCK_NEWEST]
        again = asyncio.create_task(stack.database.locked(REDELIVER, row, before=locks))
        await stack.eventually_row(WAITS)
        await connection.execute(
            "UPDATE inbox.message SET status = 'FAILED', last_code = 'X' WHERE id = %s", [first.id]
        )
        await connection.execute(
            "UPDATE inbox.message SET status = 'DEAD', closed_at = now(), dead_at = now(), due_at = NULL WHERE id = %s",
            [first.id],
        )
        await rows(connection, RELEASE_ARRIVAL, fence)
    found = await again
    assert found
    assert (found.created, found.edition) == (False, 1)


async def test_a_wish_and_a_direct_one_of_the_same_id_at_once_are_an_edition_each(stack: Stack) -> None:
    stack.configure(redelivery="resend", mode="direct", order="none")
    await stack.open()
    going, may_go = asyncio.Event(), asyncio.Event()

    async def slow(_: AsyncConnection) -> None:
        going.set()
        await may_go.wait()

    await acceptor(stack, nothing).accept(incoming())
    second = asyncio.create_task(acceptor(stack, slow).accept(incoming(content=b"2" * 32)))
    await going.wait()
    elsewhere = Acceptor(stack.database, stack.settings, lambda: None)  # has no handler
    third = asyncio.create_task(elsewhere.accept(incoming(content=b"3" * 32)))
    await stack.eventually_row(WAITS)
    may_go.set()
    assert [(await wish).edition for wish in (second, third)] == [2, 3]


async def test_a_wish_makes_no_waiting_number_of_its_subject_obsolete(stack: Stack) -> None:
    stack.configure(redelivery="resend", order="none")
    await stack.open()
    await acceptor(stack, nothing).accept(incoming("waits", sequence=5))
    await acceptor(stack, nothing).accept(incoming("other", sequence=10, subject="t"))
    stack.configure(redelivery="resend", order="sequence")
    await stack.open()
    await acceptor(stack, nothing).accept(incoming("other", content=b"2" * 32, sequence=10))
    (place,) = await stack.sql("SELECT last FROM inbox.subject_position WHERE subject = 's'")
    assert place["last"] is None


async def test_an_obsolete_number_does_not_begin_a_gaps_time_anew(stack: Stack) -> None:
    stack.configure(mode="direct", order="sequence")
    await stack.open()
    doors = acceptor(stack, nothing)
    assert (await doors.accept(incoming("a", sequence=1))).status == "COMPLETED"
    waits = await doors.accept(incoming("c", sequence=3))
    question = {"id": waits.id, "gap": 3600.0}
    await stack.database.locked(DECIDE_SEQUENCE, question, before=[LOCK_SUBJECT])
    since = "SELECT gap_since FROM inbox.subject_position"
    (before,) = await stack.sql(since)
    assert before["gap_since"]
    assert (await doors.accept(incoming("b", sequence=1))).outcome == "obsolete"
    assert await stack.sql(since) == [before]
    assert (await doors.accept(incoming("d", sequence=2))).status == "COMPLETED"
    assert (await stack.sql(since))[0]["gap_since"] is None


SECRET = "patient 4711"


class Nasty(BaseException):
    """No Exception."""


@pytest.mark.parametrize("error", [Nasty(SECRET), SystemExit(SECRET), asyncio.CancelledError(SECRET)])
async def test_in_direct_mode_whatever_a_handler_raises_is_its_refusal(
    stack: Stack, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    stack.configure(mode="direct")
    await stack.open()

    async def raises(_: AsyncConnection) -> None:
        raise error

    with caplog.at_level(logging.DEBUG), pytest.raises(NotRegistered) as caught:
        await acceptor(stack, raises).accept(incoming())
    assert (caught.value.code, caught.value.final) == ("SYSTEM_ERROR", False)
    assert SECRET not in caplog.text
    assert await stack.sql("SELECT 1 FROM inbox.message") == []


async def test_in_direct_mode_a_request_that_is_given_up_is_rolled_back(stack: Stack) -> None:
    stack.configure(mode="direct")
    await stack.open()
    going = asyncio.Event()

    async def hangs(_: AsyncConnection) -> None:
        going.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(acceptor(stack, hangs).accept(incoming()))
    await going.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await stack.sql("SELECT 1 FROM inbox.message") == []


async def commits_by_text(tx: AsyncConnection) -> None:
    await tx.execute(text("INSERT INTO reporting.counter AS c (name, value) VALUES ('c', 1)"))
    await tx.execute(text("COMMIT"))


async def test_in_direct_mode_a_handlers_own_commit_stores_nothing(stack: Stack) -> None:
    stack.configure(mode="direct")
    await stack.open()
    with pytest.raises(NotRegistered):
        await acceptor(stack, commits_by_text).accept(incoming())
    assert await stack.sql("SELECT status, outcome FROM inbox.message") == []
    assert await stack.sql("SELECT 1 FROM reporting.counter") == []


@pytest.mark.parametrize("error", [Nasty(SECRET), SystemExit(SECRET), asyncio.CancelledError(SECRET)])
async def test_whatever_a_handler_raises_fails_its_try_and_its_text_stays(
    stack: Stack, caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    stack.configure(tries=1)

    async def raises(_: AsyncConnection) -> None:
        raise error

    with caplog.at_level(logging.DEBUG):
        await stack.start({"survey.send": Acting(raises)})
        message = survey()
        await stack.legacy(message)
        row = await stack.closed(message["srvyDrawupNo"])
        assert (row["status"], row["last_code"]) == ("DEAD", "SYSTEM_ERROR")
        assert row["last_reason"] == type(error).__name__
        handle = stack.temporal.get_workflow_handle(row["workflow_id"])
        with pytest.raises(WorkflowFailureError):
            await handle.result()
    assert SECRET not in str([event async for event in handle.fetch_history_events()])
    assert SECRET not in caplog.text


def nested(depth: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(depth):
        found = {"a": found}
    return found


ODD_OUTCOMES = {
    "NaN": Outcome({"a": float("nan")}),
    "NUL": Outcome({"a": "\0"}),
    "a lone surrogate": Outcome({"a": "\ud800"}),
    "no JSON": Outcome({"a": object()}),
    "no mapping": Outcome(5),  # type: ignore[arg-type]
    "too deep": Outcome(nested(100_000)),
    "NUL in a notice": Outcome({}, Notice(ReportKind.NOT_SENT, "\0")),
    "a lone surrogate in a notice": Outcome({}, Notice(ReportKind.NOT_SENT, "\ud800")),
    "no outcome": "registered",
}


@pytest.mark.parametrize("odd", ODD_OUTCOMES)
async def test_in_direct_mode_an_outcome_that_cannot_be_kept_is_the_handlers_fault(stack: Stack, odd: str) -> None:
    stack.configure(mode="direct")
    await stack.open()

    async def act(_: AsyncConnection) -> Any:
        return ODD_OUTCOMES[odd]

    with pytest.raises(NotRegistered) as caught:
        await acceptor(stack, act).accept(incoming())
    assert (caught.value.code, caught.value.final) == ("SYSTEM_ERROR", False)
    assert await stack.sql("SELECT 1 FROM inbox.message") == []
    assert (await acceptor(stack, nothing).accept(incoming())).created


@pytest.mark.parametrize("data", [b"[" * 200_000 + b"]" * 200_000, b"\xff", b"", b"9" * 5000])
async def test_in_direct_mode_data_that_is_no_payload_is_the_messages_fault(stack: Stack, data: bytes) -> None:
    stack.configure(mode="direct")
    await stack.open()
    sent = event(None, data_base64=b64encode(data).decode())
    del sent["data"]
    answer = await stack.post(sent)
    assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_PAYLOAD")


async def test_an_operators_reason_may_hold_any_bytes(stack: Stack) -> None:
    """A command's argument that is no UTF-8 comes as lone surrogates."""
    await stack.open()
    await stack.post(event({}, id="m"))
    await discard(stack.database, stack.settings, Key("", "hospital", "m"), "odd\udcff")
    assert (await stack.row("m"))["last_reason"] == "odd?"


async def test_a_code_beyond_all_bounds_leaves_no_execution_behind(stack: Stack) -> None:
    stack.configure(tries=2)

    async def refuses(_: AsyncConnection) -> None:
        raise BusinessError("코" * 3000, "because")

    await stack.start({"survey.send": Acting(refuses)})
    message = survey()
    await stack.legacy(message)
    row = await stack.closed(message["srvyDrawupNo"])
    assert row["status"] == "DEAD"
    await eventually(
        lambda: stack.execution_status(row["workflow_id"]), lambda found: found is WorkflowExecutionStatus.FAILED
    )


async def test_a_redelivery_and_a_try_make_a_subjects_place_without_waiting_for_each_other(stack: Stack) -> None:
    """The subject is known from a time of no order, and has no place yet."""
    stack.configure(redelivery="resend", order="none")
    await stack.open()
    first = await acceptor(stack, nothing).accept(incoming())
    stack.configure(redelivery="resend")
    await stack.open()
    doors = acceptor(stack, nothing)
    async with stack.database.transaction() as tx:
        connection = await driver(tx)
        await one(connection, LOCK_SUBJECT, {"id": first.id})
        wish = asyncio.create_task(doors.accept(incoming(content=b"2" * 32)))
        await stack.eventually_row(WAITS)
        assert await one(connection, LOCK_MESSAGE, {"id": first.id})
    assert (await wish).edition == 2
