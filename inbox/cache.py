"""The look-up cache: a time to live, single-flight, in process and shared where there is a server (spec section 10)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from cachetools import TLRUCache
from pydantic import TypeAdapter

from inbox.lookups import TTL
from inbox.shared_cache import Found, Place, SharedCache, ask
from inbox.spans import span

V = TypeVar("V")
MAX_KEYS = 10_000


class LookupCache(Generic[V]):
    """Keeps what ``find`` found for as long as it says, and never what it raised: a missing setting is asked again."""

    def __init__(self, kind: str, find: Callable[[str], Awaitable[Found[V]]]) -> None:
        self._span = f"look up {kind}"
        self._find = find
        self._kept: TLRUCache[str, Found[V]] = TLRUCache(MAX_KEYS, lambda _, found, now: now + found.left)
        self._flying: dict[str, asyncio.Task[Found[V]]] = {}

    async def get(self, key: str) -> V:
        """Return the value for ``key``; callers that ask together share one call, its result and its error.

        The call belongs to none of them: one that is cancelled takes nothing from the others.
        """
        with span(self._span) as current:
            kept = self._kept.get(key)  # one look: a second could find it expired
            current.set_attribute("cache.hit", kept is not None)
            if kept is not None:
                return kept.value
            task = self._flying.get(key)
            if task is None:
                task = asyncio.create_task(self._fly(key))
                self._flying[key] = task
            found = await asyncio.shield(task)
            current.set_attribute("cache.hit", found.hit)
            return found.value

    async def _fly(self, key: str) -> Found[V]:
        try:
            found = await self._find(key)
            self._kept[key] = found
            return found
        finally:
            del self._flying[key]


class HandlerLookups:
    """``Lookups`` of the handler called ``handler`` in the inbox called ``inbox``."""

    def __init__(self, inbox: str, handler: str, shared: SharedCache | None = None) -> None:
        self._inbox = inbox
        self._handler = handler
        self._shared = shared

    def cache(
        self, kind: str, value: type[V], look_up: Callable[[str], Awaitable[V]], *, ttl: float = TTL, version: int = 1
    ) -> LookupCache[V]:
        """Return a cache; see ``inbox.lookups``."""
        shared = self._shared
        if shared is None:
            return LookupCache(kind, lambda key: ask(look_up, key, ttl))
        place = Place(self._inbox, self._handler, kind, version)
        adapter = TypeAdapter(value)

        async def find(key: str) -> Found[V]:
            return await shared.find(place, key, adapter, look_up, ttl)

        return LookupCache(kind, find)
