"""All that Temporal is ever told of a message: references and codes (spec section 6).

No payload, subject or reason is in here, so none can reach a history, the visibility store or the UI. One
model a workflow and an activity, so that fields can be added without breaking running executions.
"""

from dataclasses import dataclass

PROCESS_MESSAGE = "ProcessMessage"
SEND_REPORT = "SendReport"
WAKE = "wake"
TRIED = "tried"
# The memo of an execution that names its row.
MESSAGE_MEMO = "message"
# Statuses of a result beside the row's own: the row no longer exists (purged, say); or it is of another generation than
# the run was told, mostly since it was redriven.
GONE = "GONE"
OVERTAKEN = "OVERTAKEN"
# The handler needs a longer start-to-close than the attempt has: it is scheduled anew with that, and no try was spent.
LONGER = "LONGER"
# Order holds it; what stands before it makes it due when it ends, and dispatch wakes the workflow.
HELD = "HELD"
MOST_COUNTED = 1000  # messages that wait behind one are counted up to here


@dataclass(frozen=True)
class ProcessMessageInput:
    """Which row a ProcessMessage works on: ``message`` is ``inbox.message.id``. Time-outs of a try in seconds.

    ``placed`` messages have a subject, and so a place among others.
    """

    message: int
    source: str
    type: str
    start_to_close: float
    heartbeat: float
    generation: int = 1
    placed: bool = True


@dataclass(frozen=True)
class RegisterInput:
    """What a try is told: the row, and the generation that it may work on.

    ``first_run_id`` is the first run of the workflow's chain, for the record.
    """

    message: int
    source: str
    type: str
    first_run_id: str
    generation: int = 1
    placed: bool = True


@dataclass(frozen=True)
class BuryInput:
    """Which generation of a row to close as DEAD, and with which code."""

    message: int
    source: str
    generation: int
    code: str


@dataclass(frozen=True)
class Tried:
    """A failed try, as it tells its workflow, for operators: try ``number`` of ``limit``, the next in seconds.

    ``waiting`` messages of its subject, up to ``MOST_COUNTED``, wait behind it.
    """

    number: int
    limit: int
    code: str
    hint: str | None
    next_in: float
    waiting: int = 0


@dataclass(frozen=True)
class RegisterResult:
    """The row as a try left it: its status, and the code where it is DEAD.

    Where it is parked, ``waiting`` messages of its subject, up to ``MOST_COUNTED``, wait behind it. With LONGER,
    ``start_to_close`` is what the handler asks for, in seconds; with OVERTAKEN, ``generation`` is the row's.
    """

    status: str
    code: str | None = None
    hint: str | None = None
    waiting: int = 0
    start_to_close: float | None = None
    generation: int | None = None


@dataclass(frozen=True)
class SendReportInput:
    """Which report a SendReport sends: ``report`` is ``inbox.report.id``. Time-outs of a call and of all in seconds.

    ``heartbeat`` is that of a call, in seconds; None for those that were started before there was one.
    """

    report: int
    source: str
    start_to_close: float
    give_up_after: float
    heartbeat: float | None = None


@dataclass(frozen=True)
class ReportInput:
    """The report that an activity works on: ``report`` is ``inbox.report.id``."""

    report: int
    source: str
