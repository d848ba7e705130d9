"""What operators do to a row: close it as DEAD, or send a DEAD one through again (spec sections 3, 7)."""

from __future__ import annotations

from inbox.errors import InboxError
from inbox.message import Key
from inbox.references import BuryInput
from inbox.settings import Settings
from inbox.states import CLOSED, OwnCode
from inbox.store.engine import Database
from inbox.store.reads import READ_RECORD, Record
from inbox.store.statements import BURY, LOCK_MESSAGE, READ_STANDING, REDRIVE, Standing


class NotFound(InboxError):
    """There is no such message."""


class NotDead(InboxError):
    """Only a DEAD message can be redriven."""


class NotOpen(InboxError):
    """Only an open message can be discarded."""


async def find(database: Database, key: Key) -> Record:
    """Return the record of ``key``, of its newest edition unless one is named. Raises NotFound, StoreUnavailable."""
    wanted = {"tenant": key.tenant, "source": key.source, "message_id": key.id, "edition": key.edition}
    record = await database.one(READ_RECORD, wanted)
    if record is None:
        raise NotFound(f"there is no message {key}")
    return record


async def bury(database: Database, settings: Settings, work: BuryInput, reason: str) -> Standing | None:
    """Close one generation of an open row as DEAD, with the report that it owes; a closed row stays as it is.

    ``reason`` stands in the row, for operators. Returns what the row says in the end; None where there is none.
    Raises StoreUnavailable.
    """
    found = settings.source(work.source)
    burial = {
        "id": work.message,
        "generation": work.generation,
        "tries": None,
        "code": work.code,
        "reason": reason,
        "told": settings.system_phrase(work.source),
        "reports": found is not None and found.report is not None,
    }
    await database.locked(LOCK_MESSAGE, BURY, burial)
    return await database.one(READ_STANDING, {"id": work.message})


async def discard(database: Database, settings: Settings, key: Key, reason: str) -> None:
    """Close an open message as DEAD, code DISCARDED. Raises NotFound, NotOpen, StoreUnavailable."""
    record = await find(database, key)
    if record.status in CLOSED:
        raise NotOpen(f"{key} is {record.status}")
    work = BuryInput(record.id, record.source, record.generation, OwnCode.DISCARDED)
    standing = await bury(database, settings, work, reason)
    if standing is None or standing.last_code != OwnCode.DISCARDED:
        raise NotOpen(f"{key} is {standing.status if standing else 'gone'}")


async def redrive(database: Database, key: Key) -> None:
    """Send a DEAD message through again: a new generation, due at once.

    Whoever runs a dispatcher starts it within a tick. Raises NotFound, NotDead, StoreUnavailable.
    """
    record = await find(database, key)
    if await database.locked(LOCK_MESSAGE, REDRIVE, {"id": record.id}) is None:
        raise NotDead(f"{key} is {(await find(database, key)).status}")
