"""ProcessMessage: one message, keyed by its ID, until its row is closed (spec section 7)."""

from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from inbox.references import GONE, PROCESS_MESSAGE, WAKE, ProcessMessageInput, RegisterInput, RegisterResult
    from workflows.policies import CODE, QUICK, STATUS

DEAD = "DEAD"
ENDED = ("COMPLETED", DEAD, GONE)
OPEN = RegisterResult("OPEN")


@workflow.defn(name=PROCESS_MESSAGE)
class ProcessMessage:
    """Runs ``register`` until the row says that it is closed; ends Failed, with the code, where it is DEAD."""

    def __init__(self) -> None:
        self._wakes = 0

    @workflow.signal(name=WAKE)
    def wake(self, _generation: int) -> None:
        """Re-read the row: it was made due again (redriven, released, or not heard of for long)."""
        self._wakes += 1

    @workflow.run
    async def run(self, message: ProcessMessageInput) -> RegisterResult:
        """Return how the row was closed. Raises ApplicationError with the row's code where it is DEAD."""
        while True:
            seen = self._wakes
            result = await self._register(message)
            # A wake that came meanwhile may mean a redrive of what was just closed: never end with one unread.
            if result.status in ENDED and self._wakes == seen:
                break
        if result.status == DEAD:
            self._show_dead(result)
            raise ApplicationError(f"DEAD: {result.code}", type=result.code, non_retryable=True)
        return result

    async def _register(self, message: ProcessMessageInput) -> RegisterResult:
        """Run tries until one closes the row; Temporal does the retrying."""
        try:
            result: RegisterResult = await workflow.execute_activity(
                "register",
                RegisterInput(message.message, message.source, message.type, workflow.info().first_execution_run_id),
                result_type=RegisterResult,
                start_to_close_timeout=timedelta(seconds=message.start_to_close),
                heartbeat_timeout=timedelta(seconds=message.heartbeat),
                retry_policy=QUICK,
                summary=f"{message.type} from {message.source}",
            )
            return result
        except ActivityError as error:
            match error.cause:
                case ApplicationError(details=(status, code, hint)) if status == DEAD:
                    return RegisterResult(DEAD, code, hint)
                case ApplicationError():
                    # Ended from outside (failed by hand, or its attempts cut short), without a verdict on the row:
                    # the row decides, and counts.
                    return OPEN
            raise

    def _show_dead(self, result: RegisterResult) -> None:
        workflow.upsert_search_attributes([STATUS.value_set(DEAD), CODE.value_set(result.code or "")])
        hint = f"\n\n{result.hint}" if result.hint else ""
        workflow.set_current_details(
            f"**DEAD**: `{result.code}`{hint}\n\nRedrive it when the cause is mended: "
            f"`inbox redrive {workflow.info().workflow_id.partition('/')[2]}`"
        )
