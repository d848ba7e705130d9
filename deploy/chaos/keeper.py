"""Carries the plan out, and starts again what is down: the supervisor of a run, in the main thread alone."""

from __future__ import annotations

import heapq
import itertools
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psycopg

from deploy.chaos.pace import Pace
from deploy.chaos.plan import CROWD, KILL, LOCK, POSTGRES, STOP, Fault
from deploy.chaos.processes import family, signal_all
from deploy.chaos.stack import Stack
from deploy.dev.service import StackError
from deploy.dev.signals import Signals

_LOOK = 0.1  # seconds
_LATER = 0.5  # seconds until a fault is tried again whose victim is down already
_AGAIN = 0.3  # seconds until what ended by itself is launched again
_CROWD = 400  # connections at most
_PUSH = 0.05  # seconds until one that was refused tries again


@dataclass
class Done:
    """A fault as it happened; Unix times in seconds, ``back_at`` when the victim was launched again or let go."""

    fault: Fault
    at: float
    back_at: float | None = None


class Crowd:
    """Takes every connection that Postgres has for those who are no superuser, and each that becomes free."""

    def __init__(self, database: str) -> None:
        """Begin, as the login of this libpq URL."""
        self._database = database
        self._over = threading.Event()
        self._connections: list[psycopg.Connection] = []
        self._thread = threading.Thread(target=self._push, daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Let all of them go."""
        self._over.set()
        self._thread.join()
        for one in self._connections:
            one.close()

    def _push(self) -> None:
        while not self._over.is_set() and len(self._connections) < _CROWD:
            try:
                self._connections.append(psycopg.connect(self._database, connect_timeout=2))
            except psycopg.Error:
                self._over.wait(_PUSH)


class Keeper:
    """Faults come by the plan; what is down is launched again after the fault's own delay."""

    def __init__(
        self, stack: Stack, faults: Sequence[Fault], pace: Pace, signals: Signals, line: Callable[[str], None]
    ) -> None:
        """Do nothing yet; ``line`` shows a line to the reader of the screen."""
        self._plan = deque(faults)
        self._pace = pace
        self._stack = stack
        self._signals = signals
        self._line = line
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._hurt: set[str] = set()  # who is down, stopped or held up by us
        self.done: list[Done] = []
        self.ended: list[str] = []  # what ended though nobody killed it

    def run(self, until: Callable[[], bool]) -> None:
        """Work on the agenda until the condition holds. Raises Interrupted on a wish to stop."""
        while not until():
            self._signals.check()
            while self._plan and self._plan[0].at <= self._pace.now():
                self._strike(self._plan.popleft())
            while self._agenda and self._agenda[0][0] <= time.monotonic():
                heapq.heappop(self._agenda)[2]()
            self._look()
            self._signals.wait(_LOOK)

    def idle(self) -> bool:
        """Whether every fault is over and everybody is back."""
        return not self._plan and not self._agenda

    def _after(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (time.monotonic() + seconds, next(self._count), what))

    def _say(self, text: str) -> None:
        self._line(f"{self._pace.now():7.1f} s  {text}")

    def _strike(self, fault: Fault) -> None:
        whom = fault.whom
        if whom in self._hurt or not self._stack.services[whom].alive():
            self._after(_LATER, lambda: self._strike(fault))
            return
        done = Done(fault, time.time())
        try:
            undo = {KILL: self._kill, STOP: self._stop, LOCK: self._lock, CROWD: self._crowd}[fault.what](whom)
        except psycopg.Error:  # it was hurt a moment ago, and does not take connections yet
            self._after(_LATER, lambda: self._strike(fault))
            return
        self._say(str(fault))
        self._hurt.add(whom)
        self.done.append(done)
        self._after(fault.lasts, lambda: self._undo(done, undo))

    def _undo(self, done: Done, undo: Callable[[], None]) -> None:
        undo()
        self._hurt.discard(done.fault.whom)
        done.back_at = time.time()

    def _kill(self, whom: str) -> Callable[[], None]:
        service = self._stack.services[whom]
        signal_all(family(service.pid or 0), signal.SIGKILL)
        service.kill()  # waits until it is gone

        return lambda: self._launch(whom)

    def _stop(self, whom: str) -> Callable[[], None]:
        pids = family(self._stack.services[whom].pid or 0)
        signal_all(pids, signal.SIGSTOP)
        return lambda: signal_all(pids[::-1], signal.SIGCONT)

    def _lock(self, _: str) -> Callable[[], None]:
        """Hold the table that everybody writes: their connections wait, and their pools run empty."""
        holder = psycopg.connect(self._stack.database, connect_timeout=2)
        try:
            holder.execute("SET lock_timeout = '2s'")
            holder.execute("LOCK TABLE inbox.message IN SHARE ROW EXCLUSIVE MODE")
        except psycopg.Error:
            holder.close()
            raise
        return holder.close

    def _crowd(self, _: str) -> Callable[[], None]:
        return Crowd(self._stack.logins["reader"]).leave

    def _launch(self, whom: str, *, first: bool = True) -> None:
        service = self._stack.services[whom]
        if service.alive():
            return
        try:
            service.launch()
        except (OSError, StackError) as error:  # no memory, say: it may pass
            if first:
                self._say(f"{whom} can't be started again yet: {error}")
            self._after(_AGAIN, lambda: self._launch(whom, first=False))
            return
        self._stack.note()

    def _look(self) -> None:
        """Launch again whatever ended by itself."""
        for name, service in self._stack.services.items():
            if name in self._hurt or service.alive():
                continue
            code = service.child.exit_code if service.child else None
            # Backends of a killed Postgres take a moment to notice, and keep the next one from starting.
            if not (name == POSTGRES and service.may_pass()):
                self._say(f"{name} ended by itself ({code})")
                self.ended.append(f"{name} ended by itself ({code}); its log: {service.log}")
            self._hurt.add(name)
            self._after(_AGAIN, lambda name=name: self._again(name))  # type: ignore[misc]

    def _again(self, whom: str) -> None:
        self._hurt.discard(whom)
        self._launch(whom)
