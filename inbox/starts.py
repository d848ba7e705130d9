"""What a row of each kind is started as: its workflow, argument and task queue, and how it is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from inbox.references import MESSAGE_MEMO, PROCESS_MESSAGE, SEND_REPORT, ProcessMessageInput, SendReportInput
from inbox.settings import Settings
from inbox.sources import GIVE_UP_AFTER
from inbox.store.due import MESSAGES, REPORTS, Leased, Queue

SOURCE = SearchAttributeKey.for_keyword("InboxSource")
TYPE = SearchAttributeKey.for_keyword("InboxType")


@dataclass(frozen=True)
class Route:
    """One kind of row: its statements, and the workflow that works on it."""

    queue: Queue
    workflow: str
    argument: Callable[[Settings, Leased], Any]
    task_queue: Callable[[Settings, Leased], str]

    def memo(self, row: Leased) -> dict[str, Any] | None:
        """Return what tells whoever finds a message's execution which row it is of."""
        return {MESSAGE_MEMO: row.id} if self.queue is MESSAGES else None


def _process_message(settings: Settings, row: Leased) -> ProcessMessageInput:
    timeouts = settings.declared.timeouts
    return ProcessMessageInput(
        row.id, row.source, row.type, timeouts.start_to_close, timeouts.heartbeat, row.generation, row.placed
    )


def _send_report(settings: Settings, row: Leased) -> SendReportInput:
    source = settings.source(row.source)
    reporting = source.report if source else None
    give_up_after = reporting.give_up_after if reporting else GIVE_UP_AFTER
    timeouts = settings.declared.timeouts
    return SendReportInput(row.id, row.source, timeouts.start_to_close, give_up_after, timeouts.heartbeat)


ROUTES = (
    Route(MESSAGES, PROCESS_MESSAGE, _process_message, lambda settings, row: settings.task_queue(row.source)),
    Route(REPORTS, SEND_REPORT, _send_report, lambda settings, _: settings.report_queue),
)


def search_attributes(row: Leased) -> TypedSearchAttributes:
    """Return what an execution can be found by from its start on."""
    return TypedSearchAttributes([SearchAttributePair(SOURCE, row.source), SearchAttributePair(TYPE, row.type)])


def summary(settings: Settings, row: Leased) -> str:
    """Return the line by which the UI shows an execution; without the ID where that is private, or nobody says."""
    source = settings.source(row.source)
    shown = "" if source is None or source.private_ids else f": {row.message_id}"
    return f"{row.type} from {row.source}{shown}"
