"""A handler that asks for a longer time-out, and takes as long as a test lets it."""

from __future__ import annotations

import asyncio

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from handlers.report_counter import Count, ReportCounter
from inbox.handler import Message, Outcome

TYPE = "report.patient"
TIMEOUT = 60.0  # seconds


class Patient(ReportCounter):
    """Counts once it is let go, in a transaction that lasts ``beats`` times 0.8 s."""

    type = TYPE
    timeout = TIMEOUT

    def __init__(self, beats: int = 0) -> None:
        self.beats = beats
        self.go = asyncio.Event()
        self.go.set()

    async def prepare(self, message: Message[Count]) -> None:
        """Wait until it may go."""
        await self.go.wait()

    async def register(self, tx: AsyncConnection, message: Message[Count], _: None) -> Outcome:
        """Count, slowly."""
        for _beat in range(self.beats):
            await tx.execute(text("SELECT pg_sleep(0.8)"))
        return await super().register(tx, message, None)
