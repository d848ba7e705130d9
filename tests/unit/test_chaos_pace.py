"""The clock of a run stands still while it is held."""

import asyncio

import pytest

from deploy.chaos import pace
from deploy.chaos.pace import Pace


def test_it_stands_before_it_begins_and_while_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [100.0]
    monkeypatch.setattr(pace.time, "monotonic", lambda: seconds[0])
    clock, told = Pace(), []
    for step, held in ((5, None), (5, None), (2, True), (2, True), (3, False), (1, False), (4, True)):
        seconds[0] += step
        if held is None:
            told.append(clock.now())
            if len(told) == 1:
                clock.begin()
            continue
        clock.hold(when=held)
        told.append(clock.now())
    assert told == [0, 5, 7, 7, 7, 8, 12]
    seconds[0] += 9
    assert clock.now() == 12
    clock.hold(when=False)
    seconds[0] += 1
    assert clock.now() == 13


async def test_whoever_is_late_waits_too_while_it_is_held() -> None:
    clock = Pace()
    clock.begin()
    clock.hold(when=True)
    late = asyncio.create_task(clock.reached(0))
    await asyncio.wait([late], timeout=0.05)
    assert not late.done()
    clock.hold(when=False)
    await asyncio.wait_for(late, 5)
