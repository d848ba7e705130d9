"""The product's tries and dispatch without Temporal: a test plays its part."""

from __future__ import annotations

from typing import Any

from activities.endings import Endings
from activities.register import RegisterActivity
from inbox.dispatch import Dispatcher
from inbox.handler import Outcome
from inbox.settings import Settings
from inbox.store.engine import Database


class Untold(Endings):
    """Endings, with no workflow to tell of them."""

    async def _tell(self, tried: Any) -> None:
        return

    def _hint(self, code: str | None, message: Any) -> None:
        """There is no handler that could give one."""


class Tries(RegisterActivity):
    """The activity, with no workflow to tell anything."""

    def __init__(self, database: Any, handlers: Any, settings: Any, worker: str, nudge: Any) -> None:
        super().__init__(database, handlers, settings, worker, nudge)
        self._endings = Untold(database, handlers, settings, nudge)


class Noting(Dispatcher):
    """Dispatch, whose starts are noted."""

    def __init__(self, database: Database, settings: Settings) -> None:
        super().__init__(database, None, settings)  # type: ignore[arg-type]
        self.started: list[int] = []

    async def _start_workflow(self, route: Any, row: Any, reuse: Any) -> str:
        self.started.append(row.id)
        return "run"


async def nothing_written(_: Any) -> Outcome:
    """A bundle without rows of its own."""
    return Outcome()
