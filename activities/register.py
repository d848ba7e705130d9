"""Register: one try of one message. Claim, prepare, bundle; or the failure's record (spec sections 3, 7, 8)."""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, NoReturn
from zoneinfo import ZoneInfo

from psycopg.types.json import Jsonb
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.endings import Endings, fence
from activities.failures import codes_only
from activities.heartbeats import heartbeats
from inbox.burial import bury_for_gap
from inbox.errors import InboxError, PayloadGone, StaleTry, TransactionEnded, fault_of, place_of
from inbox.handler import Handler, Message, Outcome, timeout_of
from inbox.logs import LimitedLog
from inbox.payload import read_payload
from inbox.references import (
    HELD,
    LONGER,
    OVERTAKEN,
    BuryInput,
    RegisterInput,
    RegisterResult,
)
from inbox.settings import Settings
from inbox.sources import SourceSettings
from inbox.spans import span
from inbox.states import OBSOLETE, OwnCode, Status
from inbox.store.engine import Database, driver, one, rows
from inbox.store.order import DECIDE, LOCK_SUBJECT, RELEASE
from inbox.store.statements import (
    CLAIM,
    COMPLETE,
    SET_ASIDE,
    TAKE_FENCE,
    Claimed,
)
from inbox.timeouts import Timeouts
from inbox.verdict import judge, kept_in

limited = LimitedLog(logging.getLogger(__name__))
LONGEST_ASIDE = 60.0  # seconds until a worker is asked again whether it serves a message


class RegisterActivity:
    """Holds what a try needs. ``nudge`` is called once something may have become due: dispatch looks at once."""

    def __init__(
        self,
        database: Database,
        handlers: Mapping[str, Handler[Any, Any]],
        settings: Settings,
        worker: str,
        nudge: Callable[[], None],
    ) -> None:
        self._database = database
        self._handlers = handlers
        self._settings = settings
        self._worker = worker
        self._nudge = nudge
        self._endings = Endings(database, handlers, settings, nudge)

    @activity.defn(name="register")
    async def register(self, work: RegisterInput) -> RegisterResult:
        """Do one try, or find the row closed.

        Raises ApplicationError: for a failed try with the code as its type and the delay of the next; where the
        row is left DEAD non-retryable, with status, code, hint and how many wait as details; and a plain retryable one
        where no try was spent or its end could not be recorded.
        """
        with codes_only():
            async with heartbeats():
                return await self._register(work)

    async def _register(self, work: RegisterInput) -> RegisterResult:
        source = self._settings.source(work.source)
        handler = self._handlers.get(work.type)
        if source is None or handler is None:
            await self._set_aside(work, "settings for its source" if source is None else "handler for its type")
        timeouts = self._settings.declared.timeouts.stretched(timeout_of(handler))
        if _is_too_short(timeouts):
            return RegisterResult(LONGER, start_to_close=timeouts.start_to_close)
        try:
            return await self._claim_and_try(work, handler, source, timeouts)
        except StaleTry:
            return await self._endings.closed(work, source)

    async def _claim_and_try(
        self, work: RegisterInput, handler: Handler[Any, Any], source: SourceSettings, timeouts: Timeouts
    ) -> RegisterResult:
        claimed = await self._claim(work, source, timeouts)
        match claimed:
            case Claimed(answer="CLAIMED"):
                return await self._try(claimed, handler, source, timeouts)
            case Claimed(answer="EXHAUSTED"):
                return await self._endings.exhausted(claimed, source)
            case Claimed(answer="OVERTAKEN"):
                return RegisterResult(OVERTAKEN, generation=claimed.generation)
            case Claimed(answer="HELD"):
                return await self._held(claimed, work, source)
            case _:  # closed, or a later attempt holds it
                return await self._endings.closed(work, source)

    async def _set_aside(self, work: RegisterInput, missing: str) -> NoReturn:
        """Leave a message to a worker that serves it: no try is spent, and nobody else is held up."""
        text, extra = "a message of %s waits: this worker has no %s", {"source": work.source}
        limited.error(f"{work.source} {work.type}", text, work.type, missing, extra=extra)
        await self._database.one(SET_ASIDE, {"id": work.message, "again": self._settings.declared.dispatch.again})
        delay = min(2.0 ** min(activity.info().attempt, 10), LONGEST_ASIDE) * random.uniform(1.0, 1.1)
        raise ApplicationError("NotServed", type="NotServed", next_retry_delay=timedelta(seconds=delay))

    async def _claim(self, work: RegisterInput, source: SourceSettings, timeouts: Timeouts) -> Claimed | None:
        info = activity.info()
        ordered = source.ordered and work.placed
        claim = {
            "id": work.message,
            "max_tries": source.tries,
            "worker": self._worker,
            "run_id": info.workflow_run_id,
            "first_run_id": work.first_run_id,
            "activity": info.activity_id,
            "attempt": info.attempt,
            "longest": timeouts.start_to_close,
            "began_at": info.started_time,
            "asked": work.generation,
            "ordered": ordered,
            "sequenced": source.order == "sequence",
        }
        if not ordered:
            return await self._database.one(CLAIM, claim)
        # Order is asked here at the last: between dispatch and now another of the subject may have begun.
        asked = claim | {"gap": source.gap_timeout}
        return await self._database.locked(CLAIM, asked, before=[LOCK_SUBJECT, DECIDE[source.order]])

    async def _try(
        self, claimed: Claimed, handler: Handler[Any, Any], source: SourceSettings, timeouts: Timeouts
    ) -> RegisterResult:
        try:
            if claimed.obsolete:  # a higher number was applied before it: it is closed without a bundle
                await self._bundle(claimed, source, _nothing, OBSOLETE)
            else:
                message = _message(claimed, handler, source)
                with span("prepare"), kept_in():
                    prepared = await handler.prepare(message)

                async def write(tx: AsyncConnection) -> Outcome:
                    with kept_in():
                        return await handler.register(tx, message, prepared)

                await self._bundle(claimed, source, write, limit=timeouts.transaction)
        except StaleTry:
            raise
        except Exception as error:  # noqa: BLE001  whatever a handler raises fails its try
            phrase = self._settings.system_phrase(claimed.source)
            if not isinstance(error, InboxError):
                place = place_of(error, type(handler).__module__.partition(".")[0])
                limited.warning(place, "a try of %s failed: %s at %s", claimed.type, fault_of(error), place)
            await self._endings.fail(claimed, judge(error, handler, phrase, source.codes), source)
        self._nudge()  # for a report that is owed now, or the next of the subject
        return RegisterResult(Status.COMPLETED)

    async def _bundle(
        self,
        claimed: Claimed,
        source: SourceSettings,
        write: Callable[[AsyncConnection], Awaitable[Outcome]],
        result: str | None = None,
        limit: float | None = None,
    ) -> None:
        """All business writes and the row's COMPLETED in one transaction, fenced before the first write.

        ``result`` is stored in place of the outcome's own; ``limit`` is in seconds, as the database's own unless given.
        """
        with span("bundle"):
            async with self._database.transaction(limit) as tx:
                connection = await driver(tx)
                ordered = source.ordered and claimed.subject is not None
                if ordered:  # the lock order: subject, message row, handler's rows
                    await one(connection, LOCK_SUBJECT, fence(claimed))
                held = await one(connection, TAKE_FENCE, fence(claimed))
                if held is None:
                    raise StaleTry
                outcome = await write(tx)
                if not tx.in_transaction():  # or the connection may be somebody else's by now
                    raise TransactionEnded
                notice = outcome.notice
                ending = {
                    "xact": held.xact,
                    "outcome": Jsonb(result or dict(outcome.result)),
                    "notice": notice.kind.value if notice else None,
                    "notice_reason": notice.reason if notice else None,
                    "reports": source.report is not None,
                }
                # Nobody overtakes a locked row: it was ended behind SQLAlchemy's back (COMMIT as text).
                if await one(connection, COMPLETE, fence(claimed) | ending) is None:
                    raise TransactionEnded
                if ordered:
                    await rows(connection, RELEASE[source.order], fence(claimed))

    async def _held(self, claimed: Claimed, work: RegisterInput, source: SourceSettings) -> RegisterResult:
        """Leave a held row to what releases it, unless it is held by a gap whose time is over."""
        gap = BuryInput(claimed.id, claimed.source, claimed.generation, OwnCode.SEQUENCE_GAP)
        if not await bury_for_gap(self._database, self._settings, gap):
            return RegisterResult(HELD)
        self._nudge()
        return await self._endings.closed(work, source)


def _is_too_short(timeouts: Timeouts) -> bool:
    """Tell whether the attempt ends before a try may; what dispatched it need not have the handler."""
    given = activity.info().start_to_close_timeout
    return given is not None and given < timedelta(seconds=timeouts.start_to_close)


async def _nothing(_: AsyncConnection) -> Outcome:
    return Outcome()


def _message(claimed: Claimed, handler: Handler[Any, Any], source: SourceSettings) -> Message[Any]:
    """Build what the handler sees. Raises PayloadGone or InvalidPayload."""
    if claimed.body is None or claimed.content_type is None:
        raise PayloadGone
    return Message(
        tenant=claimed.tenant,
        source=claimed.source,
        id=claimed.message_id,
        edition=claimed.edition,
        type=claimed.type,
        subject=claimed.subject,
        received_at=claimed.received_at,
        zone=ZoneInfo(source.zone),
        payload=read_payload(handler.payload, claimed.content_type, claimed.body),
    )
