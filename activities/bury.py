"""Bury: close a row as DEAD because an operator wants it closed (spec section 7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from temporalio import activity

from activities.failures import codes_only
from activities.heartbeats import heartbeats
from inbox.burial import bury
from inbox.handler import Handler
from inbox.references import GONE, BuryInput, RegisterResult
from inbox.settings import Settings
from inbox.store.engine import Database
from inbox.verdict import hint_for


class BuryActivity:
    """Holds what it needs. ``owed`` is called once a report was committed."""

    def __init__(
        self,
        database: Database,
        handlers: Iterable[Handler[Any, Any]],
        settings: Settings,
        owed: Callable[[], None],
    ) -> None:
        self._database = database
        self._handlers = handlers
        self._settings = settings
        self._owed = owed

    @activity.defn(name="bury")
    async def bury(self, work: BuryInput) -> RegisterResult:
        """Close one generation of a row where it is open, and return what the row says in the end.

        Raises ApplicationError, retryable, while Postgres is away.
        """
        with codes_only():
            async with heartbeats():
                standing = await bury(self._database, self._settings, work, "by an operator, in Temporal")
        self._owed()
        if standing is None:
            return RegisterResult(GONE)
        hint = hint_for(standing.last_code, self._handlers, self._settings.codes(work.source))
        return RegisterResult(standing.status, standing.last_code, hint)
