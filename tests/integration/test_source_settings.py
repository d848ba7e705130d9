"""What a source's settings say of its messages: their task queue, their codes, how their waits grow."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import Client

from handlers.report_counter import Count, ReportCounter
from inbox.handler import Message
from tests.support.stack import Stack, event, survey
from tests.support.waiting import eventually


async def details(temporal: Client, workflow_id: str) -> str:
    """Return what an operator reads of an execution."""
    found = await temporal.get_workflow_handle(workflow_id).query("__temporal_workflow_metadata")
    return str(found.current_details)


async def test_messages_of_a_source_go_to_its_own_task_queue(stack: Stack) -> None:
    bulk = {"types": ["report.count"], "tokens": stack.tokens("hospital"), "task_queue": f"{stack.name}-bulk"}
    plain: dict[str, Any] = {key: value for key, value in bulk.items() if key != "task_queue"}
    stack.configure({"sources": {"bulk": bulk, "plain": plain}, "legacy": None})
    await stack.open()
    # One worker each, as INBOX_TASK_QUEUES would have it.
    everything = stack.settings
    async with stack.dispatching():
        for source in ("bulk", "plain"):
            answered = await stack.post(event({"counter": source}, source=source, type="report.count", id=source))
            assert answered.status_code == 202
        stack.settings = everything.model_copy(update={"task_queues": (stack.name,)})
        async with stack.working():
            await stack.closed("plain")
            waiting = await eventually(lambda: stack.row("bulk"), lambda row: row["dispatched_at"] is not None)
            assert (waiting["status"], waiting["tries"]) == ("RECEIVED", 0)
        stack.settings = everything.model_copy(update={"task_queues": (f"{stack.name}-bulk",)})
        async with stack.working():
            row = await stack.closed("bulk")
    assert (row["status"], row["outcome"]) == ("COMPLETED", {"value": 1})
    described = await stack.temporal.get_workflow_handle(row["workflow_id"]).describe()
    assert described.task_queue == f"{stack.name}-bulk"


async def test_a_worker_serves_every_queue_of_the_settings(stack: Stack) -> None:
    source = {"types": ["report.count"], "tokens": stack.tokens("hospital"), "task_queue": f"{stack.name}-bulk"}
    stack.configure({"sources": {"bulk": source}, "legacy": None})
    await stack.start()
    await stack.post(event({"counter": "c"}, source="bulk", type="report.count", id="1"))
    assert (await stack.closed("1"))["status"] == "COMPLETED"


async def test_a_source_makes_a_code_final_and_gives_it_a_hint_of_its_own(stack: Stack) -> None:
    stack.configure(codes={"FORM_NOT_REGISTERED": {"retry": False, "hint": "ask the form team"}})
    await stack.start()
    message = survey(formCd="P-UNKNOWN")
    await stack.legacy(message)
    row = await stack.closed(message["srvyDrawupNo"])
    assert (row["status"], row["last_code"], row["tries"]) == ("DEAD", "FORM_NOT_REGISTERED", 1)
    said = await eventually(lambda: details(stack.temporal, row["workflow_id"]), lambda text: "DEAD" in text)
    assert "What helps: ask the form team." in said
    assert "register the form" not in said


async def test_the_waits_between_tries_grow_to_the_cap(stack: Stack) -> None:
    stack.configure(tries=4, retry_interval=0.1, retry_growth=3, retry_cap=0.5)
    await stack.start()
    message = survey(formCd="P-UNKNOWN")
    await stack.legacy(message)
    row = await stack.closed(message["srvyDrawupNo"])
    assert row["tries"] == 4
    history = await stack.temporal.get_workflow_handle(row["workflow_id"]).fetch_history()
    told = [
        item.workflow_execution_signaled_event_attributes.input.payloads[0].data
        for item in history.events
        if item.workflow_execution_signaled_event_attributes.signal_name == "tried"
    ]
    waits = [float(text.split(b'"next_in":')[1].split(b"}")[0].split(b",")[0]) for text in told]
    assert len(waits) == 3
    for wait, least in zip(waits, (0.1, 0.3, 0.5), strict=True):
        assert least <= wait <= least * 1.1 + 1e-9


async def test_the_log_says_where_in_a_handler_an_error_was_raised_and_not_its_text(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(ReportCounter):
        async def prepare(self, message: Message[Count]) -> None:
            raise KeyError(f"PLANTED {message.payload.counter}")

    line = Broken.prepare.__code__.co_firstlineno + 1
    bulk = {"types": ["report.count"], "tokens": stack.tokens("hospital"), "tries": 1}
    stack.configure({"sources": {"p": bulk}, "legacy": None})
    await stack.start({"report.count": Broken()})
    await stack.post(event({"counter": "PLANTED"}, source="p", type="report.count", id="1"))
    assert (await stack.closed("1"))["last_reason"] == "KeyError"
    assert f"a try of report.count failed: KeyError at {__file__}, line {line}" in caplog.text
    assert "PLANTED" not in caplog.text
