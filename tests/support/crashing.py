"""``python -m tests.support.crashing POINT COMMAND``: the real command, killed by itself (-9) at one point.

The product has no hook for this: the point is patched in here, around the real code, and nothing else is.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from activities.register import RegisterActivity
from activities.report import ReportActivities
from inbox.cli import main
from inbox.dispatch import Dispatcher


def die(*_: Any, **__: Any) -> None:
    """End this process at once, as the kernel would."""
    os.kill(os.getpid(), signal.SIGKILL)


def before(owner: type, name: str) -> None:
    """Die instead of calling a method."""
    setattr(owner, name, die)


def after(owner: type, name: str) -> None:
    """Die as soon as an async method has returned."""
    original = getattr(owner, name)

    async def patched(*args: Any, **kwargs: Any) -> Any:
        await original(*args, **kwargs)
        die()

    setattr(owner, name, patched)


POINTS = {
    "none": lambda: None,
    "accepted": lambda: before(Dispatcher, "nudge"),
    "leased": lambda: before(Dispatcher, "_start_workflow"),
    "started": lambda: after(Dispatcher, "_start_workflow"),
    "claimed": lambda: after(RegisterActivity, "_claim"),
    "prepared": lambda: before(RegisterActivity, "_bundle"),
    "bundled": lambda: after(RegisterActivity, "_bundle"),
    "failing": lambda: before(RegisterActivity, "_fail"),
    "sending": lambda: before(ReportActivities, "_call"),
    "sent": lambda: after(ReportActivities, "_call"),
}

if __name__ == "__main__":
    POINTS[sys.argv[1]]()
    main([sys.argv[2]])
