"""Signals as something the launcher's one loop can wait for."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from types import FrameType, TracebackType
from typing import Self

from deploy.dev.parent import Make

_STOP = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# One wish to stop may arrive more than once: from the terminal and, passed on, from make.
_SAME_WISH = 1.0  # seconds


class Interrupted(Exception):
    """Someone wants the launcher to stop."""


class Signals:
    """Counts wishes to stop, and wakes the loop for them and for the end of a child.

    A context manager; for the main thread only.
    """

    def __init__(self) -> None:
        """Watch nothing yet."""
        self._wishes = 0
        self._make = Make(os.environ)
        self._last = 0.0
        self._woken, self._wakes = socket.socketpair()

    def __enter__(self) -> Self:
        """Take the signals."""
        for end in (self._woken, self._wakes):
            end.settimeout(0)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        for number in _STOP:
            # Started by nohup: the end of the terminal is not ours. SIGINT we take always, since a
            # shell ignores it for what it starts in the background.
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            signal.signal(number, self._wish)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ignore wishes to stop from here on: nothing is left to stop."""
        signal.set_wakeup_fd(-1)
        for number in _STOP:  # from here on nothing is left to stop
            signal.signal(number, signal.SIG_IGN)

    @property
    def wishes(self) -> int:
        """How often someone wished us to stop."""
        if not self._wishes and self._make.wants_stop():
            self._wishes = 1
        return self._wishes

    def check(self) -> None:
        """Raise Interrupted when someone wants us to stop."""
        if self.wishes:
            raise Interrupted

    def wake(self) -> None:
        """Make the present or next `wait` return; from any thread."""
        with contextlib.suppress(BlockingIOError):
            self._wakes.send(b"\0")

    def wait(self, limit: float) -> None:
        """Return at the next signal, or after `limit` seconds."""
        select.select([self._woken], [], [], limit)
        with contextlib.suppress(BlockingIOError):
            while self._woken.recv(256):
                pass

    def _wish(self, _number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._last > _SAME_WISH:
            self._wishes += 1
            self._last = now
