"""What operators do to an execution (reset, signal, delete, pause) leaves row and bundle right, on the real server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from inbox.burial import redrive
from inbox.message import Key
from tests.support.crash import UNKNOWN
from tests.support.operating import Operator
from tests.support.stack import Stack, survey
from tests.support.waiting import eventually

LONG = "X" * 5000


@pytest.fixture
async def operator(stack: Stack, tmp_path: Path) -> Operator:
    return Operator(stack, tmp_path)


def key(row: dict[str, Any]) -> Key:
    return Key("", "hospital", row["message_id"])


@pytest.mark.parametrize("point", ["FirstWorkflowTask", "LastWorkflowTask"])
async def test_a_reset_goes_on_with_what_is_open_and_changes_nothing_that_is_closed(
    operator: Operator, point: str
) -> None:
    await operator.start()
    completed, dead = await operator.completed(), await operator.dead()
    waiting = await operator.between_tries()
    trying = await operator.in_a_try()
    await operator.crash.mend()
    for row in (completed, dead, waiting, trying):
        await operator.reset(row["workflow_id"], point)
    await operator.stack.eventually_row("SELECT 1 FROM inbox.message WHERE id = %s AND tries = 2", trying["id"])
    operator.gate.open.set()
    await operator.settled()
    for row in (completed, dead):
        after = await operator.row(row)
        same = ("status", "tries", "generation", "closed_at", "last_code", "report_state")
        assert {name: after[name] for name in same} == {name: row[name] for name in same}
    for row in (waiting, trying):
        after = await operator.row(row)
        assert (after["status"], after["tries"]) == ("COMPLETED", 2)
    (line,) = await operator.stack.attempts(trying["message_id"])
    assert line["code"] == "TRY_LOST"
    assert (await operator.ended(dead["workflow_id"])).name == "FAILED"
    assert (await operator.ended(completed["workflow_id"])).name == "COMPLETED"


async def test_a_reset_run_of_an_earlier_generation_works_for_the_present_one(operator: Operator) -> None:
    await operator.start()
    row = await operator.dead()
    handle = operator.stack.temporal.get_workflow_handle(row["workflow_id"])
    first = (await handle.describe()).run_id
    operator.gate.open.clear()
    await redrive(operator.stack.database, key(row))
    second = await operator.when_row(row, "status", "PROCESSING")
    # Temporal ends the run that is at work, and begins the old one again.
    await operator.reset(row["workflow_id"], "FirstWorkflowTask", "--run-id", first)
    operator.gate.open.set()
    await operator.settled()
    after = await operator.row(second)
    assert (after["generation"], after["last_code"]) == (2, "GROUP_NOT_FOUND")
    assert [line["generation"] for line in await operator.stack.attempts(row["message_id"])] in ([1, 2], [1, 2, 2])


async def test_a_reset_of_what_a_later_generation_has_completed_changes_nothing(operator: Operator) -> None:
    await operator.start()
    row = await operator.dead()
    first = (await operator.stack.temporal.get_workflow_handle(row["workflow_id"]).describe()).run_id
    await operator.regroup()
    await redrive(operator.stack.database, key(row))
    after = await operator.when_row(row, "status", "COMPLETED")
    await operator.ended(row["workflow_id"])
    for point in ("FirstWorkflowTask", "LastWorkflowTask"):
        await operator.reset(row["workflow_id"], point, "--run-id", first)
        await operator.gone(row["workflow_id"])
    await operator.settled()
    assert (await operator.row(row))["closed_at"] == after["closed_at"]


SIGNALS = [
    ("wake", []),
    ("wake", ["null"]),
    ("wake", ["1"]),
    ("wake", ["-1"]),
    ("wake", ["1", "2"]),
    ("wake", ['"soon"']),
    ("wake", ["{}"]),
    ("wake", ["1000000"]),
    ("wake", [str(2**70)]),
    ("wake", ["1" + "0" * 5000]),
    ("tried", []),
    ("tried", ["7"]),
    ("tried", ["{}"]),
    ("tried", ['{"number": 1, "limit": 5, "code": null, "hint": null, "next_in": 1}']),
    ("tried", [json.dumps({"number": 1, "limit": 5, "code": LONG, "hint": LONG, "next_in": 1e300, "waiting": -1})]),
    ("tried", [json.dumps({"number": 1, "limit": 5, "code": "\ud800\0", "hint": None, "next_in": 1})]),
    ("nobody_knows", ['{"a": [1]}']),
    ("__temporal_unknown", ["1"]),
]


async def test_signals_by_hand_leave_nothing_stuck(operator: Operator) -> None:
    await operator.start()
    rows = await asyncio.gather(*(operator.between_tries() for _ in SIGNALS))
    await operator.crash.mend()

    async def signal(row: dict[str, Any], name: str, values: list[str]) -> None:
        inputs = [part for value in values for part in ("--input", value)]
        await operator.obeyed("workflow", "signal", "--workflow-id", row["workflow_id"], "--name", name, *inputs)
        # What runs on takes it in, and begins once more with it.
        done, _ = await operator.cli(
            "workflow", "reset", "--workflow-id", row["workflow_id"], "--type", "FirstWorkflowTask", "--reason", "r"
        )
        assert done

    await asyncio.gather(*(signal(row, *sent) for row, sent in zip(rows, SIGNALS, strict=True)))
    await operator.make_due()
    await operator.settled()
    found = await operator.stack.sql("SELECT DISTINCT status, tries FROM inbox.message")
    assert found == [{"status": "COMPLETED", "tries": 2}]


async def test_a_wake_for_a_generation_that_never_was_holds_up_neither_this_one_nor_the_next(
    operator: Operator,
) -> None:
    await operator.start()
    row = await operator.in_a_try()
    for value in ("1000000", "7"):
        await operator.obeyed(
            "workflow", "signal", "--workflow-id", row["workflow_id"], "--name", "wake", "--input", value
        )
    await operator.on_activity("fail", row)
    await operator.settled()
    assert (await operator.row(row))["status"] == "COMPLETED"


async def test_a_report_is_told_whatever_signal_its_execution_is_sent(operator: Operator) -> None:
    await operator.start()
    await operator.stack.hospital.control(reports=[500] * 100)
    row = await operator.dead("SENDING")
    (report,) = await operator.stack.reports(row["message_id"])
    for values in ([], ["7"], ['"x"'], ["1"]):
        inputs = [part for value in values for part in ("--input", value)]
        await operator.obeyed("workflow", "signal", "--workflow-id", report["workflow_id"], "--name", "wake", *inputs)
    await operator.stack.hospital.control(reports=[])
    await operator.settled()
    told = [call["status"] for call in (await operator.stack.hospital.seen())["reports"]]
    assert told.count(200) == 1


async def test_what_is_deleted_is_started_again_where_it_was_open(operator: Operator) -> None:
    await operator.start()
    completed, dead, waiting = await operator.completed(), await operator.dead(), await operator.between_tries()
    for row in (completed, dead, waiting):
        await operator.obeyed("workflow", "delete", "--workflow-id", row["workflow_id"])
    await operator.vanished(waiting["workflow_id"])  # the server takes half a minute for closed ones
    await operator.regroup()
    await redrive(operator.stack.database, key(dead))
    again = await operator.stack.legacy(survey(srvyDrawupNo=completed["message_id"], patno=completed["subject"]))
    assert again.json()["duplicate"] is True
    await operator.mended()
    await operator.settled()
    for row, tries in ((completed, 1), (dead, 2), (waiting, 2)):
        after = await operator.row(row)
        assert (after["status"], after["tries"]) == ("COMPLETED", tries)
    assert (await operator.row(completed))["closed_at"] == completed["closed_at"]


async def test_what_is_deleted_in_a_try_is_tried_again(operator: Operator) -> None:
    await operator.start()
    row = await operator.in_a_try()
    await operator.obeyed("workflow", "delete", "--workflow-id", row["workflow_id"])
    await operator.stack.eventually_row("SELECT 1 FROM inbox.message WHERE id = %s AND tries > 1", row["id"])
    await operator.settled()
    assert {line["code"] for line in await operator.stack.attempts(row["message_id"])} == {"TRY_LOST"}


async def test_a_paused_execution_goes_on_when_it_is_unpaused(lenient: Stack, tmp_path: Path) -> None:
    operator = Operator(lenient, tmp_path)
    await operator.start()
    waiting, trying = await operator.between_tries(), await operator.in_a_try()
    for row in (waiting, trying):
        await operator.obeyed("workflow", "pause", "--workflow-id", row["workflow_id"])
    operator.gate.open.set()
    await operator.mended()
    await operator.when_row(trying, "status", "COMPLETED")  # what is under way ends
    await eventually(lambda: operator.row(waiting), lambda row: row["starts"] > waiting["starts"])
    assert (await operator.row(waiting))["tries"] == 1
    for row in (waiting, trying):
        await operator.obeyed("workflow", "unpause", "--workflow-id", row["workflow_id"])
    await operator.on_activity("reset", waiting, may_be_over=True)
    await operator.settled()
    assert (await operator.row(waiting))["tries"] == 2


async def test_an_update_that_is_not_ours_is_refused_and_changes_nothing(operator: Operator) -> None:
    await operator.start()
    row = await operator.between_tries()
    target = ["--workflow-id", row["workflow_id"]]
    done, said = await operator.cli("workflow", "update", "execute", *target, "--name", "redrive", "--input", "7")
    assert (done, "redrive" in said) == (False, True)
    assert (await operator.row(row))["status"] == "FAILED"
    await operator.crash.mend()
    await operator.on_activity("reset", row)
    await operator.settled()


@pytest.mark.parametrize("how", ["discard", "cancel"])
async def test_an_execution_that_waits_for_its_order_ends_with_its_row(operator: Operator, how: str) -> None:
    await operator.start()
    first = await operator.dead()
    message = survey(formCd=UNKNOWN, patno=first["subject"])
    await operator.stack.legacy(message)
    row = await operator.when(message, "status", "FAILED")
    operator.gate.open.clear()
    await redrive(operator.stack.database, key(first))
    await operator.when_row(first, "status", "PROCESSING")
    await operator.on_activity("reset", row)
    await operator.stack.eventually_row(
        "SELECT 1 FROM inbox.message WHERE id = %s AND held_since IS NOT NULL", row["id"]
    )
    await eventually(lambda: operator.kinds(row["workflow_id"]), lambda kinds: not kinds)
    if how == "discard":
        await operator.obeyed("workflow", "update", "execute", "--workflow-id", row["workflow_id"], "--name", "discard")
    else:
        await operator.obeyed("workflow", "cancel", "--workflow-id", row["workflow_id"])
    await operator.settled()
    assert (await operator.row(row))["last_code"] == ("CANCELLED" if how == "cancel" else "DISCARDED")
