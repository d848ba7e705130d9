"""How a try ends without a bundle: its failure is recorded, its row buried, or found closed (spec sections 3, 7)."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, NoReturn

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError

from inbox.errors import StaleTry, StoreUnavailable, fault_of
from inbox.handler import Handler
from inbox.references import GONE, MOST_COUNTED, TRIED, RegisterInput, RegisterResult, Tried
from inbox.settings import Settings
from inbox.sources import SourceSettings
from inbox.states import CLOSED, OwnCode, Status
from inbox.store.engine import Database, Statement
from inbox.store.order import LOCK_SUBJECT, RELEASE
from inbox.store.reads import COUNT_BEHIND
from inbox.store.statements import BURY, FAIL, LOCK_MESSAGE, READ_STANDING, Claimed, Ended
from inbox.verdict import Verdict, hint_for


class Endings:
    """Holds what it needs. ``nudge`` is called once something may have become due: dispatch looks at once."""

    def __init__(
        self,
        database: Database,
        handlers: Mapping[str, Handler[Any, Any]],
        settings: Settings,
        nudge: Callable[[], None],
    ) -> None:
        self._database = database
        self._handlers = handlers
        self._settings = settings
        self._nudge = nudge

    async def fail(self, claimed: Claimed, verdict: Verdict, source: SourceSettings) -> NoReturn:
        """Record the failure in a transaction of its own, and raise what makes Temporal do the rest.

        StaleTry where the try was overtaken.
        """
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
            ended = await self._end(FAIL, fence(claimed) | record, source)
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

    async def exhausted(self, claimed: Claimed, source: SourceSettings) -> NoReturn:
        """Bury a row that reached its limit without a verdict: its last try was lost, or the limit lowered.

        Raises what ends the execution, or StaleTry where the row was closed meanwhile.
        """
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

    async def closed(self, work: RegisterInput, source: SourceSettings) -> RegisterResult:
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


def fence(claimed: Claimed) -> dict[str, Any]:
    """Return what everything that a try writes is fenced by (spec section 3)."""
    return {"id": claimed.id, "generation": claimed.generation, "tries": claimed.tries}


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
