"""A worker stopped past its time-out and woken later can neither commit, nor fail, nor kill what followed it."""

import asyncio
import signal
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from inbox.burial import bury, redrive
from inbox.errors import StoreUnavailable
from inbox.message import Key
from inbox.references import BuryInput
from tests.support.processes import environment, process, stopped
from tests.support.stack import Stack, survey
from tests.support.waiting import eventually

# In the product's order, only shorter.
TIMEOUTS = {
    "lock": 0.5,
    "heartbeat": 1.5,
    "statement": 2,
    "transaction": 2.5,
    "start_to_close": 6,
    "rpc": 1,
    "lease": 2,
}
PLACES = ["stop claiming", "stop claimed", "stop preparing", "stop committing"]


def zombie_at(
    stack: Stack, folder: Path, place: str, log: Path | None = None, **more: str
) -> AbstractAsyncContextManager[asyncio.subprocess.Process]:
    """Run a worker that will stop itself at ``place``; ``more`` is laid over its environment.

    It has one slot: else Temporal would hand the next attempts to the polls that a stopped process leaves open.
    """
    return process(environment(stack, folder, INBOX_ACTIVITIES="1", **more), "worker", place, log)


async def let_go(zombie: asyncio.subprocess.Process) -> None:
    """Wake a stopped worker, and wait until it has done all that it can with its try."""
    zombie.send_signal(signal.SIGCONT)
    zombie.send_signal(signal.SIGTERM)  # it drains: the try that it is at runs to its end
    assert await asyncio.wait_for(zombie.wait(), 60) == 0


def spent(place: str) -> int:
    """Return how many tries the zombie has spent: none, if it was stopped before it claimed."""
    return 0 if place == "stop claiming" else 1


@pytest.mark.parametrize("place", PLACES)
async def test_woken_after_the_next_try_began(stack: Stack, tmp_path: Path, place: str) -> None:
    stack.configure({"timeouts": TIMEOUTS})
    await stack.open()
    message = survey()
    async with stack.dispatching(), zombie_at(stack, tmp_path, place) as zombie:
        await stack.legacy(message)
        await stopped(zombie)
        await stack.hospital.control(delays=True)  # the next try is at its look-ups for a second
        tries = spent(place) + 1
        async with stack.working():
            await eventually(
                lambda: stack.row(message["srvyDrawupNo"]),
                lambda row: row["tries"] == tries and row["status"] == "PROCESSING",
            )
            await let_go(zombie)
            row = await stack.closed(message["srvyDrawupNo"])
    assert (row["status"], row["tries"]) == ("COMPLETED", tries)
    assert [line["code"] for line in await stack.attempts(message["srvyDrawupNo"])] == ["TRY_LOST"] * spent(place)
    assert await stack.bundles(message["srvyDrawupNo"]) == (1, 1, 1, 1)


@pytest.mark.parametrize("place", PLACES)
async def test_woken_after_the_next_try_committed(stack: Stack, tmp_path: Path, place: str) -> None:
    stack.configure({"timeouts": TIMEOUTS})
    await stack.open()
    message = survey()
    async with stack.dispatching(), zombie_at(stack, tmp_path, place) as zombie:
        await stack.legacy(message)
        await stopped(zombie)
        async with stack.working():
            before = await stack.closed(message["srvyDrawupNo"])
            await let_go(zombie)
    after = await stack.row(message["srvyDrawupNo"])
    assert after == before
    assert (after["status"], after["tries"]) == ("COMPLETED", spent(place) + 1)
    assert await stack.bundles(message["srvyDrawupNo"]) == (1, 1, 1, 1)


@pytest.mark.parametrize("place", PLACES)
async def test_woken_after_dead_and_a_redrive(stack: Stack, tmp_path: Path, place: str) -> None:
    stack.configure({"timeouts": TIMEOUTS})
    await stack.open()
    message = survey()
    key = Key("", "hospital", message["srvyDrawupNo"])
    async with zombie_at(stack, tmp_path, place) as zombie:
        await stack.legacy(message)
        await stopped(zombie)
        row = await stack.row(message["srvyDrawupNo"])

        async def buried() -> str:
            work = BuryInput(row["id"], "hospital", 1, "DISCARDED")
            try:
                standing = await bury(stack.database, stack.settings, work, "r")
            except StoreUnavailable:  # the zombie's transaction still holds the row
                return "held"
            return standing.status if standing else "gone"

        await eventually(buried, lambda status: status == "DEAD")
        await redrive(stack.database, key)
        await let_go(zombie)
        untouched = await stack.row(message["srvyDrawupNo"])
        assert (untouched["status"], untouched["generation"]) == ("RECEIVED", 2)
        assert untouched["tries"] == untouched["tries_before"] == spent(place)
        assert await stack.bundles(message["srvyDrawupNo"]) == (0, 0, 0, 0)
        async with stack.dispatching(), stack.working():
            row = await stack.closed(message["srvyDrawupNo"])
    assert (row["status"], row["generation"], row["tries"]) == ("COMPLETED", 2, spent(place) + 1)
    lines = [(line["code"], line["generation"]) for line in await stack.attempts(message["srvyDrawupNo"])]
    assert lines == [("DISCARDED", 1)] * spent(place)
    assert await stack.bundles(message["srvyDrawupNo"]) == (1, 1, 1, 1)


async def test_one_stopped_within_its_transaction_holds_up_nobody_past_the_time_outs(
    stack: Stack, tmp_path: Path
) -> None:
    stack.configure({"timeouts": TIMEOUTS})
    await stack.open()
    held, other = survey(), survey(patno="900000002")
    async with stack.dispatching(), zombie_at(stack, tmp_path, "stop committing") as zombie:
        await stack.legacy(held)
        await stopped(zombie)
        async with stack.working():
            await stack.legacy(other)
            assert (await stack.closed(other["srvyDrawupNo"]))["tries"] == 1
            # A duplicate of the held one waits for its row no longer than lock_timeout, and is then told to come again.
            statuses = set()

            async def answered() -> bool:
                answer = await stack.legacy(held)
                statuses.add(answer.status_code)
                return answer.status_code == 200

            await eventually(answered)
            assert statuses <= {200, 503}
            row = await stack.closed(held["srvyDrawupNo"])
    assert (row["status"], row["tries"]) == ("COMPLETED", 2)
    assert await stack.bundles(held["srvyDrawupNo"]) == (1, 1, 1, 1)
