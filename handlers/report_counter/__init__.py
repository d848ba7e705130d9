"""report_counter: the small handler to read first (spec section 10).

Message ``E-42`` moves report-worker's counter from 6 to 7 in the inbox row's own transaction; delivered again, from
any number of instances at once, it stays 7.
"""

from __future__ import annotations

from pydantic import BaseModel, Field
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from inbox.handler import Message, Outcome


class Count(BaseModel):
    """Which counter to move by one."""

    counter: str = Field(min_length=1, max_length=200)


class ReportCounter:
    """Counts; nothing to look up first."""

    type = "report.count"
    payload = Count

    async def prepare(self, message: Message[Count]) -> None:
        """Return at once."""

    async def register(self, tx: AsyncConnection, message: Message[Count], _: None) -> Outcome:
        """Move the counter by one and return its value; the counter comes into being at 1."""
        statement = text("""
            INSERT INTO reporting.counter AS c (name, value) VALUES (:name, 1)
            ON CONFLICT (name) DO UPDATE SET value = c.value + 1
            RETURNING value""")
        value = (await tx.execute(statement, {"name": message.payload.counter})).scalar_one()
        return Outcome({"value": value})
