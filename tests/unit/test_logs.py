"""One cause is said once a second at the most, however many messages it meets."""

from __future__ import annotations

import logging

import pytest
from temporalio.exceptions import ApplicationError

from activities.failures import codes_only
from inbox.logs import LimitedLog


def test_what_fails_of_many_messages_at_once_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    class Unforeseen(Exception):
        """Of this test alone: the limit is a process's own."""

    for _ in range(100):
        with pytest.raises(ApplicationError), codes_only():
            raise Unforeseen
    assert [record.getMessage() for record in caplog.records] == ["an activity failed: Unforeseen"]


def test_a_line_says_of_which_source_it_is(caplog: pytest.LogCaptureFixture) -> None:
    limited = LimitedLog(logging.getLogger("test"))
    for source in ("ward", "ward", "hospital"):
        limited.warning(source, "a report was not taken: %s", "ConnectError", extra={"source": source})
    assert [vars(record)["source"] for record in caplog.records] == ["ward", "hospital"]
