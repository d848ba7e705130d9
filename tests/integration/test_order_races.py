"""Races of one subject's messages, each many times over real parallel connections: one winner, nobody forgotten."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from inbox.burial import NotOpen, bury, discard, redrive, release
from inbox.errors import StaleTry
from inbox.ingest.accept import Acceptor, Incoming
from inbox.message import Key
from inbox.references import BuryInput, RegisterInput
from inbox.settings import Settings
from inbox.sources import Sources
from inbox.states import OBSOLETE
from inbox.store.engine import Database
from inbox.store.order import DECIDE, LOCK_SUBJECT
from inbox.store.statements import ACCEPT
from inbox.verdict import Verdict
from tests.support.trying import Noting, Tries, nothing_written

ROUNDS = 50
ORDERS = ["arrival", "sequence"]
BEGAN = datetime(2020, 1, 1, tzinfo=UTC)
ROWS = "SELECT * FROM inbox.message WHERE source = %s AND subject = %s ORDER BY id"


@dataclass
class Row:
    """One message."""

    id: int
    name: str


class Inbox:
    """A source in each order, without workflows; each round has a subject of its own."""

    def __init__(self, url: str, sql: psycopg.AsyncConnection[dict[str, Any]]) -> None:
        self.url = url
        self.sql = sql
        declared = {
            f"{order}-{on_dead}": {"types": ["t"], "order": order, "on_dead": on_dead}
            for order in ORDERS
            for on_dead in ("release", "park")
        }
        sources = Sources.model_validate({"sources": declared})
        self.settings = Settings(DATABASE_URL=url).model_copy(update={"declared": sources})
        self.database = Database(url, size=12, name="races")
        self.acceptor = Acceptor(self.database, self.settings, lambda: None)
        self.tries = Tries(self.database, {}, self.settings, "w", lambda: None)
        self.dispatcher = Noting(self.database, self.settings)
        self.began = BEGAN

    def turn(self, order: str, number: int, on_dead: str = "release") -> Turn:
        return Turn(self, f"{order}-{on_dead}", order, f"s{number}")


@dataclass
class Turn:
    """One round of a race: one subject."""

    inbox: Inbox
    source: str
    order: str
    subject: str
    sent: int = 0

    @property
    def its(self) -> Any:
        return self.inbox.settings.source(self.source)

    def incoming(self) -> Incoming:
        self.sent += 1
        name = f"{self.subject}-{self.sent}"
        return Incoming("", self.source, name, "t", self.subject, self.sent, "application/json", b"{}", b"x" * 32)

    async def send(self) -> Row:
        incoming = self.incoming()
        return Row((await self.inbox.acceptor.accept(incoming)).id, incoming.id)

    async def rows(self) -> list[dict[str, Any]]:
        found = await self.inbox.sql.execute(ROWS, (self.source, self.subject))
        return await found.fetchall()

    async def statuses(self) -> list[str]:
        return [row["status"] for row in await self.rows()]

    async def claim(self, row: Row, run: str = "r", generation: int = 1) -> Any:
        """One attempt; None where it did not get the row."""
        self.inbox.began += timedelta(seconds=1)
        environment = ActivityEnvironment()
        environment.info = replace(environment.info, started_time=self.inbox.began, workflow_run_id=f"{row.id}-{run}")
        work = RegisterInput(row.id, self.source, "t", "r", generation)
        claimed = await environment.run(self.inbox.tries._claim, work, self.its, self.inbox.settings.declared.timeouts)
        return claimed if claimed and claimed.answer == "CLAIMED" else None

    async def complete(self, claimed: Any) -> bool:
        try:
            result = OBSOLETE if claimed.obsolete else None
            await self.inbox.tries._bundle(claimed, self.its, nothing_written, result)
        except StaleTry:
            return False
        return True

    async def fail(self, claimed: Any, *, final: bool = False) -> bool:
        verdict = Verdict("NO", "no", "no", non_retryable=final)
        try:
            await ActivityEnvironment().run(self.inbox.tries._endings.fail, claimed, verdict, self.its)
        except StaleTry:
            return False
        except ApplicationError:
            return True
        raise AssertionError

    async def discard(self, row: Row) -> bool:
        try:
            await discard(self.inbox.database, self.inbox.settings, Key("", self.source, row.name), "no")
        except NotOpen:
            return False
        return True

    async def release(self, row: Row) -> None:
        await release(self.inbox.database, self.inbox.settings, Key("", self.source, row.name))

    async def redrive(self, row: Row) -> None:
        await redrive(self.inbox.database, Key("", self.source, row.name))

    async def decide(self, row: Row) -> str | None:
        question = {"id": row.id, "gap": 3600}
        decision = await self.inbox.database.locked(DECIDE[self.order], question, before=[LOCK_SUBJECT])
        return decision.answer if decision else None

    async def drain(self) -> list[str]:
        """Dispatch and try until nothing moves: no time passes, and held rows get nothing but what releases them."""
        applied: list[str] = []
        while True:
            assert (await self.statuses()).count("PROCESSING") <= 1
            await self.inbox.dispatcher.round()
            rows = [row for row in await self.rows() if row["closed_at"] is None]
            free = [row for row in rows if row["held_since"] is None]
            assert all(row["due_at"] for row in free)
            if not free:
                assert rows == []
                return applied
            for row in free:
                claimed = await self.claim(Row(row["id"], row["message_id"]), "drain", row["generation"])
                if claimed:
                    assert await self.complete(claimed)
                    applied.append(row["message_id"])


async def together(*jobs: Awaitable[Any]) -> list[Any]:
    """Run them at once, begun in any order; return what each returned."""
    turn = list(range(len(jobs)))
    random.shuffle(turn)
    tasks = {n: asyncio.ensure_future(jobs[n]) for n in turn}
    return [await tasks[n] for n in range(len(jobs))]


@pytest.fixture
async def inbox(database_url: str) -> AsyncIterator[Inbox]:
    async with await psycopg.AsyncConnection.connect(database_url, autocommit=True, row_factory=dict_row) as sql:
        made = Inbox(database_url, sql)
        await made.database.open()
        yield made
        await made.database.close()


@pytest.mark.parametrize("order", ORDERS)
async def test_two_claims_of_one_row(inbox: Inbox, order: str) -> None:
    for number in range(ROUNDS):
        turn = inbox.turn(order, number)
        row = await turn.send()
        claims = [claimed for claimed in await together(turn.claim(row, "a"), turn.claim(row, "b")) if claimed]
        assert len({claimed.tries for claimed in claims}) == len(claims)
        assert sorted(await together(*map(turn.complete, claims))) == [False] * (len(claims) - 1) + [True]
        assert await turn.statuses() == ["COMPLETED"]


@pytest.mark.parametrize("order", ORDERS)
async def test_two_claims_of_two_rows(inbox: Inbox, order: str) -> None:
    for number in range(ROUNDS):
        turn = inbox.turn(order, number)
        first, second = await turn.send(), await turn.send()
        claims = await together(turn.claim(first), turn.claim(second))
        assert [bool(claimed) for claimed in claims] == [True, False]
        assert await turn.complete(claims[0])
        assert await turn.drain() == [second.name]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ending", ["completes", "fails", "dies"])
async def test_the_next_is_claimed_while_the_one_before_ends(inbox: Inbox, order: str, ending: str) -> None:
    for number in range(ROUNDS):
        turn = inbox.turn(order, number)
        first, second = await turn.send(), await turn.send()
        held = await turn.claim(first)
        ends = turn.complete(held) if ending == "completes" else turn.fail(held, final=ending == "dies")
        ended, following = await together(ends, turn.claim(second))
        assert ended
        assert following is None or ending != "fails"  # what failed is open, and goes first
        if following:
            assert await turn.complete(following)
        assert await turn.drain() == [first.name] * (ending == "fails") + [second.name] * (following is None)


@pytest.mark.parametrize("order", ORDERS)
async def test_one_with_a_lower_id_commits_late(inbox: Inbox, order: str) -> None:
    async with await psycopg.AsyncConnection.connect(inbox.url, row_factory=dict_row) as late:
        for number in range(ROUNDS):
            turn = inbox.turn(order, number)
            await turn.send()
            await turn.drain()
            incoming = turn.incoming()
            cursor = await late.execute(ACCEPT.sql, inbox.acceptor._row(incoming, turn.its))
            found = await cursor.fetchone()
            assert found
            lower, upper = Row(found["id"], incoming.id), await turn.send()

            async def commit_and_claim(turn: Turn = turn, lower: Row = lower) -> Any:
                await late.commit()
                return await turn.claim(lower)

            claims = await together(commit_and_claim(), turn.claim(upper), inbox.dispatcher.round())
            working = [claimed for claimed in claims[:2] if claimed]
            assert len(working) <= 1
            for claimed in working:
                other = upper if claimed.id == lower.id else lower
                done, following = await together(turn.complete(claimed), turn.claim(other))
                assert done
                if following:
                    assert await turn.complete(following)
            await turn.drain()
            assert await turn.statuses() == ["COMPLETED"] * 3


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("fails", [False, True])
async def test_dispatch_holds_one_while_what_it_waits_for_ends(inbox: Inbox, order: str, fails: bool) -> None:
    for number in range(ROUNDS):
        turn = inbox.turn(order, number)
        first = await turn.send()
        held = await turn.claim(first)
        second, third = await turn.send(), await turn.send()
        ends = turn.fail(held) if fails else turn.complete(held)
        await together(ends, inbox.dispatcher.round(), turn.decide(third))
        assert await turn.drain() == [first.name] * fails + [second.name, third.name]


@pytest.mark.parametrize("order", ORDERS)
async def test_one_is_buried_while_its_bundle_commits(inbox: Inbox, order: str) -> None:
    for number in range(ROUNDS):
        turn = inbox.turn(order, number)
        first, second = await turn.send(), await turn.send()
        held = await turn.claim(first)
        done, buried, following = await together(turn.complete(held), turn.discard(first), turn.claim(second))
        assert done != buried
        assert (await turn.statuses())[0] == ("COMPLETED" if done else "DEAD")
        if following:
            assert await turn.complete(following)
        assert await turn.drain() == [second.name] * (following is None)


@pytest.mark.parametrize("order", ORDERS)
async def test_dispatch_asks_for_two_of_a_subject_at_once(inbox: Inbox, order: str) -> None:
    other = Noting(inbox.database, inbox.settings)
    for number in range(ROUNDS):
        turn = inbox.turn(order, number)
        rows = [await turn.send() for _ in range(3)]
        answers = await together(*map(turn.decide, rows))
        assert answers == ["FREE", "HELD", "HELD"]
        inbox.dispatcher.started.clear()
        other.started.clear()
        await together(inbox.dispatcher.round(), other.round(), turn.decide(rows[1]), turn.decide(rows[2]))
        assert inbox.dispatcher.started + other.started == [rows[0].id]
        assert await turn.drain() == [row.name for row in rows]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ending", ["release", "discard", "redrive"])
async def test_the_next_is_claimed_while_a_parked_one_is_let_go(inbox: Inbox, order: str, ending: str) -> None:
    for number in range(ROUNDS):
        turn = inbox.turn(order, number, "park")
        first, second, third = [await turn.send() for _ in range(3)]
        await turn.fail(await turn.claim(first), final=True)
        _, following, none, _ = await together(
            getattr(turn, ending)(first), turn.claim(second), turn.claim(third), inbox.dispatcher.round()
        )
        assert none is None
        assert following is None or ending != "redrive"
        if following:
            assert await turn.complete(following)
        left = [first.name] * (ending == "redrive") + [second.name] * (following is None) + [third.name]
        assert await turn.drain() == left


async def test_a_late_cancellation_of_a_generation_before_unparks_nothing(inbox: Inbox) -> None:
    turn = inbox.turn("arrival", 0, "park")
    row = await turn.send()
    await turn.fail(await turn.claim(row), final=True)
    await turn.redrive(row)
    await turn.fail(await turn.claim(row, "again", 2), final=True)
    for generation, parked in ((1, True), (2, False)):
        await bury(inbox.database, inbox.settings, BuryInput(row.id, turn.source, generation, "CANCELLED"), "late")
        assert [found["parked"] for found in await turn.rows()] == [parked]


async def test_the_time_behind_another_message_is_no_time_of_a_gap_for_whom_nobody_released(inbox: Inbox) -> None:
    """Of two with one number the release lets one go; the other has its old hold still when it asks."""
    turn = inbox.turn("sequence", 0)
    first = await turn.send()
    claimed = await turn.claim(first)
    twins = []
    for name in ("a", "b"):
        incoming = replace(turn.incoming(), id=name, sequence=3)
        twins.append(Row((await inbox.acceptor.accept(incoming)).id, name))
    await inbox.dispatcher.round()
    await inbox.sql.execute(
        "UPDATE inbox.message SET held_since = held_since - interval '2 hours', updated_at = updated_at"
        " - interval '2 hours', received_at = received_at - interval '2 hours' WHERE held_behind = %s",
        (first.id,),
    )
    assert await turn.complete(claimed)
    (other,) = [row for row in await turn.rows() if row["held_behind"] == first.id]
    assert await turn.decide(Row(other["id"], other["message_id"])) == "HELD"
    closed, *_ = await turn.rows()
    (other,) = [row for row in await turn.rows() if row["id"] == other["id"]]
    assert (other["held_behind"], (other["due_at"] - other["held_since"]).total_seconds()) == (None, 3600)
    assert other["held_since"] >= closed["closed_at"]


@pytest.mark.parametrize("by", ["discard", "an obsolete one"])
async def test_a_release_does_not_begin_the_time_of_a_gap_anew(inbox: Inbox, by: str) -> None:
    turn = inbox.turn("sequence", 0)
    first, second = [await turn.send() for _ in range(2)]
    assert await turn.fail(await turn.claim(first), final=True)
    assert await turn.complete(await turn.claim(second))
    turn.sent = 3
    fourth, fifth = [await turn.send() for _ in range(2)]
    await inbox.dispatcher.round()
    half = "- interval '30 minutes'"
    await inbox.sql.execute(f"UPDATE inbox.subject_position SET gap_since = gap_since {half}")
    await inbox.sql.execute(
        f"UPDATE inbox.message SET held_since = held_since {half}, due_at = due_at {half}, updated_at = updated_at {half}"
        " WHERE closed_at IS NULL"
    )
    before = next(row for row in await turn.rows() if row["id"] == fourth.id)
    if by == "discard":
        assert await turn.discard(fifth)
    else:
        await turn.redrive(first)
        assert await turn.complete(await turn.claim(first, generation=2))
    (row,) = [row for row in await turn.rows() if row["id"] == fourth.id]
    assert row["held_since"] is None  # let go, to ask again
    assert await turn.decide(fourth) == "HELD"
    (row,) = [row for row in await turn.rows() if row["id"] == fourth.id]
    assert (row["held_since"], row["due_at"]) == (before["held_since"], before["due_at"])
