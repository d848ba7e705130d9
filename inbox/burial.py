"""What operators do to a row: close it as DEAD, or send a DEAD one through again (spec sections 3, 7)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import psycopg

from inbox.errors import InboxError, StoreUnavailable
from inbox.message import Key
from inbox.references import BuryInput
from inbox.settings import Settings
from inbox.sources import SourceSettings
from inbox.states import CLOSED, OwnCode
from inbox.store.engine import Database, Statement, driver, one, rows
from inbox.store.order import (
    ACCEPT_GAP,
    DECIDE,
    LOCK_SUBJECT,
    MAKE_DUE,
    READ_MISSING,
    RELEASE,
    UNPARK,
    Missing,
)
from inbox.store.reads import READ_RECORD, Record
from inbox.store.reports import SEND_AGAIN
from inbox.store.statements import BURY, LOCK_MESSAGE, READ_STANDING, REDRIVE, Standing
from inbox.verdict import storable

MOST_GAPS = 10  # that an operator is told of


class NotFound(InboxError):
    """There is no such message."""


class NotDead(InboxError):
    """Only a DEAD message can be redriven."""


class NotHeld(InboxError):
    """Only a parked message, or one behind a gap, can be released."""


class NotGivenUp(InboxError):
    """Only the last report of a closed message can be sent again, once it was given up."""


class NotOpen(InboxError):
    """Only an open message can be discarded."""


async def find(database: Database, key: Key) -> Record:
    """Return the record of ``key``, of its newest edition unless one is named. Raises NotFound, StoreUnavailable."""
    wanted = {"tenant": key.tenant, "source": key.source, "message_id": key.id, "edition": key.edition}
    record = await database.one(READ_RECORD, wanted)
    if record is None:
        raise NotFound(f"there is no message {key}")
    return record


async def bury(
    database: Database, settings: Settings, work: BuryInput, reason: str, *, park: bool = False
) -> Standing | None:
    """Close one generation of an open row as DEAD, with the report that it owes; a closed row stays as it is.

    A row that is parked is unparked instead. The subject's next is released, unless the source's ``on_dead`` and
    ``park`` say to hold it. ``reason`` stands in the row, for operators. Returns what the row says in the end; None
    where there is none. Raises StoreUnavailable.
    """
    source = settings.source(work.source)
    burial = _burial(settings, work, park=park) | {"reason": storable(reason)}
    then = [] if park else [UNPARK]
    await database.locked(BURY, burial, before=[LOCK_SUBJECT, LOCK_MESSAGE], after=[*then, *_release(source)])
    return await database.one(READ_STANDING, {"id": work.message})


async def bury_for_gap(database: Database, settings: Settings, work: BuryInput) -> bool:
    """Close an open row as DEAD where a gap before it is over; tell whether it was.

    Decided and done in one transaction under the subject's lock: a number that came in the last moment is in time.
    Raises StoreUnavailable.
    """
    source = settings.source(work.source)
    if source is None or source.order != "sequence":
        return False
    burial = _burial(settings, work, park=True) | {"gap": source.gap_timeout}
    async with _locked(database, work.message) as connection:
        decision = await one(connection, DECIDE[source.order], burial)
        if decision is None or decision.answer != "GAP":
            return False
        await one(connection, BURY, burial | {"reason": f"number {decision.missing} is missing"})
        await rows(connection, RELEASE[source.order], burial)
    return True


def _burial(settings: Settings, work: BuryInput, *, park: bool) -> dict[str, Any]:
    source = settings.source(work.source)
    return {
        "id": work.message,
        "generation": work.generation,
        "tries": None,
        "code": work.code,
        "told": settings.system_phrase(work.source),
        "reports": source is not None and source.report is not None,
        "park": park and source is not None and source.parks,
    }


@asynccontextmanager
async def _locked(database: Database, message: int) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Open a transaction that has the locks of a message, in their order."""
    try:
        async with database.transaction() as tx:
            connection = await driver(tx)
            for lock in (LOCK_SUBJECT, LOCK_MESSAGE):
                await one(connection, lock, {"id": message})
            yield connection
    except TimeoutError:
        raise StoreUnavailable("TimeoutError") from None


def _release(source: SourceSettings | None) -> list[Statement[Any]]:
    return [RELEASE[source.order]] if source and source.order != "none" else []


async def discard(database: Database, settings: Settings, key: Key, reason: str) -> None:
    """Close an open message as DEAD, code DISCARDED, or unpark a parked one.

    Raises NotFound, NotOpen, StoreUnavailable.
    """
    record = await find(database, key)
    if record.status in CLOSED and not record.parked:
        raise NotOpen(f"{key} is {record.status}")
    work = BuryInput(record.id, record.source, record.generation, OwnCode.DISCARDED)
    standing = await bury(database, settings, work, reason)
    if standing is None or standing.last_code != OwnCode.DISCARDED:
        raise NotOpen(f"{key} is {standing.status if standing else 'gone'}")


@dataclass(frozen=True)
class Released:
    """What a release let go: ``accepted`` numbers are not waited for any more; none, where a message was unparked.

    Only the lowest are named, ``more`` says so.
    """

    accepted: tuple[Missing, ...] = ()
    more: bool = False

    def __str__(self) -> str:
        if not self.accepted:
            return "released"
        named = [str(g.missing) if g.missing == g.until else f"{g.missing} to {g.until}" for g in self.accepted]
        return f"released, no longer waited for: {', '.join(named)}{' and more' if self.more else ''}"


async def release(database: Database, settings: Settings, key: Key) -> Released:
    """Let go what a message holds: unpark it; or accept the gap before it, and redrive it where that was its death.

    One transaction. Raises NotFound, NotHeld, StoreUnavailable.
    """
    record = await find(database, key)
    source = settings.source(record.source)
    row = {"id": record.id, "generation": None, "code": None, "reason": None, "most": MOST_GAPS + 1}
    async with _locked(database, record.id) as connection:
        if await one(connection, UNPARK, row):
            for statement in _release(source):
                await rows(connection, statement, row)
            return Released()
        missing = await rows(connection, READ_MISSING, row)
        if source is None or source.order != "sequence" or await one(connection, ACCEPT_GAP, row) is None:
            raise NotHeld(f"{key} is {record.status}, neither parked nor behind a gap")
        if await one(connection, MAKE_DUE, row) is None:
            await one(connection, REDRIVE, row)
    return Released(tuple(missing[:MOST_GAPS]), more=len(missing) > MOST_GAPS)


async def passed(database: Database, settings: Settings, key: Key) -> int | None:
    """Return the number that was applied last of a message's subject, where its own is not above that.

    Redriving it is obsolete then (spec section 9). Raises NotFound, StoreUnavailable.
    """
    record = await find(database, key)
    source = settings.source(record.source)
    if source is None or source.order != "sequence" or record.sequence is None or record.last is None:
        return None
    return record.last if record.sequence <= record.last else None


async def redrive(database: Database, key: Key) -> Key:
    """Send a DEAD message through again: a new generation, due at once. Return its key, with the edition it found.

    Whoever runs a dispatcher starts it within a tick. Raises NotFound, NotDead, StoreUnavailable.
    """
    record = await find(database, key)
    if await database.locked(REDRIVE, {"id": record.id}, before=[LOCK_SUBJECT, LOCK_MESSAGE]) is None:
        raise NotDead(f"{key} is {(await find(database, key)).status}")
    return Key(record.tenant, record.source, record.message_id, record.edition)


async def send_again(database: Database, key: Key) -> None:
    """Make a message's report that was given up due again, under the idempotency key that it had.

    Raises NotFound, NotGivenUp, StoreUnavailable.
    """
    record = await find(database, key)
    if await database.locked(SEND_AGAIN, {"id": record.id}, before=[LOCK_MESSAGE]) is None:
        record = await find(database, key)
        raise NotGivenUp(f"{key} is {record.status}, and its last report is {record.report_state or 'none'}")
