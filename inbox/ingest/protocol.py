"""uvicorn's HTTP/1.1 with the limits that it lacks: how long a request's head may be, how slowly it may arrive.

uvicorn on httptools gathers headers without end, and its one time-out runs between requests: whoever sends a byte
now and then, or reads no answer, keeps a connection for ever (tried, uvicorn 0.54). Spec section 12.
It also loses the body of a request that offers another protocol, as Java's client does with its first one.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from inbox.ingest.http import READ_AWAY, HttpProblem, problem_response

MAX_HEAD = 64 * 1024  # bytes of request line and headers; also of a chunk's head and of trailers
MIN_RATE = 16 * 1024  # bytes a second: as much as that gives a request another second

MAX_PIPELINED = 100  # requests of a connection that wait for the one before; uvicorn queues them without end
MAX_REQUEST = READ_AWAY + MAX_HEAD + 1024 * 1024  # bytes; a door has answered 413 before

TOO_SLOW = HttpProblem(408, "too-slow", "the request did not arrive in time; send again")
HEAD_TOO_LARGE = HttpProblem(431, "head-too-large", f"request line and headers may have {MAX_HEAD} bytes")
NOT_HTTP = HttpProblem(400, "unreadable", "not HTTP/1.1")


class _HeadTooLarge(Exception):
    """Stops the parser."""


class _Unserved(Exception):
    """Stops it too: CONNECT is for proxies, and nobody needs so many requests behind one that is not answered."""


class LimitedProtocol(HttpToolsProtocol):
    """One connection. ``patience``: seconds for a whole request to arrive, and for an answer to be taken."""

    patience: float

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._began: float | None = self.loop.time()  # of the request that is arriving, if one is
        self._received = 0  # bytes of it
        self._pending = 0  # bytes since the parser last gave something out: it keeps them
        self._in_head = True
        self._refused: HttpProblem | None = None
        self._offered = False  # another protocol
        self._unread: asyncio.TimerHandle | None = None
        self._running: RequestResponseCycle | None = None
        self._watch = self.loop.call_later(self.patience, self._check)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing more, and tell the request that runs; uvicorn tells the last one that came."""
        self._watch.cancel()
        self.pipeline.clear()
        if self._running:
            self._running.disconnected = True
            self._running.message_event.set()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, and refuse what it would keep without end."""
        if self._began is None:
            self._began, self._received, self._in_head = self.loop.time(), 0, True
        self._received += len(data)
        self._pending += len(data)
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self._refuse(self._refused or NOT_HTTP)
        if self.transport.is_closing():
            return
        if self._pending > MAX_HEAD:
            self._refuse(HEAD_TOO_LARGE)
        elif self._received > MAX_REQUEST:  # what nobody reads, behind an early answer
            self.transport.close()

    def _feed(self, data: bytes) -> None:
        """Parse; a request that offers another protocol is parsed again without the offer (RFC 9110, section 7.8)."""
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                kept = [name + b": " + value for name, value in self.headers if name != b"upgrade"]
                line = b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())
                data = b"\r\n".join([line, *kept, b"", data[offer.args[0] :]])
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def on_message_begin(self) -> None:
        """Begin a request, perhaps behind another in the same packet."""
        super().on_message_begin()
        if self._began is None:
            self._began, self._received = self.loop.time(), 0
        self._in_head = True

    def on_headers_complete(self) -> None:
        """Pass the head on, if it is small enough. Raises _HeadTooLarge, _Unserved."""
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD:
            self._refused = HEAD_TOO_LARGE
            raise _HeadTooLarge
        self._pending, self._offered = 0, self.parser.should_upgrade()
        if self._offered:
            if self.parser.get_method() == b"CONNECT":
                raise _Unserved
            return
        if len(self.pipeline) >= MAX_PIPELINED:
            raise _Unserved
        super().on_headers_complete()
        self._in_head = False

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body on."""
        self._pending = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Stop the clock: what follows is our own time."""
        if self._offered:
            return
        self._began, self._pending = None, 0
        super().on_message_complete()

    def pause_writing(self) -> None:
        """Give the client time to take its answers."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.patience, self.transport.abort)

    def resume_writing(self) -> None:
        """Forget the time: it took them."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()

    def _check(self) -> None:
        """End a request that takes too long to arrive; called again whenever one could have."""
        now = self.loop.time()
        if self._began is None or self._waits_for_us():
            due = now + self.patience
        else:
            due = self._began + self.patience + self._received / MIN_RATE
        if due > now:
            self._watch = self.loop.call_at(due, self._check)
        elif not self.transport.is_closing():
            self._refuse(TOO_SLOW)

    def _waits_for_us(self) -> bool:
        """Tell whether nothing is read for now: a body that the application takes late, a request behind another."""
        return self.flow.read_paused or (self._in_head and self._answer_owed())

    def _answer_owed(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, problem: HttpProblem) -> None:
        """Answer and close; close alone where that would cut into an answer, or follow it."""
        answering = self._answer_owed() if self._in_head else self.cycle.response_started
        if not answering:
            self.transport.write(_as_bytes(problem))
        self.transport.close()
        if self._running:
            self._running.disconnected = True
            self._running.message_event.set()


def limited(patience: float) -> type[LimitedProtocol]:
    """Return the protocol for uvicorn's ``http`` setting, with ``patience`` in seconds."""
    return type("LimitedProtocol", (LimitedProtocol,), {"patience": patience})


def _as_bytes(problem: HttpProblem) -> bytes:
    """Return a problem document as a whole HTTP/1.1 answer that ends the connection."""
    answer = problem_response(problem)
    headers: list[tuple[Any, Any]] = [*answer.raw_headers, (b"connection", b"close")]
    head = [f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}".encode()]
    return b"\r\n".join([*head, *(name + b": " + value for name, value in headers), b"", bytes(answer.body)])
