"""How a process of the inbox lives: until a signal, then it drains."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

SIGNALS = (signal.SIGTERM, signal.SIGINT)
T = TypeVar("T")


def raise_lost_cancel() -> None:
    """Raise CancelledError where the task was cancelled and did not hear of it; for loops that go on after errors.

    psycopg loses a cancel where the statement that it interrupts fails at that moment: the statement's error is raised
    instead, and a loop that takes it for the next one's chance would never end.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def unless_signalled(beginning: Coroutine[Any, Any, T]) -> T | None:
    """Return what ``beginning`` returns; None, with it cancelled, where SIGTERM or SIGINT comes before.

    For what may wait long. Without a handler the signal would do nothing to a container's first process.
    """
    task = asyncio.create_task(beginning)
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, task.cancel)
    try:
        await asyncio.wait([task])
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
    return None if task.cancelled() else task.result()


async def run_until_signal(
    serve: Coroutine[Any, Any, None],
    stop: Callable[[], Awaitable[None]],
    *background: Coroutine[Any, Any, None],
) -> None:
    """Run ``serve`` and ``background`` until SIGTERM or SIGINT; then ``stop`` and wait for ``serve`` to end.

    Whatever of them ends by an error ends the process with it: a supervisor starts it anew.
    """
    signalled = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, signalled.set)
    serving = asyncio.create_task(serve)
    others = [asyncio.create_task(work) for work in background]
    waiting: asyncio.Task[Any] = asyncio.create_task(signalled.wait())
    try:
        everything: set[asyncio.Task[Any]] = {serving, waiting, *others}
        done, _ = await asyncio.wait(everything, return_when=asyncio.FIRST_COMPLETED)
        for task in others:
            task.cancel()
        if serving not in done:
            await stop()
        await serving
        for task in done - {serving, waiting}:
            task.result()
    finally:
        waiting.cancel()
        await asyncio.gather(waiting, *others, return_exceptions=True)
