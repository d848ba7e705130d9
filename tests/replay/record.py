"""Histories for the replay test: ``pytest tests/replay --record`` writes them anew from real executions."""

from __future__ import annotations

import re
from pathlib import Path

from inbox.registry import load_handlers
from tests.support.patient import TYPE, Patient
from tests.support.stack import TOKENS, Stack, declared, event, survey
from tests.support.waiting import eventually

HISTORIES = Path(__file__).parent / "histories"


async def record(stack: Stack) -> dict[str, str]:
    """Run one message of each kind; return the histories' JSON by name."""
    patient = Patient()
    counter = {"types": [TYPE], "tokens": stack.tokens("report-producer"), "order": "none"}
    parts = declared(stack.hospital.url, tries=2)
    stack.configure(parts | {"sources": parts["sources"] | {"report-producer": counter}})
    await stack.start(load_handlers(stack.settings) | {TYPE: patient})
    completed, dead, woken = survey(), survey(formCd="P-UNKNOWN"), survey()
    for message in (completed, dead):
        await stack.legacy(message)
        await stack.closed(message["srvyDrawupNo"])
    await stack.reported(dead["srvyDrawupNo"])
    await stack.hospital.control(delays=True)
    await stack.legacy(woken)
    row = await eventually(lambda: stack.row(woken["srvyDrawupNo"]), lambda found: found["status"] == "PROCESSING")
    await stack.temporal.get_workflow_handle(row["workflow_id"]).signal("wake", row["generation"])
    await stack.closed(woken["srvyDrawupNo"])
    longer = await _longer(stack, patient)
    ids = {
        "process_message_longer": longer,
        "process_message_completed": (await stack.row(completed["srvyDrawupNo"]))["workflow_id"],
        "process_message_dead": (await stack.row(dead["srvyDrawupNo"]))["workflow_id"],
        "process_message_woken": row["workflow_id"],
        "send_report_sent": (await stack.reports(dead["srvyDrawupNo"]))[0]["workflow_id"],
    }
    histories = {}
    for name, workflow_id in ids.items():
        handle = stack.temporal.get_workflow_handle(workflow_id)
        await eventually(handle.describe, lambda found: found.close_time is not None)
        histories[name] = _anonymous((await handle.fetch_history()).to_json())
    return histories


async def _longer(stack: Stack, patient: Patient) -> str:
    """Run a message whose handler asks for a longer time-out, woken meanwhile; return its workflow's ID."""
    patient.go.clear()
    sent = event({"counter": "c"}, source="report-producer", type=TYPE, id="longer")
    await stack.post(sent, TOKENS["report-producer"])
    row = await eventually(lambda: stack.row("longer"), lambda found: found["status"] == "PROCESSING")
    await stack.temporal.get_workflow_handle(row["workflow_id"]).signal("wake", row["generation"])
    patient.go.set()
    await stack.closed("longer")
    return str(row["workflow_id"])


def _anonymous(history: str) -> str:
    """Return a history without the name of the machine that it ran on."""
    return re.sub(r"\d+@[\w.-]+", "1@worker", history)
