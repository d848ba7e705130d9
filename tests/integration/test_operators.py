"""What operators do to a message: cancel, discard, redrive."""

import asyncio
import sys
from asyncio.subprocess import PIPE, STDOUT
from contextlib import suppress
from pathlib import Path

import pytest
from temporalio.client import WorkflowExecutionStatus, WorkflowFailureError
from temporalio.service import RPCError

from inbox.burial import NotDead, NotFound, NotOpen, bury, discard, redrive
from inbox.message import Key
from inbox.references import BuryInput
from tests.support.stack import Stack, survey
from tests.support.waiting import eventually


def key_of(message: dict) -> Key:
    return Key("", "hospital", message["srvyDrawupNo"])


async def failed_once(stack: Stack, message: dict) -> dict:
    """Deliver a message that fails, and wait until its first try has."""
    await stack.legacy(message)
    return await eventually(lambda: stack.row(message["srvyDrawupNo"]), lambda row: row["status"] == "FAILED")


async def ended(stack: Stack, workflow_id: str) -> WorkflowExecutionStatus | None:
    return await eventually(
        lambda: stack.execution_status(workflow_id), lambda status: status != WorkflowExecutionStatus.RUNNING
    )


@pytest.mark.parametrize("how", ["cancel", "discard"])
async def test_between_two_tries_it_ends_dead_at_once_and_is_reported(stack: Stack, how: str) -> None:
    stack.configure(retry_interval=600)
    await stack.start()
    message = survey(formCd="P-UNKNOWN")
    row = await failed_once(stack, message)
    handle = stack.temporal.get_workflow_handle(row["workflow_id"])
    if how == "cancel":
        await handle.cancel()
    else:
        assert (await handle.execute_update("discard"))["code"] == "DISCARDED"
    row = await stack.reported(message["srvyDrawupNo"])
    code = "CANCELLED" if how == "cancel" else "DISCARDED"
    assert (row["status"], row["last_code"], row["tries"]) == ("DEAD", code, 1)
    assert await ended(stack, row["workflow_id"]) == WorkflowExecutionStatus.FAILED
    with pytest.raises(WorkflowFailureError) as failed:
        await handle.result()
    assert failed.value.cause.type == code  # type: ignore[union-attr]
    body = (await stack.hospital.seen())["reports"][-1]["body"]
    assert (body["result"], body["code"], body["reason"]) == ("N", code, "system error")


@pytest.mark.parametrize("how", ["cancel", "discard"])
async def test_during_a_try_the_bundle_or_the_burial_wins_and_the_row_agrees(stack: Stack, how: str) -> None:
    await stack.start()
    await stack.hospital.control(delays=True)
    messages = [survey(patno=f"8{n:08}", formCd=form) for n, form in enumerate(["P-EQ5D", "P-PHQ9", "P-PAIN"] * 4)]
    for message in messages:
        await stack.legacy(message)

    async def end(message: dict, after: float) -> None:
        row = await eventually(lambda: stack.row(message["srvyDrawupNo"]), lambda found: found["tries"] == 1)
        handle = stack.temporal.get_workflow_handle(row["workflow_id"])

        async def later() -> bool:  # a look-up takes about a second: spread over it, and past its end
            return asyncio.get_running_loop().time() >= until

        until = asyncio.get_running_loop().time() + after
        await eventually(later)
        with suppress(RPCError):  # ended before: the bundle was faster
            await (handle.cancel() if how == "cancel" else handle.execute_update("discard"))

    await asyncio.gather(*(end(message, n * 0.15) for n, message in enumerate(messages)))
    for message in messages:
        row = await stack.closed(message["srvyDrawupNo"])
        status = await ended(stack, row["workflow_id"])
        bundles = await stack.bundles(message["srvyDrawupNo"])
        if row["status"] == "COMPLETED":
            assert (bundles, status) == ((1, 1, 1, 1), WorkflowExecutionStatus.COMPLETED)
        else:
            assert (bundles, status) == ((0, 0, 0, 0), WorkflowExecutionStatus.FAILED)


async def test_a_redrive_begins_a_generation_with_all_its_tries_and_corrects_what_was_said(stack: Stack) -> None:
    stack.configure(tries=2)
    await stack.start()
    message = survey(formCd="P-LATE")
    await stack.legacy(message)
    first = await stack.reported(message["srvyDrawupNo"])
    await redrive(stack.database, key_of(message))
    again = await eventually(
        lambda: stack.row(message["srvyDrawupNo"]), lambda row: row["status"] == "DEAD" and row["generation"] == 2
    )
    assert (again["tries"], again["tries_before"]) == (4, 2)
    await stack.reported(message["srvyDrawupNo"])
    form = {"surveyNo": "PS009", "group": "G-PS009", "distributed": True}
    await stack.hospital.control(forms={"P-LATE": form} | stack.hospital.forms)
    await redrive(stack.database, key_of(message))
    row = await stack.closed(message["srvyDrawupNo"])
    assert (row["status"], row["generation"], row["tries"]) == ("COMPLETED", 3, 5)
    await stack.reported(message["srvyDrawupNo"])
    bodies = [report["body"] for report in (await stack.hospital.seen())["reports"]]
    assert [(body["result"], body["code"]) for body in bodies] == [
        ("N", "FORM_NOT_REGISTERED"),
        ("N", "FORM_NOT_REGISTERED"),
        ("Y", "CORRECTION"),
    ]
    assert [report["kind"] for report in await stack.reports(message["srvyDrawupNo"])] == ["DEAD", "DEAD", "CORRECTION"]
    assert row["run_id"] != first["run_id"]
    assert [line["generation"] for line in await stack.attempts(message["srvyDrawupNo"])] == [1, 1, 2, 2]
    assert await stack.bundles(message["srvyDrawupNo"]) == (1, 1, 1, 1)


async def test_a_redrive_withdraws_what_nobody_has_heard_and_owes_no_correction(stack: Stack) -> None:
    stack.configure(tries=1)
    await stack.open()
    message = survey(formCd="P-LATE")
    await stack.legacy(message)
    await stack.sql(  # DEAD, with a report that no dispatcher has looked at
        "UPDATE inbox.message SET status = 'DEAD', last_code = 'C', closed_at = now(), dead_at = now(), due_at = NULL,"
        " report_state = 'OWED'"
    )
    await stack.sql(
        "INSERT INTO inbox.report (message, number, source, kind, code, reason, workflow_id, due_at)"
        " SELECT id, 1, source, 'DEAD', 'C', 'r', 'w', now() FROM inbox.message"
    )
    form = {"surveyNo": "PS009", "group": "G-PS009", "distributed": True}
    await stack.hospital.control(forms={"P-LATE": form} | stack.hospital.forms)
    await redrive(stack.database, key_of(message))
    assert (await stack.row(message["srvyDrawupNo"]))["report_state"] == "WITHDRAWN"
    async with stack.dispatching(), stack.working():
        row = await stack.closed(message["srvyDrawupNo"])
    assert (row["status"], row["report_state"]) == ("COMPLETED", "WITHDRAWN")
    assert [report["state"] for report in await stack.reports(message["srvyDrawupNo"])] == ["WITHDRAWN"]
    assert (await stack.hospital.seen())["reports"] == []


async def test_a_redrive_that_races_with_the_end_of_the_old_run_is_never_swallowed(stack: Stack) -> None:
    stack.configure(tries=1)
    await stack.start()
    rounds = 12
    messages = [survey(formCd="P-UNKNOWN", patno=f"7{n:08}") for n in range(8)]

    async def drive(message: dict) -> None:
        await stack.legacy(message)
        for generation in range(2, rounds + 2):
            # As soon as the row is DEAD: its run is still closing, and its report may be under way.
            await eventually(
                lambda: stack.row(message["srvyDrawupNo"]),
                lambda row, last=generation - 1: row["status"] == "DEAD" and row["generation"] == last,
            )
            await redrive(stack.database, key_of(message))
            stack.dispatcher.nudge()

    await asyncio.gather(*(drive(message) for message in messages))
    for message in messages:
        row = await eventually(
            lambda m=message: stack.row(m["srvyDrawupNo"]),
            lambda found: found["status"] == "DEAD" and found["generation"] == rounds + 1,
        )
        assert row["tries"] == rounds + 1  # one a generation, none lost, none twice
        lines = await stack.attempts(message["srvyDrawupNo"])
        assert [line["code"] for line in lines] == ["FORM_NOT_REGISTERED"] * (rounds + 1)


async def test_only_a_dead_message_is_redriven(stack: Stack) -> None:
    await stack.start()
    message = survey()
    await stack.legacy(message)
    await stack.closed(message["srvyDrawupNo"])
    with pytest.raises(NotDead, match="COMPLETED"):
        await redrive(stack.database, key_of(message))
    with pytest.raises(NotFound):
        await redrive(stack.database, Key("", "hospital", "nobody"))


async def test_a_burial_of_an_earlier_generation_touches_nothing(stack: Stack) -> None:
    stack.configure(tries=1)
    await stack.open()
    message = survey()
    await stack.legacy(message)
    row = await stack.row(message["srvyDrawupNo"])
    work = BuryInput(row["id"], "hospital", 1, "DISCARDED")
    first = await bury(stack.database, stack.settings, work, "r")
    assert first is not None
    assert first.status == "DEAD"
    await redrive(stack.database, key_of(message))
    late = await bury(stack.database, stack.settings, work, "r")
    assert late is not None
    assert late.status == "RECEIVED"


async def test_an_operators_discard_keeps_its_words_in_the_row_and_tells_upstream_the_fixed_phrase(
    stack: Stack,
) -> None:
    stack.configure(retry_interval=600)
    await stack.start()
    message = survey(formCd="P-UNKNOWN")
    await failed_once(stack, message)
    await discard(stack.database, stack.settings, key_of(message), "홍길동 asked for it")
    stack.dispatcher.nudge()
    row = await stack.reported(message["srvyDrawupNo"])
    assert (row["last_code"], row["last_reason"]) == ("DISCARDED", "홍길동 asked for it")
    body = (await stack.hospital.seen())["reports"][-1]["body"]
    assert body["reason"] == "system error"
    with pytest.raises(NotOpen, match="DEAD"):
        await discard(stack.database, stack.settings, key_of(message), "again")


async def _cli(stack: Stack, *arguments: str) -> bool:
    """Run the ``temporal`` command against the test's server; tell whether it was obeyed."""
    command = [str(Path(sys.prefix, "bin", "temporal")), *arguments]
    command += ["--address", stack.temporal.service_client.config.target_host]
    run = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=STDOUT)
    await run.communicate()
    return run.returncode == 0


@pytest.mark.parametrize(
    "meddle",
    [
        ["reset"],
        ["update-options", "--retry-maximum-attempts", "1000"],
        ["update-options", "--retry-initial-interval", "1s", "--retry-maximum-attempts", "2"],
        ["pause", "unpause"],
    ],
    ids=" ".join,
)
async def test_whatever_is_done_to_its_attempts_the_limit_is_the_rows(stack: Stack, meddle: list[str]) -> None:
    limit = 5
    stack.configure(tries=limit, retry_interval=1)
    await stack.start()
    message = survey(formCd="P-UNKNOWN")
    row = await failed_once(stack, message)
    handle = stack.temporal.get_workflow_handle(row["workflow_id"])

    async def pending() -> list:
        return list((await handle.describe()).raw_description.pending_activities)

    obeyed = 0
    for _ in range(3):
        activities = await pending()
        if not activities:
            break
        target = ["--workflow-id", row["workflow_id"], "--activity-id", activities[0].activity_id]
        tries = (await stack.row(message["srvyDrawupNo"]))["tries"]
        for command in ["pause", "unpause"] if meddle[0] == "pause" else [meddle[0]]:
            options = [] if meddle[0] == "pause" else meddle[1:]
            obeyed += await _cli(stack, "activity", command, *target, *options)
        await eventually(
            lambda: stack.row(message["srvyDrawupNo"]),
            lambda found, n=tries: found["tries"] > n or found["closed_at"] is not None,
        )
    assert obeyed > 0  # one may come too late, when its attempt has just ended; not all of them
    row = await stack.closed(message["srvyDrawupNo"])
    assert (row["status"], row["last_code"], row["tries"]) == ("DEAD", "FORM_NOT_REGISTERED", limit)
    assert [line["number"] for line in await stack.attempts(message["srvyDrawupNo"])] == list(range(1, limit + 1))
    assert await ended(stack, row["workflow_id"]) == WorkflowExecutionStatus.FAILED
    assert (await stack.row(message["srvyDrawupNo"]))["tries"] == limit


async def test_a_try_that_is_failed_by_hand_counts_and_the_next_does_it(stack: Stack) -> None:
    await stack.start()
    await stack.hospital.control(delays=True)
    message = survey()
    await stack.legacy(message)
    row = await eventually(lambda: stack.row(message["srvyDrawupNo"]), lambda found: found["status"] == "PROCESSING")
    handle = stack.temporal.get_workflow_handle(row["workflow_id"])
    (running,) = (await handle.describe()).raw_description.pending_activities
    assert await _cli(stack, "activity", "fail", "--workflow-id", handle.id, "--activity-id", running.activity_id)
    row = await stack.closed(message["srvyDrawupNo"])
    assert (row["status"], row["tries"]) == ("COMPLETED", 2)
    assert [line["code"] for line in await stack.attempts(message["srvyDrawupNo"])] == ["TRY_LOST"]
    assert await stack.bundles(message["srvyDrawupNo"]) == (1, 1, 1, 1)
    assert await ended(stack, row["workflow_id"]) == WorkflowExecutionStatus.COMPLETED
