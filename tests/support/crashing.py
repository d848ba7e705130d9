"""``python -m tests.support.crashing POINT COMMAND``: the real command, killed (-9) or stopped by itself at one point.

The product has no hook for this: the point is patched in here, around the real code, and nothing else is. A point with
a colon in it is one of points.py, of which the product's code makes the list.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import activities.register
import inbox.ingest.direct
import inbox.shared_cache
from activities.endings import Endings
from activities.register import RegisterActivity
from activities.report import ReportActivities
from handlers.survey_send import SurveySendHandler
from inbox.cli import main
from inbox.dispatch import Dispatcher
from inbox.ingest.direct import Direct
from inbox.shared_cache import Patience
from inbox.store.direct import FINISH
from inbox.store.engine import Statement
from inbox.store.statements import COMPLETE
from tests.support.arming import arm, die


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


def around(owner: Any, name: str, *, first: bool) -> None:
    """Stop this process (SIGSTOP) once, at the first call of an async function: before it begins, or once it is done."""
    original = getattr(owner, name)
    stops = iter([True])

    async def patched(*args: Any, **kwargs: Any) -> Any:
        stop = next(stops, False)
        if stop and first:
            os.kill(os.getpid(), signal.SIGSTOP)
        result = await original(*args, **kwargs)
        if stop and not first:
            os.kill(os.getpid(), signal.SIGSTOP)
        return result

    setattr(owner, name, patched)


def stop_before_commit() -> None:
    """Stop within the bundle's transaction, when all that is left of it is its commit."""
    original = activities.register.one

    async def one(connection: Any, statement: Any, params: Any) -> Any:
        result = await original(connection, statement, params)
        if statement is COMPLETE:
            os.kill(os.getpid(), signal.SIGSTOP)
        return result

    activities.register.one = one


def be_patient() -> None:
    """Call nothing a fault of the shared cache that is but a machine under load."""
    inbox.shared_cache.PATIENCE = Patience(limit=10, lock=30, wait=30)


def at_commit(module: Any, last: Statement[Any]) -> None:
    """Die within a bundle's transaction, when all that is left of it is its commit."""
    original = module.one

    async def one(connection: Any, statement: Any, params: Any) -> Any:
        result = await original(connection, statement, params)
        if statement is last:
            die()
        return result

    module.one = one


POINTS = {
    "bundle committing": lambda: at_commit(activities.register, COMPLETE),
    "direct committing": lambda: at_commit(inbox.ingest.direct, FINISH),
    "direct committed": lambda: after(Direct, "register"),
    "none": lambda: None,
    "accepted": lambda: before(Dispatcher, "nudge"),
    "leased": lambda: before(Dispatcher, "_start_workflow"),
    "started": lambda: after(Dispatcher, "_start_workflow"),
    "claimed": lambda: after(RegisterActivity, "_claim"),
    "prepared": lambda: before(RegisterActivity, "_bundle"),
    "bundled": lambda: after(RegisterActivity, "_bundle"),
    "failing": lambda: before(Endings, "fail"),
    "sending": lambda: before(ReportActivities, "_call"),
    "sent": lambda: after(ReportActivities, "_call"),
    "stop claiming": lambda: around(RegisterActivity, "_claim", first=True),
    "stop claimed": lambda: around(RegisterActivity, "_claim", first=False),
    "stop preparing": lambda: around(SurveySendHandler, "prepare", first=False),
    "stop committing": stop_before_commit,
    "patient": be_patient,
}


def run(point: str, command: list[str]) -> None:
    """Run the command in this process, which then ends."""
    if ":" in point:
        arm(point)
    else:
        POINTS[point]()
    main(command)


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2:])
