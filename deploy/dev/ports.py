"""Free TCP ports on the loopback address."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

LOOPBACK = "127.0.0.1"
_FIRST = 10_000
_TOO_HIGH = 65_536
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


def _end() -> int:
    """Return the first port that the system gives to outgoing connections.

    A server's port must lie below it: while the server is being restarted, some client's outgoing
    connection could otherwise take its port, or connect to itself on it.
    """
    try:
        first = int(_EPHEMERAL.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        first = 32_768
    return first if first > _FIRST + 1_000 else _TOO_HIGH


def is_free(port: int) -> bool:
    """Whether a server could listen on this port now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def choose(names: Sequence[str], preferred: Mapping[str, int] | None = None) -> dict[str, int]:
    """Return a free port for each name: the preferred one where it is still free.

    Nothing reserves it; whoever starts a server must try again with others when it lost the race.
    """
    chosen: dict[str, int] = {}
    for name in names:
        port = (preferred or {}).get(name, 0)
        while not (_FIRST <= port < _TOO_HIGH and port not in chosen.values() and is_free(port)):
            port = _FIRST + secrets.randbelow(_end() - _FIRST)
        chosen[name] = port
    return chosen
