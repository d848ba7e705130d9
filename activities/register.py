"""Register: one try of one message. Claim, prepare, bundle; or the failure's record (spec sections 3, 7, 8)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, NoReturn
from zoneinfo import ZoneInfo

from psycopg.types.json import Jsonb
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError

from activities.failures import codes_only
from activities.verdict import InvalidPayload, PayloadGone, Verdict, hint_for, judge
from inbox.errors import StaleTry, StoreUnavailable, fault_of
from inbox.handler import Handler, Message, Outcome
from inbox.payload import decode
from inbox.references import GONE, OVERTAKEN, TRIED, RegisterInput, RegisterResult, Tried
from inbox.settings import Settings, SourceSettings
from inbox.spans import span
from inbox.states import CLOSED, OwnCode, Status
from inbox.store.engine import Database, driver, one
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
)

log = logging.getLogger(__name__)
HEARTBEATS = 5  # in one heartbeat time-out
LONGEST_ASIDE = 60.0  # seconds until a worker is asked again whether it serves a message


class RegisterActivity:
    """Holds what a try needs. ``owed`` is called once a report was committed, so that dispatch looks at once."""

    def __init__(
        self,
        database: Database,
        handlers: Mapping[str, Handler[Any, Any]],
        settings: Settings,
        worker: str,
        owed: Callable[[], None],
    ) -> None:
        self._database = database
        self._handlers = handlers
        self._settings = settings
        self._worker = worker
        self._owed = owed

    @activity.defn(name="register")
    async def register(self, work: RegisterInput) -> RegisterResult:
        """Do one try, or find the row closed.

        Raises ApplicationError: for a failed try with the code as its type and the delay of the next; where the
        row is left DEAD non-retryable, with status, code and hint as details; and a plain retryable one where no
        try was spent or its end could not be recorded.
        """
        with codes_only():
            return await self._register(work)

    async def _register(self, work: RegisterInput) -> RegisterResult:
        async with _heartbeats(self._settings.declared.timeouts.heartbeat / HEARTBEATS):
            source = self._settings.source(work.source)
            handler = self._handlers.get(work.type)
            if source is None or handler is None:
                await self._set_aside(work, "settings for its source" if source is None else "handler for its type")
            try:
                claimed = await self._claim(work, source)
                match claimed:
                    case Claimed(answer="CLAIMED"):
                        return await self._try(claimed, handler, source)
                    case Claimed(answer="EXHAUSTED"):
                        return await self._exhausted(claimed, source)
                    case Claimed(answer="OVERTAKEN"):
                        return RegisterResult(OVERTAKEN)
                    case _:  # closed, or a later attempt holds it
                        return await self._closed(work)
            except StaleTry:
                return await self._closed(work)

    async def _set_aside(self, work: RegisterInput, missing: str) -> NoReturn:
        """Leave a message to a worker that serves it: no try is spent, and nobody else is held up."""
        log.error("a message waits: this worker has no %s", missing, extra={"source": work.source})
        await self._database.one(SET_ASIDE, {"id": work.message, "again": self._settings.declared.dispatch.again})
        delay = min(2.0 ** min(activity.info().attempt, 10), LONGEST_ASIDE) * random.uniform(1.0, 1.1)
        raise ApplicationError("NotServed", type="NotServed", next_retry_delay=timedelta(seconds=delay))

    async def _claim(self, work: RegisterInput, source: SourceSettings) -> Claimed | None:
        info = activity.info()
        return await self._database.one(
            CLAIM,
            {
                "id": work.message,
                "max_tries": source.tries,
                "worker": self._worker,
                "run_id": info.workflow_run_id,
                "first_run_id": work.first_run_id,
                "activity": info.activity_id,
                "attempt": info.attempt,
                "began_at": info.started_time,
                "asked": work.generation,
            },
        )

    async def _try(self, claimed: Claimed, handler: Handler[Any, Any], source: SourceSettings) -> RegisterResult:
        try:
            message = _message(claimed, handler, source)
            with span("prepare"):
                prepared = await handler.prepare(message)
            with span("bundle"):
                outcome = await self._bundle(claimed, handler, message, prepared, source)
        except StaleTry:
            raise
        except Exception as error:  # noqa: BLE001  whatever a handler raises fails its try
            return await self._fail(
                claimed, judge(error, handler, self._settings.system_phrase(claimed.source)), source
            )
        if outcome.notice is not None or claimed.generation > 1:
            self._owed()
        return RegisterResult(Status.COMPLETED)

    async def _bundle(
        self,
        claimed: Claimed,
        handler: Handler[Any, Any],
        message: Message[Any],
        prepared: Any,
        source: SourceSettings,
    ) -> Outcome:
        """All business writes and the row's COMPLETED in one transaction, fenced before the first write."""
        async with self._database.transaction() as tx:
            connection = await driver(tx)
            if await one(connection, TAKE_FENCE, _fence(claimed)) is None:
                raise StaleTry
            outcome = await handler.register(tx, message, prepared)
            notice = outcome.notice
            ending = {
                "outcome": Jsonb(dict(outcome.result)),
                "notice": notice.kind.value if notice else None,
                "notice_reason": notice.reason if notice else None,
                "reports": source.report is not None,
            }
            if await one(connection, COMPLETE, _fence(claimed) | ending) is None:
                raise StaleTry
        return outcome

    async def _fail(self, claimed: Claimed, verdict: Verdict, source: SourceSettings) -> NoReturn:
        """Record the failure in a transaction of its own, and raise what makes Temporal do the rest."""
        delay = source.retry_interval * random.uniform(1.0, 1.1)
        record = {
            "code": verdict.code,
            "reason": verdict.reason,
            "told": verdict.told,
            "error_class": verdict.error_class,
            "non_retryable": verdict.non_retryable,
            "delay": delay,
            "began_at": claimed.began_at,
            "reports": source.report is not None,
        }
        try:
            ended = await self._database.locked(LOCK_MESSAGE, FAIL, _fence(claimed) | record)
        except StoreUnavailable as error:
            # Recorded or lost, the try is over, and the next one is due after the source's interval all the same.
            raise ApplicationError(
                str(fault_of(error)), type="StoreUnavailable", next_retry_delay=timedelta(seconds=delay)
            ) from None
        if ended is None:  # overtaken; or the bundle's commit, whose answer was lost, had taken effect
            raise StaleTry
        number = ended.tries - ended.tries_before
        text = f"try {number} of {ended.max_tries}"
        if ended.status == Status.DEAD:
            self._owed()
            self._raise_dead(text, verdict.code)
        await self._tell(Tried(number, ended.max_tries, verdict.code, self._hint(verdict.code), delay))
        raise ApplicationError(
            text,
            type=verdict.code,
            next_retry_delay=timedelta(seconds=delay),
            category=ApplicationErrorCategory.BENIGN,
        ) from None

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
        }
        if await self._database.locked(LOCK_MESSAGE, BURY, burial) is None:
            raise StaleTry
        self._owed()
        self._raise_dead("no tries left", code)

    async def _closed(self, work: RegisterInput) -> RegisterResult:
        """Return how the row was closed. Raises ApplicationError, retryable, where another try holds it."""
        row = await self._database.one(READ_STANDING, {"id": work.message})
        if row is None:
            return RegisterResult(GONE)
        if row.status in CLOSED:
            return RegisterResult(row.status, row.last_code, self._hint(row.last_code))
        raise ApplicationError("another try holds the row", type="SUPERSEDED", category=ApplicationErrorCategory.BENIGN)

    def _hint(self, code: str | None) -> str | None:
        return hint_for(code, self._handlers.values())

    def _raise_dead(self, text: str, code: str | None) -> NoReturn:
        raise ApplicationError(
            text,
            Status.DEAD.value,
            code,
            self._hint(code),
            type=code,
            non_retryable=True,
            category=ApplicationErrorCategory.BENIGN,
        ) from None


def _fence(claimed: Claimed) -> dict[str, Any]:
    return {"id": claimed.id, "generation": claimed.generation, "tries": claimed.tries}


def _message(claimed: Claimed, handler: Handler[Any, Any], source: SourceSettings) -> Message[Any]:
    """Build what the handler sees. Raises PayloadGone or InvalidPayload."""
    if claimed.body is None or claimed.content_type is None:
        raise PayloadGone
    try:
        payload = handler.payload.model_validate(decode(claimed.content_type, claimed.body))
    except ValueError:  # pydantic's ValidationError is one; its text would hold the input
        raise InvalidPayload from None
    return Message(
        tenant=claimed.tenant,
        source=claimed.source,
        id=claimed.message_id,
        edition=claimed.edition,
        type=claimed.type,
        subject=claimed.subject,
        received_at=claimed.received_at,
        zone=ZoneInfo(source.zone),
        payload=payload,
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
