"""What a source's order finds of the one that it had before: taken up without an operator (spec section 9)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from inbox.errors import StoreUnavailable
from inbox.logs import LimitedLog
from inbox.process import raise_lost_cancel
from inbox.settings import Settings
from inbox.store.direct import MAKE_PLACE
from inbox.store.engine import Database
from inbox.store.order import ADOPT, RESUME

limited = LimitedLog(logging.getLogger(__name__))
AGAIN = 1.0  # seconds until Postgres is asked again


async def make_place(database: Database, row: Mapping[str, Any]) -> None:
    """Have a subject's place made in a transaction of its own, before a row is locked (the lock order).

    ``row`` is what ACCEPT is given. Raises StoreUnavailable.
    """
    await database.one(MAKE_PLACE, row)


async def adopt(database: Database, settings: Settings) -> bool:
    """Give tries that began without order their place, before a worker claims beside them; waits for Postgres."""
    while True:
        raise_lost_cancel()
        try:
            for name, source in settings.declared.sources.items():
                if source.ordered:
                    await database.run(ADOPT, {"source": name})
        except StoreUnavailable:
            limited.warning("adopt", "waiting: Postgres gives no answer")
            await asyncio.sleep(AGAIN)
        else:
            return True


async def resume(database: Database, settings: Settings) -> bool:
    """Make due what another order held, each source by its own; tell whether there was any. Raises StoreUnavailable."""
    found = [
        row
        for name, source in settings.declared.sources.items()
        for row in await database.run(RESUME, {"source": name, "order": source.order})
    ]
    return bool(found)


async def keep_order(database: Database, settings: Settings, nudge: Callable[[], None]) -> None:
    """Do so until cancelled: at the start, and again, since others may still have run with the old settings then."""
    while True:
        raise_lost_cancel()
        wait = settings.declared.dispatch.again
        try:
            if await resume(database, settings):
                nudge()
        except StoreUnavailable:
            wait = AGAIN
        except Exception as error:  # noqa: BLE001  no schema, or not ours: /readyz says so, and it may be mended
            limited.error("resume", "held messages were not looked at: %s", type(error).__name__)
            wait = AGAIN
        await asyncio.sleep(wait)
