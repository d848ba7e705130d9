"""``python -m tests.support.bundles PORT DATABASE``: a service that owns data, and applies a bundle once for each key.

It keeps what it applied, and its answer, in SQLite, as one transaction. The payload says how it plays: ``die`` and
``slow`` strike after the commit and before the answer, at the first call of a key alone; ``fail`` gives so many 500s
first; ``refuse`` is a status, answered with a problem document (or without one: ``bare``) until the service is told
``POST /_mended``.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.processes import ROOT, free_port
from tests.support.waiting import eventually

SCHEMA = """
CREATE TABLE IF NOT EXISTS call (key TEXT, headers TEXT, body TEXT);
CREATE TABLE IF NOT EXISTS applied (key TEXT PRIMARY KEY, number INTEGER);
CREATE TABLE IF NOT EXISTS mended (yes INTEGER);
"""


def application(database: Path) -> Starlette:
    """Return the service on this file."""
    kept = sqlite3.connect(database, isolation_level=None)
    kept.executescript(SCHEMA)

    async def bundle(request: Request) -> Response:
        body = await request.json()
        key = request.headers["Idempotency-Key"]
        kept.execute("INSERT INTO call VALUES (?, ?, ?)", (key, json.dumps(dict(request.headers)), json.dumps(body)))
        calls = kept.execute("SELECT count(*) FROM call WHERE key = ?", (key,)).fetchone()[0]
        if calls <= body.get("fail", 0):
            return Response(status_code=500)
        if "refuse" in body and not kept.execute("SELECT 1 FROM mended").fetchone():
            problem = body.get(
                "problem", {"type": "https://shop.test/problems/out-of-stock", "detail": "no more of it"}
            )
            media = "application/json" if body.get("bare") else "application/problem+json"
            return JSONResponse(problem, body["refuse"], {"Retry-After": "1"}, media)
        new = kept.execute("INSERT OR IGNORE INTO applied SELECT ?, count(*) + 1 FROM applied", (key,)).rowcount
        if new and body.get("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        if new and body.get("slow"):
            await asyncio.sleep(body["slow"])
        number = kept.execute("SELECT number FROM applied WHERE key = ?", (key,)).fetchone()[0]
        return JSONResponse({"result": {"number": number}}, 201, {"Location": f"/bundles/{number}"})

    async def mended(_: Request) -> Response:
        kept.execute("INSERT INTO mended VALUES (1)")
        return Response(status_code=204)

    return Starlette(routes=[Route("/bundles", bundle, methods=["POST"]), Route("/_mended", mended, methods=["POST"])])


class Bundles:
    """The service as a process: started again on its own port and file after it died."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "bundles.sqlite"
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}/bundles"
        self._running: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it, and wait until it answers."""
        line = [sys.executable, "-m", "tests.support.bundles", str(self._port), str(self._file)]
        self._running = await asyncio.create_subprocess_exec(
            *line, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}
        )

        async def answers() -> bool:
            async with httpx.AsyncClient(trust_env=False) as client:
                with suppress(httpx.HTTPError):
                    return (await client.get(self.url)).status_code == 405
            return False

        await eventually(answers)

    async def died(self) -> None:
        """Wait until it has killed itself."""
        assert self._running
        assert await asyncio.wait_for(self._running.wait(), 30) == -signal.SIGKILL

    async def stop(self) -> None:
        """Kill it if it still runs."""
        if self._running:
            with suppress(ProcessLookupError):
                self._running.kill()
            await self._running.wait()

    async def mend(self) -> None:
        """Let it refuse nothing any more."""
        async with httpx.AsyncClient(trust_env=False) as client:
            (await client.post(f"{self.url.removesuffix('/bundles')}/_mended")).raise_for_status()

    def calls(self) -> list[dict[str, Any]]:
        """Return the calls so far, in order."""
        found = self._read("SELECT key, headers, body FROM call ORDER BY rowid")
        return [{"key": key, "headers": json.loads(headers), "body": json.loads(body)} for key, headers, body in found]

    def applied(self) -> list[str]:
        """Return the keys under which something was applied, in order."""
        return [key for key, _ in self._read("SELECT key, number FROM applied ORDER BY number")]

    def _read(self, query: str) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self._file)
        try:
            return connection.execute(query).fetchall()
        finally:
            connection.close()


@asynccontextmanager
async def bundling(folder: Path) -> AsyncIterator[Bundles]:
    """Run the service."""
    service = Bundles(folder)
    await service.start()
    try:
        yield service
    finally:
        await service.stop()


if __name__ == "__main__":
    served = application(Path(sys.argv[2]))
    uvicorn.run(served, host="127.0.0.1", port=int(sys.argv[1]), log_config=None, access_log=False)
