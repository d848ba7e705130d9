"""An ingest is killed at each of its points; what is left goes on, and nothing is lost or done twice."""

from pathlib import Path

import pytest

from tests.support.crash import Scenario
from tests.support.crash_cases import cases
from tests.support.crash_doors import DOORS
from tests.support.stack import Stack


@pytest.mark.parametrize(("scenario", "point"), cases(DOORS))
async def test_nothing_is_lost_and_nothing_done_twice(
    stack: Stack, tmp_path: Path, scenario: Scenario, point: str
) -> None:
    await scenario.play(stack, tmp_path, point)
