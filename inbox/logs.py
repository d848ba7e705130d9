"""Structured logs: one JSON object a line, with the trace it belongs to; no cause more than once a second."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime

import orjson
from opentelemetry import trace

# What the libraries under us log at INFO holds URLs and statements.
QUIET = ("httpx", "httpcore", "psycopg", "alembic", "uvicorn.access", "sqlalchemy", "redis")
EXTRA = ("workflow_id", "message_id", "source")


class JsonFormatter(logging.Formatter):
    """Formats a record without exception texts: those could hold what was sent."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line of JSON."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        span = trace.get_current_span().get_span_context()
        if span.is_valid:
            line["trace_id"] = f"{span.trace_id:032x}"
        line |= {name: value for name in EXTRA if (value := getattr(record, name, None)) is not None}
        if record.exc_info and record.exc_info[0]:
            line["error"] = record.exc_info[0].__name__
        return orjson.dumps(line, default=str).decode()


def configure_logging(level: str = "INFO") -> None:
    """Send everything to standard error as JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    logging.getLogger("temporalio.activity").addFilter(OncePerSecond())
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.ERROR)


class OncePerSecond(logging.Filter):
    """Lets one line a second through for each wording: the SDK's own has the execution in braces behind it."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Tell whether the line is to be written."""
        cause, now = record.getMessage().partition(" ({")[0], time.monotonic()
        if now - self._last.get(cause, -1.0) < 1.0:
            return False
        self._last[cause] = now
        return True


class LimitedLog:
    """A logger that says one cause once a second at the most, with how often it stayed silent in between."""

    def __init__(self, logger: logging.Logger, interval: float = 1.0) -> None:
        self._logger = logger
        self._interval = interval
        self._last: dict[str, float] = {}
        self._silent: dict[str, int] = {}

    def warning(self, cause: str, message: str, *args: object, extra: Mapping[str, object] | None = None) -> None:
        """Log at WARNING."""
        self._log(logging.WARNING, cause, message, *args, extra=extra)

    def error(self, cause: str, message: str, *args: object, extra: Mapping[str, object] | None = None) -> None:
        """Log at ERROR."""
        self._log(logging.ERROR, cause, message, *args, extra=extra)

    def _log(self, level: int, cause: str, message: str, *args: object, extra: Mapping[str, object] | None) -> None:
        now = time.monotonic()
        if now - self._last.get(cause, -self._interval) < self._interval:
            self._silent[cause] = self._silent.get(cause, 0) + 1
            return
        self._last[cause] = now
        silent = self._silent.pop(cause, 0)
        counted = f"{message} (and {silent} times more)" if silent else message
        self._logger.log(level, counted, *args, extra=extra)
