"""Parameters of the statements of a try, for tests that send them without a worker."""

from datetime import UTC, datetime
from typing import Any

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def acceptance(message_id: str, source: str = "p", subject: str | None = "s", **changes: Any) -> dict[str, Any]:
    """Return what ACCEPT is given for a new message."""
    return {
        "tenant": "",
        "source": source,
        "message_id": message_id,
        "type": "report.count",
        "subject": subject,
        "sequence": None,
        "ordered": True,
        "position": None,
        "sha256": b"0" * 32,
        "max_tries": 5,
        "workflow_id": f"inbox/{source}/{message_id}",
        "traceparent": None,
        "content_type": "application/json",
        "body": b"{}",
        "resend": False,
    } | changes


def claim(row: int, **changes: Any) -> dict[str, Any]:
    """Return what CLAIM is given, and what stands before it where order is asked."""
    return {
        "id": row,
        "max_tries": 5,
        "worker": "1@test",
        "run_id": "run",
        "first_run_id": "run",
        "activity": "1",
        "attempt": 1,
        "longest": 30.0,
        "began_at": BEGAN,
        "asked": 1,
        "ordered": True,
        "sequenced": False,
        "gap": 3600.0,
    } | changes


def failure(row: int, **changes: Any) -> dict[str, Any]:
    """Return what FAIL is given."""
    return {
        "id": row,
        "generation": 1,
        "tries": 1,
        "code": "CODE",
        "reason": "because",
        "told": "because",
        "error_class": None,
        "non_retryable": False,
        "delay": 60.0,
        "began_at": BEGAN,
        "reports": True,
        "park": False,
    } | changes


def completion(row: int, xact: str, **changes: Any) -> dict[str, Any]:
    """Return what COMPLETE is given; ``xact`` is TAKE_FENCE's."""
    return {
        "id": row,
        "generation": 1,
        "tries": 1,
        "xact": xact,
        "outcome": "{}",
        "notice": None,
        "notice_reason": None,
        "reports": True,
    } | changes
