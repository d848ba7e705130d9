"""One stack for one data folder: its lock, and the children that a killed launcher left behind."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from deploy.dev.process import Identity
from deploy.dev.service import Service, StackError, wait_until
from deploy.dev.settings import read_json, write

_GRACE = 5.0  # seconds for a leftover to end by itself: the kernel has signalled it already
_STOPPING_LIMIT = 75.0  # seconds that an orderly stop may take at most


class DataLock:
    """The right to use a data folder; the kernel takes it back when the process ends, however.

    Raises StackError on entry when another live stack has it. One that is just stopping is waited
    for, while `check` does not raise.
    """

    def __init__(self, data: Path, check: Callable[[], None]) -> None:
        """Lock nothing yet; `check` may raise to end a wait for it."""
        self._check = check
        self._data = data
        self._descriptor = -1

    def __enter__(self) -> Self:
        """Take the lock."""
        self._data.mkdir(parents=True, exist_ok=True)
        # Not inherited by children: a child that outlives us must not hold it.
        self._descriptor = os.open(self._data / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        waits = wait_until(lambda: self._take() or not self._stopping(), _STOPPING_LIMIT, self._check)
        if not waits or not self._take():
            holder = os.pread(self._descriptor, 64, 0).decode(errors="replace").split(" ")[0]
            os.close(self._descriptor)
            raise StackError(
                f"{self._data} is in use by another stack (process {holder or 'unknown'}): "
                "stop that one, or choose another folder with DATA=path"
            )
        self._note(f"{os.getpid()}")
        return self

    def stopping(self) -> None:
        """Tell a next start that it is worth to wait."""
        self._note(f"{os.getpid()} stopping")

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give it back."""
        os.close(self._descriptor)

    def _take(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _stopping(self) -> bool:
        return b"stopping" in os.pread(self._descriptor, 64, 0)

    def _note(self, text: str) -> None:
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, text.encode(), 0)


def note_children(data: Path, services: Iterable[Service]) -> None:
    """Write down who runs, for the start after a kill -9."""
    lines = [
        {"name": s.name, "pid": i.pid, "started": i.started, "signal": int(s.stop_signal)}
        for s in services
        if (i := s.identity) is not None
    ]
    write(data / "children.json", json.dumps({"children": lines}, indent=1) + "\n")


def end_leftovers(data: Path) -> list[str]:
    """End the children that a killed launcher left; the names of those that still ran.

    A process whose number was given to another one meanwhile is left alone. Only while the lock
    is held.
    """
    noted = read_json(data / "children.json").get("children")
    left: list[tuple[str, Identity, int]] = []
    for line in noted if isinstance(noted, list) else []:
        who = Identity(int(line["pid"]), str(line["started"]))
        if who.alive():
            left.append((str(line["name"]), who, int(line["signal"])))
    for _, who, number in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(who.pid, number)
    wait_until(lambda: not any(who.alive() for _, who, _ in left), _GRACE)
    for _, who, _ in left:
        if who.alive():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(who.pid, signal.SIGKILL)
    wait_until(lambda: not any(who.alive() for _, who, _ in left), _GRACE)
    return [name for name, _, _ in left]
