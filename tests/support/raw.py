"""HTTP as bytes on a socket: what no client library would send."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterable
from contextlib import suppress

Header = tuple[bytes, bytes]


def request(target: bytes, headers: Iterable[Header], body: bytes = b"", method: bytes = b"POST") -> bytes:
    """Return a request with an honest Content-Length, whatever else its headers say."""
    lines = [name + b": " + value for name, value in (*headers, (b"Content-Length", str(len(body)).encode()))]
    return b"\r\n".join([method + b" " + target + b" HTTP/1.1", b"Host: inbox", *lines, b"", body])


def connect(address: tuple[str, int], timeout: float = 30) -> socket.socket:
    """Open a connection; ``timeout`` in seconds for each wait."""
    return socket.create_connection(address, timeout)


def send(connection: socket.socket, data: bytes) -> None:
    """Send what the server takes; it may close in between."""
    with suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(data)


def status(connection: socket.socket, method: str = "POST") -> int | None:
    """Read one answer; return its status, or None where the connection ended without one."""
    answer = http.client.HTTPResponse(connection, method=method)
    try:
        answer.begin()
        answer.read()
    except (http.client.BadStatusLine, http.client.IncompleteRead, ConnectionResetError):
        return None
    return answer.status


def ended(connection: socket.socket) -> bytes:
    """Read until the server closes; return what it said."""
    found = b""
    with suppress(ConnectionResetError):
        while more := connection.recv(65_536):
            found += more
    return found


def exchange(address: tuple[str, int], data: bytes, method: str = "POST") -> int | None:
    """Send ``data`` over a connection of its own; return the answer's status, None where there is none."""
    with connect(address) as connection:
        send(connection, data)
        return status(connection, method)
