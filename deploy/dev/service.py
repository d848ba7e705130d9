"""What all servers of the local stack have in common: ports, start, readiness, stop, kill."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar

from deploy.dev import ports
from deploy.dev.process import Account, Child, Identity, Launch

_PAUSE = 0.05  # seconds between two looks at a condition
_NEW_PORTS = 5  # how often lost ports are replaced before we give up


class StackError(Exception):
    """The stack can't do what was asked: one line for the screen, and the end of a log."""

    def __init__(self, message: str, *, tail: str = "", exit_code: int = 1) -> None:
        """Say it in one line; `exit_code` is the launcher's."""
        super().__init__(message)
        self.tail = tail
        self.exit_code = exit_code


def _no_check() -> None:
    """Nobody interrupts the wait."""


def wait_until(condition: Callable[[], bool], limit: float, check: Callable[[], None] = _no_check) -> bool:
    """Wait until the condition holds, at most `limit` seconds; whether it does in the end.

    `check` is called in between and may raise to end the wait.
    """
    end = time.monotonic() + limit
    while not condition():
        check()
        if time.monotonic() > end:
            return False
        time.sleep(_PAUSE)
    return True


class Service:
    """A server that runs as a child of this process. Subclasses say what is run, and what is ready.

    `ports` keeps the numbers from one start to the next, so that clients find it again.
    """

    port_names: ClassVar[tuple[str, ...]] = ("port",)
    stop_signal: ClassVar[signal.Signals] = signal.SIGTERM
    hurry_signal: ClassVar[signal.Signals] = signal.SIGKILL
    stop_limit: ClassVar[float] = 10.0  # seconds
    start_limit: ClassVar[float] = 60.0  # seconds

    def __init__(self, name: str, log: Path, preferred: Mapping[str, int] | None = None) -> None:
        """Start nothing yet; `preferred` are ports to take where they are free."""
        self.name = name
        self.log = log
        self.ports = ports.choose(self.port_names, preferred)
        self.child: Child | None = None
        self._said_before = 0  # bytes of its log that are of earlier launches

    # What subclasses say.

    def command(self) -> list[str]:
        """Return the command line, made anew for each launch."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Return the child's environment: by default this process's own."""
        return dict(os.environ)

    def account(self) -> Account | None:
        """Return the account to run as; None for our own."""
        return None

    def directory(self) -> Path:
        """Where the child runs."""
        return Path.cwd()

    def prepare(self) -> None:
        """Put in place what each launch needs."""

    def answers(self) -> bool:
        """Whether it does its work: one quick question, no waiting."""
        raise NotImplementedError

    def may_pass(self) -> bool:
        """Whether the early end of the child has a cause that passes, so that trying again helps."""
        return False

    @property
    def address(self) -> str:
        """Where it is, as shown to the reader of the screen."""
        return ", ".join(f"{ports.LOOPBACK}:{port}" for port in self.ports.values())

    # What they all do.

    @property
    def pid(self) -> int | None:
        """The child's number, None before the first start."""
        return self.child.pid if self.child else None

    @property
    def identity(self) -> Identity | None:
        """Who the child is, None before the first start."""
        return self.child.identity if self.child else None

    def alive(self) -> bool:
        """Whether the child runs (not: whether it answers)."""
        return self.child is not None and self.child.alive()

    def launch(self) -> None:
        """Start the child and return at once."""
        self.prepare()
        self._said_before = self.log.stat().st_size if self.log.exists() else 0
        self.child = Child(self.launch_of(self.command()))

    def launch_of(self, command: list[str]) -> Launch:
        """Return how a command of this service is started."""
        return Launch(command, self.environment(), self.log, self.directory(), self.stop_signal, self.account())

    def start(self, check: Callable[[], None] = _no_check) -> None:
        """Start, and wait until it answers; with new ports where others took ours meanwhile.

        Raises StackError when it ends early or does not answer within `start_limit` seconds.
        """
        end = time.monotonic() + self.start_limit
        replaced = 0
        self.launch()
        while True:
            left = end - time.monotonic()
            if not wait_until(lambda: not self.alive() or self.answers(), left, check):
                self.kill()
                raise self.failure(f"does not answer after {self.start_limit:.0f} s")
            if self.alive():
                return
            if replaced < _NEW_PORTS and not all(map(ports.is_free, self.ports.values())):
                replaced += 1
                self.ports = ports.choose(self.port_names, self.ports)
            elif not self.may_pass():
                raise self.failure("ended before it answered")
            self.launch()

    def failure(self, what: str) -> StackError:
        """Make an error about this service that shows the end of its log."""
        return StackError(f"{self.name} {what} (log: {self.log})", tail=self.tail())

    def tail(self, lines: int = 15) -> str:
        """Return the last lines that it has said since it was launched last."""
        with contextlib.suppress(OSError), self.log.open("rb") as log:
            log.seek(max(self._said_before, log.seek(0, os.SEEK_END) - 8_192))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
        return ""

    def terminate(self) -> None:
        """Ask it to end, without waiting."""
        if self.child:
            self.child.send(self.stop_signal)

    def stop(self, limit: float | None = None) -> None:
        """Ask it to end and wait, at most `limit` seconds (its own limit by default); then kill."""
        self.terminate()
        if not wait_until(lambda: not self.alive(), self.stop_limit if limit is None else limit):
            self.kill()

    def kill(self) -> None:
        """SIGKILL to the whole process group, and wait until it is gone."""
        if self.child and self.child.alive():
            self.child.signal_group(signal.SIGKILL)
            wait_until(lambda: not self.alive(), 10)

    def hurry(self, limit: float) -> None:
        """End it now: its hurry signal, and SIGKILL when that takes longer than `limit` seconds."""
        if self.child and self.child.alive():
            self.child.signal_group(self.hurry_signal)
            if not wait_until(lambda: not self.alive(), limit):
                self.kill()

    def restart(self) -> None:
        """Stop and start, on the same ports."""
        self.stop()
        self.start()
