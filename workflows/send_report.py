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

    @workflow.init
    def __init__(self, _: SendReportInput) -> None:
        self._wakes = 0

    @workflow.signal(name=WAKE)
    def wake(self, _generation: int) -> None:
        """Re-read the row, if nothing else will: an activity that is under way does so anyway."""
        self._wakes += 1

    @workflow.run
    async def run(self, report: SendReportInput) -> None:
        """Return once it is sent. Raises ApplicationError of type GIVEN_UP."""
        work = ReportInput(report.report, report.source)
        heartbeat = None if report.heartbeat is None else timedelta(seconds=report.heartbeat)
        while True:
            try:
                await workflow.execute_activity(
                    "send_report",
                    work,
                    start_to_close_timeout=timedelta(seconds=report.start_to_close),
                    heartbeat_timeout=heartbeat,
                    schedule_to_close_timeout=timedelta(seconds=report.give_up_after),
                    retry_policy=QUICK,
                    summary=f"report to {report.source}",
                )
            except ActivityError:
                seen = self._wakes
                await workflow.execute_activity(
                    "give_up_report",
                    work,
                    start_to_close_timeout=timedelta(seconds=report.start_to_close),
                    heartbeat_timeout=heartbeat,
                    retry_policy=QUICK,
                )
                # A wake that came meanwhile may mean that it is to be sent again: never end with one unread.
                if self._wakes == seen:
                    break
            else:
                return
        workflow.upsert_search_attributes([STATUS.value_set(GIVEN_UP), CODE.value_set(GIVEN_UP)])
        raise ApplicationError("upstream did not take the report in time", type=GIVEN_UP)
