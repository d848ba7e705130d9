"""The arithmetic of docs/operators.md: what tries, interval, growth and cap outlast."""

from pathlib import Path

import pytest

from inbox.sources import SourceSettings

PAGE = (Path(__file__).parents[2] / "docs/operators.md").read_text(encoding="utf-8")
HEAD = "| tries | interval | growth | cap | outlasts at least | after the return at most |"
LINES = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.partition(HEAD)[2].partition("\n\n")[0].splitlines()[2:]
]
SECONDS = {"s": 1, "min": 60, "h": 3600}


def seconds(text: str) -> float:
    number, unit = text.split()
    return float(number) * SECONDS[unit]


def test_the_table_has_lines() -> None:
    assert len(LINES) == 3


@pytest.mark.parametrize("line", LINES)
def test_what_the_table_says_is_what_the_settings_do(line: list[str]) -> None:
    tries, interval, growth, cap, outlasts, late = line
    waiting = {} if cap == "none" else {"retry_cap": float(cap)}
    source = SourceSettings(
        types=["t"],
        auth="none",
        tries=int(tries),
        retry_interval=float(interval),
        retry_growth=float(growth),
        **waiting,
    )
    waits = [source.retry_after(number) for number in range(1, source.tries)]
    assert sum(waits) == pytest.approx(seconds(outlasts), rel=0.01)
    assert max(waits) * 1.1 == pytest.approx(seconds(late), rel=0.01)
