"""One run: traffic and faults, then quiet, then the evidence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import psycopg
from temporalio.service import RPCError

from deploy.chaos.evidence import Evidence, Waiting, read_rows, read_seen, running, under_way, waiting
from deploy.chaos.keeper import Keeper
from deploy.chaos.options import Options
from deploy.chaos.outside import Operator, Upstream
from deploy.chaos.pace import UNDER_WAY, Pace
from deploy.chaos.plan import INGESTS, WORKERS, draw_faults
from deploy.chaos.senders import Senders
from deploy.chaos.stack import Stack
from deploy.chaos.traffic import Traffic, draw
from deploy.dev.service import StackError
from deploy.dev.signals import Interrupted, Signals

# Seconds in which something must have moved: longer than a lease or a lost try, shorter than dispatch.again.
_STILL = 90.0
_LOOK = 0.5  # seconds between two looks
# What moves and never ends must not keep a run for ever: so many times what it should take, and half an hour.
_TIMES, _MORE = 6, 1800.0


class Run:
    """Traffic, upstream and operator in a thread of their own; the main one keeps the processes."""

    def __init__(self, options: Options, stack: Stack, signals: Signals, line: Callable[[str], None]) -> None:
        """Begin nothing yet; ``line`` shows a line to the reader of the screen."""
        self._options = options
        self._stack = stack
        self._signals = signals
        self._line = line
        self._stopped = False
        self._running: list[str] = []
        self._under_way = 0, time.monotonic()  # how many messages, and since when
        self._limit = time.monotonic() + _TIMES * options.seconds + _MORE
        self._pace = Pace()
        self.keeper = Keeper(stack, draw_faults(options), self._pace, signals, line)
        self.senders = Senders(stack.ingests, stack.tokens, options.seed, self._pace)
        self.upstream = Upstream(stack, options, self._pace)
        self.operator = Operator(stack, options.seed)
        self.quiet_after: float | None = None  # seconds; None where something never ended

    def run(self) -> Evidence:
        """Return the evidence when all is quiet, or when it will not be. Raises Interrupted."""
        traffic = draw(self._options)
        self._pace.begin()
        pool = ThreadPoolExecutor(1, thread_name_prefix="outside")
        outside = pool.submit(asyncio.run, self._outside(traffic))
        outside.add_done_callback(lambda _: self._signals.wake())
        try:
            self.keeper.run(outside.done)
        except Interrupted:
            self._stopped = True
            raise
        finally:
            pool.shutdown(wait=False)
        outside.result()
        return self._evidence(traffic)

    async def _outside(self, traffic: Traffic) -> None:
        moods = asyncio.create_task(self.upstream.run())
        operating = asyncio.create_task(self.operator.run(lambda: self.senders.end is not None or self._stopped))
        sending = asyncio.create_task(self.senders.run(traffic.lists))
        while not self.keeper.idle() or self._pace.now() < self._options.seconds:
            await asyncio.to_thread(self._keep_pace)
            await self._pause()
            for task in (moods, operating, sending):
                if task.done():  # the first two never end by themselves
                    task.result()
        self._pace.hold(when=False)
        self.senders.end = time.monotonic()
        moods.cancel()
        with suppress(asyncio.CancelledError):
            await moods
        await self.upstream.settle()
        await asyncio.gather(sending, operating)
        self._line("          faults and traffic are over; waiting until all has ended")
        await self._settle()

    async def _settle(self) -> None:
        """Wait until all has ended, as long as anything moves: a slow machine is no fault."""
        before, moved = None, time.monotonic()
        while time.monotonic() < moved + _STILL:
            left = await asyncio.to_thread(self._left)
            if left is not None and not left.anything:
                self.quiet_after = time.monotonic() - (self.senders.end or 0)
                await self._let_executions_end()
                return
            if left is not None and left != before:
                before, moved = left, time.monotonic()
            await self.operator.look_at_parked()
            await self._pause()

    async def _let_executions_end(self) -> None:
        """Wait until no execution runs any more: the last ones end just behind their rows."""
        self._running = ["every execution, since Temporal does not say,"]
        limit = time.monotonic() + _STILL
        while time.monotonic() < limit:
            with suppress(RPCError, RuntimeError):
                self._running = await running(self._stack.temporal)
                if not self._running:
                    return
            await self._pause()

    def _keep_pace(self) -> None:
        """Hold the clock while there is much to do, but not for what does not move at all: the proof tells of that."""
        with suppress(psycopg.Error):  # then as it was
            count = under_way(self._stack.database)
            if count != self._under_way[0]:
                self._under_way = count, time.monotonic()
            still = time.monotonic() > self._under_way[1] + _STILL
            self._pace.hold(when=count > UNDER_WAY and not still)

    def _left(self) -> Waiting | None:
        try:
            return waiting(self._stack.database)
        except psycopg.Error:
            return None

    async def _pause(self) -> None:
        if self._stopped:
            raise Interrupted
        if time.monotonic() > self._limit:
            raise StackError("the run does not come to its end: no proof")
        await asyncio.sleep(_LOOK)

    def _evidence(self, traffic: Traffic) -> Evidence:
        rows, strays, counters = read_rows(self._stack.database)
        with httpx.Client(trust_env=False, timeout=30) as client:
            seen = read_seen(client.get(f"{self._stack.hospital}/_seen").json())
        sent = {message.key: message for message in traffic.messages}
        heard, commands = self.senders.heard, self.operator.commands
        crashed = [line for line in self.keeper.ended if line.startswith((*INGESTS, *WORKERS))]
        return Evidence(sent, heard, rows, strays, counters, seen, commands, self._running, crashed)
