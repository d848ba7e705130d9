"""Which points are killed at: by default all that leave something behind, and some others (docs/faults.md says why)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from typing import Any

import pytest

from tests.support.crash import Scenario
from tests.support.points import points

# What was not committed is rolled back, wherever in it the process died: of those points, one in three.
NOTHING_DONE = ("before", "committing")
SHARE = 3
WANTED = os.environ.get("CRASH_POINTS", "0")
if WANTED not in {"all", *map(str, range(SHARE))}:
    raise pytest.UsageError(f"CRASH_POINTS must be all, or 0 to {SHARE - 1}, and is {WANTED!r}")


@cache
def _nothing_done() -> list[str]:
    return [point for point in points() if point.partition(":")[0] in NOTHING_DONE]


def is_chosen(point: str, wanted: str = WANTED) -> bool:
    """Tell whether a point is killed at.

    ``wanted`` is ``all``, or which third of those that leave nothing behind, beside all others.
    """
    if wanted == "all" or point not in _nothing_done():
        return True
    return _nothing_done().index(point) % SHARE == int(wanted)


def cases(scenarios: Iterable[Scenario]) -> list[Any]:
    """Return the cases of some scenarios, as pytest's parameters; those that are not chosen are skipped, and say so."""
    left_out = pytest.mark.skip(reason=f"CRASH_POINTS={WANTED}: CRASH_POINTS=all kills at every point")
    return [
        pytest.param(scenario, point, id=f"{scenario.name}-{point}", marks=() if is_chosen(point) else left_out)
        for scenario in scenarios
        for point in scenario.points
    ]
