"""How a session of the tests ends: a plugin, which tests/conftest.py takes in."""

import os
import sys

import pytest


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Leave at once: a thread of Temporal's client can abort the interpreter's own way out (sdk-python issue 300).

    A worker of xdist too: all that it has to tell is written by then.
    """
    status = getattr(config, "inbox_exit_status", None)
    if status is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Remember how it ended."""
    session.config.inbox_exit_status = int(exitstatus)  # type: ignore[attr-defined]
