"""SendReport: one notice upstream, in a workflow of its own, so that it may take days (spec section 7)."""

from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from inbox.references import SEND_REPORT, WAKE, ReportInput, SendReportInput
    from workflows.policies import CODE, QUICK, STATUS

GIVEN_UP = "GIVEN_UP"


@workflow.defn(name=SEND_REPORT)
class SendReport:
    """Sends one report until upstream takes it, or its time is used; then it is GIVEN_UP, which is visible."""

    def __init__(self) -> None:
        self._woken = False

    @workflow.signal(name=WAKE)
    def wake(self, _generation: int = 0) -> None:
        """Re-read the row: an operator may have it sent again. An activity under way re-reads it anyway."""
        self._woken = True

    @workflow.run
    async def run(self, report: SendReportInput) -> None:
        """Return once it is sent. Raises ApplicationError of type GIVEN_UP."""
        while True:
            self._woken = False
            if await self._send(report) != GIVEN_UP:
                return
            # Whoever has it sent again between its closing and here finds this execution: never end with a wake unread.
            if not self._woken:
                break
        workflow.upsert_search_attributes([STATUS.value_set(GIVEN_UP), CODE.value_set(GIVEN_UP)])
        raise ApplicationError("upstream did not take the report in time", type=GIVEN_UP)

    async def _send(self, report: SendReportInput) -> str | None:
        """Send it, or give it up when its time is used; return its state in the end, None for sent or not there."""
        work = ReportInput(report.report, report.source)
        heartbeat = None if report.heartbeat is None else timedelta(seconds=report.heartbeat)
        try:
            state: str | None = await workflow.execute_activity(
                "send_report",
                work,
                start_to_close_timeout=timedelta(seconds=report.start_to_close),
                heartbeat_timeout=heartbeat,
                schedule_to_close_timeout=timedelta(seconds=report.give_up_after),
                retry_policy=QUICK,
                summary=f"report to {report.source}",
            )
        except ActivityError:
            self._woken = False  # until now there was nothing to send again
            await workflow.execute_activity(
                "give_up_report",
                work,
                start_to_close_timeout=timedelta(seconds=report.start_to_close),
                heartbeat_timeout=heartbeat,
                retry_policy=QUICK,
            )
            return GIVEN_UP
        return state
