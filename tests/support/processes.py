"""The product's own commands as processes, on a test's settings."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import httpx
import tomlkit

from deploy.dev.ports import choose
from inbox.sources import token_hash
from tests.support.stack import TOKENS, Stack
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    """Return a port that nobody uses now, and that no outgoing connection of tests beside this one is given."""
    return choose(["port"])["port"]


def environment(stack: Stack, folder: Path, **more: str) -> dict[str, str]:
    """Write the stack's settings as a file; return the environment of a process that uses them."""
    config = folder / "inbox.toml"
    config.write_text(tomlkit.dumps(_without_none(stack.settings.declared.model_dump(mode="json"))))
    return os.environ | {
        "DATABASE_URL": stack.url,
        "TEMPORAL_ADDRESS": stack.temporal.service_client.config.target_host,
        "INBOX_NAME": stack.name,
        "INBOX_CONFIG": str(config),
        "INBOX_OPERATOR_TOKENS": json.dumps([token_hash(TOKENS["operator"])]),
        "INBOX_LISTEN": f"127.0.0.1:{free_port()}",
        "PYTHONPATH": str(ROOT),
        **more,
    }


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return value


@asynccontextmanager
async def process(
    environment: dict[str, str], command: str, point: str = "none", log: Path | None = None
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run ``inbox COMMAND``, dying at ``point`` if one is named; killed at the end if it still runs.

    ``log`` is a file for what it says on standard error; the test's own unless given.
    """
    with log.open("wb") if log else nullcontext() as stderr:
        running = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.crashing",
            point,
            *command.split(),
            env=environment,
            cwd=ROOT,
            stderr=stderr,
        )
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):
            running.kill()
        await running.wait()


async def died(running: asyncio.subprocess.Process, limit: float = 60) -> None:
    """Wait until a process has killed itself."""
    assert await asyncio.wait_for(running.wait(), limit) == -signal.SIGKILL


async def stopped(running: asyncio.subprocess.Process, limit: float = 60) -> None:
    """Wait until a process has stopped itself (SIGSTOP)."""

    async def state() -> str:
        return Path(f"/proc/{running.pid}/stat").read_text().rpartition(")")[2].split()[0]

    await eventually(state, lambda found: found == "T", limit)


async def answering(http: httpx.AsyncClient, url: str = "") -> None:
    """Wait until an ingest is ready to take messages in."""

    async def ready() -> bool:
        try:
            return (await http.get(f"{url}/readyz")).is_success
        except httpx.HTTPError:
            return False

    await eventually(ready, limit=90)  # Python and its libraries start slowly on a machine that is full
