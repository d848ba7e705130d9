"""A service that tries need is away: messages wait it out by themselves, and come back one after the other."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import AsyncIterator, Callable
from datetime import datetime

import pytest
from temporalio.client import Client

from tests.support.stack import Stack, survey
from tests.support.waiting import eventually
from tests.support.watched import Watched

MESSAGES = 273
SIDE_BY_SIDE = 16  # deliveries
TRIES = 5
# In life a minute. The service is away until a first message has one of its five tries left.
INTERVAL = float(os.environ.get("OUTAGE_INTERVAL", "6"))


@pytest.fixture
async def hospital() -> AsyncIterator[Watched]:
    async with Watched() as server:
        yield server


async def _deliver(stack: Stack, messages: list[dict[str, str]]) -> None:
    for start in range(0, len(messages), SIDE_BY_SIDE):
        answers = await asyncio.gather(*map(stack.legacy, messages[start : start + SIDE_BY_SIDE]))
        assert {answer.headers["X-Result"] for answer in answers} == {"Y"}


async def _spread(stack: Stack) -> None:
    """Look at how long each was told to wait: all of the tenth above the interval is used."""
    rows = await stack.sql(
        "SELECT extract(epoch FROM next_try_at - updated_at)::float8 AS wait FROM inbox.message WHERE status = 'FAILED'"
    )
    steps = {int((row["wait"] / INTERVAL - 1) * 50) for row in rows}
    assert len(rows) > MESSAGES / 3
    assert steps == set(range(5))


async def _waits(stack: Stack) -> dict[int, datetime]:
    """Return until when each message that failed waits."""
    rows = await stack.sql("SELECT id, next_try_at FROM inbox.message WHERE status = 'FAILED'")
    return {row["id"]: row["next_try_at"] for row in rows}


async def _lateness(stack: Stack, waits: dict[int, datetime], back: datetime) -> str:
    """Say what the time after the return was made of: what was left to wait, and what came on top of that."""
    rows = [
        row
        for row in await stack.sql("SELECT id, claim_began_at AS began, closed_at AS closed FROM inbox.message")
        if row["id"] in waits
    ]
    left = max((until - back).total_seconds() for until in waits.values())
    queued = [(row["began"] - max(waits[row["id"]], back)).total_seconds() for row in rows]
    tried = [(row["closed"] - row["began"]).total_seconds() for row in rows]
    return (
        f"{len(rows)} waited, for {left:.1f} s more at the most; their last tries began"
        f" {statistics.median(queued):.1f} s after that (median), {max(queued):.1f} s at the most, and took"
        f" {statistics.median(tried):.1f} s (median), {max(tried):.1f} s at the most"
    )


async def test_all_that_was_accepted_during_an_outage_completes_by_itself_and_not_at_once(
    name: str,
    database_url: str,
    temporal: Client,
    hospital: Watched,
    record_property: Callable[[str, object], None],
) -> None:
    # A form of its own for each: nothing is looked up once for all of them.
    forms = {f"F-{n}": {"surveyNo": f"PS{n}", "group": "G", "distributed": True} for n in range(MESSAGES)}
    await hospital.control(forms=forms, down=True)
    async with Stack(name, database_url, temporal, hospital) as stack:
        stack.configure(retry_interval=INTERVAL, tries=TRIES)
        await stack.start()
        began = time.monotonic()
        await _deliver(stack, [survey(formCd=form) for form in forms])
        accepted = time.monotonic() - began

        async def most() -> int:
            return int((await stack.sql("SELECT max(tries) AS n FROM inbox.message WHERE status = 'FAILED'"))[0]["n"])

        await eventually(most, lambda found: found == TRIES - 1, 120 + TRIES * INTERVAL)
        down = hospital.peak(began)
        back = time.monotonic()
        await hospital.control(down=False)
        (clock,) = await stack.sql("SELECT clock_timestamp() AS at")
        waits = await _waits(stack)
        await _spread(stack)

        async def open_ones() -> int:
            return int((await stack.sql("SELECT count(*) AS n FROM inbox.message WHERE closed_at IS NULL"))[0]["n"])

        await eventually(open_ones, lambda found: found == 0, 90 + 2 * INTERVAL)
        took = time.monotonic() - back
        ended = await stack.sql("SELECT status, count(*) AS n, max(tries) AS tries FROM inbox.message GROUP BY 1")
        assert [(row["status"], row["n"]) for row in ended] == [("COMPLETED", MESSAGES)]
        assert (await stack.sql("SELECT count(*) AS n FROM inbox.report"))[0]["n"] == 0
        assert (await stack.sql("SELECT count(*) AS n FROM survey.task"))[0]["n"] == MESSAGES
        calls = sum(at >= back for at in hospital.calls)
        assert calls >= 3 * MESSAGES  # form, consents, account
        record_property(
            "measured",
            f"interval {INTERVAL:.0f} s, {MESSAGES} accepted in {accepted:.1f} s, all complete {took:.1f} s after the"
            f" return, tries at the most {ended[0]['tries']}; {calls} calls after the return; in the busiest second {down}"
            f" while down, {hospital.peak(back)} after the return ({hospital.peak(back) / 3:.0f} messages);"
            f" {await _lateness(stack, waits, clock['at'])}",
        )
