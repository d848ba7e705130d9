"""All that Temporal is ever told of a message: references and codes (spec section 6).

No payload, subject or reason is in here, so none can reach a history, the visibility store or the UI. One
model a workflow and an activity, so that fields can be added without breaking running executions.
"""

from dataclasses import dataclass

PROCESS_MESSAGE = "ProcessMessage"
SEND_REPORT = "SendReport"
WAKE = "wake"
# A result's status where the row no longer exists (purged, say).
GONE = "GONE"


@dataclass(frozen=True)
class ProcessMessageInput:
    """Which row a ProcessMessage works on: ``message`` is ``inbox.message.id``. Time-outs of a try in seconds."""

    message: int
    source: str
    type: str
    start_to_close: float
    heartbeat: float


@dataclass(frozen=True)
class RegisterInput:
    """What a try is told; ``first_run_id`` is the first run of the workflow's chain, for the record."""

    message: int
    source: str
    type: str
    first_run_id: str


@dataclass(frozen=True)
class RegisterResult:
    """The row as a try left it: its status, and the code where it is DEAD."""

    status: str
    code: str | None = None
    hint: str | None = None


@dataclass(frozen=True)
class SendReportInput:
    """Which report a SendReport sends: ``report`` is ``inbox.report.id``. Time-outs of a call and of all in seconds."""

    report: int
    source: str
    start_to_close: float
    give_up_after: float


@dataclass(frozen=True)
class ReportInput:
    """The report that an activity works on: ``report`` is ``inbox.report.id``."""

    report: int
    source: str
