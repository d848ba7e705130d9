"""The states of a message and of a report, and the edges between them (spec section 3).

The database refuses every edge that is not in ``EDGES``: the trigger ``inbox.refuse_edge`` of the first
migration holds the same table, and a test compares the two.
"""

from enum import StrEnum


class Status(StrEnum):
    """State of a message; the first three are open, the last two closed."""

    RECEIVED = "RECEIVED"  # stored, no try yet in this generation
    PROCESSING = "PROCESSING"  # a try holds it
    FAILED = "FAILED"  # the last try failed, another is due
    COMPLETED = "COMPLETED"  # its bundle is committed
    DEAD = "DEAD"  # given up; a redrive opens it again


# The outcome of a message whose number was passed before it came.
OBSOLETE = "obsolete"

CLOSED = frozenset({Status.COMPLETED, Status.DEAD})

EDGES: frozenset[tuple[Status, Status]] = frozenset(
    {
        (Status.RECEIVED, Status.PROCESSING),  # claim
        (Status.RECEIVED, Status.DEAD),  # discard, cancel, gap time-out, forget
        (Status.PROCESSING, Status.PROCESSING),  # claim again: the last try was lost
        (Status.PROCESSING, Status.COMPLETED),  # bundle committed
        (Status.PROCESSING, Status.FAILED),  # failure recorded, tries left
        (Status.PROCESSING, Status.DEAD),  # tries used, non-retryable, or buried
        (Status.FAILED, Status.PROCESSING),  # claim
        (Status.FAILED, Status.DEAD),  # discard, cancel, forget, or the limit was lowered
        (Status.DEAD, Status.RECEIVED),  # redrive
    }
)


class ReportState(StrEnum):
    """State of a notice owed upstream; the first two are open."""

    OWED = "OWED"  # nothing has been said upstream yet
    SENDING = "SENDING"  # committed before the first call: upstream may have heard it
    SENT = "SENT"  # upstream acknowledged it
    GIVEN_UP = "GIVEN_UP"  # its time ran out; `inbox report` sends it again
    WITHDRAWN = "WITHDRAWN"  # a redrive took it back before anything was said


class ReportKind(StrEnum):
    """What a report says (spec section 7)."""

    DEAD = "DEAD"
    NOT_SENT = "NOT_SENT"
    CANNOT_RESEND = "CANNOT_RESEND"
    CORRECTION = "CORRECTION"


# Whether a report of this kind tells upstream that the message was registered.
REPORT_RESULT = {
    ReportKind.DEAD: "N",
    ReportKind.NOT_SENT: "Y",
    ReportKind.CANNOT_RESEND: "N",
    ReportKind.CORRECTION: "Y",
}


class OwnCode(StrEnum):
    """The codes that the inbox itself gives; every other is a handler's (spec section 8).

    What stands behind them in a row is for operators; upstream hears a fixed phrase instead.
    """

    SYSTEM_ERROR = "SYSTEM_ERROR"
    TRY_LOST = "TRY_LOST"
    INVALID_PAYLOAD = "INVALID_PAYLOAD"
    PAYLOAD_GONE = "PAYLOAD_GONE"
    CANCELLED = "CANCELLED"
    DISCARDED = "DISCARDED"
    TERMINATED = "TERMINATED"
    SEQUENCE_GAP = "SEQUENCE_GAP"
