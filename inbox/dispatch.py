"""Dispatch: the one code path that starts workflows for what is due (spec section 6).

A round leases rows, starts their workflows outside any transaction, and marks them. A crash anywhere in between
leaves a row that falls due again when its lease ends: a normal start, a lost start, a stuck row, a redrive and an
unfinished report all come this way, and recovery has no code of its own.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

from temporalio.client import Client, WorkflowHandle
from temporalio.common import WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from inbox.errors import StoreUnavailable, fault_of
from inbox.logs import LimitedLog
from inbox.process import raise_lost_cancel
from inbox.references import WAKE
from inbox.settings import Settings
from inbox.spans import within
from inbox.starts import ROUTES, Route, search_attributes, summary
from inbox.store.due import Leased, Queue
from inbox.store.engine import Database
from inbox.store.order import DECIDE, LOCK_SUBJECT
from inbox.temporal import answer_of

limited = LimitedLog(logging.getLogger(__name__))
# Refusals that say nothing about the next row; any other means that Temporal is away, for all of them.
ABOUT_THE_ROW = (RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.FAILED_PRECONDITION, RPCStatusCode.OUT_OF_RANGE)
MAX_BACK_OFF = 60.0  # seconds, of a row that Temporal refuses
# Where Temporal is away: each round looks for it with a row of its own, and ``starts`` counts more than failures.
AWAY_BACK_OFF = 8.0
CONTESTED_AGAIN = 0.5  # seconds until order is asked again for a row whose subject was locked
MAX_SEARCH = 5.0  # seconds between two rounds while Temporal is away
# How many of a source's latest starts are looked at for the cap: those still unclaimed are among the last.
CAP_WINDOW = 5


class Dispatcher:
    """Runs rounds: at once when nudged, and every tick by itself."""

    def __init__(self, database: Database, client: Client, settings: Settings) -> None:
        self._database = database
        self._client = client
        self._settings = settings
        self._dispatch = settings.declared.dispatch
        self._rpc_timeout = timedelta(seconds=settings.declared.timeouts.rpc)
        self._task_timeout = timedelta(seconds=settings.declared.timeouts.heartbeat)
        self._slots = asyncio.Semaphore(self._dispatch.concurrency)
        self._nudged = asyncio.Event()
        self._away = 0  # rounds in a row in which Temporal gave no answer

    def nudge(self) -> None:
        """Ask for a round now; whoever committed a due row calls it."""
        self._nudged.set()

    async def run(self) -> None:
        """Run rounds until cancelled; one that fails is logged and followed by the next."""
        answered = True
        while True:
            raise_lost_cancel()
            try:
                busy = await self._whole_round()
                if not answered:
                    limited.warning("store back", "dispatch goes on: Postgres answers again")
                answered = True
            except StoreUnavailable:
                limited.warning("store", "dispatch waits: Postgres gives no answer")
                busy = answered = False
            except Exception as error:  # noqa: BLE001  the rows are still due: to end would be the greater fault
                limited.error("round", "dispatch round failed: %s", type(error).__name__)
                busy = False
            if not busy:
                await self._rest()

    async def _whole_round(self) -> bool:
        """Run a round; one that is under way when the process is told to go is ended first, or its rows would wait.

        What it cannot start in time, because Temporal hangs too, is put back.
        """
        task = asyncio.create_task(self.round())
        limit = 2 * self._rpc_timeout.total_seconds()
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.wait([task], timeout=limit)
            task.cancel()
            await asyncio.wait([task], timeout=limit)
            raise

    async def _rest(self) -> None:
        """Wait for a nudge, a tick at the most; while Temporal is away longer and longer, and deaf to nudges."""
        if self._away:
            await asyncio.sleep(min(self._dispatch.tick * self._away, MAX_SEARCH) * random.uniform(0.8, 1.2))
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(self._dispatch.tick):  # wait_for can lose a cancel to a nudge (Python 3.11)
                await self._nudged.wait()

    async def round(self) -> bool:
        """Start what is due now, a share of each source; tell whether there may be more."""
        self._nudged.clear()
        full = False
        jobs = []
        for route in ROUTES:
            rows, more = await self._lease(route.queue)
            full = full or more
            jobs += [(route, *row) for row in rows]
        async with asyncio.TaskGroup() as group:  # unlike gather, it waits for those that it cancels
            starts = [group.create_task(self._start(*job)) for job in jobs]
        answered = [start.result() for start in starts]
        if answered:
            if self._away and any(answered):
                limited.warning("Temporal back", "dispatch goes on: Temporal answers again")
            self._away = 0 if any(answered) else self._away + 1
        return full and not self._away

    async def _lease(self, queue: Queue) -> tuple[list[tuple[Leased, float]], bool]:
        """Lease a fair share of each source; while Temporal is away a single row, to find it back.

        With each row: until when its start may begin (monotonic time), to be answered before the lease ends.
        """
        found: list[tuple[Leased, float]] = []
        timeouts = self._settings.declared.timeouts
        full = False
        limits = {"again": self._dispatch.again, "window": self._dispatch.cap * CAP_WINDOW}
        for due in await self._database.run(queue.due_sources, limits):
            share = min(self._dispatch.share, self._dispatch.cap - due.unclaimed)
            if self._away:
                share = min(share, 1 - len(found))
            if share <= 0:
                continue
            # By the clock from before the statement: the lease cannot end sooner than it says.
            latest = time.monotonic() + timeouts.lease - timeouts.rpc
            rows = await self._database.run(
                queue.lease,
                {
                    "source": due.source,
                    "share": share,
                    "again": self._dispatch.again,
                    "lease": timeouts.lease,
                    "order": self._order(due.source),
                },
            )
            full = full or len(rows) == share
            found += [(row, latest) for row in rows if not row.put_off]
        return found, full

    async def _start(self, route: Route, row: Leased, latest: float) -> bool:
        """Start one row's workflow and mark it, or put it back. Return whether Temporal gave an answer.

        One whose turn comes too late in its lease is left to the next: two processes would start it.
        """
        try:
            async with self._slots:
                if row.contested and not await self._may_go(route, row):
                    return True
                if time.monotonic() > latest:
                    return False
                with within(row.traceparent):
                    run_id = await self._start_or_wake(route, row)
                if run_id is not None:
                    await self._database.one(
                        route.queue.mark,
                        {"id": row.id, "lease": row.lease, "run_id": run_id, "again": self._dispatch.again},
                    )
                return True
        except (RPCError, RuntimeError) as error:  # the client raises RuntimeError when it cannot connect
            limited.warning("start", "a workflow was not started, its row stays due: %s", answer_of(error))
            refused = isinstance(error, RPCError) and error.status in ABOUT_THE_ROW
            await self._put_back(route, row, longest=MAX_BACK_OFF if refused else AWAY_BACK_OFF)
            return refused
        except StoreUnavailable:
            return True  # not marked: the lease ends, and a wake finds the workflow running
        except asyncio.CancelledError:
            await self._put_back(route, row)
            raise
        except Exception as error:  # noqa: BLE001  one row's failure never stops the round
            limited.error("start", "a workflow was not started: %s", type(error).__name__)
            await self._put_back(route, row)
            return True

    def _order(self, source: str) -> str:
        found = self._settings.source(source)
        return found.order if found else "none"

    async def _may_go(self, route: Route, row: Leased) -> bool:
        """Ask order, under the subject's lock; a row that must wait is held, and gets no workflow."""
        source = self._settings.source(row.source)
        if source is None or source.order == "none":
            return True
        question = {"id": row.id, "gap": source.gap_timeout}
        try:
            decision = await self._database.locked(DECIDE[source.order], question, before=[LOCK_SUBJECT])
        except StoreUnavailable:  # a bundle of the subject is being committed, say: asked again soon
            await self._put_back(route, row, delay=CONTESTED_AGAIN)
            return False
        # A gap whose time is over is the workflow's: it is closed by a worker, which alone may do that.
        return decision is None or decision.answer != "HELD"

    async def _start_or_wake(self, route: Route, row: Leased) -> str | None:
        """Return the first run's ID; None where the row closed meanwhile."""
        try:
            return await self._start_workflow(route, row, WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY)
        except WorkflowAlreadyStartedError:
            # It ran to its end before. Only the row knows whether anything is left to do.
            if await self._database.one(route.queue.still_due, {"id": row.id, "lease": row.lease}) is None:
                return None
            limited.warning("ended", "an execution had ended with its row open, and is started again")
            return await self._start_workflow(route, row, WorkflowIDReusePolicy.ALLOW_DUPLICATE)

    async def _start_workflow(self, route: Route, row: Leased, reuse: WorkflowIDReusePolicy) -> str | None:
        """Start plainly the first time; every later start wakes the run it may find, so that it re-reads its row."""
        wake: dict[str, Any] = {}
        if row.starts > 1 or reuse is WorkflowIDReusePolicy.ALLOW_DUPLICATE:
            wake = {"start_signal": WAKE, "start_signal_args": [row.generation]}
        handle: WorkflowHandle[Any, Any] = await self._client.start_workflow(
            route.workflow,
            route.argument(self._settings, row),
            id=row.workflow_id,
            task_queue=route.task_queue(self._settings, row),
            id_reuse_policy=reuse,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            task_timeout=self._task_timeout,  # a killed worker holds a workflow task as long as it could an activity
            rpc_timeout=self._rpc_timeout,
            static_summary=summary(self._settings, row),
            memo=route.memo(row),
            search_attributes=search_attributes(row),
            **wake,
        )
        return handle.first_execution_run_id or handle.result_run_id

    async def _put_back(
        self, route: Route, row: Leased, *, delay: float | None = None, longest: float = MAX_BACK_OFF
    ) -> None:
        if delay is None:
            delay = min(2.0 ** min(row.starts, 10), longest) * random.uniform(0.8, 1.2)
        try:
            await self._database.one(route.queue.put_back, {"id": row.id, "lease": row.lease, "delay": delay})
        except Exception as error:  # noqa: BLE001  then the lease ends by itself
            limited.warning("put back", "a row was not put back, its lease ends by itself: %s", fault_of(error))
