"""What operators do to a report's execution, or to a burial, leaves the report told once and the row right."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from inbox.burial import send_again
from inbox.message import Key
from tests.support.operating import Operator
from tests.support.stack import Stack
from tests.support.waiting import eventually

DOWN = [500] * 1000
NONSENSE = ["null", "{}", '"SENT"', '{"state": "SENT"}', "[1, 2]"]


@pytest.fixture
async def operator(stack: Stack, tmp_path: Path) -> Operator:
    return Operator(stack, tmp_path)


@asynccontextmanager
async def locked(operator: Operator, row: dict[str, Any]) -> AsyncIterator[None]:
    """Lock a message, so that whatever would change it or its report waits, gives up and comes again.

    It is let go while nobody waits for it: what was ended by hand does not do its work all the same.
    """
    async with await psycopg.AsyncConnection.connect(operator.stack.url) as connection:
        await connection.execute("SELECT FROM inbox.message WHERE id = %s FOR UPDATE", [row["id"]])
        yield
        waiting = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        await eventually(lambda: operator.stack.sql(waiting), lambda found: not found)


async def sending(operator: Operator) -> dict[str, Any]:
    """Return a DEAD message whose report is not taken; its report's execution is its `workflow_id`."""
    row = await operator.dead("SENDING")
    (report,) = await operator.stack.reports(row["message_id"])
    return row | {"workflow_id": report["workflow_id"]}


async def owed_again(operator: Operator) -> None:
    """Let the time pass until dispatch looks at a report that nobody tells any more."""
    await operator.stack.sql(
        "UPDATE inbox.report SET next_try_at = NULL, updated_at = now() - interval '1 day', due_at = now()"
        " WHERE closed_at IS NULL"
    )


async def heard(operator: Operator, row: dict[str, Any]) -> list[int]:
    """Return the answers that upstream gave to the message's reports, all under one key."""
    calls = (await operator.stack.hospital.seen())["reports"]
    mine = [call for call in calls if call["key"] == row["workflow_id"]]
    assert {call["body"]["srvyDrawupNo"] for call in calls if call["key"] != row["workflow_id"]}.isdisjoint(
        {row["message_id"]}
    )
    return [call["status"] for call in mine]


MEDDLING = {
    "pause": [["pause"], ["unpause"], ["reset"]],
    "reset": [["reset"]],
    "options": [["update-options", "--retry-maximum-interval", "1s"], ["reset"]],
    "nowhere and back": [["update-options", "--task-queue", "nowhere"], ["reset", "--restore-original-options"]],
}


async def test_a_report_that_is_paused_or_moved_is_told_once_it_is_let_go(operator: Operator) -> None:
    await operator.start()
    await operator.stack.hospital.control(reports=DOWN)
    rows = {name: await sending(operator) for name in MEDDLING}
    await operator.stack.hospital.control(reports=[])

    async def meddle(name: str) -> None:
        for verb, *options in MEDDLING[name]:
            # One may be told meanwhile, and have no activity any more.
            await operator.on_activity(verb, rows[name], *options, kind="send_report", may_be_over=True)

    await asyncio.gather(*map(meddle, MEDDLING))
    await operator.settled()
    for row in rows.values():
        assert (await heard(operator, row)).count(200) == 1
        assert (await operator.row(row))["report_state"] == "SENT"


async def test_a_report_that_is_completed_by_hand_is_told_all_the_same(
    operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    await operator.start()
    await operator.stack.hospital.control(reports=DOWN)
    rows = [await sending(operator) for _ in NONSENSE]
    for row, result in zip(rows, NONSENSE, strict=True):
        await operator.on_activity("complete", row, "--result", result, kind="send_report")
        assert (await operator.ended(row["workflow_id"])).name == "COMPLETED"
        assert (await operator.row(row))["report_state"] == "SENDING"
    await operator.stack.hospital.control(reports=[])
    await owed_again(operator)
    await operator.settled()
    for row in rows:
        assert (await heard(operator, row)).count(200) == 1
    assert "an execution had ended with its row open, and is started again" in caplog.text


@pytest.mark.parametrize("how", ["fail", "cancel", "no time", "one attempt"])
async def test_a_report_that_is_ended_by_hand_is_given_up_and_can_be_sent_again(operator: Operator, how: str) -> None:
    await operator.start()
    await operator.stack.hospital.control(reports=DOWN)
    row = await sending(operator)
    if how == "cancel":
        await operator.obeyed("workflow", "cancel", "--workflow-id", row["workflow_id"])
    elif how == "fail":
        async with locked(operator, row):
            await operator.on_activity("reset", row, kind="send_report")
            await operator.fail_when_it_runs(row, "send_report")
    else:
        options = ["--schedule-to-close-timeout", "1s"] if how == "no time" else ["--retry-maximum-attempts", "1"]
        await operator.on_activity("update-options", row, *options, kind="send_report")
    await operator.stack.reported(row["message_id"], "GIVEN_UP")
    assert (await operator.ended(row["workflow_id"])).name == "FAILED"
    await operator.stack.hospital.control(reports=[])
    await send_again(operator.stack.database, Key("", "hospital", row["message_id"]))
    await operator.settled()
    assert (await heard(operator, row)).count(200) == 1
    assert (await operator.row(row))["report_state"] == "SENT"


@pytest.mark.parametrize("how", ["terminate", "delete"])
async def test_a_report_whose_execution_is_gone_is_told_by_another(operator: Operator, how: str) -> None:
    await operator.start()
    await operator.stack.hospital.control(reports=DOWN)
    row = await sending(operator)
    await operator.obeyed("workflow", how, "--workflow-id", row["workflow_id"])
    await operator.gone(row["workflow_id"])
    await operator.stack.hospital.control(reports=[])
    await owed_again(operator)
    await operator.settled()
    assert (await heard(operator, row)).count(200) == 1


@pytest.mark.parametrize("point", ["FirstWorkflowTask", "LastWorkflowTask"])
async def test_a_report_that_was_told_is_not_told_again_by_a_reset(operator: Operator, point: str) -> None:
    await operator.start()
    row = await operator.dead()
    (report,) = await operator.stack.reports(row["message_id"])
    told = row | {"workflow_id": report["workflow_id"]}
    await operator.ended(told["workflow_id"])
    await operator.reset(told["workflow_id"], point)
    assert (await operator.ended(told["workflow_id"])).name == "COMPLETED"
    await operator.settled()
    assert await heard(operator, told) == [200]
    assert (await operator.stack.reports(row["message_id"]))[0]["tries"] == 1


async def test_a_reset_of_a_report_under_way_and_of_one_given_up(operator: Operator) -> None:
    await operator.start()
    await operator.stack.hospital.control(reports=DOWN)
    under_way, given_up = await sending(operator), await sending(operator)
    await operator.obeyed("workflow", "cancel", "--workflow-id", given_up["workflow_id"])
    await operator.stack.reported(given_up["message_id"], "GIVEN_UP")
    await operator.ended(given_up["workflow_id"])
    await operator.stack.hospital.control(reports=[])
    for row in (under_way, given_up):
        await operator.reset(row["workflow_id"], "FirstWorkflowTask")
    await operator.settled()
    assert (await heard(operator, under_way)).count(200) == 1
    assert (await heard(operator, given_up)).count(200) == 0
    assert (await operator.row(given_up))["report_state"] == "GIVEN_UP"


@pytest.mark.parametrize("verb", ["complete", "fail"])
async def test_giving_up_by_hand_what_is_being_given_up(operator: Operator, verb: str) -> None:
    await operator.start()
    await operator.stack.hospital.control(reports=DOWN)
    row = await sending(operator)
    async with locked(operator, row):
        await operator.obeyed("workflow", "cancel", "--workflow-id", row["workflow_id"])
        if verb == "complete":
            await operator.on_activity("complete", row, "--result", "7", kind="give_up_report")
        else:
            await operator.fail_when_it_runs(row, "give_up_report")
        await operator.ended(row["workflow_id"])
    assert (await operator.row(row))["report_state"] == "SENDING"
    await operator.stack.hospital.control(reports=[])
    await owed_again(operator)
    await operator.settled()
    assert (await operator.row(row))["report_state"] == "SENT"


BURIED = ['{"status": "DEAD", "code": "CANCELLED"}', '{"status": "COMPLETED"}', '{"status": "OPEN"}', "7", "null"]


async def test_a_burial_that_is_ended_by_hand_leaves_the_message_to_be_tried_again(operator: Operator) -> None:
    await operator.start()
    rows = [await operator.between_tries() for _ in [*BURIED, "fail"]]
    await operator.crash.mend()
    for row, result in zip(rows, [*BURIED, None], strict=True):
        async with locked(operator, row):
            await operator.obeyed("workflow", "cancel", "--workflow-id", row["workflow_id"])
            if result is None:
                await operator.fail_when_it_runs(row, "bury")
            else:
                await operator.on_activity("complete", row, "--result", result, kind="bury")
            # Ended, or tried again (OPEN): not waiting for the burial.
            await eventually(lambda r=row: operator.kinds(r["workflow_id"]), lambda kinds: "bury" not in kinds)
        assert (await operator.row(row))["last_code"] != "CANCELLED"
    await operator.make_due()
    await operator.settled()
    found = await operator.stack.sql("SELECT DISTINCT status, tries FROM inbox.message")
    assert found == [{"status": "COMPLETED", "tries": 2}]
