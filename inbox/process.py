"""How a process of the inbox lives: until a signal, then it drains."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any


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
    for number in (signal.SIGTERM, signal.SIGINT):
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
