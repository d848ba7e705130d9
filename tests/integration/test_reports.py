"""A report's life."""

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
