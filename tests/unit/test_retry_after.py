"""How long a report waits by Retry-After (RFC 9110, section 10.2.3)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from activities.report import _retry_after


def http_date(moment: datetime) -> str:
    return format_datetime(moment.astimezone(UTC), usegmt=True)


@pytest.mark.parametrize("hours", [-1, 0, 1])
def test_a_date_is_read_by_the_clock_of_who_said_it(hours: int) -> None:
    theirs = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=hours)
    headers = {"Date": http_date(theirs), "Retry-After": http_date(theirs + timedelta(seconds=90))}
    assert _retry_after(httpx.Response(503, headers=headers)) == 90


@pytest.mark.parametrize("date", [{}, {"Date": "soon"}, {"Date": "Fri, 31 Dec 99999999999 23:59:59 GMT"}])
def test_without_a_date_of_theirs_it_is_ours(date: dict[str, str]) -> None:
    headers = date | {"Retry-After": http_date(datetime.now(UTC) + timedelta(hours=1))}
    assert 3500 < (_retry_after(httpx.Response(503, headers=headers)) or 0) <= 3600
