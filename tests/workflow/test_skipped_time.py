"""What takes minutes and days in life."""

from pathlib import Path

from temporalio.client import WorkflowExecutionStatus, WorkflowHistoryEventFilterType

from inbox.burial import discard, send_again
from inbox.message import Key
from inbox.references import PROCESS_MESSAGE, ProcessMessageInput
from tests.support.operating import Operator
from tests.support.stack import Stack, survey
from tests.support.waiting import eventually


async def test_five_tries_a_minute_apart_end_dead_and_reported(stack: Stack) -> None:
    stack.configure(retry_interval=60)
    await stack.start()
    await stack.hospital.control(reports=[500] * 3)
    message = survey(formCd="P-UNKNOWN")
    await stack.legacy(message)
    row = await stack.closed(message["srvyDrawupNo"], limit=60)
    assert (row["status"], row["last_code"], row["tries"]) == ("DEAD", "FORM_NOT_REGISTERED", 5)
    lines = await stack.attempts(message["srvyDrawupNo"])
    assert [line["number"] for line in lines] == [1, 2, 3, 4, 5]
    handle = stack.temporal.get_workflow_handle(row["workflow_id"])
    status = await eventually(
        lambda: stack.execution_status(row["workflow_id"]), lambda found: found != WorkflowExecutionStatus.RUNNING
    )
    assert status == WorkflowExecutionStatus.FAILED
    closing = [
        event
        async for event in handle.fetch_history_events(event_filter_type=WorkflowHistoryEventFilterType.CLOSE_EVENT)
    ]
    failure = closing[0].workflow_execution_failed_event_attributes.failure
    assert failure.application_failure_info.type == "FORM_NOT_REGISTERED"
    await stack.reported(message["srvyDrawupNo"], limit=60)
    body = (await stack.hospital.seen())["reports"][-1]["body"]
    assert body == {
        "srvyDrawupNo": message["srvyDrawupNo"],
        "result": "N",
        "code": "FORM_NOT_REGISTERED",
        "reason": "form P-UNKNOWN is not registered",
    }
    started, ended = (await handle.describe()).start_time, (await handle.describe()).close_time
    assert ended is not None
    assert (ended - started).total_seconds() >= 4 * 60  # four intervals between five tries, on Temporal's clock


async def test_a_report_is_tried_until_its_time_is_used_and_then_given_up(stack: Stack) -> None:
    hours = 6  # seven days by default: each wait of an hour takes this server a second
    stack.configure(tries=1, report={"url": f"{stack.hospital.url}/reports", "give_up_after": hours * 3600})
    await stack.start()
    await stack.hospital.control(reports=[500] * 100)
    message = survey(formCd="P-UNKNOWN")
    await stack.legacy(message)
    await stack.reported(message["srvyDrawupNo"], "GIVEN_UP", limit=120)
    (report,) = await stack.reports(message["srvyDrawupNo"])
    # The waits double from a second to 2048 s, which is 12 of them, and are an hour each from then on.
    assert 12 + 3 <= report["tries"] <= 12 + 6
    handle = stack.temporal.get_workflow_handle(report["workflow_id"])
    described = await eventually(handle.describe, lambda found: found.close_time is not None)
    assert described.status == WorkflowExecutionStatus.FAILED
    assert described.close_time is not None
    elapsed = (described.close_time - described.start_time).total_seconds() / 3600
    assert hours - 1.2 <= elapsed <= hours + 0.1


async def test_a_report_outlasts_a_day_without_upstream(stack: Stack) -> None:
    """12 growing waits, then one an hour; this server takes a second for each."""
    stack.configure(tries=1)
    await stack.start()
    await stack.hospital.control(reports=[500] * 36)
    message = survey(formCd="P-UNKNOWN")
    await stack.legacy(message)
    await stack.reported(message["srvyDrawupNo"], limit=240)
    (report,) = await stack.reports(message["srvyDrawupNo"])
    assert (report["state"], report["tries"]) == ("SENT", 37)
    handle = stack.temporal.get_workflow_handle(report["workflow_id"])
    described = await eventually(handle.describe, lambda found: found.close_time is not None)
    assert described.close_time is not None
    assert described.status == WorkflowExecutionStatus.COMPLETED
    assert (described.close_time - described.start_time).total_seconds() > 24 * 3600
    assert len({told["key"] for told in (await stack.hospital.seen())["reports"]}) == 1


async def test_a_report_given_up_after_days_is_sent_again(stack: Stack) -> None:
    hours = 3
    stack.configure(tries=1, report={"url": f"{stack.hospital.url}/reports", "give_up_after": hours * 3600})
    await stack.start()
    await stack.hospital.control(reports=[500] * 100)
    message = survey(formCd="P-UNKNOWN")
    await stack.legacy(message)
    await stack.reported(message["srvyDrawupNo"], "GIVEN_UP", limit=120)
    assert (await stack.get("/backlog")).json()["givenUp"]["count"] == 1
    (report,) = await stack.reports(message["srvyDrawupNo"])
    handle = stack.temporal.get_workflow_handle(report["workflow_id"])
    first = await eventually(handle.describe, lambda found: found.close_time is not None)
    await stack.hospital.control(reports=[500])  # fails once more: the next call is an hour later
    await send_again(stack.database, Key("", "hospital", message["srvyDrawupNo"]))
    await stack.reported(message["srvyDrawupNo"], limit=120)
    second = await eventually(handle.describe, lambda found: found.close_time is not None)
    assert (second.run_id == first.run_id, second.status) == (False, WorkflowExecutionStatus.COMPLETED)
    assert second.close_time is not None
    assert (second.close_time - second.start_time).total_seconds() >= 2000
    assert (await stack.get("/backlog")).json()["givenUp"]["count"] == 0
    assert len({told["key"] for told in (await stack.hospital.seen())["reports"]}) == 1


async def test_an_execution_that_waits_for_its_order_ends_when_a_command_closed_its_row(
    stack: Stack, tmp_path: Path
) -> None:
    operator = Operator(stack, tmp_path)
    await operator.start()
    first = await operator.in_a_try()
    message = survey(patno=first["subject"])
    await stack.legacy(message)
    held = await stack.eventually_row("SELECT * FROM inbox.message WHERE held_behind = %s", first["id"])
    # Most that are held have no execution; one that was tried before has.
    handle = await stack.temporal.start_workflow(
        PROCESS_MESSAGE,
        ProcessMessageInput(held["id"], "hospital", held["type"], 30, 1.5),
        id=held["workflow_id"],
        task_queue=stack.name,
    )

    async def asked() -> bool:
        events = [event async for event in handle.fetch_history_events()]
        return any(event.HasField("activity_task_completed_event_attributes") for event in events)

    await eventually(asked)
    await discard(stack.database, stack.settings, Key("", "hospital", held["message_id"]), "by hand")
    assert await operator.ended(handle.id) == WorkflowExecutionStatus.FAILED
    await operator.settled()
