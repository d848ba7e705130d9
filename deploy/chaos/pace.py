"""The clock of a run, which stands still while more is under way than the machine gets done."""

from __future__ import annotations

import asyncio
import time

UNDER_WAY = 40  # messages: a queue must not hide how long a fault holds them up
_LEAST, _LOOK = 0.01, 0.25  # seconds between two looks at it


class Pace:
    """Seconds of traffic and faults; senders and the plan of faults go by it. Used from two threads."""

    def __init__(self) -> None:
        """Stand at 0 until it begins."""
        self._began: float | None = None
        self._held_at: float | None = None
        self._held = 0.0  # seconds altogether

    def begin(self) -> None:
        """Let it run from now on."""
        self._began = time.monotonic()

    def now(self) -> float:
        """Return the seconds that it has run."""
        if self._began is None:
            return 0.0
        return (self._held_at or time.monotonic()) - self._began - self._held

    async def reached(self, seconds: float) -> None:
        """Wait until it shows so many seconds, and does not stand still: what is late must not come all at once."""
        while self._held_at is not None or self.now() < seconds:  # noqa: ASYNC110  a clock tells nobody
            await asyncio.sleep(min(max(seconds - self.now(), _LEAST), _LOOK))

    def hold(self, *, when: bool) -> None:
        """Let it stand still, or go on."""
        if when and self._held_at is None:
            self._held_at = time.monotonic()
        elif not when and self._held_at is not None:
            self._held += time.monotonic() - self._held_at
            self._held_at = None
