"""All that the author of a handler imports (spec section 10).

A handler is one class. The inbox gives it deduplication, one transaction with the inbox row, retries, dead
letters, notices upstream and traces::

    class Welcome:
        type = "customer.created"
        payload = Customer                      # a pydantic model

        async def prepare(self, message): ...   # look-ups, idempotent remote calls; outside any transaction
        async def register(self, tx, message, prepared): ...   # all writes, through tx alone
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

from pydantic import BaseModel

from inbox.errors import BusinessError
from inbox.lookups import Lookup, Lookups
from inbox.message import Key
from inbox.states import ReportKind

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

__all__ = [
    "AuditCounts",
    "BusinessError",
    "Handler",
    "Lookup",
    "Lookups",
    "Message",
    "Notice",
    "Outcome",
    "Report",
    "ReportKind",
    "Reporter",
]

P = TypeVar("P", bound=BaseModel)
R = TypeVar("R")


@dataclass(frozen=True)
class Message(Generic[P]):
    """One message as a handler sees it.

    ``id`` is the producer's, unique within (``tenant``, ``source``); ``edition`` is 1, or higher for a wish to
    send the same again, maybe with other content. ``received_at`` is the time of receipt, aware, the same in every
    try. ``zone`` is the source's time zone.
    """

    tenant: str
    source: str
    id: str
    edition: int
    type: str
    subject: str | None
    received_at: datetime
    zone: tzinfo
    payload: P

    @property
    def key(self) -> str:
        """What names it among all messages, the same in every try: ``source/id``, with tenant and edition if any.

        Percent-encoded, so that it may stand in a header or a URL: an idempotency key for calls to other services.
        """
        return str(Key(self.tenant, self.source, self.id, self.edition))


@dataclass(frozen=True)
class Notice:
    """Something that upstream must be told of a message that completed."""

    kind: ReportKind
    reason: str


@dataclass(frozen=True)
class Outcome:
    """What a bundle left: ``result`` is stored, and answered to every later duplicate.

    Keep it small and free of personal data: it is kept as long as the record.
    """

    result: Mapping[str, Any] = field(default_factory=dict)
    notice: Notice | None = None


@dataclass(frozen=True)
class AuditCounts:
    """What a handler found when it compared its tables with the record (spec section 13); two of it must be zero.

    ``bundles`` were written since then. ``missing`` counts its messages that became COMPLETED since then and have no
    whole bundle; an obsolete one (outcome ``"obsolete"``) never has one, and is not counted. ``orphaned`` counts the
    bundles written since then whose message is not COMPLETED, or not there.

    All three come from one statement: a bundle and its message's COMPLETED are committed together, so that one
    snapshot has both or neither, and two statements may fall between.
    """

    bundles: int
    missing: int
    orphaned: int


class Handler(Protocol[P, R]):
    """What the inbox calls for messages of one type.

    Optional attributes, of the class or of the instance:

    ``settings``: a pydantic model; the handler is then built with an instance of it, made from the table
    ``[handlers.NAME]`` of the settings. ``codes``: code → static hint for operators. ``non_retryable``: codes that a
    further try cannot mend. ``timeout``: seconds that a try may take, where ``timeouts.start_to_close`` is too short.
    ``reporter``. ``resends``: True where it serves what is sent again too, of type ``{type}.resend`` and a higher
    ``edition``. ``async aclose()``: called when the worker ends. ``async audit(tx, since) -> AuditCounts``: compares
    the handler's tables with ``inbox.message``, for whatever happened since an aware datetime; it only reads.

    One that is built by calling it with a parameter ``lookups`` is given its ``Lookups``, the cache for what
    ``prepare`` looks up.
    """

    type: str
    payload: builtins.type[P]

    async def prepare(self, message: Message[P]) -> R:
        """Look things up and make idempotent remote calls; runs outside any transaction.

        Raises BusinessError to refuse the message; any other error is a system error. Both fail the try.
        """
        ...

    async def register(self, tx: AsyncConnection, message: Message[P], prepared: R) -> Outcome:
        """Write the bundle through ``tx`` alone; it commits together with the row's COMPLETED.

        Raises as ``prepare`` does; whatever was written is then rolled back.
        """
        ...


@dataclass(frozen=True)
class Report:
    """One notice as a reporter sees it; ``result`` is ``Y`` (registered) or ``N``."""

    source: str
    id: str
    type: str
    kind: ReportKind
    result: str
    code: str
    reason: str


@runtime_checkable
class Reporter(Protocol):
    """Says how a report is put into the words of its upstream."""

    def body(self, report: Report) -> Mapping[str, Any]:
        """Return the JSON object to POST to the source's report URL."""
        ...


class PlainReporter:
    """The reporter of handlers that name none: the report's own fields."""

    def body(self, report: Report) -> Mapping[str, Any]:
        """Return source, id, type, kind, result, code and reason."""
        return {
            "source": report.source,
            "id": report.id,
            "type": report.type,
            "kind": report.kind.value,
            "result": report.result,
            "code": report.code,
            "reason": report.reason,
        }


def codes_of(handler: object) -> Mapping[str, str]:
    """Return the handler's codes with their hints; empty where it declares none."""
    return getattr(handler, "codes", {})


def non_retryable_of(handler: object) -> Sequence[str]:
    """Return the codes that the handler declares beyond repair."""
    return getattr(handler, "non_retryable", ())


def timeout_of(handler: object) -> float:
    """Return the seconds that the handler asks for its tries; 0 where it asks for none."""
    return getattr(handler, "timeout", None) or 0.0


def reporter_of(handler: object | None) -> Reporter:
    """Return the handler's reporter, or the plain one."""
    return getattr(handler, "reporter", None) or PlainReporter()
