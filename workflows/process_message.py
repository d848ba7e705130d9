"""ProcessMessage: one message, keyed by its ID, until its row is closed (spec section 7)."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    from inbox.references import (
        GONE,
        HELD,
        LONGER,
        OVERTAKEN,
        PROCESS_MESSAGE,
        TRIED,
        WAKE,
        BuryInput,
        ProcessMessageInput,
        RegisterInput,
        RegisterResult,
        Tried,
    )
    from workflows import details
    from workflows.policies import CODE, QUICK, STATUS

DEAD = "DEAD"
ENDED = ("COMPLETED", DEAD, GONE)
OPEN = RegisterResult("OPEN")
# Whoever waits for its order is woken when its turn comes; but not where a command closed its row meanwhile.
LOOK_AGAIN = timedelta(days=1)


@workflow.defn(name=PROCESS_MESSAGE)
class ProcessMessage:
    """Runs ``register`` until the row says that it is closed; ends Failed, with the code, where it is DEAD."""

    @workflow.init
    def __init__(self, message: ProcessMessageInput) -> None:
        self._message = message
        self._generation = message.generation
        self._wakes = 0
        self._failed = False
        self._renewed = False
        self._trying: workflow.ActivityHandle[RegisterResult] | None = None
        self._id = workflow.info().workflow_id
        workflow.set_current_details(details.open_message(self._id))

    @workflow.signal(name=WAKE, description="Re-read the row; dispatch sends it")
    def wake(self, generation: int = 0) -> None:
        """Re-read the row: it was made due again (redriven, released, or not heard of for long), or a hand asks."""
        self._wakes += 1
        if generation <= self._generation:
            return
        self._generation = generation
        if self._trying is not None:
            # An activity of the generation before may wait for its interval, or be paused, and has nothing left to do.
            self._renewed = True
            self._trying.cancel()

    @workflow.signal(name=TRIED, description="A try failed; the worker sends it")
    def tried(self, failed: Tried) -> None:
        """Show operators what the last try failed of, and when the next one is due."""
        self._failed = True
        workflow.upsert_search_attributes([STATUS.value_set("FAILED"), CODE.value_set(failed.code)])
        workflow.set_current_details(details.failed_message(self._id, failed))

    @workflow.update(description="Close the message as DEAD, code DISCARDED")
    async def discard(self) -> RegisterResult:
        """Close the row as DEAD, code DISCARDED, whatever its try is at; return what the row says then.

        Takes no text: an operator's words go through the command line into the row.
        """
        buried = await self._bury("DISCARDED")
        if self._trying is not None:
            self._trying.cancel()  # its next attempt would only find the row closed, and may be a minute away
        else:
            self._wakes += 1  # it waits for its order, which nobody tells a closed row
        return buried

    @workflow.run
    async def run(self, _: ProcessMessageInput) -> RegisterResult:
        """Return how the row was closed. Raises ApplicationError with the row's code where it is DEAD."""
        while True:
            seen = self._wakes
            try:
                result = await self._register()
                if result.status == LONGER:
                    longer = max(result.start_to_close or 0, self._message.start_to_close)
                    self._message = replace(self._message, start_to_close=longer)
                if result.status == OVERTAKEN and result.generation is not None:
                    self._generation = result.generation  # a wake by hand may have brought one that never was
                elif result.status in (OVERTAKEN, HELD):
                    self._continue_if_long()
                    with suppress(TimeoutError):
                        await workflow.wait_condition(partial(self._woken_since, seen), timeout=LOOK_AGAIN)
            except asyncio.CancelledError:
                result = await self._bury("CANCELLED")
            # A wake that came meanwhile may mean a redrive of what was just closed: never end with one unread.
            if result.status in ENDED and not self._woken_since(seen) and workflow.all_handlers_finished():
                break
        workflow.set_current_details(details.closed_message(self._id, result))
        if result.status == DEAD:
            workflow.upsert_search_attributes([STATUS.value_set(DEAD), CODE.value_set(result.code or "")])
            raise ApplicationError(f"DEAD: {result.code}", type=result.code, non_retryable=True)
        if self._failed:
            workflow.upsert_search_attributes([STATUS.value_set(result.status), CODE.value_unset()])
        return result

    def _continue_if_long(self) -> None:
        """Begin a new run of the chain where the history has grown long; one that is held has nothing under way."""
        if workflow.info().is_continue_as_new_suggested():
            workflow.continue_as_new(replace(self._message, generation=self._generation))

    def _woken_since(self, seen: int) -> bool:
        return self._wakes != seen

    async def _register(self) -> RegisterResult:
        """Run tries until one closes the row; Temporal does the retrying."""
        message = self._message
        self._trying = workflow.start_activity(
            "register",
            RegisterInput(
                message.message,
                message.source,
                message.type,
                workflow.info().first_execution_run_id,
                self._generation,
                message.placed,
            ),
            result_type=RegisterResult,
            start_to_close_timeout=timedelta(seconds=message.start_to_close),
            heartbeat_timeout=timedelta(seconds=message.heartbeat),
            retry_policy=QUICK,
            summary=f"{message.type} from {message.source}",
        )
        try:
            return await self._trying
        except ActivityError as error:
            if is_cancelled_exception(error):
                if self._renewed and workflow.cancellation_reason() is None:
                    return OPEN
                # With the execution; or by a discard, which has closed the row already.
                raise asyncio.CancelledError from None
            match error.cause:
                case ApplicationError(details=(status, code, hint, *waiting)) if status == DEAD:
                    return RegisterResult(DEAD, code, hint, *waiting)
            # Ended from outside (failed by hand, or its attempts or its time cut short), without a verdict on the row:
            # the row decides, and counts.
            return OPEN
        finally:
            self._trying = None
            self._renewed = False

    async def _bury(self, code: str) -> RegisterResult:
        """Close the row as DEAD where it is open; return what it says in the end."""
        message = self._message
        buried: RegisterResult = await workflow.execute_activity(
            "bury",
            BuryInput(message.message, message.source, self._generation, code),
            result_type=RegisterResult,
            start_to_close_timeout=timedelta(seconds=message.start_to_close),
            heartbeat_timeout=timedelta(seconds=message.heartbeat),
            retry_policy=QUICK,
            summary=code,
        )
        return buried
