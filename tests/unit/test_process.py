"""A loop that goes on after errors ends when it is cancelled, whoever loses the cancel."""

import asyncio

import pytest

from inbox.process import raise_lost_cancel


async def test_a_cancel_that_a_driver_has_lost_ends_the_loop_all_the_same() -> None:
    began = asyncio.Event()

    async def statement() -> None:
        """As psycopg does, where the statement fails while it is being cancelled."""
        try:
            began.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("the statement's own error") from None

    async def loop() -> None:
        while True:
            raise_lost_cancel()
            try:
                await statement()
            except RuntimeError:
                await asyncio.sleep(0)  # one that never ends fails the test so, and does not hang it

    task = asyncio.create_task(loop())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)


async def test_whoever_was_not_cancelled_goes_on() -> None:
    async with asyncio.timeout(5):
        raise_lost_cancel()
