"""Waiting for a condition, with a limit; never for a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(look: Callable[[], Awaitable[T]], accept: Callable[[T], bool] = bool, limit: float = 60) -> T:
    """Return the first look that is accepted; fails with the last one after ``limit`` seconds."""
    end = time.monotonic() + limit
    while True:
        seen = await look()
        if accept(seen):
            return seen
        assert time.monotonic() < end, f"not within {limit} s; the last look was {seen!r}"
        await asyncio.sleep(0.03)
