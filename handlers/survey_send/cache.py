"""A look-up cache with a time to live, in process, single-flight (spec section 10)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from cachetools import TTLCache
from opentelemetry import trace

V = TypeVar("V")
TTL = 300.0  # seconds: as long may a corrected setting take to be seen
MAX_KEYS = 10_000


class LookupCache(Generic[V]):
    """Keeps what ``look_up`` returned, and never what it raised: a missing setting is asked for again."""

    def __init__(self, name: str, look_up: Callable[[str], Awaitable[V]], ttl: float = TTL) -> None:
        self._span = f"look up {name}"
        self._look_up = look_up
        self._kept: TTLCache[str, tuple[V]] = TTLCache(MAX_KEYS, ttl)
        self._flying: dict[str, asyncio.Task[V]] = {}
        self._tracer = trace.get_tracer("handlers.survey_send")

    async def get(self, key: str) -> V:
        """Return the value for ``key``; callers that ask together share one call, its result and its error.

        The call belongs to none of them: one that is cancelled takes nothing from the others.
        """
        with self._tracer.start_as_current_span(
            self._span, record_exception=False, set_status_on_exception=False
        ) as span:
            kept = self._kept.get(key)  # one look: a second could find it expired
            span.set_attribute("cache.hit", kept is not None)
            if kept is not None:
                return kept[0]
            task = self._flying.get(key)
            if task is None:
                task = asyncio.create_task(self._fly(key))
                self._flying[key] = task
            return await asyncio.shield(task)

    async def _fly(self, key: str) -> V:
        try:
            value = await self._look_up(key)
            self._kept[key] = (value,)
            return value
        finally:
            del self._flying[key]
