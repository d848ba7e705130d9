"""When a survey is to be sent (spec sections 4 and 10)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from handlers.survey_send.payload import SurveySend, send_time

# A slow machine is no fault of what is tested.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

SEOUL = ZoneInfo("Asia/Seoul")
RECEIVED = datetime(2026, 11, 30, 3, 4, 5, tzinfo=UTC)
REQUIRED = {"srvyDrawupNo": "P1", "patno": "900000001", "formCd": "P-EQ5D"}


def sent_at(value: Any, zone: ZoneInfo = SEOUL) -> datetime:
    return send_time(SurveySend(**REQUIRED, sendDt=value), RECEIVED, zone)


def test_the_time_is_read_in_the_sources_zone() -> None:
    assert sent_at("20991201093000") == datetime(2099, 12, 1, 0, 30, tzinfo=UTC)
    assert sent_at("20991201093000", ZoneInfo("UTC")) == datetime(2099, 12, 1, 9, 30, tzinfo=UTC)


def test_the_zones_offset_is_that_of_the_day() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    assert sent_at("20260115120000", berlin).utcoffset() == timedelta(hours=1)
    assert sent_at("20260715120000", berlin).utcoffset() == timedelta(hours=2)


def test_a_day_that_only_leap_years_have_is_read() -> None:
    assert sent_at("20280229000000") == datetime(2028, 2, 28, 15, tzinfo=UTC)


@pytest.mark.parametrize(
    "value",
    [
        *["", " ", "soon", "20270229000000", "20261301000000", "20260100000000", "20260101240000", "20260101006000"],
        *["20260101000060", "00000101000000", "2026010100000", "202601010000000", "2026-01-01 0000", " 2026010100000"],
        *["+2026010100000", "20260101 00000", "２０９９１２０１０９３０００", "209912010930٠٠", "2099120109300\0"],
        *[None, 20991201093000, 1.5, True, [], ["20991201093000"], {}, "한" * 14],
    ],
)
def test_what_is_no_time_means_the_time_of_receipt(value: Any) -> None:
    assert sent_at(value) == RECEIVED


@given(st.one_of(st.text(max_size=16), st.text("0123456789", min_size=14, max_size=14), st.none(), st.integers()))
@UNTIMED
def test_any_value_gives_a_time_that_can_be_compared(value: Any) -> None:
    assert (sent_at(value) < RECEIVED) in (True, False)


@pytest.mark.parametrize("name", sorted(REQUIRED))
@pytest.mark.parametrize("change", ["missing", "empty", "null", "number"])
def test_what_a_survey_can_not_do_without_is_required(name: str, change: str) -> None:
    values: dict[str, Any] = {"missing": {}, "empty": {name: ""}, "null": {name: None}, "number": {name: 7}}[change]
    with pytest.raises(ValidationError):
        SurveySend.model_validate({key: value for key, value in REQUIRED.items() if key != name} | values)


def test_what_else_the_old_system_sends_is_no_fault() -> None:
    assert SurveySend.model_validate(REQUIRED | {"later": {"a": [1]}}).sendDt is None
