"""docs/faults.md says of `make chaos` what its code says."""

from __future__ import annotations

from pathlib import Path

from deploy.chaos.judge import RULES
from deploy.chaos.options import NUMBERED, SOURCES, WARD, Options
from deploy.chaos.pace import UNDER_WAY
from deploy.chaos.plan import CROWD, KILL, LOCK, STOP, draw_faults
from tests.unit.test_docs import section, table

TEXT = (Path(__file__).parents[2] / "docs/faults.md").read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    return [[cell.replace("`", "") for cell in row] for row in table(section(TEXT, heading))]


def test_every_variable_is_listed_with_its_default() -> None:
    listed = {row[0]: row[1] for row in rows("## Run it")}
    default = Options.read({})
    assert {name: listed[name] for name in ("MESSAGES", "KILLS")} == {
        "MESSAGES": str(default.messages),
        "KILLS": str(default.kills),
    }
    assert set(listed) == {"SEED", "MESSAGES", "KILLS", "SUMMARY", "DATA"}
    assert f"more than {UNDER_WAY} messages are under way" in TEXT


def test_every_rule_is_listed_and_no_other() -> None:
    assert [row[0] for row in rows("## The proof")] == list(RULES)


def test_every_source_and_every_kind_of_fault_is_listed() -> None:
    listed = [row[0] for row in rows("## What runs")]
    assert set(listed[: len(SOURCES)]) == set(SOURCES)
    assert set(listed[len(SOURCES) :]) == {KILL, f"{STOP}, then SIGCONT", LOCK, CROWD}
    orders = {row[0]: row[2] for row in rows("## What runs")[: len(SOURCES)]}
    assert (orders[NUMBERED], "park" in orders[WARD]) == ("sequence", True)


def test_two_faults_of_other_kinds_come_to_three_kills() -> None:
    faults = draw_faults(Options.read({"SEED": "1", "KILLS": "1000"}))
    assert "two faults of other kinds come on top of each three" in TEXT
    assert round(1000 * 5 / 3, -1) == round(len(faults), -1)
