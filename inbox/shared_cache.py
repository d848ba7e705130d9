"""The look-up cache that processes share: a Redis or Valkey server at INBOX_REDIS_URL (spec section 10, decision 0018).

Nothing that is wrong with the server fails a look-up: it is a warning, and the service is asked directly.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote

from pydantic import TypeAdapter

from inbox.errors import SettingsError
from inbox.logs import LimitedLog

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from inbox.settings import Settings

V = TypeVar("V")
PAUSE = 0.05  # seconds between two looks at a key that another process looks up, give or take a half

# Answers value and milliseconds left; or 1, where the caller is to look the key up, and 0 where another one does.
# One script, since a value may be kept between a look and a lock. ARGV[3] is a value that the caller cannot read.
TAKE = """
local kept = redis.pcall('GET', KEYS[1])
local left = redis.call('PTTL', KEYS[1])
if type(kept) == 'string' and left > 0 and kept ~= ARGV[3] then return {kept, left} end
if redis.call('SET', KEYS[2], ARGV[1], 'NX', 'PX', ARGV[2]) then return 1 end
return 0
"""
# Gives the lock back, and keeps the value unless it is empty. One whose lock ran out may keep its value too, unless
# another process looks the key up meanwhile: that one's is newer.
KEEP = """
local holder = redis.call('GET', KEYS[2])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[2])
if ARGV[2] ~= '' then redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3]) end
return 1
"""


@dataclass(frozen=True)
class Patience:
    """Seconds. A look-up may cost ``wait`` and two ``limit`` more than its call; the time-out of a try holds that.

    ``limit``: for one question to the server, connecting included. ``rest``: how long the server is left alone after
    a fault, so that not every look-up pays for it. ``lock``: one process looks a key up for all, and one that is
    killed delays the others by no more. ``wait``: how long the others wait; a lock, and a usual call of the next one.
    """

    limit: float = 0.2
    rest: float = 3.0
    lock: float = 2.0
    wait: float = 3.0


PATIENCE = Patience()


@dataclass(frozen=True)
class Found(Generic[V]):
    """A value, for how many seconds it may still be kept, and whether it was found without a call."""

    value: V
    left: float
    hit: bool


@dataclass(frozen=True)
class Place:
    """Where a kind of look-up lies. Values of another version are out of its sight."""

    inbox: str
    handler: str
    kind: str
    version: int

    def names(self, key: str) -> tuple[str, str]:
        """Return the names of the value and of its lock in the server."""
        parts = (self.inbox, self.handler, self.kind, str(self.version), key)
        name = ":".join(quote(part, safe="", errors="surrogatepass") for part in parts)
        return f"inbox-lookup:{name}", f"inbox-lookup-lock:{name}"


async def ask(look_up: Callable[[str], Awaitable[V]], key: str, ttl: float) -> Found[V]:
    """Look up by a call. The time to live begins with the call: its answer may be as old as that."""
    began = time.monotonic()
    value = await look_up(key)
    return Found(value, max(0.0, began + ttl - time.monotonic()), hit=False)


class SharedCache:
    """A client of the server, and what it was last heard to be."""

    def __init__(self, client: Redis, patience: Patience) -> None:
        self._client = client
        self._patience = patience
        self._alone_until = 0.0
        self._log = LimitedLog(logging.getLogger(__name__))

    async def aclose(self) -> None:
        """Close the connections, whatever the server does."""
        with suppress(Exception):
            async with asyncio.timeout(self._patience.limit):
                await self._client.aclose()

    async def find(
        self, place: Place, key: str, adapter: TypeAdapter[V], look_up: Callable[[str], Awaitable[V]], ttl: float
    ) -> Found[V]:
        """Return the value that lies in the server, or look it up, one process for all.

        Waits for another process no longer than its patience; then, and whenever the server is at fault, it asks
        directly. Raises what ``look_up`` raises.
        """
        names = place.names(key)
        token = uuid.uuid4().hex
        unreadable: bytes | str = b""
        end = time.monotonic() + self._patience.wait
        while time.monotonic() < end:
            match await self._run(TAKE, names, token, int(self._patience.lock * 1000), unreadable):
                case [bytes() | str() as kept, int(left)]:
                    with suppress(Exception):  # of an older version, or not ours: a miss
                        return Found(adapter.validate_json(kept), min(left / 1000, ttl), hit=True)
                    unreadable = kept
                case 1:
                    return await self._look_up_for_all(names, token, key, adapter, look_up, ttl)
                case 0:
                    await asyncio.sleep(PAUSE * random.uniform(0.5, 1.5))
                case _:
                    break
        return await ask(look_up, key, ttl)

    async def _look_up_for_all(
        self,
        names: tuple[str, str],
        token: str,
        key: str,
        adapter: TypeAdapter[V],
        look_up: Callable[[str], Awaitable[V]],
        ttl: float,
    ) -> Found[V]:
        encoded, left = b"", 1
        try:
            found = await ask(look_up, key, ttl)
            left = int(found.left * 1000)
            encoded = self._encode(adapter, found.value) if left else b""
            return found
        finally:
            await self._run(KEEP, names, token, encoded, left)

    def _encode(self, adapter: TypeAdapter[V], value: V) -> bytes:
        """Return the value as JSON; nothing where it is not of the type that it was said to be."""
        try:
            return adapter.dump_json(value, warnings="error")
        except Exception as error:  # noqa: BLE001  whatever a type's own serializer raises
            self._warn("a value cannot be shared", error)
            return b""

    async def _run(self, script: str, names: tuple[str, str], *arguments: str | bytes | int) -> Any:
        """Run a script; None after a fault, and while the server is left alone."""
        now = time.monotonic()
        if now < self._alone_until:
            return None
        if self._alone_until:
            # This one tries; the others go on without the server until it has answered.
            self._alone_until = now + self._patience.rest
        try:
            async with asyncio.timeout(self._patience.limit):
                answer = await self._client.eval(script, len(names), *names, *arguments)
        except Exception as error:  # noqa: BLE001  none of its faults may fail a try
            self._alone_until = time.monotonic() + self._patience.rest
            self._warn("the shared look-up cache is not used", error)
            return None
        self._alone_until = 0.0
        return answer

    def _warn(self, what: str, error: Exception) -> None:
        """Say it by classes alone: the client's texts name hosts, and may repeat what was sent."""
        inner = error.__cause__ or error.__context__
        cause = " of ".join(type(found).__name__ for found in (error, inner) if isinstance(found, Exception))
        self._log.warning(cause, "%s: %s", what, cause)


def open_shared_cache(settings: Settings) -> SharedCache | None:
    """Return the shared cache of the settings, or None where there is none; connects when it is first used.

    Raises SettingsError where the URL holds what the client does not know, or the client is not installed.
    """
    if settings.redis_url is None:
        return None
    try:
        from redis.asyncio import Redis  # noqa: PLC0415  an extra
        from redis.asyncio.retry import Retry  # noqa: PLC0415
        from redis.backoff import NoBackoff  # noqa: PLC0415
        from redis.exceptions import RedisError  # noqa: PLC0415
    except ImportError:
        raise SettingsError("INBOX_REDIS_URL: needs the client of Redis: install the extra redis") from None
    try:
        client = Redis.from_url(
            settings.redis_url.get_secret_value(),
            retry=Retry(NoBackoff(), 0),
            socket_timeout=None,  # ours is of the whole question, these would be of its parts
            socket_connect_timeout=None,
            protocol=2,
            client_name=settings.name,
        )
        client.connection_pool.make_connection()  # type: ignore[no-untyped-call]  # looks at the options
    except (TypeError, ValueError, RedisError):  # their texts may repeat the URL
        raise SettingsError("INBOX_REDIS_URL: an option in it is unknown or wrong") from None
    return SharedCache(client, PATIENCE)
