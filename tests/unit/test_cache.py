"""The look-up cache in one process: one call for callers that ask together, nothing wrong kept (spec section 10)."""

from __future__ import annotations

import asyncio

import pytest

from inbox.cache import HandlerLookups, LookupCache
from tests.support.looking import Service
from tests.support.waiting import eventually


def lookups(kind: str, look_up: Service, ttl: float = 300) -> LookupCache[object]:
    return HandlerLookups("inbox", "handler").cache(kind, object, look_up, ttl=ttl)


def ask(cache: LookupCache[object], times: int, key: str = "k") -> list[asyncio.Task[object]]:
    return [asyncio.create_task(cache.get(key)) for _ in range(times)]


async def test_callers_that_ask_together_make_one_call() -> None:
    service = Service()
    cache = lookups("thing", service)
    callers = ask(cache, 50)
    await service.asked()
    callers += ask(cache, 50)
    service.may_answer.set()
    assert await asyncio.gather(*callers) == ["value"] * 100
    assert service.calls == ["k"]


async def test_a_value_is_kept_for_those_who_ask_later() -> None:
    service = Service()
    service.may_answer.set()
    cache = lookups("thing", service)
    assert [await cache.get("k") for _ in range(3)] == ["value"] * 3
    assert service.calls == ["k"]


async def test_each_key_is_asked_for_by_itself() -> None:
    service = Service()
    cache = lookups("thing", service)
    callers = ask(cache, 5, "a") + ask(cache, 5, "b")
    await service.asked(2)
    service.may_answer.set()
    await asyncio.gather(*callers)
    assert sorted(service.calls) == ["a", "b"]


@pytest.mark.parametrize("empty", [[], None, "", 0])
async def test_an_empty_answer_is_kept_like_any_other(empty: object) -> None:
    service = Service(empty)
    service.may_answer.set()
    cache = lookups("thing", service)
    assert [await cache.get("k"), await cache.get("k")] == [empty, empty]
    assert service.calls == ["k"]


async def test_an_error_goes_to_all_who_asked_together_and_is_not_kept() -> None:
    service = Service(LookupError("missing"))
    cache = lookups("thing", service)
    callers = ask(cache, 10)
    await service.asked()
    service.may_answer.set()
    errors = await asyncio.gather(*callers, return_exceptions=True)
    assert [type(error) for error in errors] == [LookupError] * 10
    assert service.calls == ["k"]
    service.answer = "registered meanwhile"
    assert await cache.get("k") == "registered meanwhile"
    assert service.calls == ["k", "k"]


async def test_a_caller_that_is_cancelled_takes_nothing_from_the_others() -> None:
    service = Service()
    cache = lookups("thing", service)
    first, second, third = ask(cache, 3)
    await service.asked()
    first.cancel()
    third.cancel()
    await asyncio.wait([first, third])
    service.may_answer.set()
    assert await second == "value"
    assert first.cancelled()
    assert third.cancelled()
    assert service.calls == ["k"]


async def test_a_call_that_nobody_waits_for_any_more_is_kept_all_the_same() -> None:
    service = Service()
    cache = lookups("thing", service)
    (only,) = ask(cache, 1)
    await service.asked()
    only.cancel()
    await asyncio.wait([only])
    service.may_answer.set()
    assert await cache.get("k") == "value"
    assert service.calls == ["k"]


async def test_a_value_past_its_time_is_asked_for_again() -> None:
    service = Service("old")
    service.may_answer.set()
    cache = lookups("thing", service, ttl=0.05)
    assert await cache.get("k") == "old"
    service.answer = "new"
    await eventually(lambda: cache.get("k"), lambda value: value == "new")
