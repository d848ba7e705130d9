"""The stand-in hospital, with the time of every call."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

from tests.support.hospital import HospitalServer


class Watched(HospitalServer):
    """``calls`` are the monotonic times of all requests, but for the test's own."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[float] = []
        inner: Any = self._server.config.app

        async def noting(scope: Any, receive: Any, send: Any) -> None:
            if not scope["path"].startswith("/_"):
                self.calls.append(time.monotonic())
            await inner(scope, receive, send)

        self._server.config.app = noting

    def peak(self, since: float) -> int:
        """Return the calls of the second that had most of them."""
        return max(Counter(int(at - since) for at in self.calls if at >= since).values(), default=0)
