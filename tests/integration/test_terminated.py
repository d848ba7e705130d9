"""Executions ended from outside, on the real server: the row ends DEAD where a person ended it, and goes on otherwise."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest, ResetWorkflowExecutionRequest
from temporalio.client import WorkflowExecutionStatus

from inbox import terminated
from inbox.burial import redrive
from inbox.message import Key
from inbox.references import MESSAGE_MEMO, PROCESS_MESSAGE
from inbox.terminated import Terminations
from tests.support.processes import environment, process
from tests.support.stack import Stack, survey
from tests.support.waiting import eventually


@pytest.fixture
async def waiting(stack: Stack) -> tuple[Stack, dict[str, Any]]:
    """A message between two tries, which are far apart."""
    stack.configure({"dispatch": {"again": 2}}, retry_interval=600)
    await stack.start()
    return stack, await failed(stack)


async def failed(stack: Stack) -> dict[str, Any]:
    message = survey(formCd="P-UNKNOWN")
    await stack.legacy(message)
    return await eventually(lambda: stack.row(message["srvyDrawupNo"]), lambda row: row["status"] == "FAILED")


def terminations(stack: Stack) -> Terminations:
    return Terminations(stack.database, stack.temporal, stack.settings, stack.dispatcher.nudge)


async def found(stack: Stack, how_many: int = 1) -> None:
    """Look until visibility has it."""
    looking = terminations(stack)
    seen = 0

    async def look() -> int:
        nonlocal seen
        seen += await looking.look()
        return seen

    await eventually(look, lambda count: count == how_many)
    assert await looking.look() == 0


async def test_it_ends_dead_with_its_reason_kept_here_and_a_phrase_told(waiting: tuple[Stack, dict]) -> None:
    stack, row = waiting
    await stack.temporal.get_workflow_handle(row["workflow_id"]).terminate(reason="sent in error, says 김")
    await found(stack)
    row = await stack.reported(row["message_id"])
    assert (row["status"], row["last_code"], row["tries"]) == ("DEAD", "TERMINATED", 1)
    assert row["last_reason"] == "sent in error, says 김"
    (told,) = (await stack.hospital.seen())["reports"]
    assert (told["body"]["code"], told["body"]["reason"]) == ("TERMINATED", "system error")


async def test_a_reason_that_postgres_cannot_keep_ends_no_worker(waiting: tuple[Stack, dict]) -> None:
    stack, row = waiting
    await stack.temporal.get_workflow_handle(row["workflow_id"]).terminate(reason="odd\0" + "한" * 3000)
    await found(stack)
    row = await stack.row(row["message_id"])
    assert (row["status"], row["last_code"]) == ("DEAD", "TERMINATED")
    assert row["last_reason"].startswith("odd\N{REPLACEMENT CHARACTER}한")


@pytest.mark.parametrize("memo", [{}, {"message": "none"}, {"message": 2**70}, {"message": None}])
async def test_an_execution_that_is_not_ours_keeps_no_other_from_being_found(
    waiting: tuple[Stack, dict], memo: dict[str, Any]
) -> None:
    stack, row = waiting
    assert list(memo) in ([], [MESSAGE_MEMO])
    await stack.temporal.get_workflow_handle(row["workflow_id"]).terminate()
    other = await stack.temporal.start_workflow(
        PROCESS_MESSAGE, id=f"{stack.name}/by/hand", task_queue="nobody", memo=memo or None
    )
    await other.terminate()
    await found(stack)
    assert (await stack.row(row["message_id"]))["last_code"] == "TERMINATED"


async def test_a_try_that_is_under_way_is_cut_off_and_leaves_its_line(stack: Stack) -> None:
    await stack.start()
    await stack.hospital.control(delays=True)
    message = survey()
    await stack.legacy(message)
    row = await eventually(lambda: stack.row(message["srvyDrawupNo"]), lambda seen: seen["status"] == "PROCESSING")
    await stack.temporal.get_workflow_handle(row["workflow_id"]).terminate()
    await found(stack)
    row = await stack.row(message["srvyDrawupNo"])
    assert (row["status"], row["last_code"]) == ("DEAD", "TERMINATED")
    (line,) = await stack.attempts(message["srvyDrawupNo"])
    assert line["code"] == "TERMINATED"
    assert await stack.bundles(message["srvyDrawupNo"]) == (0, 0, 0, 0)


async def test_the_next_of_its_subject_goes_on(waiting: tuple[Stack, dict]) -> None:
    stack, row = waiting
    after = survey(patno=row["subject"])
    await stack.legacy(after)
    await stack.eventually_row(
        "SELECT 1 FROM inbox.message WHERE message_id = %s AND held_since IS NOT NULL", after["srvyDrawupNo"]
    )
    await stack.temporal.get_workflow_handle(row["workflow_id"]).terminate()
    await found(stack)
    assert (await stack.closed(after["srvyDrawupNo"]))["status"] == "COMPLETED"


async def test_what_was_terminated_before_a_redrive_never_touches_what_follows(waiting: tuple[Stack, dict]) -> None:
    stack, row = waiting
    handle = stack.temporal.get_workflow_handle(row["workflow_id"])
    await handle.terminate()
    await found(stack)
    await redrive(stack.database, Key("", "hospital", row["message_id"]))
    assert await terminations(stack).look() == 0  # not started yet, or so
    again = await eventually(
        lambda: stack.row(row["message_id"]), lambda seen: (seen["status"], seen["generation"]) == ("FAILED", 2)
    )
    assert await terminations(stack).look() == 0
    assert (await stack.row(row["message_id"]))["status"] == "FAILED"
    assert again["run_id"] != row["run_id"]


async def test_a_reset_ends_the_old_run_as_terminated_and_the_message_goes_on(waiting: tuple[Stack, dict]) -> None:
    stack, row = waiting
    handle = stack.temporal.get_workflow_handle(row["workflow_id"])
    before = (await handle.describe()).run_id
    events = [event async for event in handle.fetch_history_events()]
    completed = next(event.event_id for event in events if event.HasField("workflow_task_completed_event_attributes"))
    await stack.temporal.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=stack.temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=row["workflow_id"], run_id=before),
            workflow_task_finish_event_id=completed,
            request_id="reset",
            reason="try it again",
        )
    )
    await stack.eventually_row("SELECT 1 FROM inbox.message WHERE id = %s AND tries = 2", row["id"])
    ended = await stack.temporal.get_workflow_handle(row["workflow_id"], run_id=before).describe()
    assert ended.status == WorkflowExecutionStatus.TERMINATED
    query = f"WorkflowId = '{row['workflow_id']}' AND ExecutionStatus = 'Terminated'"

    async def visible() -> int:
        return len([one async for one in stack.temporal.list_workflows(query)])

    await eventually(visible)
    assert await terminations(stack).look() == 0
    assert (await stack.row(row["message_id"]))["status"] in ("FAILED", "PROCESSING")
    await handle.terminate()  # and the run that the reset began, by its own right
    await found(stack)
    assert (await stack.row(row["message_id"]))["last_code"] == "TERMINATED"


async def test_an_execution_that_was_deleted_is_started_again(waiting: tuple[Stack, dict]) -> None:
    stack, row = waiting
    form = {"surveyNo": "PS009", "group": "G-PS009", "distributed": True}
    await stack.hospital.control(forms={"P-UNKNOWN": form} | stack.hospital.forms)
    await stack.temporal.workflow_service.delete_workflow_execution(
        DeleteWorkflowExecutionRequest(
            namespace=stack.temporal.namespace,
            workflow_execution=WorkflowExecution(workflow_id=row["workflow_id"]),
        )
    )
    assert await terminations(stack).look() == 0
    await stack.sql("UPDATE inbox.message SET next_try_at = now(), due_at = now() WHERE id = %s", row["id"])
    assert (await stack.closed(row["message_id"]))["status"] == "COMPLETED"


async def test_one_that_was_completed_by_hand_is_started_again_and_the_log_says_so(
    waiting: tuple[Stack, dict], caplog: pytest.LogCaptureFixture
) -> None:
    stack, row = waiting
    form = {"surveyNo": "PS009", "group": "G-PS009", "distributed": True}
    await stack.hospital.control(forms={"P-UNKNOWN": form} | stack.hospital.forms)
    by_hand = stack.temporal.get_async_activity_handle(workflow_id=row["workflow_id"], run_id=None, activity_id="1")
    await by_hand.complete({"status": "COMPLETED", "code": None, "hint": None})
    assert await eventually(
        lambda: stack.execution_status(row["workflow_id"]),
        lambda status: status == WorkflowExecutionStatus.COMPLETED,
    )
    await stack.sql("UPDATE inbox.message SET next_try_at = now(), due_at = now() WHERE id = %s", row["id"])
    assert (await stack.closed(row["message_id"]))["status"] == "COMPLETED"
    assert await stack.bundles(row["message_id"]) == (1, 1, 1, 1)
    assert "an execution had ended with its row open, and is started again" in caplog.text


class Ahead(datetime):
    """The clock of a process that is wrong."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        return datetime.now(tz) + timedelta(hours=1)


async def test_a_worker_whose_clock_is_an_hour_ahead_finds_them_too(
    waiting: tuple[Stack, dict], monkeypatch: pytest.MonkeyPatch
) -> None:
    stack, row = waiting
    monkeypatch.setattr(terminated, "EVERY", 0.2)
    monkeypatch.setattr(terminated, "datetime", Ahead)
    looks: list[int] = []
    looking = terminations(stack)
    look = looking.look

    async def counted() -> int:
        found = await look()
        looks.append(found)
        return found

    monkeypatch.setattr(looking, "look", counted)
    running = asyncio.create_task(looking.run())

    async def looked() -> int:
        return len(looks)

    await eventually(looked, lambda count: count > 1)  # the first look of a process is at all that there is
    await stack.temporal.get_workflow_handle(row["workflow_id"]).terminate()
    assert (await stack.closed(row["message_id"], 20))["last_code"] == "TERMINATED"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_workers_find_them_by_themselves_and_many_at_once(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.configure(retry_interval=600)
    await stack.open()
    monkeypatch.setattr(terminated, "EVERY", 0.2)
    async with stack.dispatching(), process(environment(stack, tmp_path), "worker"):
        rows = await asyncio.gather(*(failed(stack) for _ in range(12)))
        looking = asyncio.create_task(terminations(stack).run())
        for row in rows:
            await stack.temporal.get_workflow_handle(row["workflow_id"]).terminate(reason="all of them")
        for row in rows:
            assert (await stack.reported(row["message_id"], limit=90))["last_reason"] == "all of them"
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
    lines = await stack.sql("SELECT message, count(*) AS n FROM inbox.report GROUP BY message")
    assert [line["n"] for line in lines] == [1] * 12
