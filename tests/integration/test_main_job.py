"""A message from the door to its bundle, or to DEAD and its report."""

import asyncio

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from tests.support.stack import Stack, event, survey
from tests.support.waiting import eventually


async def test_a_message_is_registered_as_one_bundle(stack: Stack) -> None:
    await stack.start()
    message = survey()
    answer = await stack.legacy(message)
    assert answer.status_code == 200
    assert answer.headers["X-Result"] == "Y"
    assert answer.json()["duplicate"] is False
    row = await stack.closed(message["srvyDrawupNo"])
    assert (row["status"], row["tries"], row["outcome"]) == ("COMPLETED", 1, {"sent": True, "surveyNo": "PS001"})
    assert row["due_at"] is None
    assert row["workflow_id"] == f"{stack.name}/hospital/{message['srvyDrawupNo']}"
    assert await stack.bundles(message["srvyDrawupNo"]) == (1, 1, 1, 1)
    result = await stack.temporal.get_workflow_handle(row["workflow_id"]).result()
    assert result["status"] == "COMPLETED"
    assert await stack.attempts(message["srvyDrawupNo"]) == []
    assert row["report_state"] is None


async def test_both_doors_share_one_identity(stack: Stack) -> None:
    await stack.start()
    message = survey()
    first = await stack.post(event(message, id=message["srvyDrawupNo"], partitionkey=message["patno"]))
    assert first.status_code == 202
    assert first.headers["Location"] == f"/messages/hospital/{message['srvyDrawupNo']}"
    await stack.closed(message["srvyDrawupNo"])
    second = await stack.legacy(message)
    assert second.json()["duplicate"] is True
    assert second.json()["status"] == "COMPLETED"
    assert second.json()["outcome"] == {"sent": True, "surveyNo": "PS001"}
    third = await stack.post(event(message, id=message["srvyDrawupNo"]))
    assert third.status_code == 200
    assert (await stack.row(message["srvyDrawupNo"]))["duplicates"] == 2
    assert await stack.bundles(message["srvyDrawupNo"]) == (1, 1, 1, 1)


async def test_200_parallel_deliveries_over_both_doors_make_one_of_everything(stack: Stack) -> None:
    await stack.start()
    message = survey()
    cloudevent = event(message, id=message["srvyDrawupNo"])
    answers = await asyncio.gather(*(stack.legacy(message) if n % 2 else stack.post(cloudevent) for n in range(200)))
    assert {answer.status_code for answer in answers} <= {200, 202}
    assert sum(answer.json()["duplicate"] is False for answer in answers) == 1
    row = await stack.closed(message["srvyDrawupNo"])
    assert (row["duplicates"], row["tries"]) == (199, 1)
    assert await stack.bundles(message["srvyDrawupNo"]) == (1, 1, 1, 1)
    query = f"WorkflowId = '{row['workflow_id']}'"
    executions = await eventually(
        lambda: _all(stack, query), lambda found: [e.status for e in found] == [WorkflowExecutionStatus.COMPLETED]
    )
    assert len(executions) == 1


async def _all(stack: Stack, query: str) -> list:
    return [execution async for execution in stack.temporal.list_workflows(query)]


async def test_a_form_registered_between_two_tries_lets_the_third_complete(stack: Stack) -> None:
    stack.configure(retry_interval=1.0)
    await stack.start()
    message = survey(formCd="P-LATE")
    await stack.legacy(message)
    await eventually(lambda: stack.attempts(message["srvyDrawupNo"]), lambda lines: len(lines) == 2)
    form = {"surveyNo": "PS009", "group": "G-PS009", "distributed": True}
    await stack.hospital.control(forms={"P-LATE": form} | stack.hospital.forms)
    row = await stack.closed(message["srvyDrawupNo"])
    assert (row["status"], row["tries"]) == ("COMPLETED", 3)
    lines = await stack.attempts(message["srvyDrawupNo"])
    assert [(line["number"], line["code"]) for line in lines] == [
        (1, "FORM_NOT_REGISTERED"),
        (2, "FORM_NOT_REGISTERED"),
    ]
    assert all(line["reason"] == "form P-LATE is not registered" for line in lines)
    assert all(line["began_at"] <= line["ended_at"] and line["worker"] and line["run_id"] for line in lines)
    assert await stack.bundles(message["srvyDrawupNo"]) == (1, 1, 1, 1)
    assert row["report_state"] is None


@pytest.mark.parametrize(
    ("form", "code", "reason"),
    [
        ("등록-안됨-Ғ", "FORM_NOT_REGISTERED", "form 등록-안됨-Ғ is not registered"),
        ("P-NOGROUP", "GROUP_NOT_FOUND", "form P-NOGROUP: survey X1 has no group"),
        ("P-NODIST", "FORM_NOT_DISTRIBUTED", "form P-NODIST is not distributed"),
    ],
)
async def test_a_dead_message_is_reported_with_its_own_reason(stack: Stack, form: str, code: str, reason: str) -> None:
    stack.configure(tries=2)
    await stack.start()
    message = survey(formCd=form)
    await stack.legacy(message)
    row = await stack.reported(message["srvyDrawupNo"])
    assert (row["status"], row["last_code"], row["tries"]) == ("DEAD", code, 2)
    assert row["dead_at"] == row["closed_at"]
    seen = await stack.hospital.seen()
    assert [report["body"] for report in seen["reports"]] == [
        {"srvyDrawupNo": message["srvyDrawupNo"], "result": "N", "code": code, "reason": reason}
    ]
    assert await stack.bundles(message["srvyDrawupNo"]) == (0, 0, 0, 0)
    with pytest.raises(WorkflowFailureError) as failed:
        await stack.temporal.get_workflow_handle(row["workflow_id"]).result()
    assert isinstance(failed.value.cause, ApplicationError)
    assert failed.value.cause.type == code
    duplicate = (await stack.legacy(message)).json()
    assert (duplicate["duplicate"], duplicate["code"], duplicate["reason"]) == (True, code, reason)


async def test_a_system_error_is_told_by_a_fixed_phrase_and_kept_by_class_and_status(stack: Stack) -> None:
    stack.configure(tries=1)
    await stack.start()
    await stack.hospital.control(down=True)
    message = survey()
    await stack.legacy(message)
    row = await stack.closed(message["srvyDrawupNo"])
    assert (row["last_code"], row["last_reason"]) == ("SYSTEM_ERROR", "HTTPStatusError 503")
    lines = await stack.attempts(message["srvyDrawupNo"])
    assert [line["error_class"] for line in lines] == ["HTTPStatusError"]
    await stack.hospital.control(down=False)
    await stack.reported(message["srvyDrawupNo"])
    body = (await stack.hospital.seen())["reports"][-1]["body"]
    assert (body["code"], body["reason"]) == ("SYSTEM_ERROR", "system error")


async def test_too_late_to_be_sent_is_registered_and_told(stack: Stack) -> None:
    await stack.start()
    message = survey(sendDt="20200101000000")
    await stack.legacy(message)
    row = await stack.reported(message["srvyDrawupNo"])
    assert (row["status"], row["outcome"]["sent"]) == ("COMPLETED", False)
    assert await stack.bundles(message["srvyDrawupNo"]) == (1, 1, 1, 1)
    schedule = await stack.sql("SELECT state FROM survey.schedule WHERE message_id = %s", message["srvyDrawupNo"])
    assert schedule == [{"state": "NOT_SENT"}]
    body = (await stack.hospital.seen())["reports"][0]["body"]
    assert (body["result"], body["code"]) == ("Y", "NOT_SENT")


@pytest.mark.parametrize(
    "send_dt", ["", None, "soon", "20261301000000", 20991201093000, "２０９９１２０１０９３０００"]
)
async def test_an_unreadable_send_time_means_the_time_of_receipt(stack: Stack, send_dt: object) -> None:
    await stack.start()
    message = survey(sendDt=send_dt)
    assert (await stack.legacy(message)).headers["X-Result"] == "Y"
    row = await stack.closed(message["srvyDrawupNo"])
    assert row["status"] == "COMPLETED"
    schedule = await stack.sql("SELECT send_at, state FROM survey.schedule")
    assert schedule == [{"send_at": row["received_at"], "state": "PLANNED"}]


async def test_a_payload_that_does_not_fit_is_dead_at_once(stack: Stack) -> None:
    await stack.start()
    await stack.post(event({"patno": "1"}, id="E-1"))
    row = await stack.reported("E-1")
    assert (row["status"], row["last_code"], row["tries"]) == ("DEAD", "INVALID_PAYLOAD", 1)


async def test_a_counter_moves_once(stack: Stack) -> None:
    await stack.start()
    counted = event({"counter": "reports"}, source="report-producer", type="report.count", id="E-42")
    answers = await asyncio.gather(*(stack.post(counted, "token-of-report-producer") for _ in range(50)))
    assert sorted(answer.status_code for answer in answers) == [200] * 49 + [202]
    row = await stack.closed("E-42")
    assert row["outcome"] == {"value": 1}
    assert await stack.sql("SELECT * FROM reporting.counter") == [{"name": "reports", "value": 1}]


async def test_look_ups_are_made_once_for_each_key(stack: Stack) -> None:
    await stack.start()
    await stack.hospital.control(delays=True)
    messages = [survey(formCd="P-EQ5D" if n % 2 else "P-PHQ9", patno=f"9{n:08}") for n in range(20)]
    await asyncio.gather(*(stack.legacy(message) for message in messages))
    for message in messages:
        await stack.closed(message["srvyDrawupNo"])
    seen = await stack.hospital.seen()
    # An empty list of consents (P-PHQ9's) is kept like any other answer.
    assert seen["lookups"] == {"form": {"P-EQ5D": 1, "P-PHQ9": 1}, "consents": {"PS001": 1, "PS002": 1}}
    assert set(seen["guests"].values()) == {1}
