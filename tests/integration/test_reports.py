"""A report's life."""

import pytest

from activities.report import ReportActivities
from inbox.burial import NotGivenUp, discard, redrive, send_again
from inbox.message import Key
from inbox.references import ReportInput
from inbox.states import ReportState
from tests.support.stack import Stack, survey
from tests.support.waiting import eventually


async def test_it_is_tried_again_with_one_idempotency_key_until_upstream_takes_it(stack: Stack) -> None:
    stack.configure(tries=1)
    await stack.start()
    await stack.hospital.control(reports=[500, 500, 500, 429, 200])
    message = survey(formCd="P-UNKNOWN")
    await stack.legacy(message)
    row = await stack.reported(message["srvyDrawupNo"], limit=60)
    reports = (await stack.hospital.seen())["reports"]
    assert [report["status"] for report in reports] == [500, 500, 500, 429, 200]
    assert {report["key"] for report in reports} == {f"{stack.name}-report/hospital/{message['srvyDrawupNo']}/1"}
    (report,) = await stack.reports(message["srvyDrawupNo"])
    assert (report["state"], report["kind"], report["tries"]) == ("SENT", "DEAD", 5)
    assert report["sent_at"] is not None
    assert report["workflow_id"] == reports[0]["key"]
    assert row["status"] == "DEAD"


async def test_retry_after_is_honoured(stack: Stack) -> None:
    stack.configure(tries=1)
    await stack.start()
    await stack.hospital.control(reports=[429])
    message = survey(formCd="P-UNKNOWN")
    await stack.legacy(message)

    async def waiting() -> dict | None:
        lines = await stack.reports(message["srvyDrawupNo"])
        return lines[0] if lines and lines[0]["last_fault"] else None

    report = await eventually(waiting)
    assert report is not None
    assert report["last_fault"] == "HTTP 429"
    asked = (report["next_try_at"] - report["updated_at"]).total_seconds()
    assert asked == 1.0  # what the stand-in's Retry-After says; without it the first wait has up to a tenth more
    await stack.reported(message["srvyDrawupNo"])


async def test_what_upstream_never_takes_is_given_up_and_visible(stack: Stack) -> None:
    reporting = {"url": f"{stack.hospital.url}/reports", "give_up_after": 2}
    stack.configure(tries=1, report=reporting)
    await stack.start()
    await stack.hospital.control(reports=[500] * 50)
    message = survey(formCd="P-UNKNOWN")
    await stack.legacy(message)
    await stack.reported(message["srvyDrawupNo"], "GIVEN_UP")
    backlog = (await stack.get("/backlog")).json()
    assert backlog["givenUp"]["count"] == 1
    assert backlog["owed"]["count"] == 0


async def test_the_dead_execution_ends_while_its_report_goes_on(stack: Stack) -> None:
    stack.configure(tries=1)
    await stack.start()
    await stack.hospital.control(reports=[500] * 50)
    message = survey(formCd="P-UNKNOWN")
    await stack.legacy(message)
    row = await stack.reported(message["srvyDrawupNo"], "SENDING")
    status = await eventually(
        lambda: stack.execution_status(row["workflow_id"]), lambda found: found is not None and found.name != "RUNNING"
    )
    assert status is not None
    assert status.name == "FAILED"
    report = await stack.execution_status(f"{stack.name}-report/hospital/{message['srvyDrawupNo']}/1")
    assert report is not None
    assert report.name == "RUNNING"
    await stack.hospital.control(reports=[])
    await stack.reported(message["srvyDrawupNo"])


async def given_up(stack: Stack) -> str:
    """Have a report given up; return its message's ID."""
    stack.configure(tries=1, report={"url": f"{stack.hospital.url}/reports", "give_up_after": 2})
    await stack.start()
    await stack.hospital.control(reports=[500] * 50)
    message = survey(formCd="P-UNKNOWN")
    await stack.legacy(message)
    await stack.reported(message["srvyDrawupNo"], "GIVEN_UP")
    (report,) = await stack.reports(message["srvyDrawupNo"])
    handle = stack.temporal.get_workflow_handle(report["workflow_id"])
    await eventually(handle.describe, lambda found: found.close_time is not None)
    return str(message["srvyDrawupNo"])


async def test_what_was_given_up_is_sent_again_under_its_key(stack: Stack) -> None:
    name = await given_up(stack)
    (before,) = await stack.reports(name)
    await stack.hospital.control(reports=[])
    await send_again(stack.database, Key("", "hospital", name))
    await stack.reported(name)
    (report,) = await stack.reports(name)
    assert (report["state"], report["tries"]) == ("SENT", before["tries"] + 1)
    heard = (await stack.hospital.seen())["reports"]
    assert (heard[-1]["status"], len({told["key"] for told in heard})) == (200, 1)
    assert {str(told["body"]) for told in heard} == {str(heard[0]["body"])}
    assert (await stack.get("/backlog")).json()["givenUp"]["count"] == 0
    with pytest.raises(NotGivenUp, match="is DEAD, and its last report is SENT"):
        await send_again(stack.database, Key("", "hospital", name))


async def test_what_was_given_up_and_is_sent_again_is_given_up_again(stack: Stack) -> None:
    name = await given_up(stack)
    (before,) = await stack.reports(name)
    await send_again(stack.database, Key("", "hospital", name))
    await eventually(
        lambda: stack.reports(name),
        lambda found: found[0]["state"] == "GIVEN_UP" and found[0]["tries"] > before["tries"],
    )
    assert (await stack.row(name))["report_state"] == "GIVEN_UP"


async def test_a_redrive_has_the_last_word(stack: Stack) -> None:
    name = await given_up(stack)
    await redrive(stack.database, Key("", "hospital", name))
    row = await stack.closed(name)  # dead once more, of the same
    assert row["generation"] == 2
    with pytest.raises(NotGivenUp, match="is DEAD, and its last report is"):  # the second, owed or being sent
        await send_again(stack.database, Key("", "hospital", name))
    assert (await stack.reports(name))[0]["state"] == "GIVEN_UP"


@pytest.mark.parametrize(("tries", "state"), [(0, "OWED"), (3, "SENDING")])
async def test_upstream_may_have_heard_what_was_called_before(stack: Stack, tries: int, state: str) -> None:
    await stack.open()
    message = survey()
    await stack.legacy(message)
    key = Key("", "hospital", message["srvyDrawupNo"])
    with pytest.raises(NotGivenUp, match="is RECEIVED, and its last report is none"):
        await send_again(stack.database, key)
    await discard(stack.database, stack.settings, key, "r")
    await stack.sql(
        "UPDATE inbox.report SET state = 'GIVEN_UP', tries = %s, closed_at = now(), due_at = NULL, dispatched_at = now()",
        tries,
    )
    await send_again(stack.database, key)
    (report,) = await stack.reports(key.id)
    assert (report["state"], report["dispatched_at"], report["due_at"] is not None) == (state, None, True)
    assert (await stack.row(key.id))["report_state"] == state


async def test_a_report_that_is_sent_again_while_its_giving_up_ends_is_sent_at_once(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stack.hospital.control(reports=[503] * 50)
    stack.configure(tries=1, report={"url": f"{stack.hospital.url}/reports", "give_up_after": 1})
    message = survey(formCd="P-UNKNOWN")
    close = ReportActivities._close

    async def close_and_send_again(self: ReportActivities, work: ReportInput, state: ReportState) -> None:
        """The row says GIVEN_UP, and an operator acts on it before its execution has ended."""
        await close(self, work, state)
        if state is ReportState.GIVEN_UP:
            monkeypatch.setattr(ReportActivities, "_close", close)
            await stack.hospital.control(reports=[200] * 50)
            await send_again(stack.database, Key("", "hospital", message["srvyDrawupNo"]))
            stack.dispatcher.nudge()
            await stack.eventually_row("SELECT 1 FROM inbox.report WHERE dispatched_at IS NOT NULL")

    monkeypatch.setattr(ReportActivities, "_close", close_and_send_again)
    await stack.start()
    await stack.legacy(message)
    await stack.reported(message["srvyDrawupNo"], limit=20)
