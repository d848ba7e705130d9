"""One run: traffic and faults, then quiet, then the evidence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import psycopg

from deploy.chaos.evidence import Evidence, read_rows, read_seen, waiting
from deploy.chaos.keeper import Keeper
from deploy.chaos.options import Options
from deploy.chaos.outside import Operator, Upstream
from deploy.chaos.plan import draw_faults
from deploy.chaos.senders import Senders
from deploy.chaos.stack import Stack
from deploy.chaos.traffic import Traffic, draw
from deploy.dev.signals import Interrupted, Signals

_QUIET = 180.0  # seconds from the last fault and delivery, in which everything must have ended
_LOOK = 0.5  # seconds between two looks


class Run:
    """Traffic, upstream and operator in a thread of their own; the main one keeps the processes."""

    def __init__(self, options: Options, stack: Stack, signals: Signals, line: Callable[[str], None]) -> None:
        """Begin nothing yet; ``line`` shows a line to the reader of the screen."""
        self._options = options
        self._stack = stack
        self._signals = signals
        self._line = line
        self._stopped = False
        self.keeper = Keeper(stack, signals, line)
        self.senders = Senders(stack.ingests, stack.tokens, options.seed)
        self.upstream = Upstream(stack, options)
        self.operator = Operator(stack, options.seed)
        self.quiet_after: float | None = None  # seconds; None where something never ended

    def run(self) -> Evidence:
        """Return the evidence when all is quiet, or when it will not be. Raises Interrupted."""
        traffic = draw(self._options)
        self.keeper.begin(draw_faults(self._options))
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
        while not self.keeper.idle():
            await self._pause()
        self.senders.end = time.monotonic()
        moods.cancel()
        with suppress(asyncio.CancelledError):
            await moods
        await self.upstream.settle()
        await asyncio.gather(sending, operating)
        self._line(f"          faults and traffic are over; waiting until all has ended, {_QUIET:.0f} s at most")
        await self._settle()

    async def _settle(self) -> None:
        began = time.monotonic()
        while time.monotonic() < began + _QUIET:
            left = await asyncio.to_thread(self._left)
            if not left:
                self.quiet_after = time.monotonic() - began
                return
            await self.operator.look_at_parked()
            await self._pause()

    def _left(self) -> bool:
        try:
            return bool(waiting(self._stack.database))
        except psycopg.Error:
            return True

    async def _pause(self) -> None:
        if self._stopped:
            raise Interrupted
        await asyncio.sleep(_LOOK)

    def _evidence(self, traffic: Traffic) -> Evidence:
        rows, strays, counters = read_rows(self._stack.database)
        with httpx.Client(trust_env=False, timeout=30) as client:
            seen = read_seen(client.get(f"{self._stack.hospital}/_seen").json())
        sent = {message.key: message for message in traffic.messages}
        return Evidence(sent, self.senders.heard, rows, strays, counters, seen, self.operator.commands)
