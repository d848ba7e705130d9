"""Register: one try of one message. Claim, prepare, bundle; or the failure's record (spec sections 3, 7, 8)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, NoReturn
from zoneinfo import ZoneInfo

from psycopg.types.json import Jsonb
from sqlalchemy.ext.asyncio import AsyncConnection
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError

from activities.failures import codes_only
from inbox.burial import bury_for_gap
from inbox.errors import InboxError, PayloadGone, StaleTry, StoreUnavailable, TransactionEnded, fault_of, place_of
from inbox.handler import Handler, Message, Outcome, timeout_of
from inbox.logs import LimitedLog
from inbox.payload import read_payload
from inbox.references import (
    GONE,
    HELD,
    LONGER,
    MOST_COUNTED,
    OVERTAKEN,
    TRIED,
    BuryInput,
    RegisterInput,
    RegisterResult,
    Tried,
)
from inbox.settings import Settings, SourceSettings
from inbox.spans import span
from inbox.states import CLOSED, OBSOLETE, OwnCode, Status
from inbox.store.engine import Database, Statement, driver, one, rows
from inbox.store.order import DECIDE, LOCK_SUBJECT, RELEASE
from inbox.store.reads import COUNT_BEHIND
from inbox.store.statements import (
    BURY,
    CLAIM,
    COMPLETE,
    FAIL,
    LOCK_MESSAGE,
    READ_STANDING,
    SET_ASIDE,
    TAKE_FENCE,
    Claimed,
    Ended,
)
from inbox.timeouts import Timeouts
from inbox.verdict import Verdict, hint_for, judge, kept_in

log = logging.getLogger(__name__)
limited = LimitedLog(log)
HEARTBEATS = 5  # in one heartbeat time-out
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

    @activity.defn(name="register")
    async def register(self, work: RegisterInput) -> RegisterResult:
        """Do one try, or find the row closed.

        Raises ApplicationError: for a failed try with the code as its type and the delay of the next; where the
        row is left DEAD non-retryable, with status, code, hint and how many wait as details; and a plain retryable one
        where no try was spent or its end could not be recorded.
        """
        with codes_only():
            return await self._register(work)

    async def _register(self, work: RegisterInput) -> RegisterResult:
        async with _heartbeats(self._settings.declared.timeouts.heartbeat / HEARTBEATS):
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
                return await self._closed(work, source)

    async def _claim_and_try(
        self, work: RegisterInput, handler: Handler[Any, Any], source: SourceSettings, timeouts: Timeouts
    ) -> RegisterResult:
        claimed = await self._claim(work, source, timeouts)
        match claimed:
            case Claimed(answer="CLAIMED"):
                return await self._try(claimed, handler, source, timeouts)
            case Claimed(answer="EXHAUSTED"):
                return await self._exhausted(claimed, source)
            case Claimed(answer="OVERTAKEN"):
                return RegisterResult(OVERTAKEN, generation=claimed.generation)
            case Claimed(answer="HELD"):
                return await self._held(claimed, work, source)
            case _:  # closed, or a later attempt holds it
                return await self._closed(work, source)

    async def _set_aside(self, work: RegisterInput, missing: str) -> NoReturn:
        """Leave a message to a worker that serves it: no try is spent, and nobody else is held up."""
        log.error("a message of %s waits: this worker has no %s", work.type, missing, extra={"source": work.source})
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
            return await self._fail(claimed, judge(error, handler, phrase, source.codes), source)
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
                    await one(connection, LOCK_SUBJECT, _fence(claimed))
                held = await one(connection, TAKE_FENCE, _fence(claimed))
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
                if await one(connection, COMPLETE, _fence(claimed) | ending) is None:
                    raise TransactionEnded
                if ordered:
                    await rows(connection, RELEASE[source.order], _fence(claimed))

    async def _fail(self, claimed: Claimed, verdict: Verdict, source: SourceSettings) -> NoReturn:
        """Record the failure in a transaction of its own, and raise what makes Temporal do the rest."""
        delay = source.retry_after(claimed.tries - claimed.tries_before) * random.uniform(1.0, 1.1)
        record = {
            "code": verdict.code,
            "reason": verdict.reason,
            "told": verdict.told,
            "error_class": verdict.error_class,
            "non_retryable": verdict.non_retryable,
            "delay": delay,
            "began_at": claimed.began_at,
            "reports": source.report is not None,
            "park": source.parks,
        }
        try:
            ended = await self._end(FAIL, _fence(claimed) | record, source)
        except StoreUnavailable as error:
            # Recorded or lost, the try is over, and the next one is due after the source's interval all the same.
            raise ApplicationError(
                str(fault_of(error)), type="StoreUnavailable", next_retry_delay=timedelta(seconds=delay)
            ) from None
        if ended is None:  # overtaken; or the bundle's commit, whose answer was lost, had taken effect
            raise StaleTry
        number = ended.tries - ended.tries_before
        text = f"try {number} of {ended.max_tries}"
        waiting = 0
        if claimed.subject is not None and (source.parks if ended.status == Status.DEAD else source.ordered):
            waiting = await self._waiting(claimed.id, source)
        if ended.status == Status.DEAD:
            _raise_dead(text, verdict.code, self._hint(verdict.code, claimed), waiting)
        hint = self._hint(verdict.code, claimed)
        await self._tell(Tried(number, ended.max_tries, verdict.code, hint, delay, waiting))
        raise ApplicationError(
            text,
            type=verdict.code,
            next_retry_delay=timedelta(seconds=delay),
            category=ApplicationErrorCategory.BENIGN,
        ) from None

    async def _end(self, statement: Statement[Ended], params: dict[str, Any], source: SourceSettings) -> Ended | None:
        """End a try without a bundle, and let the subject's next go."""
        locks = [LOCK_SUBJECT, LOCK_MESSAGE] if source.ordered else [LOCK_MESSAGE]
        after = [RELEASE[source.order]] if source.ordered else []
        ended = await self._database.locked(statement, params, before=locks, after=after)
        self._nudge()
        return ended

    async def _waiting(self, message: int, source: SourceSettings) -> int:
        """Count who waits behind a message, for operators; while Postgres is away they see less."""
        if not source.ordered:
            return 0
        asked = {"id": message, "most": MOST_COUNTED}
        with suppress(StoreUnavailable):
            found = await self._database.one(COUNT_BEHIND[source.order], asked)
            return found.rows if found else 0
        return 0

    async def _tell(self, tried: Tried) -> None:
        """Tell the workflow of a failed try, for the operators who look at it; if it cannot be told, they see less."""
        info = activity.info()
        handle = activity.client().get_workflow_handle(info.workflow_id or "", run_id=info.workflow_run_id)
        with suppress(RPCError, RuntimeError):
            await handle.signal(TRIED, tried, rpc_timeout=timedelta(seconds=self._settings.declared.timeouts.rpc))

    async def _exhausted(self, claimed: Claimed, source: SourceSettings) -> RegisterResult:
        """Bury a row that reached its limit without a verdict: its last try was lost, or the limit lowered."""
        lost = claimed.status == Status.PROCESSING or claimed.last_code is None
        code = OwnCode.TRY_LOST if lost else claimed.last_code
        reason = "no answer from its last worker" if lost else claimed.last_reason
        own = code in set(OwnCode)
        burial = {
            "id": claimed.id,
            "generation": claimed.generation,
            "tries": claimed.tries,
            "code": code,
            "reason": reason,
            "told": self._settings.system_phrase(claimed.source) if own else reason,
            "reports": source.report is not None,
            "park": source.parks,
        }
        if await self._end(BURY, burial, source) is None:
            raise StaleTry
        parked = source.parks and claimed.subject is not None
        waiting = await self._waiting(claimed.id, source) if parked else 0
        _raise_dead("no tries left", code, self._hint(code, claimed), waiting)

    async def _held(self, claimed: Claimed, work: RegisterInput, source: SourceSettings) -> RegisterResult:
        """Leave a held row to what releases it, unless it is held by a gap whose time is over."""
        gap = BuryInput(claimed.id, claimed.source, claimed.generation, OwnCode.SEQUENCE_GAP)
        if not await bury_for_gap(self._database, self._settings, gap):
            return RegisterResult(HELD)
        self._nudge()
        return await self._closed(work, source)

    async def _closed(self, work: RegisterInput, source: SourceSettings) -> RegisterResult:
        """Return how the row was closed. Raises ApplicationError, retryable, where another try holds it."""
        row = await self._database.one(READ_STANDING, {"id": work.message})
        if row is None:
            return RegisterResult(GONE)
        if row.status in CLOSED:
            waiting = await self._waiting(work.message, source) if row.parked else 0
            return RegisterResult(row.status, row.last_code, self._hint(row.last_code, work), waiting)
        raise ApplicationError("another try holds the row", type="SUPERSEDED", category=ApplicationErrorCategory.BENIGN)

    def _hint(self, code: str | None, message: Claimed | RegisterInput) -> str | None:
        own = [handler for kind, handler in self._handlers.items() if kind == message.type]
        return hint_for(code, own, self._settings.codes(message.source))


def _raise_dead(text: str, code: str | None, hint: str | None, waiting: int) -> NoReturn:
    raise ApplicationError(
        text,
        Status.DEAD.value,
        code,
        hint,
        waiting,
        type=code,
        non_retryable=True,
        category=ApplicationErrorCategory.BENIGN,
    ) from None


def _is_too_short(timeouts: Timeouts) -> bool:
    """Tell whether the attempt ends before a try may; what dispatched it need not have the handler."""
    given = activity.info().start_to_close_timeout
    return given is not None and given < timedelta(seconds=timeouts.start_to_close)


async def _nothing(_: AsyncConnection) -> Outcome:
    return Outcome()


def _fence(claimed: Claimed) -> dict[str, Any]:
    return {"id": claimed.id, "generation": claimed.generation, "tries": claimed.tries}


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


@asynccontextmanager
async def _heartbeats(interval: float) -> AsyncIterator[None]:
    """Heartbeat from a task of its own, so that a lost worker is noticed within one heartbeat time-out."""

    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(interval)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
