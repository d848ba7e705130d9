"""The product's commands as processes that are forked from one that has imported everything.

Each is a process of its own, as those of processes.py are, but begins at once: where hundreds are killed, most of the
time would go into importing the same modules.
"""

from __future__ import annotations

import os
import signal
import sys
from asyncio import to_thread
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.support.waiting import eventually

_context = get_context("forkserver")
_context.set_forkserver_preload(["tests.support.crashing"])


def _run(environment: dict[str, str], point: str, command: list[str], log: Path) -> None:
    from tests.support.crashing import run  # noqa: PLC0415  the test's process needs none of it

    os.environ.clear()
    os.environ.update(environment)
    with log.open("ab") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
    run(point, command)


@asynccontextmanager
async def forked(
    environment: dict[str, str], command: str, point: str = "none", *, log: Path
) -> AsyncIterator[BaseProcess]:
    """Run ``inbox COMMAND``, dying at ``point`` if one is named; killed at the end if it still runs.

    ``log`` is a file for what it says, added to; the test says it again if it fails.
    """
    running = _context.Process(target=_run, args=(environment, point, command.split(), log))
    await to_thread(running.start)
    try:
        yield running
    except BaseException:
        sys.stderr.write(log.read_text(encoding="utf-8", errors="replace") if log.exists() else "")
        raise
    finally:
        running.kill()
        await to_thread(running.join)


async def died(running: BaseProcess, limit: float = 60) -> None:
    """Wait until a process has killed itself."""

    async def code() -> int | None:
        return running.exitcode

    assert await eventually(code, lambda found: found is not None, limit) == -signal.SIGKILL
