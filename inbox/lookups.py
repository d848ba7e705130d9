"""What a handler's author sees of the look-up cache (spec section 10); ``inbox.handler`` hands it on.

A handler that takes a parameter ``lookups`` is built with one of these, and makes a cache for each kind of look-up::

    def __init__(self, settings, lookups):
        self._rates = lookups.cache("rate", Rate, self._service.rate, ttl=60)

    rate = await self._rates.get("EUR")
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)
TTL = 300.0  # seconds: as long may a corrected setting take to be seen


class Lookup(Protocol[V_co]):
    """One kind of look-up, cached."""

    async def get(self, key: str) -> V_co:
        """Return the value for ``key``, looked up where it is not kept. Raises what the look-up raises."""
        ...


class Lookups(Protocol):
    """Makes the caches of one handler: in process, and shared between processes where INBOX_REDIS_URL is set."""

    def cache(
        self, kind: str, value: type[V], look_up: Callable[[str], Awaitable[V]], *, ttl: float = TTL, version: int = 1
    ) -> Lookup[V]:
        """Return a cache of what ``look_up`` returns; what it raises is never kept.

        ``value`` is a type that pydantic can turn into JSON and back. ``ttl`` is in seconds. Count ``version`` up when
        the meaning of ``value`` changes. Keys and values may lie in the shared server as they are: nothing personal.
        ``look_up`` needs a time-out of its own: with what ``inbox.shared_cache.Patience`` adds to it, all look-ups of
        a try have to fit into ``timeouts.start_to_close``.
        """
        ...
