"""Recovery times of `make chaos`: what counts as under way, from when, and until when."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from deploy.chaos.evidence import Line, Row
from deploy.chaos.keeper import Done
from deploy.chaos.plan import CROWD, KILL, POSTGRES, STOP, TEMPORAL, Fault
from deploy.chaos.recovery import middle_and_worst, recoveries
from tests.unit.test_chaos_judge import message

LEDGER, NUMBERED, COUNTS, WARD = "ledger", "seq-producer", "report-producer", "ward"


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def row(name: int, came: float, ended: float, source: str = LEDGER, **changes: Any) -> Row:
    sent = message(source, f"M-{name}")
    made = Row(
        name, source, sent.id, "COMPLETED", sent.subject, None, 1, 1, 0, 5, None, {}, False, False,
        moment(came), moment(ended), sent.data,
    )  # fmt: skip
    return replace(made, **changes)


def fault(at: float = 100, back: float | None = 102, what: str = KILL, whom: str = "worker 1") -> Done:
    return Done(Fault(at, what, whom, 2), at, back)


def measured(rows: list[Row], *faults: Done) -> tuple[float, int]:
    first = recoveries(faults or (fault(),), rows)[0]
    return round(first.seconds, 3), first.under_way


def test_from_the_fault_until_the_last_of_what_was_under_way_has_moved_on() -> None:
    rows = [row(1, 90, 104, COUNTS), row(2, 99, 107, COUNTS), row(3, 90, 99, COUNTS), row(4, 101, 120, COUNTS)]
    assert measured(rows) == (7, 2)
    assert recoveries([fault()], rows)[0].first == 4
    assert recoveries([fault()], rows)[0].slowest == "report-producer/M-2"


@pytest.mark.parametrize("whom", [POSTGRES, TEMPORAL])
def test_a_lone_server_counts_from_its_being_back(whom: str) -> None:
    assert measured([row(1, 90, 107)], fault(whom=whom)) == (5, 1)
    assert measured([row(1, 90, 101)], fault(whom=whom)) == (0, 1)


def test_a_failed_or_lost_try_is_a_sign_of_life() -> None:
    lines = tuple(Line(n, "TRY_LOST", moment(at)) for n, at in ((1, 95), (2, 106), (3, 110)))
    assert measured([row(1, 90, 120, lines=lines)]) == (6, 1)


def test_of_a_subject_only_the_one_whose_turn_it_is_counts() -> None:
    assert measured([row(1, 80, 103), row(2, 90, 130)]) == (3, 1)
    numbered = [row(2, 80, 130, NUMBERED, number=3), row(1, 90, 103, NUMBERED, number=2)]
    assert measured(numbered) == (3, 1)


def test_who_waits_for_a_number_that_is_not_sent_yet_is_not_under_way() -> None:
    assert measured([row(1, 80, 130, NUMBERED, number=3), row(2, 101, 110, NUMBERED, number=2)]) == (0, 0)


def test_what_waits_for_a_person_does_not_count() -> None:
    assert measured([row(1, 80, 130, WARD)]) == (0, 0)
    assert measured([row(1, 80, 130, generation=2), row(2, 90, 131)]) == (0, 0)


def test_a_fault_that_another_one_met_is_disturbed() -> None:
    rows = [row(1, 90, 104)]
    later, before, between = fault(105, 106), fault(90, 99), fault(103, 110, STOP, POSTGRES)
    assert recoveries([fault(), later, before], rows)[0].disturbed is False
    assert recoveries([fault(), between], rows)[0].disturbed is True
    assert recoveries([fault(), fault(98, 101, CROWD, POSTGRES)], rows)[0].disturbed is True


def test_one_whose_victim_never_came_back_is_not_measured() -> None:
    assert recoveries([fault(back=None)], [row(1, 90, 104)]) == []


def test_middle_and_worst() -> None:
    rows = [row(1, 90, 104), row(2, 110, 121, COUNTS)]
    assert middle_and_worst([one.seconds for one in recoveries([fault(), fault(120, 121)], rows)]) == (2.5, 4)
    assert middle_and_worst([]) == (0, 0)
