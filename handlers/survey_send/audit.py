"""Compares the bundles with the record (spec section 13): what must be zero is counted."""

from __future__ import annotations

import json
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from inbox.handler import AuditCounts

# The outcome of an edition that came too late to be sent again: it has no bundle.
NOTHING_WRITTEN = {"sent": False}
KEY = "(b.tenant, b.source, b.message_id, b.edition) = (m.tenant, m.source, m.message_id, m.edition)"
PARTS = ("recipient", "schedule", "assignment", "task")
WHOLE = " AND ".join(f"EXISTS (SELECT FROM survey.{part} b WHERE {KEY})" for part in PARTS)
# One snapshot for all three. Messages are asked by when they were closed, bundles by when they were written, and the
# other side of each without a time: a transaction that began before ``since`` may have ended after it.
COUNT = text(f"""
    SELECT (SELECT count(*) FROM survey.recipient WHERE created_at >= :since) AS bundles,
           (SELECT count(*) FROM inbox.message m
             WHERE m.type IN (:type, :type || '.resend') AND m.status = 'COMPLETED' AND m.closed_at >= :since
               AND m.outcome <> '"obsolete"'
               AND NOT (m.edition > 1 AND m.outcome = CAST(:nothing AS jsonb)) AND NOT ({WHOLE})) AS missing,
           (SELECT count(*) FROM survey.recipient b
             WHERE b.created_at >= :since
               AND NOT EXISTS (SELECT FROM inbox.message m WHERE {KEY} AND m.status = 'COMPLETED')) AS orphaned""")  # noqa: S608  built from constants of the module alone


async def count(tx: AsyncConnection, kind: str, since: datetime) -> AuditCounts:
    """Count the bundles of messages of the type ``kind`` since then, and those that do not fit the record."""
    found = (await tx.execute(COUNT, {"type": kind, "since": since, "nothing": json.dumps(NOTHING_WRITTEN)})).one()
    return AuditCounts(found.bundles, found.missing, found.orphaned)
