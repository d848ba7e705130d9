"""What may leave an activity: codes, classes and statuses, never another's error text (spec section 6)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from temporalio.exceptions import ApplicationError

from inbox.errors import NotServed, StoreUnavailable, fault_of
from inbox.logs import LimitedLog

limited = LimitedLog(logging.getLogger(__name__))


@contextmanager
def codes_only() -> Iterator[None]:
    """Turn whatever else is raised into a retryable ApplicationError that says its class and status alone.

    Texts of Postgres hold rows, those of httpx URLs; Temporal would keep them, and the SDK log them.
    """
    try:
        yield
    except ApplicationError as error:
        error.__context__ = None  # it may have been raised while another's error was handled: spans print the chain
        raise
    except (NotServed, StoreUnavailable) as error:
        raise ApplicationError(type(error).__name__, type=type(error).__name__) from None
    except (asyncio.CancelledError, GeneratorExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # noqa: BLE001  whatever it is, its text stays here: the SDK takes them all
        fault = fault_of(error)
        limited.error(str(fault), "an activity failed: %s", fault)
        raise ApplicationError(str(fault), type=fault.error_class) from None
