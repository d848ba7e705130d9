"""``python -m tests.support.asking REDIS_URL SERVICE_URL LOCK TIMES``: for each line that it reads, so many look-ups at once.

Prints ``ready``, and then for each line the values as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys

import httpx
from redis.asyncio import Redis

from inbox.cache import HandlerLookups
from inbox.shared_cache import Patience, SharedCache

# A loaded machine is no reason for a direct call here: how long a fault may take is tested elsewhere.
PATIENT = {"limit": 20.0, "wait": 60.0}


async def run(redis_url: str, service_url: str, lock: str, times: str) -> None:
    shared = SharedCache(Redis.from_url(redis_url, protocol=2), Patience(lock=float(lock), **PATIENT))
    async with httpx.AsyncClient(base_url=service_url, timeout=60, trust_env=False) as http:

        async def look_up(key: str) -> dict[str, int]:
            found: dict[str, int] = (await http.get(f"/{key}")).raise_for_status().json()
            return found

        cache = HandlerLookups("inbox", "handler", shared).cache("thing", dict[str, int], look_up)
        print("ready", flush=True)  # noqa: T201
        while key := (await asyncio.to_thread(sys.stdin.readline)).strip():
            values = await asyncio.gather(*(cache.get(key) for _ in range(int(times))))
            print(json.dumps(values), flush=True)  # noqa: T201
    await shared.aclose()


if __name__ == "__main__":
    asyncio.run(run(*sys.argv[1:]))
