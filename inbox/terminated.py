"""Executions that an operator terminated: no code of ours runs then, so the workers look for them (spec section 6).

Visibility gives the hint, the server's own word the proof: the newest run is Terminated, by a person, and of the chain
that works on the row's present generation. Whatever else ends an execution while its row is open is dispatch's matter:
the row falls due again, and is started again.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta

from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowExecution, WorkflowExecutionStatus, WorkflowHistoryEventFilterType
from temporalio.service import RPCError, RPCStatusCode

from inbox.burial import bury
from inbox.errors import StoreUnavailable, fault_of
from inbox.logs import LimitedLog
from inbox.process import raise_lost_cancel
from inbox.references import MESSAGE_MEMO, PROCESS_MESSAGE, BuryInput
from inbox.settings import Settings
from inbox.states import OwnCode
from inbox.store.engine import Database
from inbox.store.reads import READ_CHAIN, READ_CLOCK, Chain
from inbox.temporal import answer_of

limited = LimitedLog(logging.getLogger(__name__), interval=60)
EVERY = 20.0  # seconds between two looks, times a random 0.8 to 1.2
# How far back a look goes, but for a process's first: all that visibility keeps.
BACK = timedelta(minutes=10)
# The server ends executions too, past its limits, and calls itself so.
SERVER = "history-service"
WITHOUT_REASON = "by an operator, in Temporal"


class Terminations:
    """Looks for them. ``nudge`` is called once a report, or the next of a subject, may have become due."""

    def __init__(self, database: Database, client: Client, settings: Settings, nudge: Callable[[], None]) -> None:
        self._database = database
        self._client = client
        self._settings = settings
        self._nudge = nudge
        self._rpc_timeout = timedelta(seconds=settings.declared.timeouts.rpc)
        self._since: datetime | None = None

    async def run(self) -> None:
        """Look until cancelled; a look that fails is logged and followed by the next."""
        while True:
            raise_lost_cancel()
            try:
                clock = await self._database.one(READ_CLOCK, {})  # ours may be hours ahead of Temporal's: nothing found
                await self.look()
                self._since = clock.now - BACK if clock else None
            except (RPCError, RuntimeError) as error:
                limited.warning("look", "terminated executions were not looked for: %s", answer_of(error))
            except StoreUnavailable:
                limited.warning("look", "terminated executions were not looked for: Postgres gives no answer")
            await asyncio.sleep(EVERY * random.uniform(0.8, 1.2))

    async def look(self) -> int:
        """Close the rows of executions that were terminated; return how many. Raises RPCError, StoreUnavailable."""
        closed = 0
        async for execution in self._hints():
            try:
                closed += await self._close(execution)
            except (RPCError, RuntimeError, StoreUnavailable):
                raise
            except Exception as error:  # noqa: BLE001  one of them, say somebody's own, never stops the look
                limited.error("close", "a terminated execution was not looked at: %s", fault_of(error))
        return closed

    async def _close(self, execution: WorkflowExecution) -> bool:
        memo = await execution.memo()
        row = await self._database.one(READ_CHAIN, {"id": memo.get(MESSAGE_MEMO)})
        if row is None or row.workflow_id != execution.id:
            return False
        reason = await self._proof(row)
        if reason is None:
            return False
        work = BuryInput(row.id, row.source, row.generation, OwnCode.TERMINATED)
        await bury(self._database, self._settings, work, reason)
        self._nudge()
        return True

    def _hints(self) -> AsyncIterator[WorkflowExecution]:
        query = (
            f"WorkflowType = '{PROCESS_MESSAGE}' AND ExecutionStatus = 'Terminated'"
            f" AND WorkflowId STARTS_WITH '{self._settings.name}/'"
        )
        if self._since is not None:
            query += f" AND CloseTime > '{self._since.isoformat()}'"
        return self._client.list_workflows(query, rpc_timeout=self._rpc_timeout)

    async def _proof(self, row: Chain) -> str | None:
        """Return why the newest run was terminated; None where that is not what ended the row's own chain."""
        newest = self._client.get_workflow_handle(row.workflow_id)
        try:
            found = await newest.describe(rpc_timeout=self._rpc_timeout)
            if found.status != WorkflowExecutionStatus.TERMINATED:
                return None
            run = self._client.get_workflow_handle(row.workflow_id, run_id=found.run_id)
            first = await anext(run.fetch_history_events(page_size=1, rpc_timeout=self._rpc_timeout))
            started = first.workflow_execution_started_event_attributes
            last = await anext(
                run.fetch_history_events(
                    event_filter_type=WorkflowHistoryEventFilterType.CLOSE_EVENT, rpc_timeout=self._rpc_timeout
                )
            )
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:  # deleted meanwhile
                return None
            raise
        ended = last.workflow_execution_terminated_event_attributes
        if (
            last.event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_TERMINATED
            or ended.identity == SERVER
            or started.first_execution_run_id != row.run_id
        ):
            return None
        return ended.reason or WITHOUT_REASON
