"""Histories for the replay test: ``pytest tests/replay --record`` writes them anew from real executions."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.stack import Stack, survey
from tests.support.waiting import eventually

HISTORIES = Path(__file__).parent / "histories"


async def record(stack: Stack) -> dict[str, str]:
    """Run one message of each kind; return the histories' JSON by name."""
    stack.configure(tries=2)
    await stack.start()
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
    ids = {
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


def _anonymous(history: str) -> str:
    """Return a history without the name of the machine that it ran on."""
    return re.sub(r"\d+@[\w.-]+", "1@worker", history)
