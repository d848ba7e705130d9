"""A handler may ask for more time than a try has (spec sections 7, 10): it costs no try, and all behind it moves."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import Client

from inbox.burial import redrive
from inbox.handler import BusinessError
from inbox.message import Key
from inbox.store.statements import CLAIM
from tests.support.patient import TIMEOUT, TYPE, Patient
from tests.support.stack import Stack, event
from tests.support.waiting import eventually
from worker import build_workers

# Shorter than what the handler takes, each of those that move.
SHORT = {"lock": 0.3, "heartbeat": 1, "statement": 1.2, "transaction": 1.5, "start_to_close": 2, "rpc": 1}


def sections(stack: Stack, **timeouts: Any) -> dict[str, Any]:
    """Return the settings of a producer of slow counts."""
    source = {"types": [TYPE], "tokens": stack.tokens("hospital"), "retry_interval": 0.1, "order": "none"}
    return {"sources": {"p": source}, "legacy": None, "timeouts": SHORT | timeouts}


async def send(stack: Stack, message_id: str) -> None:
    """Deliver one count."""
    answered = await stack.post(event({"counter": "c"}, source="p", type=TYPE, id=message_id))
    assert answered.status_code == 202


async def scheduled(temporal: Client, workflow_id: str) -> list[float]:
    """Return the start-to-close of each activity that the newest run scheduled, in seconds."""
    history = await temporal.get_workflow_handle(workflow_id).fetch_history()
    found = [item.activity_task_scheduled_event_attributes for item in history.events]
    return [item.start_to_close_timeout.ToTimedelta().total_seconds() for item in found if item.activity_id]


async def test_a_try_gets_the_time_that_its_handler_asks_for_and_spends_nothing_before(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    stack.configure(sections(stack))
    claims = []
    plain = stack.database.one

    async def noting(statement: Any, params: Any) -> Any:
        if statement is CLAIM:
            claims.append(params["longest"])
        return await plain(statement, params)

    monkeypatch.setattr(stack.database, "one", noting)
    # 3.2 s: longer than a transaction and than a try by the settings, in statements that are short enough.
    await stack.start({TYPE: Patient(beats=4)})
    await send(stack, "1")
    row = await stack.closed("1")
    assert (row["status"], row["tries"], row["outcome"]) == ("COMPLETED", 1, {"value": 1})
    assert await stack.attempts("1") == []
    assert await scheduled(stack.temporal, row["workflow_id"]) == [2, TIMEOUT]
    assert claims == [TIMEOUT]  # so long may the holder of a row be alive


async def test_the_workflow_remembers_the_time_for_what_it_schedules_later(stack: Stack) -> None:
    stack.configure(sections(stack))
    patient = Patient()
    patient.go.clear()
    await stack.start({TYPE: patient})
    await send(stack, "1")
    row = await eventually(lambda: stack.row("1"), lambda found: found["status"] == "PROCESSING")
    handle = stack.temporal.get_workflow_handle(row["workflow_id"])
    await handle.signal("wake", row["generation"])
    patient.go.set()
    await handle.result()
    assert await scheduled(stack.temporal, row["workflow_id"]) == [2, TIMEOUT, TIMEOUT]
    assert (await stack.row("1"))["tries"] == 1


async def test_a_failed_try_is_tried_again_with_the_same_time_and_a_redrive_asks_anew(stack: Stack) -> None:
    parts = sections(stack)
    parts["sources"]["p"]["tries"] = 2
    stack.configure(parts)
    patient = Patient()
    broken = patient.prepare

    async def refuse(_: Any) -> None:
        raise BusinessError("CLOSED", "not today")

    patient.prepare = refuse  # type: ignore[method-assign]
    await stack.start({TYPE: patient})
    await send(stack, "1")
    row = await stack.closed("1")
    assert (row["status"], row["tries"]) == ("DEAD", 2)
    assert await scheduled(stack.temporal, row["workflow_id"]) == [2, TIMEOUT]
    patient.prepare = broken  # type: ignore[method-assign]
    await redrive(stack.database, Key("", "p", "1"))
    assert (await eventually(lambda: stack.row("1"), lambda found: found["status"] == "COMPLETED"))["tries"] == 3
    assert await scheduled(stack.temporal, row["workflow_id"]) == [2, TIMEOUT]


async def test_a_draining_worker_waits_for_the_longest_try(stack: Stack) -> None:
    await stack.open()
    given: Any = (stack.settings, stack.temporal, stack.database, {TYPE: Patient()}, None, stack.dispatcher)
    workers = build_workers(*given)
    assert {worker.config()["graceful_shutdown_timeout"].total_seconds() for worker in workers} == {TIMEOUT + 10}
    assert [worker.config()["max_concurrent_activities"] for worker in workers] == [10, 4]
