"""Heartbeats: a lost worker is noticed within one heartbeat time-out, whatever its activity was doing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from temporalio import activity

BEATS = 5  # in one heartbeat time-out


@asynccontextmanager
async def heartbeats() -> AsyncIterator[None]:
    """Heartbeat from a task of its own, as often as the attempt's own time-out asks for; not at all where it has none.

    The task shares the event loop with the work, so that one that hangs with its whole process falls silent too.
    """
    limit = activity.info().heartbeat_timeout
    if not limit:
        yield
        return

    async def beat() -> None:
        while True:
            activity.heartbeat()
            await asyncio.sleep(limit.total_seconds() / BEATS)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
