"""What operators do to a row: close it as DEAD, or send a DEAD one through again (spec sections 3, 7)."""

from __future__ import annotations

from typing import Any

from inbox.errors import InboxError
from inbox.message import Key
from inbox.references import BuryInput
from inbox.settings import Settings, SourceSettings
from inbox.states import CLOSED, OwnCode, Status
from inbox.store.engine import Database, Statement
from inbox.store.order import ACCEPT_GAP, LOCK_SUBJECT, MAKE_DUE, RELEASE, UNPARK
from inbox.store.reads import READ_RECORD, Record
from inbox.store.statements import BURY, LOCK_MESSAGE, READ_STANDING, REDRIVE, Standing


class NotFound(InboxError):
    """There is no such message."""


class NotDead(InboxError):
    """Only a DEAD message can be redriven."""


class NotHeld(InboxError):
    """Only a parked message, or one behind a gap, can be released."""


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
    burial = {
        "id": work.message,
        "generation": work.generation,
        "tries": None,
        "code": work.code,
        "reason": reason,
        "told": settings.system_phrase(work.source),
        "reports": source is not None and source.report is not None,
        "park": park and source is not None and source.parks,
    }
    then = [] if park else [UNPARK]
    await database.locked(BURY, burial, before=[LOCK_SUBJECT, LOCK_MESSAGE], after=[*then, *_release(source)])
    return await database.one(READ_STANDING, {"id": work.message})


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


async def release(database: Database, settings: Settings, key: Key) -> None:
    """Let go what a message holds: unpark it; or accept the gap before it, and redrive it where that was its death.

    Raises NotFound, NotHeld, StoreUnavailable.
    """
    record = await find(database, key)
    source = settings.source(record.source)
    row = {"id": record.id, "generation": None, "code": None, "reason": None}
    locks = [LOCK_SUBJECT, LOCK_MESSAGE]
    if record.parked:
        unparked = await database.locked(UNPARK, row, before=locks, after=_release(source))
        if unparked is not None:
            return
    if source is None or source.order != "sequence" or record.status == Status.COMPLETED:
        raise NotHeld(f"{key} is {record.status}, neither parked nor behind a gap")
    if await database.locked(ACCEPT_GAP, row, before=locks) is None:
        raise NotHeld(f"{key} is {record.status}, with no gap before it")
    if await database.locked(MAKE_DUE, row, before=locks) is None and record.status == Status.DEAD:
        await redrive(database, key)


async def redrive(database: Database, key: Key) -> None:
    """Send a DEAD message through again: a new generation, due at once.

    Whoever runs a dispatcher starts it within a tick. Raises NotFound, NotDead, StoreUnavailable.
    """
    record = await find(database, key)
    if await database.locked(REDRIVE, {"id": record.id}, before=[LOCK_SUBJECT, LOCK_MESSAGE]) is None:
        raise NotDead(f"{key} is {(await find(database, key)).status}")
