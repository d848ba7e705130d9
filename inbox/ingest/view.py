"""How rows are shown to those who sent them and to operators: JSON, never the payload (spec section 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from inbox.ingest.accept import Incoming
from inbox.message import Key
from inbox.states import OwnCode, Status
from inbox.store.reads import Listed, Record, Waiting
from inbox.store.statements import Accepted


def told(code: str | None, reason: str | None, phrase: str) -> str | None:
    """Return a reason as upstream hears it: a handler's word for word, ``phrase`` for the inbox's own codes."""
    return phrase if code in set(OwnCode) else reason


def _ending(status: str, code: str | None, reason: str | None, outcome: Any) -> dict[str, Any]:
    """Return what is told of a closed message: its stored outcome, or why it is dead."""
    if status == Status.COMPLETED:
        return {"outcome": outcome}
    if status == Status.DEAD:
        return {"code": code, "reason": reason}
    return {}


def location(incoming: Incoming, found: Accepted) -> str:
    """Return the path of the record of the edition that the delivery met."""
    return f"/messages/{Key(incoming.tenant, incoming.source, incoming.id, found.edition)}"


def success(found: Accepted) -> int:
    """Return the status of the answer: 201 registered just now, 202 accepted, 200 a duplicate."""
    if not found.created:
        return 200
    return 201 if found.status == Status.COMPLETED else 202


def accepted_view(incoming: Incoming, found: Accepted, phrase: str) -> dict[str, Any]:
    """Return the answer to a delivery; a duplicate gets the first one's, with the row as it is now.

    ``phrase`` stands for a reason that is not a handler's.
    """
    reason = told(found.last_code, found.last_reason, phrase)
    return {
        "source": incoming.source,
        "id": incoming.id,
        "status": found.status,
        "duplicate": not found.created,
        "workflowId": found.workflow_id,
        "receivedAt": found.received_at,
        **_ending(found.status, found.last_code, reason, found.outcome),
    }


def _behind(record: Record | Listed) -> str | None:
    """Return the key of the message that holds this one."""
    if record.behind_id is None:
        return None
    return str(Key(record.tenant, record.source, record.behind_id, record.behind_edition))


def record_view(record: Record, phrase: str | None = None, *, missing: int | None = None) -> dict[str, Any]:
    """Return the record of one message, with reasons as they are kept: for operators.

    For its source, ``phrase`` stands for a reason that is not a handler's. ``missing`` is the number that it waits for.
    """
    reason = record.last_reason if phrase is None else told(record.last_code, record.last_reason, phrase)
    return {
        "tenant": record.tenant,
        "source": record.source,
        "id": record.message_id,
        "edition": record.edition,
        "type": record.type,
        "status": record.status,
        "generation": record.generation,
        "tries": record.tries - record.tries_before,
        "maxTries": record.max_tries,
        "lastCode": record.last_code,
        "lastReason": reason,
        "nextTryAt": record.next_try_at,
        "heldSince": record.held_since,
        "heldBehind": _behind(record),
        "missingNumber": missing,
        "parked": record.parked,
        "duplicates": record.duplicates,
        "workflowId": record.workflow_id,
        "traceId": record.traceparent.split("-")[1] if record.traceparent else None,
        "reportState": record.report_state,
        "receivedAt": record.received_at,
        "updatedAt": record.updated_at,
        "closedAt": record.closed_at,
        **_ending(record.status, record.last_code, reason, record.outcome),
    }


def listed_view(row: Listed) -> dict[str, Any]:
    """Return one message of a list: its key, and how far it is."""
    return {
        "key": str(Key(row.tenant, row.source, row.message_id, row.edition)),
        "type": row.type,
        "status": row.status,
        "tries": row.tries,
        "code": row.last_code,
        "receivedAt": row.received_at.isoformat(),
        "heldSince": row.held_since.isoformat() if row.held_since else None,
        "heldBehind": _behind(row),
    }


def open_view(lines: Sequence[Waiting]) -> list[dict[str, Any]]:
    """Return what only this code and Temporal can bring to its end, a line per source, type and state."""
    return [
        {
            "what": line.what,
            "source": line.source,
            "type": line.type,
            "state": line.state,
            "count": line.waiting,
            "oldestSeconds": line.oldest_seconds,
        }
        for line in lines
        if line.what != "given up"
    ]


def backlog_view(lines: Sequence[Waiting]) -> dict[str, Any]:
    """Return totals of what waits, with the oldest's age in seconds, and a line per source, type and state."""

    def total(what: str) -> dict[str, Any]:
        chosen = [line for line in lines if line.what == what]
        return {
            "count": sum(line.waiting for line in chosen),
            "oldestSeconds": max((line.oldest_seconds for line in chosen), default=None),
        }

    return {
        "open": total("open"),
        "held": total("held"),
        "parked": total("parked"),
        "owed": total("owed"),
        "givenUp": total("given up"),
        "lines": [
            {
                "what": line.what,
                "source": line.source,
                "type": line.type,
                "state": line.state,
                "count": line.waiting,
                "oldest": line.oldest,
            }
            for line in lines
        ],
    }
