"""An HTTP server that can also be slow on purpose: it hangs, or drips, or answers when it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Self

Behaviour = Callable[[asyncio.StreamWriter], Awaitable[None]]


async def hang(_: asyncio.StreamWriter) -> None:
    """Accept, and never answer."""
    await asyncio.Event().wait()


async def drip(writer: asyncio.StreamWriter) -> None:
    """Send an answer byte by byte, for ever: no single read of the caller's takes long."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b" ")
        await writer.drain()
        await asyncio.sleep(0.05)


def answer(status: int = 200, body: str = "{}", after: asyncio.Event | None = None, **headers: str) -> Behaviour:
    """Answer so, once ``after`` is set where one is given."""

    async def behave(writer: asyncio.StreamWriter) -> None:
        if after is not None:
            await after.wait()
        lines = [f"HTTP/1.1 {status} -", "Content-Type: application/json", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", body]).encode())
        await writer.drain()

    return behave


class Upstream:
    """``choose`` is given a request's path and says how to behave; ``calls`` are the paths so far."""

    def __init__(self, choose: Callable[[str], Behaviour]) -> None:
        self._choose = choose
        self._talks: set[asyncio.Task[None]] = set()
        self.calls: list[str] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for talk in self._talks:
            talk.cancel()
        while self._talks:
            await asyncio.wait(self._talks)
            await asyncio.sleep(0)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talk = asyncio.create_task(self._talk(reader, writer))
        self._talks.add(talk)
        await asyncio.wait([talk])
        writer.close()
        self._talks.discard(talk)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
                length = head.partition("content-length:")[2].split("\r\n")[0]
                await reader.readexactly(int(length or 0))
                path = head.split(" ")[1]
                self.calls.append(path)
                await self._choose(path)(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
