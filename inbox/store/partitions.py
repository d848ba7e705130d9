"""Keeps the payload's partitions ahead of time, from every process: a paused Schedule must not stop intake."""

from __future__ import annotations

import asyncio
import logging

from inbox.errors import StoreUnavailable
from inbox.process import raise_lost_cancel
from inbox.store.engine import Database
from inbox.store.reads import MAKE_PARTITIONS

log = logging.getLogger(__name__)
DAYS_AHEAD = 7
INTERVAL = 3600.0  # seconds
RETRY = 5.0  # seconds, while Postgres is away


async def keep_partitions(database: Database) -> None:
    """Make what is missing now and every hour, until cancelled."""
    while True:
        raise_lost_cancel()
        try:
            await database.one(MAKE_PARTITIONS, {"days": DAYS_AHEAD})
            wait = INTERVAL
        except StoreUnavailable:
            wait = RETRY
        except Exception as error:  # noqa: BLE001  no schema, or not ours: /readyz says so, and it may be mended
            log.error("payload partitions were not made: %s", type(error).__name__)
            wait = RETRY
        await asyncio.sleep(wait)
