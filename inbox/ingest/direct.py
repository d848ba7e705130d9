"""Direct mode: a message is registered within its request, without Temporal (spec section 11).

The way back should Temporal have to go, and the plain transactional inbox: the row, the bundle and COMPLETED are one
transaction, and whoever delivers is told how it ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from zoneinfo import ZoneInfo

from psycopg.types.json import Jsonb
from sqlalchemy.ext.asyncio import AsyncConnection

from inbox.errors import InboxError, NotRegistered, StoreUnavailable, TransactionEnded, fault_of, place_of
from inbox.handler import Handler, Message, Outcome, timeout_of
from inbox.logs import LimitedLog
from inbox.message import RESEND
from inbox.order import make_place
from inbox.payload import read_payload
from inbox.settings import Settings
from inbox.sources import SourceSettings
from inbox.spans import span
from inbox.states import OBSOLETE, OwnCode, Status
from inbox.store.direct import FINISH, LOCK_PLACE, LOOK, PUT, Place
from inbox.store.editions import LOCK_KEY
from inbox.store.engine import Database, driver, one, rows
from inbox.store.order import RELEASE_SEQUENCE
from inbox.store.statements import Accepted
from inbox.timeouts import Timeouts
from inbox.verdict import Verdict, judge, kept_in

limited = LimitedLog(logging.getLogger(__name__))
Row = dict[str, Any]  # what ACCEPT is given


class Direct:
    """Registers messages of the types that ``handlers`` serve."""

    def __init__(self, database: Database, settings: Settings, handlers: Mapping[str, Handler[Any, Any]]) -> None:
        self._database = database
        self._settings = settings
        self._handlers = handlers

    async def register(self, row: Row, source: SourceSettings) -> Accepted | None:
        """Store and register a message; None where it has to be accepted instead, to go the other way.

        That is one whose ID is stored already and means no new edition, one that order holds, and one that no handler
        here serves. Raises NotRegistered and StoreUnavailable: nothing is stored.
        """
        order = source.order if row["subject"] is not None else "none"
        row = row | {"resend_after": source.resend_after, "obsolete": OBSOLETE}
        place = await self._database.one(LOOK[order], row)
        if place is None or place.answer == "HELD" or not _is_new(place, source):
            return None
        row |= _edition(place, row)
        handler = self._handlers.get(row["type"])
        if handler is None:
            return None
        if order != "none" and not place.placed:
            await make_place(self._database, row)
        row |= {"received_at": place.received_at, "limit": self._timeouts(handler).transaction}
        try:
            async with asyncio.timeout(self._timeouts(handler).start_to_close):
                if place.answer == "OBSOLETE":  # a position never goes back: nobody is asked, nothing made
                    return await self._bundle(row, source, order, _nothing)
                message = _message(row, handler, source)
                with span("prepare"), kept_in():
                    prepared = await handler.prepare(message)
                return await self._bundle(row, source, order, lambda tx: handler.register(tx, message, prepared))
        except StoreUnavailable:
            raise
        except Exception as error:  # noqa: BLE001  whatever a handler raises is its answer
            if not isinstance(error, InboxError):
                where = place_of(error, type(handler).__module__.partition(".")[0])
                limited.warning(
                    where, "a message of %s was not registered: %s at %s", row["type"], fault_of(error), where
                )
            phrase = self._settings.system_phrase(row["source"])
            raise _refusal(judge(error, handler, phrase, source.codes)) from None

    def _timeouts(self, handler: Handler[Any, Any]) -> Timeouts:
        return self._settings.declared.timeouts.stretched(timeout_of(handler))

    async def _bundle(
        self, row: Row, source: SourceSettings, order: str, write: Callable[[AsyncConnection], Awaitable[Outcome]]
    ) -> Accepted | None:
        """Store the row and all business writes in one transaction; None where order or another delivery forbids it."""
        with span("bundle"):
            async with self._database.transaction(row["limit"]) as tx:
                connection = await driver(tx)
                if row["resend_of"] is not None:  # or a redelivery that goes the other way would make this edition too
                    await one(connection, LOCK_KEY, row)
                if order != "none":  # the lock order: subject, message row, handler's rows
                    await one(connection, LOCK_PLACE, row)
                put = await one(connection, PUT[order], row)
                if put is None:
                    return None
                with kept_in():
                    outcome = await (_nothing if put.obsolete else write)(tx)
                if not tx.in_transaction():  # or the connection may be somebody else's by now
                    raise TransactionEnded
                notice = outcome.notice
                applied = order == "sequence" and not put.obsolete  # a number that was passed moves nothing
                ending = {
                    "id": put.id,
                    "xact": put.xact,
                    "sequenced": applied,
                    "outcome": Jsonb(OBSOLETE if put.obsolete else dict(outcome.result)),
                    "notice": notice.kind.value if notice else None,
                    "notice_reason": notice.reason if notice else None,
                    "reports": source.report is not None,
                }
                finished = await one(connection, FINISH, ending)
                if finished is None:  # it was ended behind SQLAlchemy's back (COMMIT as text)
                    raise TransactionEnded
                if applied:  # who waits behind the gap that it fills; by arrival nobody waits for it
                    await rows(connection, RELEASE_SEQUENCE, {"id": put.id})
        return finished


def _refusal(verdict: Verdict) -> NotRegistered:
    told = verdict.reason if verdict.code == OwnCode.INVALID_PAYLOAD else verdict.told
    return NotRegistered(verdict.code, told, final=verdict.code != OwnCode.SYSTEM_ERROR)


async def _nothing(_: AsyncConnection) -> Outcome:
    return Outcome()


def _message(row: Row, handler: Handler[Any, Any], source: SourceSettings) -> Message[Any]:
    """Build what the handler sees. Raises InvalidPayload."""
    return Message(
        tenant=row["tenant"],
        source=row["source"],
        id=row["message_id"],
        edition=row["edition"],
        type=row["type"],
        subject=row["subject"],
        received_at=row["received_at"],
        zone=ZoneInfo(source.zone),
        payload=read_payload(handler.payload, row["content_type"], row["body"]),
    )


def _is_new(place: Place, source: SourceSettings) -> bool:
    """Tell whether the delivery is a message of its own; what happens to one that is stored, the other way decides."""
    return place.newest is None or (source.resends and place.status == Status.COMPLETED and not place.repeated)


def _edition(place: Place, row: Row) -> dict[str, Any]:
    """Return what the row says of its edition."""
    if place.newest is None:
        return {"edition": 1, "resend_of": None}
    edition = place.edition + 1
    return {
        "edition": edition,
        "resend_of": place.newest,
        "type": row["type"] + RESEND,
        "workflow_id": f"{row['edition_id']}{edition}",
    }
