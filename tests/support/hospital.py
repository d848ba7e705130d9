"""The stand-in hospital as a server in the test's process."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any, Self

import httpx
import uvicorn

from deploy.dev.hospital import app

DATA = Path(__file__).parents[2] / "deploy/dev/sample-day-hospital.json"


class Server:
    """An ASGI application served on a free port of loopback."""

    def __init__(self, app: Any) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, lifespan="off"))
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._server.config.load()
        self._server.lifespan = self._server.config.lifespan_class(self._server.config)
        self._task = asyncio.create_task(self._server._serve([self._socket]))
        while not self._server.started:
            await asyncio.sleep(0.01)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        assert self._task
        await self._task
        self._socket.close()


class HospitalServer(Server):
    """The hospital; ``control`` and ``seen`` are its own routes."""

    def __init__(self) -> None:
        data = json.loads(DATA.read_text())
        super().__init__(app(data))
        self.forms: dict[str, Any] = data["forms"]

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        await self.control(delays=False)
        return self

    async def control(self, **parts: Any) -> None:
        """Replace parts of what the hospital knows or does."""
        async with httpx.AsyncClient(trust_env=False) as client:
            (await client.post(f"{self.url}/_control", json=parts)).raise_for_status()

    async def seen(self) -> dict[str, Any]:
        """Return what the hospital saw."""
        async with httpx.AsyncClient(trust_env=False) as client:
            found: dict[str, Any] = (await client.get(f"{self.url}/_seen")).json()
            return found
