"""What operators do to a pending activity leaves row, bundle and report right, on the real server."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from inbox.burial import discard, redrive
from inbox.message import Key
from tests.support.crash import UNKNOWN
from tests.support.operating import Operator
from tests.support.stack import Stack, survey
from tests.support.waiting import eventually

LONG = "X" * 5000
# As results of `register`, given by hand while its row is open. None of them is true.
RESULTS = [
    {"status": "COMPLETED"},
    {"status": "COMPLETED", "code": LONG, "waiting": -1},
    {"status": "DEAD", "code": "BY_HAND", "hint": "none", "waiting": 5},
    {"status": "DEAD", "code": LONG},
    {"status": "DEAD", "code": "\ud800\0"},
    {"status": "DEAD"},
    {"status": "GONE"},
    {"status": "HELD"},
    {"status": "OVERTAKEN"},
    {"status": "OVERTAKEN", "generation": 1000000},
    {"status": "LONGER"},
    {"status": "LONGER", "start_to_close": -1},
    {"status": "LONGER", "start_to_close": 0},
    {"status": "LONGER", "start_to_close": 0.001},
    {"status": "LONGER", "start_to_close": 1e300},
    {"status": "LONGER", "start_to_close": 1e10},
    {"status": "OPEN"},
    {"status": "NONSENSE", "more": [1, {}]},
    {"status": 5},
    {},
    [],
    None,
    "COMPLETED",
    7,
]


@pytest.fixture
async def operator(stack: Stack, tmp_path: Path) -> Operator:
    return Operator(stack, tmp_path)


async def ends(operator: Operator) -> list[tuple[str, int]]:
    found = await operator.stack.sql("SELECT DISTINCT status, tries FROM inbox.message ORDER BY 1, 2")
    return [(row["status"], row["tries"]) for row in found]


async def test_a_result_of_register_given_by_hand_completes_nothing_and_holds_nothing_up(operator: Operator) -> None:
    await operator.start()
    rows = await asyncio.gather(*(operator.between_tries() for _ in RESULTS))
    await operator.crash.mend()
    operator.gate.open.clear()
    by_hand = [["--result", json.dumps(result)] for result in RESULTS]
    await asyncio.gather(
        *(operator.on_activity("complete", row, *options) for row, options in zip(rows, by_hand, strict=True))
    )
    assert await operator.stack.sql("SELECT 1 FROM inbox.message WHERE closed_at IS NOT NULL") == []
    await operator.make_due()
    await operator.settled()
    assert await ends(operator) == [("COMPLETED", 2)]


@pytest.mark.parametrize("paused", [True, False])
async def test_a_redrive_waits_for_no_activity_of_the_generation_before(operator: Operator, *, paused: bool) -> None:
    """One that is paused, or waits for its interval, and whose row was closed meanwhile, holds the next up no more."""
    await operator.start()
    row = await operator.between_tries()
    key = Key("", "hospital", row["message_id"])
    if paused:
        await operator.on_activity("pause", row)
    await discard(operator.stack.database, operator.stack.settings, key, "by hand")
    await operator.crash.mend()
    await redrive(operator.stack.database, key)
    await operator.settled()
    assert (await operator.row(row))["status"] == "COMPLETED"


async def test_a_cancel_and_a_redrive_at_once_lose_neither(operator: Operator) -> None:
    await operator.start()
    row = await operator.between_tries()
    key = Key("", "hospital", row["message_id"])
    await discard(operator.stack.database, operator.stack.settings, key, "by hand")
    handle = operator.stack.temporal.get_workflow_handle(row["workflow_id"])
    await asyncio.gather(handle.cancel(), redrive(operator.stack.database, key))
    await operator.crash.mend()
    await operator.settled()
    found = await operator.row(row)
    assert found["generation"] == 2
    assert found["status"] == "COMPLETED" or (found["status"], found["last_code"]) == ("DEAD", "CANCELLED")


async def test_what_was_completed_by_hand_in_a_try_is_noticed_run_again_and_said_in_the_log(
    operator: Operator, caplog: pytest.LogCaptureFixture
) -> None:
    await operator.start()
    row = await operator.in_a_try()
    await operator.on_activity("complete", row, "--result", '{"status": "COMPLETED"}')
    assert (await operator.ended(row["workflow_id"])).name == "COMPLETED"
    operator.gate.open.set()
    await operator.settled()
    assert (await operator.row(row))["status"] == "COMPLETED"
    if (await operator.row(row))["tries"] == 2:  # the try had noticed before it was let go on
        assert "an execution had ended with its row open, and is started again" in caplog.text


async def test_a_try_that_is_failed_by_hand_counts_whatever_is_said_of_it(operator: Operator) -> None:
    await operator.start()
    said = [[], ["--detail", '"DEAD"'], ["--detail", '["DEAD", null, null]'], ["--reason", LONG]]
    rows = [await operator.in_a_try() for _ in said]
    await asyncio.gather(*(operator.on_activity("fail", row, *words) for row, words in zip(rows, said, strict=True)))
    await operator.stack.eventually_row("SELECT 1 FROM inbox.message HAVING min(tries) = 2")
    await operator.settled()
    assert await ends(operator) == [("COMPLETED", 2)]
    codes = await operator.stack.sql("SELECT DISTINCT code FROM inbox.attempt")
    assert codes == [{"code": "TRY_LOST"}]


async def test_between_two_tries_there_is_nothing_to_fail(operator: Operator) -> None:
    await operator.start()
    row = await operator.between_tries()
    name = await operator.pending(row["workflow_id"], "register")
    done, said = await operator.cli("activity", "fail", "--workflow-id", row["workflow_id"], "--activity-id", name)
    assert (done, "unable to fail" in said) == (False, True)
    assert (await operator.row(row))["tries"] == 1


CUTS = {
    "pause": [["pause"], ["unpause"]],
    "reset": [["reset"]],
    "reset, paused": [["pause"], ["reset", "--keep-paused"], ["unpause"]],
    "little time": [["update-options", "--start-to-close-timeout", "3s"]],
    "one attempt": [["update-options", "--retry-maximum-attempts", "1", "--start-to-close-timeout", "1s"]],
    "nowhere and back": [
        ["update-options", "--task-queue", "nowhere"],
        ["reset", "--restore-original-options"],
    ],
}


@pytest.mark.parametrize("tries", [1, 5])
async def test_a_try_whose_activity_is_meddled_with_counts_once_and_no_more_are_made_than_may_be(
    operator: Operator, tries: int
) -> None:
    await operator.start(tries=tries)
    rows = {name: await operator.in_a_try() for name in CUTS}

    async def meddle(name: str) -> None:
        for verb, *options in CUTS[name]:
            await operator.on_activity(verb, rows[name], *options)

    await asyncio.gather(*map(meddle, CUTS))
    if tries > 1:
        for row in rows.values():
            await eventually(lambda r=row: operator.stack.attempts(r["message_id"]))
    await operator.settled()
    for name, before in rows.items():
        row = await operator.row(before)
        lines = [line["code"] for line in await operator.stack.attempts(row["message_id"])]
        if tries == 1:
            assert (name, row["status"], lines) in ((name, "DEAD", ["TRY_LOST"]), (name, "COMPLETED", []))
        else:
            assert (name, row["status"], set(lines)) == (name, "COMPLETED", {"TRY_LOST"})


WAITS = {
    "pause": [["pause"], ["unpause"], ["reset"]],
    "reset": [["reset"]],
    "options": [["update-options", "--retry-maximum-attempts", "2"], ["reset"]],
    "no time": [["update-options", "--schedule-to-close-timeout", "1s"]],
    "nowhere and back": [
        ["update-options", "--task-queue", "nowhere"],
        ["reset", "--restore-original-options"],
    ],
}


async def test_between_two_tries_the_next_comes_when_it_is_let(operator: Operator) -> None:
    await operator.start()
    rows = dict(zip(WAITS, await asyncio.gather(*(operator.between_tries() for _ in WAITS)), strict=True))
    await operator.crash.mend()

    async def meddle(name: str) -> None:
        for verb, *options in WAITS[name]:
            await operator.on_activity(verb, rows[name], *options)

    await asyncio.gather(*map(meddle, WAITS))
    await operator.settled()
    for name, before in rows.items():
        row = await operator.row(before)
        assert (name, row["status"], row["tries"]) == (name, "COMPLETED", 2)


async def test_what_is_paused_stays_and_holds_its_subject_until_it_is_unpaused(operator: Operator) -> None:
    await operator.start(retry_interval=0.5)
    row = await operator.in_a_try(formCd=UNKNOWN)
    after = survey(patno=row["subject"])
    await operator.stack.legacy(after)
    await operator.on_activity("pause", row)
    await operator.stack.eventually_row("SELECT 1 FROM inbox.message WHERE held_behind = %s", row["id"])
    starts = row["starts"]
    # Dispatch looks again and again, wakes the execution, and does not let the activity go.
    await eventually(lambda: operator.row(row), lambda found: found["starts"] >= starts + 2)
    assert (await operator.row(row))["tries"] == 1
    await operator.crash.mend()
    operator.gate.open.set()
    await operator.on_activity("unpause", row)
    await operator.settled()
    assert [line["code"] for line in await operator.stack.attempts(row["message_id"])] == ["TRY_LOST"]


async def test_a_paused_message_that_is_discarded_ends(operator: Operator) -> None:
    await operator.start()
    row = await operator.between_tries()
    await operator.on_activity("pause", row)
    await operator.obeyed("workflow", "update", "execute", "--workflow-id", row["workflow_id"], "--name", "discard")
    await operator.settled()
    assert (await operator.row(row))["last_code"] == "DISCARDED"
