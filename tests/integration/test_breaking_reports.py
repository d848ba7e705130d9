"""Upstreams under which reports suffer: they hang, they drip, they ask for odd waits."""

from itertools import pairwise
from typing import Any

import pytest

import activities.report
from tests.support.stack import Stack, survey
from tests.support.upstream import Upstream, answer, drip, hang
from tests.support.waiting import eventually


async def test_an_upstream_that_never_answers_holds_up_no_message(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(activities.report, "CALL", 3600)
    async with Upstream(lambda _: hang) as upstream:
        stack.configure(tries=1, report={"url": upstream.url})
        await stack.start()
        for _ in range(2 * stack.settings.activities):
            await stack.legacy(survey(formCd="P-UNKNOWN"))

        async def calls() -> int:
            return len(upstream.calls)

        await eventually(calls, lambda count: count >= stack.settings.report_activities)
        good = survey()
        await stack.legacy(good)
        assert (await stack.closed(good["srvyDrawupNo"], 15))["status"] == "COMPLETED"


@pytest.mark.parametrize("slow", [hang, drip])
async def test_a_call_that_takes_too_long_is_given_up_and_made_again(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, slow: Any
) -> None:
    monkeypatch.setattr(activities.report, "CALL", 3)
    behaviours = iter([slow])
    async with Upstream(lambda _: next(behaviours, answer())) as upstream:
        # A call that takes longer than a heartbeat's time-out is not taken for lost.
        stack.configure({"timeouts": {"lock": 0.5, "heartbeat": 1.5}}, tries=1, report={"url": upstream.url})
        await stack.start()
        message = survey(formCd="P-UNKNOWN")
        await stack.legacy(message)
        await stack.reported(message["srvyDrawupNo"], limit=15)
    (report,) = await stack.reports(message["srvyDrawupNo"])
    assert (report["last_fault"], report["tries"]) == ("no answer", 2)


async def test_a_call_ends_before_its_attempt_does(stack: Stack) -> None:
    behaviours = iter([hang])
    timeouts = {"lock": 0.5, "heartbeat": 1.5, "statement": 2, "transaction": 3, "start_to_close": 4}
    async with Upstream(lambda _: next(behaviours, answer())) as upstream:
        stack.configure({"timeouts": timeouts}, tries=1, report={"url": upstream.url})
        await stack.start()
        message = survey(formCd="P-UNKNOWN")
        await stack.legacy(message)
        await stack.reported(message["srvyDrawupNo"], limit=20)
    (report,) = await stack.reports(message["srvyDrawupNo"])
    assert (report["last_fault"], report["tries"]) == ("no answer", 2)


async def test_an_upstream_that_refuses_many_reports_is_said_once_a_second(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    stack.configure(tries=1, report={"url": "http://127.0.0.1:9/reports"})  # nobody listens there
    await stack.start()
    for _ in range(20):
        await stack.legacy(survey(formCd="P-UNKNOWN"))

    async def calls() -> int:
        return int((await stack.sql("SELECT coalesce(sum(tries), 0) AS n FROM inbox.report"))[0]["n"])

    await eventually(calls, lambda count: count >= 40)
    said = [record for record in caplog.records if record.getMessage().startswith("a report was not taken")]
    assert said
    assert {vars(record)["source"] for record in said} == {"hospital"}
    assert min((b.created - a.created for a, b in pairwise(said)), default=1) > 0.95  # the time is the line's, not ours


DAY = 24 * 3600
ODD = {
    "ten days": str(10 * DAY),
    "twenty digits": "9" * 20,
    "four hundred digits": "9" * 400,
    "negative": "-5",
    "a date in the past": "Mon, 01 Jan 2001 00:00:00 GMT",
    "a date far off": "Fri, 31 Dec 9999 23:59:59 GMT",
    "a date past all years": "Fri, 31 Dec 99999999999999999999 23:59:59 GMT",
    "a zone past all zones": "Fri, 31 Dec 2027 23:59:59 +99999999999999999999",
    "without a zone": "Fri, 31 Dec 2027 23:59:59",
    "a fraction": "1.5",
    "rubbish": "soon, \xff",
    "nothing": "",
}  # fmt: skip


@pytest.mark.parametrize("value", ODD.values(), ids=ODD.keys())
async def test_whatever_retry_after_says_the_report_goes_on(stack: Stack, value: str) -> None:
    behaviours = iter([answer(503, Retry_After=value)])
    async with Upstream(lambda _: next(behaviours, answer())) as upstream:
        stack.configure(tries=1, report={"url": upstream.url, "give_up_after": 10})
        await stack.start()
        message = survey(formCd="P-UNKNOWN")
        await stack.legacy(message)
        await stack.reported(message["srvyDrawupNo"], limit=20)
    (report,) = await stack.reports(message["srvyDrawupNo"])
    assert (report["state"], report["tries"], report["last_fault"]) == ("SENT", 2, "HTTP 503")


async def test_retry_after_puts_a_report_off_for_a_day_at_most(stack: Stack) -> None:
    async with Upstream(lambda _: answer(503, Retry_After=str(10 * DAY))) as upstream:
        stack.configure(tries=1, report={"url": upstream.url, "give_up_after": 100 * DAY})
        await stack.start()
        message = survey(formCd="P-UNKNOWN")
        await stack.legacy(message)

        async def put_off() -> Any:
            return [report for report in await stack.reports(message["srvyDrawupNo"]) if report["next_try_at"]]

        (report,) = await eventually(put_off)
        assert (report["next_try_at"] - report["updated_at"]).total_seconds() == DAY
        status = await stack.execution_status(report["workflow_id"])
        assert status is not None
        assert status.name == "RUNNING"
