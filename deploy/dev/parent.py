"""Whether the make that started the launcher is still there and content.

make passes SIGTERM on to what it runs, but not SIGINT, which it takes to come from a terminal, to
all at once; it then waits for us, and we would wait for ever. And when make is killed with -9,
nobody is left who could stop the launcher by the way it was started.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path


class Make:
    """The make we were started by; nothing to look at when there was none, or without /proc."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Take the present parent for make when make's own variable says so."""
        self._pid = os.getppid() if environment.get("MAKELEVEL") else 0
        self._caught = self._catches_interrupt()

    def wants_stop(self) -> bool:
        """Whether it is gone, or was interrupted: it then no longer catches SIGINT."""
        if not self._pid:
            return False
        return os.getppid() != self._pid or (self._caught and not self._catches_interrupt())

    def _catches_interrupt(self) -> bool:
        try:
            lines = Path(f"/proc/{self._pid}/status").read_text().splitlines()
        except OSError:
            return False
        caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
        return bool(int(caught, 16) >> (signal.SIGINT - 1) & 1)
